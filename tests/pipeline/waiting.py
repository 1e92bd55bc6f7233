"""Waiting for Spark, which takes its time to start where others use the machine as well."""

import time
from collections.abc import Callable

DEADLINE_S = 300.0


def wait_until(happened: Callable[[], bool], complaint: Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < end, complaint()
        time.sleep(0.05)
