"""A client that says where it is, at a real broker with a movement graph."""

import asyncio
from pathlib import Path

import pytest
from tests.daemon.broker_process import BrokerProcess

import roamcast
from roamcast.errors import InputError

CONFIG = """
id = "house"
data = "data"
[[listener]]
port = 0
[location]
movement_graph = "rooms.txt"
"""


async def walk(port: int) -> list[str]:
    """From the lobby to the corridor, while the same is told of the office each time."""
    heard: list[str] = []
    address = f"127.0.0.1:{port}"
    async with roamcast.connect(address, client_id="reader") as reader, roamcast.connect(address) as writer:
        await reader.move("lobby")
        await reader.subscribe("news", qos=1, where="location WITHIN 1 OF myloc")
        for place in ("lobby", "corridor"):
            await reader.move(place)
            for room in ("office", "lobby"):
                await writer.publish("news", f"{room} from {place}", qos=1, properties=(("location", room),))
        await writer.publish("news", "end", qos=1, properties=(("location", "corridor"),))
        async for notification in reader:
            heard.append(notification.payload.decode())
            if heard[-1] == "end":
                break
        with pytest.raises(InputError, match="a move needs a location"):
            await reader.move()
    return heard


def test_what_is_near_depends_on_where_the_client_says_it_is(tmp_path: Path) -> None:
    (tmp_path / "rooms.txt").write_text("lobby corridor\ncorridor office\n")
    broker = BrokerProcess(tmp_path, CONFIG)
    try:
        heard = asyncio.run(asyncio.wait_for(walk(broker.port), 30))
    finally:
        broker.stop()
    assert heard == ["lobby from lobby", "office from corridor", "lobby from corridor", "end"]
