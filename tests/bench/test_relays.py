"""A relay that delays keeps the order, as TCP does."""

from __future__ import annotations

import asyncio
from typing import cast

from roamcast.bench.relays import Relay

CHUNKS = 200


class Noting:
    """A writer that notes what it is given."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(int(data))

    async def drain(self) -> None: ...


def test_nothing_overtakes_when_a_delay_ends() -> None:
    async def run() -> list[int]:
        relay, reader, noting = Relay(0), asyncio.StreamReader(), Noting()
        writer = cast(asyncio.StreamWriter, noting)
        passing = asyncio.create_task(relay.pass_on(reader, writer, 0))
        for number in range(CHUNKS):
            relay.delays_s[0] = 0.02 if number < 5 else 0.0
            reader.feed_data(b"%d" % number)
            for _ in range(3):
                await asyncio.sleep(0)
        reader.feed_eof()
        await passing
        while len(noting.written) < CHUNKS:
            await asyncio.sleep(0.001)
        return noting.written

    assert asyncio.run(run()) == list(range(CHUNKS))
