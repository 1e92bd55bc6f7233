"""A broker that is frozen and thawed in the middle of a run goes on as if nothing had been."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from roamcast.mobility import PROTOCOLS
from roamcast.protocol.records import Row
from roamcast.protocol.snapshot import freeze, thaw
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.location_fuzz import ANY, draw_location_story
from roamcast.simulator.network import Network
from roamcast.simulator.run import Run, run_checked
from roamcast.simulator.story import Story

SWAPS_PER_RUN = 10


class Swapper:
    """Puts thawed copies in place of all brokers of a network, at moments that a seed decides."""

    def __init__(self, seed: int, observed: int) -> None:
        self._moments = set(random.Random(seed).sample(range(observed), min(SWAPS_PER_RUN, observed)))
        self._seen = 0
        self._network: Network | None = None
        self.swaps = 0

    def prepare(self, network: Network) -> None:
        self._network = network

    def observe(self, rows: list[Row]) -> None:
        self._seen += 1
        if self._seen in self._moments and self._network is not None:
            machines = self._network.machines
            for id, machine in machines.items():
                machines[id] = thaw(freeze(machine))
            self.swaps += 1


def run_story(
    story: Story, observe: Callable[[list[Row]], None], prepare: Callable[[Network], None] | None = None
) -> tuple[list[Row], Run]:
    rows: list[Row] = []

    def both(new: list[Row]) -> None:
        rows.extend(new)
        observe(new)

    settings = replace(story.settings, records="full")
    return rows, run_checked(story.topology, settings, story.actions, observe=both, prepare=prepare)


def compare(protocol: str, seeds: range, draw: Callable[[str, int], Story] = draw_story) -> None:
    swaps = 0
    for seed in seeds:
        story = draw(protocol, seed)
        observed: list[int] = []
        expected, plain = run_story(story, lambda rows: observed.append(len(rows)))  # noqa: B023
        swapper = Swapper(seed, len(observed))
        found, swapped = run_story(story, swapper.observe, swapper.prepare)
        assert found == expected, f"seed {seed}"
        assert swapped.traffic == plain.traffic
        assert swapped.result == plain.result
        swaps += swapper.swaps
    assert swaps > len(seeds) * SWAPS_PER_RUN // 2


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_thawed_brokers_go_on_as_if_nothing_had_been(protocol: str) -> None:
    compare(protocol, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_thawed_brokers_go_on_over_many_seeds(protocol: str) -> None:
    compare(protocol, range(3, 23))


def test_thawed_brokers_still_know_where_clients_are() -> None:
    compare(ANY, range(6), draw_location_story)
