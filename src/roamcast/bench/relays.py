"""TCP relays that stand between two programs and can delay, cut and swallow what they say to each other."""

from __future__ import annotations

import asyncio

from roamcast.slow_link.relay import READ_BYTES, TcpRelay, write_to


class Relay(TcpRelay):
    """Listens on a port and passes everything on to another one, both ways."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.delays_s = [0.0, 0.0]
        """Towards the target, and back."""
        self.is_swallowed = [False, False]
        """What is said in this direction goes nowhere. TCP has no holes: cut before hearing again."""

    async def pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: int
    ) -> None:
        loop = asyncio.get_running_loop()
        free_at = 0.0
        try:
            while data := await reader.read(READ_BYTES):
                if self.is_swallowed[direction]:
                    continue
                # What comes later never overtakes, also when the delay has just ended.
                free_at = max(free_at, loop.time() + self.delays_s[direction])
                if free_at > loop.time():
                    loop.call_at(free_at, write_to, writer, data)
                else:
                    write_to(writer, data)
                    await writer.drain()
        finally:
            if free_at > loop.time():
                await asyncio.sleep(free_at - loop.time())

    def heal(self) -> None:
        """Pass everything on at once; whatever had swallowed something is cut."""
        if any(self.is_swallowed):
            self.cut()
        self.delays_s, self.is_swallowed, self.is_open = [0.0, 0.0], [False, False], True
