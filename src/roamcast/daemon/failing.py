"""Fail-stop of a broker: from the exception that the machine raised to keeping out the clients that caused
it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from roamcast import __version__
from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import MachineInput, decode_entry, encode_entry
from roamcast.config.sections import Config
from roamcast.daemon.culprits import AnyInput, judge, with_beginnings
from roamcast.daemon.engine import OnFailure
from roamcast.errors import InputError
from roamcast.storage.failures import Failure, describe, failure_of
from roamcast.storage.journal import Journal
from roamcast.storage.restarting import FailStop, reported


def restarting(fail_stop: FailStop, site: AnyMachine, journal: Journal | None) -> OnFailure:
    """Return the function that the engine calls when the machine raises."""

    def restart(error: Exception, now: float, inputs: list[MachineInput]) -> NoReturn:
        last = journal.last_sequence if journal is not None else 0
        try:
            failure = _failure(error, site.id, now, with_beginnings(site, inputs), last)
        except Exception:
            # The state of the site may be invalid, and some inputs may not be encodable.
            failure = _failure(error, site.id, now, [], last)
        fail_stop.restart(failure)

    return restart


def _failure(error: Exception, id: str, now: float, inputs: Sequence[AnyInput], last: int) -> Failure:
    return failure_of(error, id, __version__, now, inputs, encode_entry(now, inputs), last)


def settle(fail_stop: FailStop, site: AnyMachine) -> None:
    """After a fail-stop, keep out the clients and peers that caused it. `site` is the state recovered from
    the journal."""
    if fail_stop.before is not None:
        verdict = judge(site, decode_entry(fail_stop.before.failure.entry))
        fail_stop.settle(verdict.culprits, verdict.suspects)


def cannot_replay(config: Config, error: Exception, data: bytes) -> InputError:
    """Raise an error: a journal entry that raises now would raise at every restart, so the broker ends
    instead."""
    if isinstance(error, InputError):
        return error
    entry = decode_entry(data)
    told = reported(Path(config.data), _failure(error, config.id, entry.now, entry.inputs, 0))
    return InputError(
        f"journal {config.journal_folder}: an entry cannot be replayed ({describe(error)}); the journal is"
        f" unchanged; {told}; start the version that wrote it, or restore the folder from a copy"
    )
