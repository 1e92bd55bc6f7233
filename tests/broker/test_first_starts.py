"""Drawn stories of first starts: clients come, move and publish before all links were up for the first time.

A broker that has peers configured and never met them must not answer for sessions as if it were alone.
"""

from __future__ import annotations

import random

import pytest
from tests.broker.world import World

from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.server.settings import EndpointSettings

MEET_S = 5.0
LOCATE_S = 2.0
TOPIC = "road/1"


class FirstStarts(World):
    """A drawn tree of brokers that begin with empty folders. All but the root have their parent configured,
    and some parents their children. Links come up when the story says so."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        count = rng.randint(2, 5)
        self.parents = {f"b{child}": f"b{rng.randrange(child)}" for child in range(1, count)}
        self.peers: dict[str, list[str]] = {f"b{number}": [] for number in range(count)}
        for child, parent in self.parents.items():
            self.peers[child].append(parent)
            if rng.random() < 0.5:
                self.peers[parent].append(child)
        self.unlinked = [(parent, child) for child, parent in self.parents.items()]
        rng.shuffle(self.unlinked)
        super().__init__(seed, count, [])

    def settings(self, id: str) -> MachineSettings:
        return MachineSettings(
            id, peers=tuple(self.peers[id]), meet_timeout_s=MEET_S,
            endpoint=EndpointSettings(locate_timeout_s=LOCATE_S),
        )  # fmt: skip

    def link_next(self) -> None:
        if self.unlinked:
            one, other = self.unlinked.pop()
            self.connect_link(one, other)
            self.links.append((one, other))

    def bring(self, name: str, broker: str) -> None:
        """Attach as often as it takes, as clients do."""
        for _ in range(20):
            if not self.clients[name].connection:
                self.attach(name, broker)
            self.settle()
            if self.clients[name].is_welcome:
                return
            self.tick(LOCATE_S)
        raise AssertionError(f"{name} is not served at {broker}")


@pytest.mark.parametrize("seed", range(200))
def test_nothing_is_lost_over_first_starts_and_moves(seed: int) -> None:
    rng, world = random.Random(seed), FirstStarts(seed)
    owed: list[str] = []
    for _ in range(rng.randint(10, 40)):
        car = world.clients.get("car")
        match rng.randrange(8):
            case 0:
                world.link_next()
            case 1 | 2:
                world.attach("car", rng.choice(world.ids))
            case 3:
                world.attach("sensor", rng.choice(world.ids))
            case 4:
                if car is not None and car.is_welcome and TOPIC not in car.subscriptions:
                    world.subscribe("car", TOPIC, 2)
            case 5:
                if "sensor" in world.clients:
                    world.publish("sensor", TOPIC, 2)
                    if car is not None and TOPIC in car.settled:
                        owed.append(world.clients["sensor"].sent[-1])
            case 6:
                world.tick(rng.choice((0.1, LOCATE_S, 2 * MEET_S)))
            case _:
                pass
        world.run(rng.randint(0, 40))
    while world.unlinked:
        world.link_next()
    world.settle()
    for name in list(world.clients):
        world.bring(name, rng.choice(world.ids))
    world.settle()
    if "car" not in world.clients:
        return
    received = [payload for payload, _, _ in world.clients["car"].received]
    missing = [payload for payload in owed if payload not in received]
    assert not missing, f"lost: {missing}"
    repeated = {payload for payload in received if received.count(payload) > 1}
    assert not repeated, f"repeated: {repeated}"
