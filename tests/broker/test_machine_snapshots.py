"""Sites that crash and come back from a snapshot and what was journalled after it keep every promise."""

from __future__ import annotations

import random

import pytest
from tests.broker.test_world import drive
from tests.broker.world import World, bring_home, check

from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import MachineInput
from roamcast.protocol.snapshot import freeze, thaw


class SnapshotWorld(World):
    """Between two turns a site is now and then written down, and its journal begins anew."""

    def __init__(self, seed: int, brokers: int, links: list[tuple[int, int]]) -> None:
        self.snapshots: dict[str, bytes] = {}
        self.snapshots_used = 0
        super().__init__(seed, brokers, links)

    def step(self, id: str, inputs: list[MachineInput]) -> None:
        super().step(id, inputs)
        if self.rng.random() < 0.1:
            self.snapshots[id] = freeze(self.sites[id])
            self.journals[id].clear()

    def begin(self, id: str) -> AnyMachine:
        if id not in self.snapshots:
            return super().begin(id)
        self.snapshots_used += 1
        site: AnyMachine = thaw(self.snapshots[id], verify=True)
        return site


@pytest.mark.parametrize("seed", range(10))
def test_sites_come_back_from_snapshots(seed: int) -> None:
    rng = random.Random(seed)
    world = SnapshotWorld(seed, 4, [(0, 1), (1, 2), (1, 3)])
    for number in range(4):
        world.attach(f"c{number}", rng.choice(world.ids), version=rng.choice((4, 5)))
        world.settle()
        world.subscribe(f"c{number}", "a/#", 2)
        world.settle()
    world.crashes = True
    drive(world, rng, 80)
    for id in world.ids:
        world.crash(id)
    world.crashes = False
    bring_home(world, rng)
    check(world)
    assert world.snapshots_used > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 200))
def test_sites_come_back_from_snapshots_over_many_seeds(seed: int) -> None:
    test_sites_come_back_from_snapshots(seed)
