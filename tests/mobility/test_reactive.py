"""Reactive: what is lost or repeated was published around a move-in; merged, nothing is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest
from tests.mobility.seeds import first_failing_seed

from roamcast.broker.core import BrokerCore
from roamcast.filters.selector import parse
from roamcast.mobility import MobilityProtocol
from roamcast.mobility.base import STREAM
from roamcast.mobility.reactive import (
    ForwardBuffered,
    ProxyObject,
    Reactive,
    ReactiveMerged,
    RequestBuffered,
    in_publishing_order,
)
from roamcast.protocol.notification import Burst
from roamcast.protocol.session import Session
from roamcast.simulator.fuzz import draw_story, fuzz
from roamcast.simulator.story import parse_story, verdict

# --- 4.3.2, as stories ---

HANDOFF = """
brokers a-b b-c
protocol reactive
at 0.0 s attach a
at 0.0 p attach b
at 0.1 s subscribe TRUE
at 1.0 s leave
at 1.1 p publish {"x": 1}
at 1.2 p publish {"x": 2}
at 2.0 s attach c
at 3.0 p publish {"x": 3}
"""


def test_what_the_old_broker_stored_is_fetched_and_the_old_broker_forgets() -> None:
    run = parse_story(HANDOFF).run()
    assert (run.result.expected, run.result.delivered, run.result.violations) == (3, 3, [])
    assert run.traffic.hops["transfer"] == 4  # Two notifications over two links.
    old, new = (run.network.brokers[id].protocol for id in ("a", "c"))
    assert isinstance(old, Reactive)
    assert isinstance(new, Reactive)
    assert (len(old.proxies), len(new.proxies)) == (0, 1)


DUPLICATE = """
brokers a-b
protocol {protocol}
at 0.0 s attach a
at 0.0 p attach a
at 0.0 other attach b
at 0.1 s subscribe TRUE
at 0.1 other subscribe TRUE
at 1.0 s attach b
at 1.025 p publish {{}}
"""

LOSS = """
brokers a-b
protocol {protocol}
link 0..0.1
at 0.0 s attach a
at 0.0 p attach a
at 0.1 s subscribe TRUE
at 2.0 s attach b
at 2.2 p publish {{}}
"""


def test_both_brokers_store_what_is_published_at_a_move_in() -> None:
    assert verdict(parse_story(DUPLICATE.format(protocol="reactive"))).excused == {"duplicate (move_in)": 1}
    merged = verdict(parse_story(DUPLICATE.format(protocol="reactive:merged")))
    assert (merged.delivered, merged.duplicates) == (2, 0)


def test_the_request_overtakes_the_subscription() -> None:
    assert verdict(parse_story(LOSS.format(protocol="reactive"))).excused == {"lost (move_in)": 1}
    merged = verdict(parse_story(LOSS.format(protocol="reactive:merged")))
    assert (merged.delivered, merged.lost) == (1, 0)


def test_publishing_order_is_by_time_but_never_against_a_publisher() -> None:
    def burst(publisher: str, number: int, published_at: float) -> Burst:
        return Burst(publisher, 0, number, b"", published_at)

    # The second of p was published where the clock is slow.
    bursts = [burst("p", 1, 5.0), burst("p", 2, 3.0), burst("q", 1, 4.0), burst("q", 2, 6.0)]
    ordered = [(one.publisher, one.number) for one in in_publishing_order(bursts)]
    assert ordered == [("q", 1), ("p", 1), ("p", 2), ("q", 2)]


def test_a_burst_that_both_stored_in_part_is_taken_once() -> None:
    broker = BrokerCore("b0", ReactiveMerged)
    fetched, own = Burst("p", 0, 1, b"", 0.0, (b"",) * 3, 3), Burst("p", 0, 2, b"", 0.0, (b"",) * 4, 4)
    assert isinstance(broker.protocol, ReactiveMerged)
    merged = broker.protocol.merge([fetched], [own])
    assert [(one.number, one.last) for one in merged] == [(1, 3), (4, 5)]


def test_what_a_full_buffer_gave_up_does_not_disturb_the_order() -> None:
    """The old broker may have lost the first of those that both stored."""
    for protocol in ("reactive", "reactive:merged"):
        lost = 0
        for seed in (2, 12, 18):
            story = draw_story(protocol, seed)
            result = verdict(replace(story, settings=replace(story.settings, buffer_bytes=200)))
            lost += result.excused.get("lost (overflow)", 0)
            assert result.violations == []
        assert lost > 0


# --- seeds ---


class Observed(ReactiveMerged):
    """Counts what the fuzzer reaches."""

    name = "reactive_observed"
    seen: ClassVar[Counter[str]] = Counter()

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        self.seen["gone before its session came"] += not self.host.is_attached(session.client)
        super().on_attach(session, came_from, received)

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        proxy = self.current.get(session.client)
        self.seen["left before it had been fetched"] += proxy is not None and not proxy.merged
        super().on_depart(session, destination, received)

    def on_request_buffered(self, sender: str, message: RequestBuffered) -> None:
        proxy = self.proxies[message.client, message.old_number]
        self.seen["requested before it had been fetched"] += not proxy.merged
        super().on_request_buffered(sender, message)

    def merge(self, fetched: list[Burst], own: list[Burst]) -> list[Burst]:
        merged = super().merge(fetched, own)
        self.seen["both had stored the same"] += len(merged) < len(fetched) + len(own)
        return merged


def test_the_fuzzer_reaches_interrupted_handoffs() -> None:
    Observed.seen.clear()
    assert first_failing_seed(Observed, 25) is None
    assert len(Observed.seen) == 4
    assert all(Observed.seen[what] for what in Observed.seen)


@pytest.mark.slow  # 7 s
def test_as_published_it_loses_and_repeats_and_merged_it_does_not() -> None:
    published, merged = fuzz("reactive", range(25)), fuzz("reactive:merged", range(25))
    assert published.violations == merged.violations == 0
    assert published.lost > 0
    assert published.excused == {
        "lost (move_in)": published.lost, "duplicate (move_in)": published.duplicates,
    }  # fmt: skip
    assert 0 < published.duplicates < 0.05 * published.deliveries
    assert (merged.lost, merged.duplicates, merged.out_of_order, merged.excused) == (0, 0, 0, {})


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["reactive", "reactive:merged"])
def test_the_promise_holds_over_many_seeds(protocol: str) -> None:
    assert fuzz(protocol, range(1000)).violations == 0


# --- planted breakages: each is one rule left out ---


class OwnFirst(Reactive):
    """What arrived at the new broker comes before what was fetched."""

    name = "reactive_own_first"

    def merge(self, fetched: list[Burst], own: list[Burst]) -> list[Burst]:
        return own + fetched


class ForgetsTheAir(Reactive):
    """What was sent counts as received."""

    name = "reactive_forgets_the_air"

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        proxy = self.current.get(session.client)
        super().on_depart(session, destination, {STREAM: proxy.queue.sent} if proxy is not None else {})


class DoesNotWait(Reactive):
    """A broker that has not fetched yet forwards what it has."""

    name = "reactive_does_not_wait"

    def try_forward(self, client: str, number: int, proxy: ProxyObject) -> None:
        proxy.merged = True
        super().try_forward(client, number, proxy)

    def on_forward_buffered(self, sender: str, message: ForwardBuffered) -> None:
        if (message.client, message.number) in self.proxies:
            super().on_forward_buffered(sender, message)


class StopsStoringAtOnce(Reactive):
    """The old broker ends its subscription when the session leaves."""

    name = "reactive_stops_at_once"

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        proxy = self.current.get(session.client)
        super().on_depart(session, destination, received)
        if proxy is not None:
            number = next(key[1] for key, one in self.proxies.items() if one is proxy)
            for text in proxy.filters:
                self.host.unsubscribe((session.client, number), parse(text))
            proxy.filters = []


class RequestsFirst(ReactiveMerged):
    """Merged, but the request is sent before the subscription, as published."""

    name = "reactive_requests_first"
    move_in = Reactive.move_in


class RemovesNoDuplicates(ReactiveMerged):
    """Merged, but as published."""

    name = "reactive_removes_none"
    merge = Reactive.merge


BREAKAGES: tuple[type[MobilityProtocol], ...] = (
    *(OwnFirst, ForgetsTheAir, DoesNotWait, StopsStoringAtOnce, RequestsFirst, RemovesNoDuplicates),
)


@pytest.mark.slow  # 6 s
@pytest.mark.parametrize("protocol", BREAKAGES, ids=lambda one: one.name)
def test_a_planted_breakage_is_caught(protocol: type[MobilityProtocol]) -> None:
    assert first_failing_seed(protocol, 300) is not None, protocol.__doc__
