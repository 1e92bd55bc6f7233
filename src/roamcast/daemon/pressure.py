"""Publishers wait while too much is buffered for a peer that does not acknowledge.

Numbered messages are always kept until the peer has them. So when the buffer of a link exceeds its limit, the
broker stops reading from clients whose messages go over that link: those that publish with QoS 1 or 2 for
subscribers behind it, and those that change their subscriptions. All other clients continue. Messages from
other peers are accepted but not acknowledged, so that they fill the buffers of these peers, and their
publishers have to wait, too. Acknowledgements over the link itself continue, and nobody waits for a broker
that waits: brokers form a tree, and at its leaves there is nobody else to wait for. Retained messages are not
buffered one by one meanwhile: afterwards the machine sends the peer the last value of each topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import ClientFrames, LinkSlowed, MachineEffects, MachineInput
from roamcast.net.buffered import Buffered
from roamcast.protocol.notification import Burst

log = logging.getLogger("roamcast")


BURSTS_COUNTED_MAX = 50_000
"""With more bursts stored than this they are small, and counting each would delay everybody."""
SHARED_BYTES_MIN = 1024
"""A body of at least this size that several queues share is counted once."""


def held_bytes(bursts: Iterable[Burst], counted: int, buffered: Buffered) -> int:
    """Return the bytes that queues and connections really hold, with shared bodies counted once.

    `counted` is the size of the queues if they share nothing.
    """
    seen: set[int] = set()
    twice = 0
    for number, burst in enumerate(bursts):
        if number >= BURSTS_COUNTED_MAX:
            return counted + buffered.size_bytes
        for body in burst.bodies:
            if len(body) >= SHARED_BYTES_MIN:
                if id(body) in seen:
                    twice += len(body)
                seen.add(id(body))
    return counted - twice + buffered.beside(seen)


class Pressure:
    def __init__(
        self,
        site: AnyMachine,
        push: Callable[[MachineInput], None],
        hold: Callable[[int], None],
        release: Callable[[], None],
        bytes_max: int,
    ) -> None:
        self.bytes_max = bytes_max
        """Limit of the bytes buffered for one peer. Publishers resume when the buffer has shrunk to half of
        it."""
        self.over: dict[str, None] = {}
        """Peers whose buffers exceed the limit."""
        self._site = site
        self._push = push
        self._hold = hold
        self._release = release
        self._asked: dict[int, int] = {}
        """Connections that were read from meanwhile, and their number of requests before that."""

    @property
    def is_extreme(self) -> bool:
        """True if a buffer has twice the limit. Only wills can cause that, since nobody can be made to wait
        for them."""
        ends = self._site.links.ends
        return any(ends[peer].kept_bytes > 2 * self.bytes_max for peer in self.over if peer in ends)

    def look(self, inputs: Iterable[MachineInput], effects: MachineEffects) -> None:
        """Update after a turn with these inputs, all of which are journalled, and its effects."""
        before = self.over
        self.over = {
            peer: None
            for peer, end in self._site.links.ends.items()
            if end.kept_bytes > (self.bytes_max // 2 if peer in before else self.bytes_max)
        }
        if not self.over and not before:
            return
        self._site.journalled(self.over)
        for peer in self.over:
            if peer not in before:
                log.warning("more than %d bytes are buffered for %s: publishers wait", self.bytes_max, peer)
                self._push(LinkSlowed(peer, is_slow=True))
        for peer in before:
            if peer not in self.over:
                self._push(LinkSlowed(peer, is_slow=False))
        if self.over:
            self._hold_publishers(inputs, effects)
        else:
            self._asked.clear()
            log.info("publishers go on")
            self._release()

    def _hold_publishers(self, inputs: Iterable[MachineInput], effects: MachineEffects) -> None:
        connections = self._site.endpoint.connections
        publishers = {
            message.publisher
            for peer, message in effects.sends
            if peer in self.over and isinstance(message, Burst)
        }
        for item in inputs:
            connection = connections.get(item.connection) if type(item) is ClientFrames else None
            if connection is not None:
                # Where brokers move, every publish may go anywhere.
                asked = connection.request if self._site.links_may_cycle else connection.asked
                known = self._asked.setdefault(connection.id, asked)
                if asked > known or connection.client in publishers:
                    self._hold(connection.id)
