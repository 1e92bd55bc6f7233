"""Publishers wait while too much is kept for a peer that does not take it.

What is numbered is kept until the peer has it, whatever happens. So when a link has more than it should,
nothing more is read from clients whose messages go over it: those that publish with QoS 1 or 2 for
subscribers behind it, and those that change their subscriptions. Everyone else goes on. What other peers
send is taken, but not acknowledged, so that it counts at their end and their publishers have to wait in turn.
Acknowledgements over the link itself go on, and nobody waits for a broker that waits: brokers form a tree,
and at its leaves there is nobody else to wait for. What is retained is not kept message by message meanwhile:
the machine is told, and tells the peer the last value of each topic afterwards.
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
"""Where more are stored they are small, and looking at each would keep everybody waiting."""
SHARED_BYTES_MIN = 1024
"""A body of this size that several queues have is counted once."""


def held_bytes(bursts: Iterable[Burst], counted: int, buffered: Buffered) -> int:
    """The bytes that queues and connections really hold, where several of them have the same in common.

    `counted` is what queues hold if nothing is in two of them.
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
        """What may be kept for one peer; when it was more, half of it is little enough."""
        self.over: dict[str, None] = {}
        """Peers for whom more is kept."""
        self._site = site
        self._push = push
        self._hold = hold
        self._release = release
        self._asked: dict[int, int] = {}
        """Connections that were read from meanwhile, and how many requests they had made before."""

    @property
    def is_extreme(self) -> bool:
        """Whether twice as much is kept as should be. Only wills, for which nobody can be made to wait, lead
        to that."""
        ends = self._site.links.ends
        return any(ends[peer].kept_bytes > 2 * self.bytes_max for peer in self.over if peer in ends)

    def look(self, inputs: Iterable[MachineInput], effects: MachineEffects) -> None:
        """After a turn with these inputs, all of which are in the journal, and its effects."""
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
                log.warning("more than %d bytes are kept for %s: publishers wait", self.bytes_max, peer)
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
