"""Every crossing of a border is told once: while brokers crash and the client changes its broker, too."""

from __future__ import annotations

import random
from unittest import mock

import pytest

from roamcast.broker.fences import Fences
from roamcast.filters.geography import Position
from roamcast.protocol.effects import AttachTo, Input, LeaveFor, MoveTo, SubscribeTo
from roamcast.protocol.notification import decode_attributes
from roamcast.protocol.records import Row
from roamcast.protocol.session import Session
from roamcast.routing.location.earth import Earth
from roamcast.routing.location.settings import LocationSettings
from roamcast.simulator.faults import Crash, Restart, Snapshot
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.story import Story, format_story, parse_story
from roamcast.simulator.topology import parse_topology

ZONES = {
    "west": '{"type":"Polygon","coordinates":[[[0,0],[0.005,0],[0.005,0.01],[0,0.01]]]}',
    "east": '{"type":"Polygon","coordinates":[[[0.004,0],[0.01,0],[0.01,0.01],[0.004,0.01]]]}',
    "yard": '{"type":"Polygon","coordinates":[[[0.006,0.002],[0.009,0.002],[0.009,0.008],[0.006,0.008]]]}',
}
BOXES = {"west": (0, 0.005, 0, 0.01), "east": (0.004, 0.01, 0, 0.01), "yard": (0.006, 0.009, 0.002, 0.008)}
PROTOCOLS = ("multi_hop_handoff", "relocation", "proactive", "phoenix")


def draw(seed: int, dwell_s: float = 0.0) -> Story:
    rng = random.Random(f"geofences/{seed}")
    topology = parse_topology(rng.choice(("line:2", "line:3", "star:4")), rng)
    location = LocationSettings({"location": Earth(900)}, stay_s=0.2, zones=ZONES, dwell_s=dwell_s)
    settings = NetworkSettings(protocol=rng.choice(PROTOCOLS), location=location, seed=seed)
    actions: list[Action] = [
        (0.0, "watch", AttachTo(topology.brokers[0], 0)),
        (1.0, "watch", SubscribeTo("topic MATCHES '$roamcast/zones/#'")),
        (1.5, "car", AttachTo(rng.choice(topology.brokers), 0)),
    ]
    at, x, y = 5.0, 0.001, 0.005
    for _ in range(rng.randint(6, 25)):
        at += rng.uniform(0.3, 2.0)
        x = min(max(x + rng.uniform(-0.006, 0.006), -0.002), 0.012)
        y = min(max(y + rng.uniform(-0.003, 0.003), -0.002), 0.012)
        step: Input = MoveTo({"location": f"{y:.6f},{x:.6f}"})
        actions.append((round(at, 4), "car", step))
        if rng.random() < 0.4:
            actions.append((round(at + rng.uniform(0, 0.5), 4), "car", LeaveFor("")))
            back = AttachTo(rng.choice(topology.brokers), 0)
            actions.append((round(at + rng.uniform(0.5, 0.9), 4), "car", back))
        if rng.random() < 0.3:
            broker = rng.choice(topology.brokers)
            down_at = round(at + rng.uniform(0, 0.8), 4)
            if rng.random() < 0.5:
                actions.append((round(down_at - 0.05, 4), broker, Snapshot()))
            actions.append((down_at, broker, Crash(unsent=rng.random() < 0.5)))
            actions.append((round(down_at + rng.uniform(0.1, 1.5), 4), broker, Restart()))
    return Story(topology, settings, tuple(sorted(actions, key=lambda action: action[0])))


def crossings(rows: list[Row]) -> tuple[list[str], list[str]]:
    """What should have been told, by the positions that brokers took, and what was."""
    owed, told = [], []
    inside: dict[str, None] = {}
    for row in rows:
        if row.kind == "located" and row.attributes:
            place = str(decode_attributes(row.attributes).get("location", ""))
            y, x = map(float, place.split(","))
            now = {
                name: None for name, (west, east, south, north) in BOXES.items()
                if west <= x < east and south <= y < north
            }  # fmt: skip
            owed += [f"$roamcast/zones/{name}/leave" for name in inside if name not in now]
            owed += [f"$roamcast/zones/{name}/enter" for name in now if name not in inside]
            inside = now
        elif row.kind == "published" and row.attributes:
            told.append(str(decode_attributes(row.attributes)["topic"]))
    return owed, told


def judged(story: Story) -> tuple[int, list[str]]:
    rows: list[Row] = []
    result = story.run(rows.extend).result
    owed, told = crossings(sorted(rows, key=lambda row: row.time))
    wrongs = list(map(str, result.violations))
    if sorted(owed) != sorted(told):
        wrongs.append(f"owed {owed}, told {told}")
    delivered = sum(row.notifications or 1 for row in rows if row.kind == "delivered")
    if delivered != len(told):
        wrongs.append(f"{len(told)} told, {delivered} delivered")
    return len(told), wrongs


def run_seeds(seeds: range) -> int:
    total = 0
    for seed in seeds:
        count, wrongs = judged(draw(seed))
        assert not wrongs, (seed, wrongs, format_story(draw(seed)))
        total += count
    return total


def test_each_crossing_once_over_crashes_and_handoffs() -> None:
    assert run_seeds(range(25)) > 100


@pytest.mark.slow
def test_each_crossing_once_in_many_stories() -> None:
    assert run_seeds(range(25, 400)) > 1500


def test_a_zone_that_the_session_forgets_is_noticed() -> None:
    enter = Fences._enter

    def forgetful(fences: Fences, session: Session, name: str, place: Position) -> None:
        enter(fences, session, name, place)
        if session.places_number % 3 == 0:
            del session.zones[name]

    with mock.patch.object(Fences, "_enter", forgetful):
        assert any(judged(draw(seed))[1] for seed in range(20))


SHORT = """
brokers a-b
protocol multi_hop_handoff
earth 900
zone yard {"type":"Polygon","coordinates":[[[0.006,0.002],[0.009,0.002],[0.009,0.008],[0.006,0.008]]]}
at 0 watch attach a
at 0 car attach b
at 1 watch subscribe topic MATCHES '$roamcast/zones/yard/+'
at 2 car move 0.005,0.005
at 10 car move 0.005,0.007
at 20 car move 0.005,0.0091
at 30 car move 0.005,0.007
at 40 car move 0.005,0.0111
"""


@pytest.mark.parametrize(
    ("more", "events"),
    [
        ("", ["enter", "leave", "enter", "leave"]),
        ("hysteresis 50\n", ["enter", "leave"]),
        ("dwell 5\n", ["enter", "leave", "enter", "leave"]),
        ("dwell 15\n", []),
        ("dwell 15\nhysteresis 50\n", ["enter", "leave"]),
    ],
)
def test_dwelling_and_hysteresis(more: str, events: list[str]) -> None:
    rows: list[Row] = []
    head, _, tail = SHORT.strip().partition("at 0 watch")
    story = parse_story(f"{head}{more}at 0 watch{tail}")
    assert format_story(parse_story(format_story(story))) == format_story(story)
    assert not story.run(rows.extend).result.violations
    _, told = crossings(rows)
    assert [topic.rsplit("/", 1)[1] for topic in told] == events
