"""Fail-stop of a broker: from the exception that `step` raised to those who are kept out for it."""

from __future__ import annotations

import logging
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
from roamcast.storage.failures import Failure, describe, failure_of, write_report
from roamcast.storage.journal import Journal
from roamcast.storage.kept_out import UNEXPLAINED_WITHIN_S
from roamcast.storage.restarting import FailStop

log = logging.getLogger("roamcast")


def restarting(fail_stop: FailStop, site: AnyMachine, journal: Journal | None) -> OnFailure:
    """What the engine calls when `step` raises."""

    def restart(error: Exception, now: float, inputs: list[MachineInput]) -> NoReturn:
        last = journal.last_sequence if journal is not None else 0
        fail_stop.restart(_failure(error, site.id, now, with_beginnings(site, inputs), last))

    return restart


def _failure(error: Exception, id: str, now: float, inputs: Sequence[AnyInput], last: int) -> Failure:
    return failure_of(error, id, __version__, now, inputs, encode_entry(now, inputs), last)


def settle(fail_stop: FailStop, site: AnyMachine) -> None:
    """After a fail-stop: keep out who brought it. `site` is recovered, and nothing else happened to it yet.

    The process ends if there were too many fail-stops that nobody can be blamed for.
    """
    if fail_stop.before is None:
        return
    kept_out, failure = fail_stop.kept_out, fail_stop.before.failure
    verdict = judge(site, decode_entry(failure.entry))
    why = f"{failure.error}; {fail_stop.before.report}"
    for who in verdict.culprits:
        log.warning("%s is kept out for %.0f s: its input raised %s", who, kept_out.blame(who, why), why)
    for who in verdict.suspects:
        seconds = kept_out.suspect(who, why)
        log.warning("%s is kept out for %.0f s: it had input in a turn that raised %s", who, seconds, why)
    if not verdict.culprits and not kept_out.count_unexplained():
        minutes = UNEXPLAINED_WITHIN_S / 60
        fail_stop.give_up(
            f"too many fail-stops within {minutes:g} minutes that no client or peer can be blamed for:"
            f" the broker ends; the last one: {failure.error}; {fail_stop.before.report}"
        )
    if not verdict.culprits and not verdict.suspects:
        log.warning("no client or peer had a part in the fail-stop: %s", failure.error)
    kept_out.save()


def cannot_replay(config: Config, error: Exception, data: bytes) -> InputError:
    """A journal entry that raises now would raise again after every restart: the broker ends instead."""
    if isinstance(error, InputError):
        return error
    entry = decode_entry(data)
    try:
        report = write_report(Path(config.data), _failure(error, config.id, entry.now, entry.inputs, 0))
        told = f"report: {report}"
    except OSError as problem:
        told = f"no report, it cannot be written ({problem.strerror or problem})"
    return InputError(
        f"journal {config.journal_folder}: an entry cannot be replayed ({describe(error)}); the journal is"
        f" unchanged; {told}; start the version that wrote it, or restore the folder from a copy"
    )
