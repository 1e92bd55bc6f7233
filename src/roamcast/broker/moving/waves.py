"""Waves over the tree: a question to everyone who can be reached, answered when all have.

A wave travels behind everything sent before over the same links. So when it is answered, all brokers
have received that, and their earlier messages have arrived. A broker passes the wave on to its other
peers, and answers when they have answered. Lost links are not waited for: the brokers behind one are
partitioned by now, or return over another link.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Protocol

from roamcast.protocol.messages import Cause, Message
from roamcast.state import State

Purpose = tuple[Any, ...]
"""Plain values that identify a wave to the part of the site that began it."""


class Wave(Message, frozen=True):
    number: int
    """Number that distinguishes the waves sent over one link in one direction."""
    cause: ClassVar[Cause] = "subscribe"


class WaveBack(Message, frozen=True):
    number: int
    cause: ClassVar[Cause] = "subscribe"


class Sending(Protocol):
    def send(self, peer: str, message: Message) -> None: ...


class Waves:
    __state__ = State("waves", saved=("_links", "_count", "_open", "_purposes", "_askers", "_done"))

    def __init__(self, links: Sending) -> None:
        self._links = links
        self._count = 0
        self._open: dict[int, dict[str, None]] = {}
        """Wave number to the peers that have not answered."""
        self._purposes: dict[int, Purpose] = {}
        """Purposes of waves that began here."""
        self._askers: dict[int, tuple[str, int]] = {}
        """Other waves: the peer to be answered, and the number it used."""
        self._done: list[Purpose] = []

    def begin(self, purpose: Purpose, peers: Collection[str]) -> None:
        self._count += 1
        self._purposes[self._count] = purpose
        self._flood(self._count, peers)

    def take_done(self) -> list[Purpose]:
        """Return the purposes of the waves that ended."""
        done, self._done = self._done, []
        return done

    def on_wave(self, sender: str, message: Wave, peers: Collection[str]) -> None:
        self._count += 1
        self._askers[self._count] = sender, message.number
        self._flood(self._count, [peer for peer in peers if peer != sender])

    def on_back(self, sender: str, message: WaveBack) -> None:
        waiting = self._open.get(message.number)
        if waiting is not None and waiting.pop(sender, 0) is None and not waiting:
            self._finish(message.number)

    def on_link_down(self, peer: str) -> None:
        for number, asker in list(self._askers.items()):
            if asker[0] == peer:
                del self._askers[number], self._open[number]
        for number, waiting in list(self._open.items()):
            if waiting.pop(peer, 0) is None and not waiting:
                self._finish(number)

    def _flood(self, number: int, peers: Collection[str]) -> None:
        self._open[number] = dict.fromkeys(peers)
        for peer in peers:
            self._links.send(peer, Wave(number))
        if not peers:
            self._finish(number)

    def _finish(self, number: int) -> None:
        del self._open[number]
        purpose = self._purposes.pop(number, None)
        if purpose is not None:
            self._done.append(purpose)
            return
        asker, asked = self._askers.pop(number)
        self._links.send(asker, WaveBack(asked))
