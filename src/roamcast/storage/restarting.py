"""Fail-stop: end the process at once, and begin it anew under its process id.

The new process is told what happened through a file in memory, so that a full disk changes nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import msgspec

from roamcast.storage.failures import Failure, write_report
from roamcast.storage.kept_out import KeptOut, Ledger

log = logging.getLogger("roamcast")

VARIABLE = "_ROAMCAST_FAIL_STOP"
"""Names the file in memory. It does not begin as settings do."""
EXIT_FAILED = 70
"""A fault of ours, as the command line has it."""


class Handover(msgspec.Struct, frozen=True):
    """What a process leaves to the one that takes its place."""

    failure: Failure
    report: str
    """Where the report is, or why there is none."""
    ledger: Ledger


class FailStop:
    """The fail-stops of one process: the one before it, if that is why it was started, and its own."""

    def __init__(self, data: Path, clock: Callable[[], float] = time.time) -> None:
        self._data = data
        self.before = _take_handover()
        """What ended the process before."""
        self.kept_out = KeptOut(data, clock, self.before.ledger if self.before is not None else None)
        self.closes: list[Callable[[], None]] = []
        """What to close before the end, in this order; nothing of the turn that failed may be in there."""

    def restart(self, failure: Failure) -> NoReturn:
        """Report the failure and begin anew from the journal, with the same command and process id."""
        kept_out = self.kept_out
        kept_out.fail_stops += 1
        report = _reported(self._data, failure)
        log.critical(
            "fail-stop: %s at %s, in a turn with %d inputs; nothing of it was kept or sent; %s;"
            " starting again from the journal",
            failure.error, failure.place, failure.input_count, report,
        )  # fmt: skip
        _close_all(self.closes)
        # Sockets, listeners and locks are closed by the system as the new program begins.
        _exec(Handover(failure, report, kept_out.ledger))

    def give_up(self, why: str) -> NoReturn:
        """Leave it to whoever started the process."""
        self.kept_out.save()
        log.critical("%s", why)
        raise SystemExit(EXIT_FAILED)


def _reported(data: Path, failure: Failure) -> str:
    try:
        return f"report: {write_report(data, failure)}"
    except OSError as error:
        return f"no report, it cannot be written ({error.strerror or error})"


def _close_all(closes: Iterable[Callable[[], None]]) -> None:
    for close in closes:
        try:
            close()
        except Exception as error:
            log.warning("while stopping: %s: %s", type(error).__name__, error)


def _exec(handover: Handover) -> NoReturn:
    try:
        file = os.memfd_create("roamcast-fail-stop")
        with open(file, "wb", closefd=False) as opened:
            opened.write(msgspec.msgpack.encode(handover))
        os.set_inheritable(file, True)
        os.execve(sys.executable, sys.orig_argv, {**os.environ, VARIABLE: str(file)})
    except OSError as error:
        log.critical("cannot start again (%s): the process ends", error.strerror or error)
        os._exit(EXIT_FAILED)


def _take_handover() -> Handover | None:
    named = os.environ.pop(VARIABLE, "")
    if not named:
        return None
    try:
        with open(int(named), "rb") as file:
            file.seek(0)
            return msgspec.msgpack.decode(file.read(), type=Handover)
    except (OSError, ValueError) as error:
        log.warning("what the process before left cannot be read (%s)", error)
        return None
