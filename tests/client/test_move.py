"""Clients that say where they are, at real brokers with a movement graph."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from pathlib import Path

import pytest
from tests.client.servers import Broker, run, running, running_line, until

import roamcast
from roamcast.client import Client, Notification, PublishError, SubscribeError
from roamcast.errors import InputError
from roamcast.mqtt.codec.reasons import Reason

ROOMS = "lobby corridor\ncorridor office\nattic\n"
ROAD = [f"km{number}" for number in range(6)]


def graph(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "graph.txt"
    path.write_text(text)
    return "--set", f"location.movement_graph={path}"


class Heard:
    """What a client gets, gathered as it comes."""

    def __init__(self, client: Client) -> None:
        self.texts: list[str] = []
        self._task = asyncio.create_task(self._read(client))

    async def _read(self, client: Client) -> None:
        async for notification in client:
            self.on(notification)

    def on(self, notification: Notification) -> None:
        self.texts.append(notification.text)

    async def until(self, last: str) -> None:
        await until(lambda: last in self.texts, f"{last} among {self.texts}")


async def tell(writer: Client, place: str, text: str) -> None:
    await writer.publish("news", text, qos=2, properties=(("location", place),))


def test_what_is_near_depends_on_where_the_client_says_it_is(tmp_path: Path) -> None:
    """Also where it says nothing, cannot be, or comes without an edge; others get everything all the time."""

    async def walk(address: str) -> tuple[list[str], list[str]]:
        reader = roamcast.connect(address, client_id="reader")
        writer, other = roamcast.connect(address), roamcast.connect(address)
        async with reader, writer, other:
            heard, all_heard = Heard(reader), Heard(other)
            await other.subscribe("news", qos=1)
            await reader.subscribe("news", qos=1, where="location WITHIN 1 OF myloc")
            await tell(writer, "lobby", "nowhere")
            for place in ("lobby", "corridor", "attic", "office", "lobby"):
                await reader.move(place)
                for room in ("office", "lobby", "attic"):
                    await tell(writer, room, f"{room} from {place}")
            with pytest.raises(PublishError, match="cellar' is not in the movement graph") as caught:
                await reader.move("cellar")
            assert caught.value.reason is Reason.IMPLEMENTATION_SPECIFIC_ERROR
            with pytest.raises(PublishError, match=r"my\.mood: this broker does not know how it may change"):
                await reader.move(mood="calm")
            with pytest.raises(SubscribeError, match=r"my\.mood: .*known are budget, location"):
                await reader.subscribe("news", where="mood IN my.mood")
            with pytest.raises(InputError, match="a move needs a location"):
                await reader.move()
            await tell(writer, "cellar", "cellar from lobby")
            await tell(writer, "corridor", "end")
            await heard.until("end")
            await all_heard.until("end")
        return heard.texts, all_heard.texts

    more = ("--config", "site.toml", *graph(tmp_path, ROOMS))
    house = Broker(tmp_path, "house", None, *more)
    (house.folder / "site.toml").write_text('[[location.state]]\nname = "budget"\nfall = 10\n')
    with running(house) as broker:
        heard, all_heard = run(walk(broker.address))
    assert heard == [
        "lobby from lobby", "office from corridor", "lobby from corridor", "attic from attic",
        "office from office", "lobby from lobby", "end",
    ]  # fmt: skip
    assert len(all_heard) == 1 + 5 * 3 + 2


PROTOCOLS = [
    "multi_hop_handoff",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("relocation", "sub_unsub", "proactive", "phoenix", "reactive:merged")
    ),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_changes_broker_and_location(tmp_path: Path, protocol: str) -> None:
    """What is about where it is comes once and in order, whatever broker it is at or on its way to."""
    rng = random.Random(protocol)
    expected: list[str] = []
    count = 0

    async def publish_everywhere(writer: Client, here: str) -> None:
        nonlocal count
        for _ in range(10):
            # Last of all something that comes: then the rest has been there before the next move.
            for place in (*ROAD, here):
                count += 1
                await tell(writer, place, f"{place} {count}")
                if place == here:
                    expected.append(f"{place} {count}")

    async def arrive(writer: Client, heard: Heard, here: str) -> None:
        """A move after a handoff takes effect when all know of it: when something about the place comes."""
        nonlocal count
        before = len(heard.texts)
        while len(heard.texts) == before:
            count += 1
            await tell(writer, here, f"at {here} {count}")
            await asyncio.sleep(0.01)
        await heard.until(f"at {here} {count}")

    async def work(line: list[Broker]) -> list[str]:
        addresses = [f"{one.id}={one.address}" for one in line]
        reader = roamcast.connect(addresses, client_id="car", clean=False)
        async with reader, roamcast.connect(line[2].address, client_id="writer") as writer:
            heard = Heard(reader)
            await reader.subscribe("news", qos=2, where="location IN myloc")
            for number, here in enumerate(ROAD):
                await reader.move(here)
                await arrive(writer, heard, here)
                target = line[(1, 0, 2)[number % 3]]
                publishing = asyncio.create_task(publish_everywhere(writer, here))
                await asyncio.sleep(rng.uniform(0.0, 0.02))
                await reader.move_to(target.id, proclaimed=number % 2 == 1)
                await publishing
                await heard.until(expected[-1])
            return heard.texts

    # The bound is for sub_unsub alone; it is long, because a busy machine is slow.
    bound = ("--set", "mobility.settings.delay_bound_s=1.0")
    settings = ("--mobility", protocol, *bound, *graph(tmp_path, "\n".join(map(" ".join, pairwise(ROAD)))))
    with running_line(tmp_path, 3, *settings) as line:
        found = run(work(line))
    assert [one for one in found if not one.startswith("at ")] == expected
    assert len(set(found)) == len(found)
