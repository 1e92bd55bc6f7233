"""Every protocol keeps its promise with each routing strategy that it declares, and needs both tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.mobility import PROTOCOLS, check_combination, find_protocol
from roamcast.protocol.messages import AttachRequest, Locate, Located
from roamcast.protocol.notification import Message
from roamcast.routing.covering import CoveringAggregate, Node
from roamcast.routing.router import Router
from roamcast.simulator.fuzz import Kind, fuzz
from roamcast.simulator.story import parse_story, violations_of


def strategies_of(name: str) -> list[str]:
    """Those that a protocol declares, and the one that works wherever merging does and nothing is turned."""
    protocol = find_protocol(name)
    lazy = ["lazy_merging"] if "merging" in protocol.strategies and not protocol.locates else []
    return [*protocol.strategies, *lazy]


PAIRS = [(name, routing) for name in sorted(PROTOCOLS) if ":" not in name for routing in strategies_of(name)]
LOCATING = [(name, routing) for name, routing in PAIRS if find_protocol(name).locates and routing != "simple"]


@pytest.mark.parametrize(("protocol", "routing"), PAIRS)
def test_a_declared_pair_keeps_the_promise(protocol: str, routing: str) -> None:
    report = fuzz(protocol, range(8), routing=routing)
    assert report.violations == 0, report.failures[0].story
    assert report.handoffs > 50


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "routing"), LOCATING)
def test_protocols_that_locate_keep_their_promise_over_many_seeds(protocol: str, routing: str) -> None:
    report = fuzz(protocol, range(1000), routing=routing)
    assert report.violations == 0, report.failures[0].story


@pytest.mark.parametrize("protocol", ["relocation", "phoenix"])
def test_entries_that_are_turned_cannot_be_taken_back_later(protocol: str) -> None:
    with pytest.raises(InputError, match=f"{protocol} does not work with lazy_merging routing"):
        check_combination(find_protocol(protocol), "lazy_merging")


def test_what_is_delivered_does_not_depend_on_the_strategy() -> None:
    """The entries that are turned are the same, so the messages are."""
    for seed in range(5):
        simple, *others = (
            Kind(routing=routing).draw("relocation", seed).run().result
            for routing in ("simple", "covering", "merging")
        )
        assert [one.delivered for one in others] == [simple.delivered] * 2
        assert [one.handoffs for one in others] == [simple.handoffs] * 2


# --- the two tables, seen at a broker in the middle ---

THREE_FILTERS = """
brokers a-b b-c
protocol relocation
routing {routing}
at 0 one attach a
at 0 two attach a
at 1 one subscribe x < 10
at 1 two subscribe x < 5
at 1 two subscribe x BETWEEN 10 AND 20
"""


@pytest.mark.parametrize(
    ("routing", "matching"),
    [
        ("simple", {"x < 10", "x < 5", "x BETWEEN 10 AND 20"}),
        ("covering", {"x < 10", "x BETWEEN 10 AND 20"}),
        ("merging", {"x <= 20"}),
    ],
)
def test_matching_is_reduced_and_location_is_not(routing: str, matching: set[str]) -> None:
    run = parse_story(THREE_FILTERS.format(routing=routing)).run()
    router = run.network.brokers["b"].router
    assert {filter for filter, interface in router.table.entries() if interface == "a"} == set(
        map(parse, matching)
    )
    assert sorted(subscriber.split()[0] for _, subscriber in router.collected("a")) == ["one", "two", "two"]
    # Whoever looks for a client finds it, whatever its filter became.
    assert router.direction([parse("x < 5")], name_in(router, "two")) == "a"


def name_in(router: Router, client: str) -> str:
    return next(subscriber for _, subscriber in router.collected("a") if subscriber.startswith(client))


# --- each rule is needed ---


def forget_whose_entries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One table only: what is forwarded is reduced."""
    monkeypatch.setattr(find_protocol("phoenix"), "locates", False)


def lose_what_was_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a filter goes, those that it covered do not come back."""

    def withdraw(self: CoveringAggregate, node: Node) -> None:
        if node.above is None:
            self._remove_root(node)
            node.below.clear()

    monkeypatch.setattr(CoveringAggregate, "_withdraw", withdraw)


def turn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that are turned stay in the matching table where they were."""
    monkeypatch.setattr(Router, "_is_routed", lambda self, interface, entry: True)


@pytest.mark.parametrize(
    ("protocol", "breaks"),
    [
        ("phoenix", forget_whose_entries_are),
        ("phoenix", lose_what_was_covered),
        ("relocation", lose_what_was_covered),
        ("relocation", turn_nothing),
    ],
)
def test_a_broken_rule_is_found(
    protocol: str, breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    assert any(fails(protocol, seed) for seed in range(20))


def fails(protocol: str, seed: int) -> bool:
    try:
        return bool(violations_of(Kind(routing="covering").draw(protocol, seed)))
    except (KeyError, AssertionError):
        return True


@pytest.mark.parametrize("routing", ["simple", "covering", "merging"])
def test_the_old_broker_is_found_along_the_entries(routing: str) -> None:
    """Nobody is asked but the brokers on the way, though the client does not say where it was."""
    story = parse_story(FINDING.format(routing=routing))
    asked: list[tuple[str, str]] = []

    def trace(at: float, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, AttachRequest | Locate | Located):
            asked.append((sender, receiver))

    result = story.run(trace=trace).result
    assert not result.violations
    assert asked == [("d", "b"), ("b", "a")]


FINDING = """
brokers a-b b-c b-d
protocol relocation
routing {routing}
names_last_broker False
at 0 wide attach a
at 0 one attach a
at 1 wide subscribe x < 10
at 1 one subscribe x < 5
at 2 one leave
at 3 one attach d
"""
