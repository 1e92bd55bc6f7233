"""Waves over the tree: a question to everyone who can be reached, answered when all have.

A wave travels behind whatever was sent over the same links before, so when it is answered, everyone has
heard that; and whatever they had to tell has come. A broker passes it on to its other peers, and answers
when they have answered. A link that is lost is not waited for: what was behind it is another part of the
network by now, or comes back over another link.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Protocol

from roamcast.protocol.messages import Cause, Message
from roamcast.state import State

Purpose = tuple[Any, ...]
"""Plain values that tell whoever began a wave what it was for."""


class Wave(Message, frozen=True):
    number: int
    """Tells the waves that are sent over one link in one direction apart."""
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
        """Number to the peers that have not answered."""
        self._purposes: dict[int, Purpose] = {}
        """Of waves that began here."""
        self._askers: dict[int, tuple[str, int]] = {}
        """Of the others: who is to be answered, and by which number."""
        self._done: list[Purpose] = []

    def begin(self, purpose: Purpose, peers: Collection[str]) -> None:
        self._count += 1
        self._purposes[self._count] = purpose
        self._flood(self._count, peers)

    def take_done(self) -> list[Purpose]:
        """The purposes of the waves that are over."""
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
