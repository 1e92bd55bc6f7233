"""Drawing stories of brokers that move, crash and part, from seeds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from roamcast.protocol.effects import AttachTo
from roamcast.simulator.faults import Crash, Cut, Heal, Relink, Restart
from roamcast.simulator.links import Delay
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.story import Story
from roamcast.simulator.topology import Topology

LOSSES = (0.05, 0.2, 0.5)


class MobileDraw:
    """What of a story is drawn in the same way as for brokers that stay where they are."""

    def __init__(
        self,
        draw_outage: Callable[[Story, random.Random], tuple[float, float]],
        attached_at: Callable[[Story, str, float], list[str]],
        with_actions: Callable[[Story, list[Action]], Story],
    ) -> None:
        self.draw_outage = draw_outage
        self.attached_at = attached_at
        self.with_actions = with_actions


def draw_mobile_settings(
    protocol: str, seed: int, topology: Topology, elects: bool, rng: random.Random
) -> NetworkSettings:
    link = rng.choice((Delay(0.010, 0.010), Delay(0.001, 0.030), Delay(0.0, 0.100)))
    access = rng.choice((Delay(0.020, 0.020), Delay(0.001, 0.040)))
    notice = rng.choice((Delay(0.0, 0.0), Delay(0.0, 0.200), Delay(0.0, 2.0)))
    settings = NetworkSettings(
        protocol=protocol, link_delay=link, access_delay=access, notice_delay=notice, seed=seed
    )
    if not elects or len(topology.brokers) < 3:
        return settings
    more = [tuple(sorted(rng.sample(topology.brokers, 2))) for _ in range(rng.choice((1, 2, 4)))]
    known = {frozenset(edge) for edge in topology.overlay}
    edges = dict.fromkeys((one, other) for one, other in more if frozenset((one, other)) not in known)
    return replace(settings, reach=tuple(edges))


def with_mobile_faults(story: Story, faults: Sequence[str], draw: MobileDraw, rng: random.Random) -> Story:
    """The same story with faults of these kinds; of several kinds not always all."""
    chosen = [kind for kind in faults if rng.random() < 0.75] if len(faults) > 1 else []
    for kind in chosen or faults:
        if kind == "loss":
            story = replace(story, settings=replace(story.settings, loss=rng.choice(LOSSES)))
        else:
            drawn = _crashes(story, draw, rng) if kind == "crash" else _partings(story, draw, rng)
            story = draw.with_actions(story, drawn)
    return story


def _crashes(story: Story, draw: MobileDraw, rng: random.Random) -> list[Action]:
    """Brokers that are down for a while, with a journal or without."""
    faults: list[Action] = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        broker = rng.choice(story.topology.brokers)
        start_s, end_s = draw.draw_outage(story, rng)
        faults.append((start_s, broker, Crash(amnesia=rng.random() < 0.5)))
        for client in draw.attached_at(story, broker, start_s):
            if rng.random() < 0.4:
                elsewhere = AttachTo(rng.choice(story.topology.brokers), 0)
                faults.append((rng.uniform(start_s, end_s), client, elsewhere))
        faults.append((end_s, broker, Restart()))
    return faults


def _partings(story: Story, draw: MobileDraw, rng: random.Random) -> list[Action]:
    """Links that are lost, for others or for a while; some come back between others than before."""
    brokers = story.topology.brokers
    faults: list[Action] = []
    edges = [*story.topology.overlay, *story.settings.reach]
    if not edges:
        return []
    for _ in range(rng.choice((1, 2, 4, 8))):
        start_s, end_s = draw.draw_outage(story, rng)
        one, other = rng.choice(edges)
        if rng.random() < 0.5:
            one, other = other, one
        others = [broker for broker in brokers if broker not in (one, other)]
        if rng.random() < 0.4 and others and not story.settings.reach:
            faults.append((start_s, one, Relink(other, rng.choice(others))))
            continue
        faults.append((start_s, one, Cut(other)))
        again = rng.choice(others) if others and rng.random() < 0.3 else other
        faults.append((end_s, one, Heal(again if not story.settings.reach else other)))
    return faults
