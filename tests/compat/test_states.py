"""What snapshots and journals hold stays readable for the builds that come.

`states.json` and `inputs.json` hold the declared states and the journal's entries as they were shipped. After
a change that is allowed, note it there and look at the diff:

    ROAMCAST_REGENERATE=1 python -m pytest tests/compat/test_states.py
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.broker.test_replays import simulated
from tests.compat.state_table import (
    Component,
    Inputs,
    States,
    Value,
    current_inputs,
    current_states,
    import_rooms,
    input_violations,
    names_in,
    state_violations,
)

from roamcast import __version__
from roamcast.mobility import PROTOCOLS
from roamcast.protocol.snapshot import freeze
from roamcast.protocol.snapshot_form import STATE_CLASSES

STATES, INPUTS = (Path(__file__).parent / name for name in ("states.json", "inputs.json"))
REGENERATE = os.environ.get("ROAMCAST_REGENERATE") == "1"


def text_of(table: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(table), indent=2).decode() + "\n"


def note(path: Path, table: Any) -> None:
    if REGENERATE:
        path.write_text(text_of(table))
    assert path.read_text() == text_of(table), "something is new: ROAMCAST_REGENERATE=1 notes it"


def observed_names() -> list[str]:
    """What occurs in the states of brokers whose clients roam, with every protocol."""
    found: list[str] = []
    for protocol in sorted(one for one in PROTOCOLS if ":" not in one):
        network, _ = simulated(protocol, 5)
        snapshots = (journal.snapshot for journal in network._journals.values())
        for snapshot in (*filter(None, snapshots), *map(freeze, network.machines.values())):
            found += names_in(snapshot)
    return found


def test_states_are_as_they_were_shipped() -> None:
    shipped = msgspec.json.decode(STATES.read_bytes(), type=States)
    current = current_states(shipped, observed_names())
    assert list(state_violations(shipped, current)) == []
    note(STATES, current)


def test_no_two_classes_of_states_have_one_name() -> None:
    import_rooms()
    assert STATE_CLASSES.ambiguous() == [], "give all but one another name: __state__ = State(…)"


def test_journal_entries_are_as_they_were_shipped() -> None:
    shipped = msgspec.json.decode(INPUTS.read_bytes(), type=Inputs)
    current = current_inputs(shipped)
    assert list(input_violations(shipped, current)) == []
    note(INPUTS, current)


LINK = Component(1, 1, ["peer", "sent"], ["settled"])


@pytest.mark.parametrize(
    ("released", "new", "said"),
    [
        (False, Component(1, 1, ["peer", "new"], []), "link: its saved fields changed: set version=2 in"),
        (False, Component(1, 1, ["peer"], ["sent", "settled"]), "link: its saved fields changed"),
        (True, Component(1, 1, ["peer"], []), "link: its saved fields changed: set version=2 in its State, "),
        (True, Component(2, 1, ["peer"], ["settled"]), "link: there is no lift from version 1, which "),
        (True, None, "link: snapshots hold it: keep a class"),
        (False, Component(0, 1, ["peer", "sent"], ["settled"]), "link: its version fell from 1 to 0"),
    ],
)  # fmt: skip
def test_a_change_that_breaks_snapshots_is_named(released: bool, new: Component | None, said: str) -> None:
    current = States(released, {} if new is None else {"link": new})
    (found, *_) = state_violations(States(released, {"link": LINK}), current)
    assert found.startswith(said)


def test_a_new_version_is_no_violation_before_the_first_release() -> None:
    current = States(False, {"link": Component(2, 2, ["peer"], [])})
    assert list(state_violations(States(False, {"link": LINK, "gone": LINK}), current)) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (None, "Run: snapshots hold it: keep the name, with State('Run') if its class was renamed"),
        ({"a": False}, "Run.b: snapshots hold it: keep it, or declare a State with a lift"),
        ({"a": False, "b": True, "c": False}, "Run.c: it is new and needs a default"),
        ({"a": False, "b": True, "c": True}, ""),
    ],
)
def test_a_value_that_breaks_snapshots_is_named(fields: dict[str, bool] | None, said: str) -> None:
    current = States(False, {}, {} if fields is None else {"Run": fields})
    found = list(state_violations(States(False, {}, {"Run": {"a": False, "b": True}}), current))
    assert found == ([said] if said else [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fields: fields.pop("a"), "Tick.a: journals hold it: keep it; or raise REPLAY in"),
        (lambda fields: fields.update(a="str"), "Tick.a: its type changed from int to str: keep it; "),
        (lambda fields: fields.update(c="int"), "Tick.c: it is new and needs a default; or raise REPLAY"),
        (lambda fields: fields.update(a=fields.pop("a")), "Tick: its fields are told by their places: "),
    ],
)  # fmt: skip
def test_a_change_that_breaks_journals_is_named(change: Callable[[dict[str, str]], Any], said: str) -> None:
    shipped, changed = {"a": "int", "b": "bytes = default"}, {"a": "int", "b": "bytes = default"}
    change(changed)
    before = Inputs(True, 1, {"Tick": Value(shipped, True)})
    after = Inputs(True, 1, {"Tick": Value(changed, True)})
    (found, *_) = input_violations(before, after)
    assert found.startswith(said)
    assert list(input_violations(before, Inputs(True, 2, after.entries))) == []
    (gone,) = input_violations(before, Inputs(True, 1, {}))
    assert gone.startswith("Tick: journals hold it: keep it, with tag=")


def test_the_version_is_the_same_wherever_it_is_said() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project.get("version", __version__) == __version__
