"""Looking for the first seed that a protocol fails, without shrinking what is found."""

from __future__ import annotations

from tests.mobility.broken import registered

from roamcast.mobility import MobilityProtocol
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.story import verdict


def first_failing_seed(protocol: type[MobilityProtocol], seeds: int) -> int | None:
    with registered(protocol) as name:
        return next((seed for seed in range(seeds) if verdict(draw_story(name, seed)).violations), None)
