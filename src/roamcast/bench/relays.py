"""TCP relays between two programs, which can delay, cut and discard their traffic."""

from __future__ import annotations

import asyncio
import random
from math import inf, nextafter

from roamcast.slow_link.channel import PACKET_BYTES
from roamcast.slow_link.relay import READ_BYTES, TcpRelay, write_to


class Relay(TcpRelay):
    """Listens on a port and forwards everything to another one, both ways."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.loss = 0.0
        """Probability that a packet is lost. TCP repeats it, so it arrives late."""
        self.retransmission_s = 0.0
        """Delay of a lost packet, and of everything after it."""
        self.random = random.Random(target)
        self.delays_s = [0.0, 0.0]
        """Delays towards the target, and back."""
        self.is_swallowed = [False, False]
        """By direction: true to discard its traffic. TCP cannot have gaps, so cut the connection before
        forwarding again.
        """

    async def pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: int
    ) -> None:
        loop = asyncio.get_running_loop()
        free_at, waiting = 0.0, 0

        def write_late(data: bytes) -> None:
            nonlocal waiting
            waiting -= 1
            write_to(writer, data)

        try:
            while data := await reader.read(READ_BYTES):
                if self.is_swallowed[direction]:
                    continue
                # What comes later never overtakes, also when the delay has just ended: timers for the same
                # time may run in any order, and those that are due have not run yet.
                free_at = max(nextafter(free_at, inf), loop.time() + self.delays_s[direction])
                if self.loss:
                    free_at += self.retransmission_s * self._losses(len(data))
                if waiting or free_at > loop.time():
                    waiting += 1
                    loop.call_at(free_at, write_late, data)
                else:
                    write_to(writer, data)
                    await writer.drain()
        finally:
            if free_at > loop.time():
                await asyncio.sleep(free_at - loop.time())

    def _losses(self, size: int) -> int:
        """Number of packets that are lost in a chunk of this size."""
        return sum(self.random.random() < self.loss for _ in range(0, size, PACKET_BYTES))

    def heal(self) -> None:
        """Forward everything at once again; connections with discarded traffic are cut."""
        if any(self.is_swallowed):
            self.cut()
        self.delays_s, self.is_swallowed, self.is_open = [0.0, 0.0], [False, False], True
