"""What replicas say to each other arrives as it was said."""

from __future__ import annotations

import asyncio

import pytest

from roamcast.net.replica_stream import PIECE_BYTES, ReplicaStream
from roamcast.replication.messages import AnyMessage, Records


@pytest.mark.parametrize(
    "size", [0, 1, 70_000, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 3 * PIECE_BYTES - 20]
)
@pytest.mark.parametrize("number", [1, 300, 1 << 40])
def test_an_entry_arrives_as_it_was_sent(number: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, sent, heard = bytes(size), bytearray(), list[AnyMessage]()

    async def run() -> None:
        stream = ReplicaStream(True, "east-1", "boot", "")
        monkeypatch.setattr(stream.connection, "write_now", lambda *parts: sent.extend(b"".join(parts)))
        stream.on_messages = heard.extend
        stream.send_entry_now(number, entry)
        stream.arrived(stream.connection, bytes(sent))

    asyncio.run(run())
    assert heard == [Records(number, [entry])]
