"""Fail-stop: end the process at once, and restart it under the same process id.

The new process learns of the failure through a file in memory, so that a full disk does not matter.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from roamcast.storage.failures import Failure, describe, write_report
from roamcast.storage.kept_out import UNEXPLAINED_WITHIN_S, KeptOut, Ledger, Who

log = logging.getLogger("roamcast")

VARIABLE = "_ROAMCAST_FAIL_STOP"
"""Names the file in memory. Unlike settings, it begins with an underscore."""
EXIT_FAILED = 70
"""Exit code for a fault of ours, as in the command line."""


class Handover(msgspec.Struct, frozen=True):
    """Data that a process leaves to its successor."""

    failure: Failure
    report: str
    """Path of the report, or why there is none."""
    ledger: Ledger
    culprit: Who | None = None
    """Source of the input, if known at once."""


class FailStop:
    """The fail-stops of one process: the one that ended its predecessor, if any, and its own."""

    def __init__(self, data: Path, clock: Callable[[], float] = time.time) -> None:
        self._data = data
        self.before = _take_handover()
        """Fail-stop that ended the process before."""
        self.kept_out = KeptOut(data, clock, self.before.ledger if self.before is not None else None)
        self.closes: list[Callable[[], None]] = []
        """Functions to call before the end, in this order; none may write results of the failed turn."""

    def restart(self, failure: Failure, culprit: Who | None = None) -> NoReturn:
        """Report the failure and restart from the journal, with the same command and process id."""
        try:
            self._restart(failure, culprit)
        except BaseException as error:
            # In no case may the loop continue with a half-changed state.
            log.critical("cannot restart (%s): the process ends", describe(error))
        os._exit(EXIT_FAILED)

    def _restart(self, failure: Failure, culprit: Who | None) -> None:
        kept_out = self.kept_out
        kept_out.fail_stops += 1
        report = reported(self._data, failure)
        log.critical(
            "fail-stop: %s at %s, in a turn with %d inputs, which was discarded; %s;"
            " restarting from the journal",
            failure.error, failure.place, failure.input_count, report,
        )  # fmt: skip
        _close_all(self.closes)
        # The system closes sockets, listeners and locks when the new program begins.
        _exec(Handover(failure, report, kept_out.ledger, culprit))

    def settle(self, culprits: Sequence[Who], suspects: Sequence[Who] = ()) -> None:
        """Keep out those responsible for the last fail-stop.

        The process ends if there were too many fail-stops without a culprit, and leaves the decision to its
        supervisor.
        """
        if self.before is None:
            return
        kept_out, why = self.kept_out, f"{self.before.failure.error}; {self.before.report}"
        for who in culprits:
            log.warning("%s is kept out for %.0f s: its input raised %s", who, kept_out.blame(who, why), why)
        for who in suspects:
            seconds = kept_out.suspect(who, why)
            log.warning("%s is kept out for %.0f s: it had input in a turn that raised %s", who, seconds, why)
        is_too_much = not culprits and not kept_out.count_unexplained()
        kept_out.save()
        if is_too_much:
            minutes = UNEXPLAINED_WITHIN_S / 60
            log.critical(
                "too many fail-stops within %g minutes without a known culprit: the process ends;"
                " last one: %s", minutes, why,
            )  # fmt: skip
            raise SystemExit(EXIT_FAILED)
        if not culprits and not suspects:
            log.warning("fail-stop without a known culprit: %s", why)


def reported(data: Path, failure: Failure) -> str:
    """Return the path of the report, or why there is none."""
    try:
        return f"report: {write_report(data, failure)}"
    except OSError as error:
        return f"no report, it cannot be written ({error.strerror or error})"
    except Exception as error:
        return f"no report ({describe(error)})"


def _close_all(closes: Iterable[Callable[[], None]]) -> None:
    for close in closes:
        try:
            close()
        except Exception as error:
            log.warning("while stopping: %s", describe(error))


def _exec(handover: Handover) -> NoReturn:
    file = os.memfd_create("roamcast-fail-stop")
    with open(file, "wb", closefd=False) as opened:
        opened.write(msgspec.msgpack.encode(handover))
    os.set_inheritable(file, True)
    os.execve(sys.executable, sys.orig_argv, {**os.environ, VARIABLE: str(file)})


def _take_handover() -> Handover | None:
    named = os.environ.pop(VARIABLE, "")
    if not named:
        return None
    try:
        with open(int(named), "rb") as file:
            file.seek(0)
            return msgspec.msgpack.decode(file.read(), type=Handover)
    except (OSError, ValueError) as error:
        log.warning("cannot read the data that the previous process left (%s)", error)
        return None
