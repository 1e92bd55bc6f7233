"""A broker goes on only from a state that it can vouch for, and says in one line why it does not."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from roamcast.broker import machine_base
from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import REPLAY, Started, StateChecked, Tick, decode_entry, encode_entry
from roamcast.broker.making import make_machine
from roamcast.broker.settings import MachineSettings
from roamcast.config.sections import Config
from roamcast.daemon import main
from roamcast.daemon.main import recover
from roamcast.errors import InputError
from roamcast.protocol.snapshot import freeze, state_hash
from roamcast.state import State
from roamcast.storage.journal import Journal
from roamcast.storage.recovery import Recovered

SETTINGS = MachineSettings("a")


def open_journal(folder: Path) -> tuple[Journal, AnyMachine | None]:
    """The journal of a broker, and the machine that was recovered from it."""
    config = Config(data=str(folder))
    journal, recovered = Journal.open(config.journal_folder, sync="process", version="0.0", replay=REPLAY)
    try:
        return journal, recover(config, recovered, lambda number, rows: None)
    except BaseException:
        journal.close()
        raise


def drive(journal: Journal, machine: AnyMachine, turns: int, spoil: int = -1) -> None:
    """Let a broker run for some turns; in the turn `spoil` the journal gets a wrong check."""
    for turn in range(turns):
        now = machine.endpoint.now + 1.0
        durable = machine.step(now, [Started(SETTINGS)] if turn == 0 else [Tick()]).durable
        if turn == spoil:
            durable = [*durable, StateChecked({"links": 1})]
        journal.append(encode_entry(now, durable))
    journal.commit()


def test_a_broker_is_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_base, "CHECK_EVERY", 4)
    journal, machine = open_journal(tmp_path)
    assert machine is None
    machine = make_machine(SETTINGS)
    drive(journal, machine, 10)
    journal.close()
    journal, found = open_journal(tmp_path)
    assert state_hash(found) == state_hash(machine)
    assert found is not None
    journal.write_snapshot(freeze(found))
    drive(journal, found, 10)
    journal.close()
    journal, again = open_journal(tmp_path)
    assert state_hash(again) == state_hash(found)
    journal.close()


def test_a_replay_that_comes_to_another_state_is_refused(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    drive(journal, make_machine(SETTINGS), 10, spoil=6)
    journal.close()
    refusal = (
        r"^journal .*: entry 7: the replayed state differs from the one that was journalled in: links; "
        r"keep a copy of the folder for a report, and start the version that wrote it, or restore a backup$"
    )
    with pytest.raises(InputError, match=refusal):
        open_journal(tmp_path)


def test_a_snapshot_that_this_version_cannot_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = open_journal(tmp_path)
    machine = make_machine(SETTINGS)
    later = type(machine).__dict__["__state__"]
    newer = State(later.name, 2, saved=later.saved, unhashed=later.unhashed, derived=later.derived)
    with monkeypatch.context() as patch:
        patch.setattr(type(machine), "__state__", newer)
        patch.setattr("roamcast.protocol.snapshot_form.STATE_CLASSES._fields", {})
        journal.write_snapshot(freeze(machine))
    journal.close()
    monkeypatch.setattr("roamcast.protocol.snapshot_form.STATE_CLASSES._fields", {})
    refusal = r"broker-machine is of version 2, this code knows 1: a newer one wrote it\); version 0\.0 wrote"
    with pytest.raises(InputError, match=refusal):
        open_journal(tmp_path)


def test_a_check_can_be_read_from_an_entry_and_an_entry_of_before_has_none() -> None:
    entry = decode_entry(encode_entry(1.0, [Tick(), StateChecked({"links": 5})]))
    assert entry.inputs == [Tick(), StateChecked({"links": 5})]
    assert decode_entry(msgspec.msgpack.encode([1.0, [["Tick"]]])).inputs == [Tick()]


def large_state(folder: Path) -> Recovered:
    """What is recovered from the folder of a broker, which is verified by another process."""
    journal, _ = open_journal(folder)
    machine = make_machine(SETTINGS)
    drive(journal, machine, 3)
    journal.write_snapshot(freeze(machine))
    journal.close()
    config = Config(data=str(folder))
    journal, recovered = Journal.open(config.journal_folder, sync="process", version="0.0", replay=REPLAY)
    try:
        recover(config, recovered, lambda number, rows: None)
    finally:
        journal.close()
    return recovered


def test_a_large_state_is_verified_beside_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "VERIFIED_HERE_BYTES", 0)
    recovered = large_state(tmp_path)
    assert recovered.snapshot is None, "its bytes are not kept"
    assert recovered.verifying is not None
    asyncio.run(main._end_if_wrong(recovered.verifying, tmp_path))


def test_a_broker_ends_whose_state_turns_out_to_be_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[int] = []

    def differs(machine: object, data: object) -> None:
        raise InputError("its state hash is 1, not 2")

    monkeypatch.setattr(main, "VERIFIED_HERE_BYTES", 0)
    monkeypatch.setattr(main, "verify_hash", differs)
    recovered = large_state(tmp_path)
    assert recovered.verifying is not None
    monkeypatch.setattr(os, "_exit", ended.append)
    asyncio.run(main._end_if_wrong(recovered.verifying, tmp_path))
    assert ended == [2]
    assert (
        "its state hash is 1, not 2; keep a copy of the folder for a report: the process ends" in caplog.text
    )
