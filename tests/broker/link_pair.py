"""Two ends of a link with what drivers put around them: a journal each, and a connection that can be cut."""

from __future__ import annotations

import random
from collections.abc import Callable

from roamcast.broker.links.end import LinkEnd
from roamcast.broker.links.frames import FrameCutter
from roamcast.protocol.codec import Codec
from roamcast.protocol.messages import Settled
from roamcast.protocol.notification import Message
from roamcast.protocol.snapshot import freeze, thaw

CODEC = Codec()

Entry = Message | bytes
"""What a journal holds here: a message that was sent, or frames that were received."""


class Side:
    """A broker, as far as one link concerns it: what it was given to send, and what arrived, in order."""

    def __init__(self, peer: str, incarnation: int) -> None:
        self.new_end: Callable[[], LinkEnd] = lambda: LinkEnd(peer, incarnation, CODEC)
        self.end = self.new_end()
        self.sent: list[Message] = []
        self.arrived: list[Message] = []
        self.fleeting: list[Message] = []
        self.cutter = FrameCutter()
        self.snapshot: tuple[bytes, list[Message], list[Message]] | None = None
        self.journal: list[Entry] = []
        self.unjournalled: list[Entry] = []

    def send(self, message: Message) -> None:
        self.unjournalled.append(message)
        self.apply(message)

    def receive(self, data: bytes) -> None:
        self.cutter.feed(data)
        arrivals = self.end.receive(self.cutter.take_all())
        self.arrived += arrivals.numbered
        self.fleeting += arrivals.fleeting
        assert bool(arrivals.durable) == bool(arrivals.numbered)
        if arrivals.durable:
            self.unjournalled.append(arrivals.durable)

    def apply(self, entry: Entry) -> None:
        if isinstance(entry, bytes):
            self.arrived += self.end.receive(entry).numbered
        else:
            self.sent.append(entry)
            self.end.send(entry)

    def sync(self) -> None:
        """Everything so far is journalled, so acknowledgements and sends may go out."""
        self.journal += self.unjournalled
        self.unjournalled = []
        self.end.acknowledge()

    def take_snapshot(self) -> None:
        self.sync()
        state = freeze(self.end)
        self.snapshot = (state, list(self.sent), list(self.arrived))
        self.journal = []

    def crash(self) -> None:
        """Only what was journalled is left, and is replayed."""
        self.unjournalled, self.sent, self.arrived = [], [], []
        if self.snapshot is None:
            self.end = self.new_end()
        else:
            state, sent, arrived = self.snapshot
            self.end = thaw(state)
            self.end.down()
            self.sent, self.arrived = list(sent), list(arrived)
        for entry in self.journal:
            self.apply(entry)


class Pair:
    """Two sides, and what is on its way between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sides = (Side("b", 11), Side("a", 22))
        self.wires = [b"", b""]
        """By the side that it goes to."""
        self.messages = 0

    def connect(self) -> None:
        self.cut()
        a, b = self.sides
        said = (a.end.resume(), b.end.resume())
        a.end.up(said[1])
        b.end.up(said[0])

    def cut(self) -> None:
        self.wires = [b"", b""]
        for side in self.sides:
            side.end.down()
            side.cutter = FrameCutter()

    def crash(self, index: int) -> None:
        self.cut()
        self.sides[index].crash()

    def send(self, index: int, count: int) -> None:
        for _ in range(count):
            self.messages += 1
            self.sides[index].send(Settled(self.messages))

    def write(self, index: int, bytes_max: int) -> None:
        """Effects go out, which they may only if their causes have been journalled."""
        side = self.sides[index]
        side.sync()
        self.wires[1 - index] += side.end.take(bytes_max)

    def carry(self, index: int, size: int) -> None:
        data, self.wires[index] = self.wires[index][:size], self.wires[index][size:]
        if data:
            self.sides[index].receive(data)

    def finish(self) -> None:
        """Until nothing moves any more."""
        self.connect()
        for _ in range(10_000):
            for index in (0, 1):
                self.write(index, 1000)
                self.carry(1 - index, 1_000_000)
            if not any(side.end.has_more for side in self.sides) and not any(self.wires):
                break
        for index, side in enumerate(self.sides):
            side.sync()
            self.sides[1 - index].receive(side.end.heartbeat())
