"""The same handoffs again and again, with a crash at every place where there can be one."""

from __future__ import annotations

import random

import pytest
from tests.broker.world import Client, World, bring_home, check

from roamcast.broker.inputs import LinkDown, LinkUp, MachineInput, Started
from roamcast.broker.settings import MachineSettings

PROTOCOLS = ("multi_hop_handoff", "relocation", "proactive", "phoenix", "reactive:merged")
SPACING = 17
"""One place in so many is tried in the quick suite."""


class CrashWorld(World):
    """A broker crashes in the turn with this number, among those that are journalled."""

    def __init__(self, seed: int, protocol: str) -> None:
        self.protocol = protocol
        self.place = 0
        self.when = ""
        self.turns = 0
        super().__init__(seed, 3, [(0, 1), (1, 2)])

    def settings(self, id: str) -> MachineSettings:
        return MachineSettings(id, protocol=self.protocol)

    def fate(self, inputs: list[MachineInput]) -> str:
        self.turns += 1
        if self.turns != self.place:
            return ""
        # What a driver found out for itself it will find out again.
        is_own = any(isinstance(one, Started | LinkUp | LinkDown) for one in inputs)
        return "after" if is_own else self.when


def tell(seed: int, protocol: str, place: int, when: str) -> int:
    """Clients that publish and subscribe with QoS 2 change places; how many turns were journalled."""
    rng, world = random.Random(seed), CrashWorld(seed, protocol)
    for name, broker in (("c", "b0"), ("p", "b2"), ("q", "b1")):
        world.clients[name] = Client(name, options={"receive_maximum": 1} if seed % 2 else {})
        world.attach(name, broker)
        world.settle()
        world.subscribe(name, "a/#", 2)
        world.settle()
    world.turns, world.place, world.when = 0, place, when
    for _ in range(3):
        for name, qos in (("p", 2), ("c", 2), ("q", 1)):
            world.publish(name, "a/1", qos)
        world.run(rng.randrange(8))
    for name, broker in (("c", "b2"), ("p", "b0")):
        world.attach(name, broker)
        world.run(rng.randrange(14))
        for writer in ("p", "q", "c"):
            world.publish(writer, "a/2", 2)
    world.settle()
    turns, world.place = world.turns, 0
    bring_home(world, rng)
    check(world)
    for client in world.clients.values():
        assert len(client.acknowledged) == len(client.sent)
        assert not client.released
    return turns


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_some_places_of_two_handoffs(protocol: str, when: str) -> None:
    turns = tell(1, protocol, 0, when)
    assert turns > SPACING
    for place in range(1 + len(protocol) % SPACING, turns, SPACING):
        tell(1, protocol, place, when)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(6))
def test_a_crash_at_every_place_of_two_handoffs(seed: int, protocol: str) -> None:
    for place in range(1, tell(seed, protocol, 0, "") + 1):
        for when in ("before", "after"):
            tell(seed, protocol, place, when)
