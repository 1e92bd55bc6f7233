"""Traffic on a link for geographic subscriptions: bytes of frames between a publisher on one side and a
subscriber on the other.

Notifications come from all over a square, and the subscriber wants those from a part of it: a disc, a
polygon, or a disc around its position. Two machines of the product exchange their own frames. For a fixed
region, only notifications inside it may cross. For a disc around a client that moves, notifications up to 1.5
times as far away may cross, too: because of the step that the client may have taken meanwhile, and of the
grid that makes updates rare.
"""

from __future__ import annotations

import json
import math
import random
from typing import NamedTuple

from roamcast.broker.inputs import LinkFrames, LinkUp, MachineInput, Started
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.filters.geography import DEGREE_M, distance_m, position, position_text
from roamcast.filters.selector import parse
from roamcast.protocol.codec import VERSION_MAX
from roamcast.protocol.effects import Attached, Input, Submitted
from roamcast.protocol.messages import ClientPublish, ClientSubscribe, Hello, Move
from roamcast.protocol.notification import Burst, encode_attributes

REGIONS = ("disc", "polygon", "myloc")
SIDE_M = 20_000.0
CENTRE = (43.26, -2.93)
PARTS = (0.0, 0.01, 0.1, 0.5, 1.0)
"""Wanted shares of the square; 0 is no subscriber, 1 is no condition."""
BODY = bytes(100)
STEP_M = 100.0
FARTHER = 1.5
"""A broker one step away may forward notifications from up to this many times the sum of the radius and one
step."""
MOVES = 200
LINK_S = 0.02
STAY_S = 60.0
SUBSCRIBER, PUBLISHER = "b", "a"


class Measured(NamedTuple):
    region: str
    part: float
    wanted: int
    """Notifications that the subscriber wants, …"""
    crossed: int
    """… those that crossed the link, …"""
    allowed: int
    """… and those that may cross it."""
    bytes_per_notification: float
    """Bytes on the link in both directions, per publication."""


class Pair:
    """Two brokers and a link between them without delay."""

    def __init__(self) -> None:
        self.now = 0.0
        self.bytes = 0
        self.crossed = 0
        self.machines = {id: BrokerMachine(_settings(id)) for id in (PUBLISHER, SUBSCRIBER)}
        self._incarnation = 0
        ends = {PUBLISHER: SUBSCRIBER, SUBSCRIBER: PUBLISHER}
        for id, machine in self.machines.items():
            self._step(id, Started(machine.settings, start=ord(id)))
        offers = {id: self.machines[other].offer(id) for id, other in ends.items()}
        for number, (id, other) in enumerate(ends.items(), 1):
            self._step(id, LinkUp(other, offers[id], number, VERSION_MAX))
        self.rest()

    def _step(self, id: str, item: MachineInput | Input) -> None:
        sends = self.machines[id].step(self.now, [item]).sends
        self.crossed += sum(message.count for _, message in sends if isinstance(message, Burst))

    def submit(self, id: str, *items: Input) -> None:
        for item in items:
            self._step(id, item)
        self.rest()

    def rest(self) -> None:
        """Exchange frames until none is left."""
        is_said = True
        while is_said:
            is_said = False
            said = [
                (id, end.peer, end) for id, one in self.machines.items() for end in one.links.ends.values()
            ]
            frames = [(id, peer, end.take()) for id, peer, end in said]
            self.now += LINK_S
            for id, peer, frame in frames:
                if frame:
                    is_said = True
                    self.bytes += len(frame)
                    self._step(peer, LinkFrames(id, frame))
                    self.machines[peer].links.ends[id].acknowledge()


def _settings(id: str) -> MachineSettings:
    return MachineSettings(id, front="plain", position_step_m=STEP_M, stay_s=STAY_S, meet_timeout_s=0.0)


