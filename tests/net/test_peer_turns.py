"""How much one turn takes from a peer: as much as fits its time."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from roamcast.net import peer_connection
from roamcast.net.peer_connection import (
    TURN_BYTES,
    TURN_BYTES_MAX,
    TURN_BYTES_MIN,
    TURN_S,
    Owner,
    PeerConnection,
)

FRAME = (1020).to_bytes(4, "big") + bytes(1020)


class Turns:
    """The owner of a connection, whose turns take as long as the test says."""

    def __init__(self, patch: pytest.MonkeyPatch, turn_s: float) -> None:
        self.now_s, self.turn_s = 0.0, turn_s
        self.taken: list[int] = []
        patch.setattr(peer_connection, "monotonic", lambda: self.now_s)

    def arrived(self, connection: PeerConnection, frames: bytes) -> None:
        self.taken.append(len(frames))
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.now_s += self.turn_s


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self._is_reading = True

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True


def taken(patch: pytest.MonkeyPatch, turn_s: float) -> list[int]:
    """What each turn takes of 256 KiB that arrive at once."""
    turns = Turns(patch, turn_s)

    async def run() -> None:
        connection = PeerConnection(cast(Owner, turns), is_dialer=True)
        connection.frame_bytes_max = len(FRAME)
        connection.transport = transport = Transport()
        connection.state = "up"
        connection.data_received(FRAME * 256)
        while not transport.is_reading() and connection.state == "up":
            await asyncio.sleep(0)
        assert connection.state == "up"

    asyncio.run(run())
    assert sum(turns.taken) == 256 * len(FRAME)
    return turns.taken


def test_turns_that_take_long_take_less(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = taken(monkeypatch, 2 * TURN_S)
    assert sizes[:3] == [TURN_BYTES, TURN_BYTES // 2, TURN_BYTES_MIN]
    assert set(sizes[2:]) == {TURN_BYTES_MIN}


def test_turns_that_are_short_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = taken(monkeypatch, TURN_S / 10)
    assert sizes[:3] == [TURN_BYTES, 2 * TURN_BYTES, TURN_BYTES_MAX]


def test_turns_of_the_right_length_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(taken(monkeypatch, TURN_S / 2)) == {TURN_BYTES}
