"""What one broker heard and what it said to its peers, written down, and compared with what a build says.

A turn holds the inputs of the broker as a journal entry, and the frames that it wrote to each peer. The
frames are read here by a reader of their own, so that a change of the wire format cannot change both sides.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from tests.compat.worlds import CompatWorld

from roamcast.broker.inputs import MachineInput, Started, decode_entry, encode_entry
from roamcast.broker.making import make_machine

BATCH, ACKNOWLEDGED, FLEETING = 1, 3, 4
OPTIONAL = "?"
CARRIERS = ("Relayed", "About")
"""The last field of these is a message."""


class Turn(msgspec.Struct):
    entry: bytes
    frames: dict[str, bytes]
    """Written in this turn, by peer."""


class RecordingWorld(CompatWorld):
    """Writes down all turns of one broker."""

    def __init__(self, protocol: str, broker: str) -> None:
        self.broker = broker
        self.turns: list[Turn] = []
        super().__init__(protocol)

    def step(self, id: str, inputs: list[MachineInput]) -> None:
        before = {pair: len(waiting) for pair, waiting in self.wires.items()}
        super().step(id, inputs)
        if id == self.broker:
            said = {
                peer: b"".join(waiting[before.get((source, peer), 0) :])
                for (source, peer), waiting in self.wires.items()
                if source == id
            }
            frames = {peer: data for peer, data in said.items() if data}
            self.turns.append(Turn(encode_entry(self.now, inputs), frames))


class Said(msgspec.Struct):
    """What a broker said to one peer: the same however it was cut into frames."""

    numbered: list[list[Any]] = []
    fleeting: list[list[Any]] = []
    acknowledged: int = 0


def said_by(turns: Iterable[Turn]) -> dict[str, Said]:
    found: dict[str, Said] = defaultdict(Said)
    for turn in turns:
        for peer, data in turn.frames.items():
            _read(found[peer], data)
    return dict(found)


def _read(said: Said, data: bytes) -> None:
    for kind, body in _frames_of(data):
        if kind == BATCH:
            _, acknowledged, first = struct.unpack_from(">QQQ", body)
            known = len(said.numbered) + 1 - first
            said.numbered += msgspec.msgpack.decode(body[24:])[known:]
            said.acknowledged = max(said.acknowledged, acknowledged)
        elif kind == FLEETING:
            said.fleeting += msgspec.msgpack.decode(body)
        else:
            assert kind == ACKNOWLEDGED, f"an unknown kind of frame, {kind}"
            said.acknowledged = max(said.acknowledged, *struct.unpack(">Q", body))


def _frames_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        length, kind = struct.unpack_from(">IB", data, at)
        yield kind, data[at + 5 : at + 4 + length]
        at += 4 + length


def answer(turns: Iterable[Turn]) -> list[Turn]:
    """Let this build live through the turns of a broker, and write down what it says."""
    machine: Any = None
    answered = []
    for turn in turns:
        entry = decode_entry(turn.entry)
        if machine is None:
            (first,) = entry.inputs
            assert isinstance(first, Started)
            machine = make_machine(first.settings)
        effects = machine.step(entry.now, entry.inputs)
        assert not effects.link_closes, effects.link_closes
        if effects.durable:
            machine.journalled()
        frames = {peer: end.take() for peer, end in machine.links.ends.items()}
        answered.append(Turn(turn.entry, frames))
    return answered


def check_says_as_before(before: list[list[Any]], now: list[list[Any]]) -> None:
    """Every message of before is there, in order, with all its fields; fields may have been added at the end.

    Optional messages may have been added, too: their tags say so.
    """
    known = {message[0] for message in before}
    now = [message for message in now if not message[0].startswith(OPTIONAL) or message[0] in known]
    assert [message[0] for message in now] == [message[0] for message in before]
    for was, is_now in zip(before, now, strict=True):
        _check_fields(was, is_now)


def _check_fields(was: list[Any], is_now: list[Any]) -> None:
    assert len(is_now) >= len(was), f"{was[0]} has lost fields: {is_now}"
    if was[0] in CARRIERS:
        *was, was_carried = was
        _check_fields(was_carried, is_now[len(was)])
    now = [_without_added(before, field) for before, field in zip(was, is_now, strict=False)]
    assert now == was, f"{was[0]} differs"


def _without_added(was: Any, is_now: Any) -> Any:
    """A value as it was known before: a session travels with the names of its fields, a message as a list
    that begins with its tag."""
    if isinstance(was, list) and isinstance(is_now, list) and was and isinstance(was[0], str):
        return is_now[: len(was)] if is_now[:1] == was[:1] else is_now
    if not (isinstance(was, dict) and isinstance(is_now, dict)):
        return is_now
    return {name: value for name, value in is_now.items() if name in was}