def run(notifications: int, seed: int) -> tuple[dict[str, dict[str, float]], bool]:
    """Return, for each kind of region, the bytes per notification by wanted share, and whether only allowed
    notifications crossed.
    """
    cases = [measure(kind, part, notifications, seed) for kind in REGIONS for part in PARTS]
    found: dict[str, dict[str, float]] = {}
    for kind in REGIONS:
        own = [one for one in cases if one.region == kind]
        found[f"link_{kind}"] = {
            **{f"bytes_at_{one.part:.0%}": one.bytes_per_notification for one in own},
            "crossed_per_wanted": sum(one.crossed for one in own) / sum(one.wanted for one in own),
        }
    found["link_myloc"]["bytes_per_move"] = bytes_per_move(seed)
    return found, all(one.wanted <= one.crossed <= one.allowed for one in cases)


def measure(kind: str, part: float, notifications: int, seed: int) -> Measured:
    rng = random.Random(seed)
    pair = Pair()
    pair.submit(PUBLISHER, Attached("p", 1, Hello("p", 0, fresh=True)))
    pair.submit(SUBSCRIBER, Attached("s", 2, Hello("s", 0, fresh=True)))
    place = position_text(*CENTRE)
    pair.submit(SUBSCRIBER, Submitted("s", 2, Move(1, {"location": place})))
    if part:
        text = filter_of(kind, part)
        pair.submit(SUBSCRIBER, Submitted("s", 2, ClientSubscribe(2, parse(text))))
    before = pair.bytes
    wanted = allowed = 0
    here, radius_m = position(*CENTRE), radius_of(part)
    exact = parse(filter_of("disc" if kind == "myloc" else kind, part)) if part else None
    for number in range(notifications):
        east, north = (rng.uniform(-SIDE_M / 2, SIDE_M / 2) for _ in range(2))
        at = away(north, east)
        attributes = {"location": position_text(*at)}
        is_wanted = exact is not None and exact.matches(attributes)
        wanted += is_wanted
        near = kind == "myloc" and distance_m(here, position(*at)) <= FARTHER * (radius_m + STEP_M) + 1
        allowed += is_wanted or (part > 0 and near)
        publish = ClientPublish(number + 1, encode_attributes(attributes), (BODY,))
        pair.submit(PUBLISHER, Submitted("p", 1, publish))
    return Measured(
        kind, part, wanted, pair.crossed, allowed, round((pair.bytes - before) / notifications, 1)
    )


def filter_of(kind: str, part: float) -> str:
    if part == 1:
        return "location IS NOT NULL"
    if kind == "polygon":
        reach = math.sqrt(part) * SIDE_M / 2
        corners = (away(-reach, -reach), away(-reach, reach), away(reach, reach), away(reach, -reach))
        shape = {"type": "Polygon", "coordinates": [[[east, north] for north, east in corners]]}
        return f"location INSIDE '{json.dumps(shape)}'"
    centre = "myloc" if kind == "myloc" else f"({CENTRE[0]}, {CENTRE[1]})"
    return f"location WITHIN {radius_of(part):.0f} M OF {centre}"


def radius_of(part: float) -> float:
    return math.sqrt(part / math.pi) * SIDE_M


def away(north_m: float, east_m: float) -> tuple[float, float]:
    """Return the position at this distance from the centre."""
    latitude, longitude = CENTRE
    return (
        latitude + north_m / DEGREE_M,
        longitude + east_m / DEGREE_M / math.cos(math.radians(latitude)),
    )  # fmt: skip


def bytes_per_move(seed: int) -> float:
    """Measure the bytes on the link per move of a client with a subscription to a disc of 1 km around it."""
    rng = random.Random(seed)
    pair = Pair()
    pair.submit(SUBSCRIBER, Attached("s", 2, Hello("s", 0, fresh=True)))
    pair.submit(SUBSCRIBER, Submitted("s", 2, Move(1, {"location": position_text(*CENTRE)})))
    pair.submit(SUBSCRIBER, Submitted("s", 2, ClientSubscribe(2, parse("location WITHIN 1 KM OF myloc"))))
    before, north, east = pair.bytes, 0.0, 0.0
    for number in range(MOVES):
        turn = rng.uniform(0, math.tau)
        north, east = north + 0.9 * STEP_M * math.sin(turn), east + 0.9 * STEP_M * math.cos(turn)
        pair.now += STAY_S
        place = position_text(*away(north, east))
        pair.submit(SUBSCRIBER, Submitted("s", 2, Move(number + 3, {"location": place})))
    return (pair.bytes - before) / MOVES
