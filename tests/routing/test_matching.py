"""Where notifications go whose filters ask for what is in their bodies."""

from __future__ import annotations

import random

import msgspec
import pytest

from roamcast.filters.filter import Attributes, Filter
from roamcast.filters.selector import parse
from roamcast.protocol.notification import Burst, Fleeting, encode_attributes
from roamcast.protocol.snapshot import freeze, thaw
from roamcast.routing.matching import Interface, MatchingTable, Owner, Route

INTERFACES: tuple[Interface, ...] = ("b", "c", ("x",), ("y",), ("y", "again"), ("z",), ("", "retained"))
TOPIC = encode_attributes({"topic": "t"})
Ways = list[tuple[Burst, tuple[str, ...], tuple[Owner, ...]]]


def contents_of(burst: Burst) -> list[Attributes]:
    return [{**msgspec.json.decode(body), "topic": "t"} for body in burst.bodies]


def drawn_filter(draw: random.Random) -> Filter:
    ranges = [f"{name} BETWEEN {low} AND {low + 6}" for name in "uvw" if (low := draw.randrange(10)) < 8]
    topic = draw.choice(["topic = 't'", "topic MATCHES '#'", "topic = 'else'"])
    return parse(" AND ".join([topic, *ranges]))


def wanted(table: MatchingTable, attributes: Attributes) -> list[Interface]:
    """Asking every filter."""
    return list(dict.fromkeys(one for filter, one in table.entries() if filter.matches(attributes)))


def fleeting(draw: random.Random, count: int) -> Burst:
    bodies = tuple(msgspec.json.encode({name: draw.randrange(14) for name in "uvw"}) for _ in range(count))
    return Fleeting("p", 0, 0, TOPIC, 1.0, bodies, count)


@pytest.mark.parametrize("seed", range(6))
def test_runs_and_gathered_parts_bring_everyone_what_it_wants(seed: int) -> None:
    draw = random.Random(seed)
    table = MatchingTable(frozenset({"topic"}))
    held: list[tuple[Filter, Interface]] = []
    for _ in range(40):
        for _ in range(draw.randrange(12)):
            if held and draw.random() < 0.3:
                table.remove(*held.pop(draw.randrange(len(held))))
            else:
                held.append((drawn_filter(draw), draw.choice(INTERFACES)))
                table.add(*held[-1])
        if draw.random() < 0.1:
            table = thaw(freeze(table))
        burst = fleeting(draw, draw.randint(1, 40))
        contents, route = contents_of(burst), table.route(TOPIC)
        if route[2]:
            check_runs(table, burst, contents, table.split(burst, route, contents))
            check_gathered(table, burst, contents, table.gather(burst, route, contents))


def check_runs(table: MatchingTable, burst: Burst, contents: list[Attributes], ways: Ways) -> None:
    """In order, each with all who want it."""
    came = [(body, set(peers) | set(owners)) for part, peers, owners in ways for body in part.bodies]
    due = [
        (body, found)
        for body, attributes in zip(burst.bodies, contents, strict=True)
        if (found := set(wanted(table, attributes)))
    ]
    assert came == due


def check_gathered(table: MatchingTable, burst: Burst, contents: list[Attributes], ways: Ways) -> None:
    """Each peer, client and collector once, with all it wants and in order."""
    came: dict[Interface, tuple[bytes, ...]] = {}
    for part, peers, owners in ways:
        goals: list[Interface] = [*peers, *owners]
        assert len(goals) == 1
        assert goals[0] not in came
        assert part.count == len(part.bodies)
        came[goals[0]] = part.bodies
    for interface in INTERFACES:
        due = [
            body
            for body, attributes in zip(burst.bodies, contents, strict=True)
            if _goal(interface) in map(_goal, wanted(table, attributes))
        ]
        assert list(came.get(_goal(interface), ())) == due


def _goal(interface: Interface) -> Interface:
    """What belongs to one client goes to it together."""
    return interface if isinstance(interface, str) or not interface[0] else interface[:1]


def test_whoever_wants_everything_gets_it_with_the_rest() -> None:
    table = MatchingTable(frozenset({"topic"}))
    table.add(parse("topic = 't'"), ("x",))
    table.add(parse("topic = 't' AND u > 5"), "b")
    burst = fleeting(random.Random(1), 30)
    contents, route = contents_of(burst), table.route(TOPIC)
    gathered = {(*peers, *owners): part for part, peers, owners in table.gather(burst, route, contents)}
    assert gathered[("x",),] is burst
    assert 0 < gathered["b",].count < 30


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from roamcast.routing import matching

    monkeypatch.setattr(matching, "PARTS_KEPT_MAX", 10)
    table = MatchingTable(frozenset({"topic"}))
    for number in range(50):
        table.add(parse(f"topic = 't' AND u = {number}"), (f"client {number}",))
    route: Route = table.route(TOPIC)
    for number in range(50):
        body = msgspec.json.encode({"u": number})
        burst = Fleeting("p", 0, 0, TOPIC, 1.0, (body,), 1)
        assert table.gather(burst, route, contents_of(burst)) == [(burst, (), ((f"client {number}",),))]
        assert sum(map(len, table._parts.values())) <= 11
