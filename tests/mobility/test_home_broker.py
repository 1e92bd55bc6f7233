"""Home broker: what is lost was in transit, and the home broker sends to one place at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest
from tests.mobility.seeds import first_failing_seed

from roamcast.mobility import MobilityProtocol
from roamcast.mobility.home_broker import ForwardEvents, HomeBroker, HomeBrokerPublished, Register, home_of
from roamcast.protocol.messages import Message, Relayed, cause_of
from roamcast.protocol.notification import Burst
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner
from roamcast.simulator.fuzz import draw_story, fuzz
from roamcast.simulator.story import parse_story, verdict

# --- section 2, as stories ---

TRIANGLE = """
brokers home-hub hub-abroad hub-elsewhere
protocol home_broker
at 0.0 c attach home
at 0.0 p attach abroad
at 0.1 c subscribe TRUE
at 1.0 c leave
at 1.1 p publish {"x": 1}
at 2.0 c attach abroad
at 3.0 p publish {"x": 2}
at 4.0 c attach elsewhere
at 5.0 p publish {"x": 3}
at 6.0 c attach home
at 7.0 p publish {"x": 4}
"""


def test_everything_travels_by_way_of_the_home_broker() -> None:
    seen: list[str] = []

    def trace(now: float, sender: str, receiver: str, message: Message) -> None:
        inner = message.message if isinstance(message, Relayed) else message
        kind = type(inner).__name__
        if kind in ("ForwardEvents", "Register", "Deregister", "Grant"):
            weight = inner.weight if cause_of(inner) == "transfer" else 0
            seen.append(f"{sender} {receiver} {kind} {weight}")

    run = parse_story(TRIANGLE).run(trace=trace)
    assert seen == [
        "home hub Grant 1", "hub abroad Grant 1",  # What was stored comes with the session.
        "abroad hub Register 0", "hub home Register 0",
        "home hub ForwardEvents 0", "hub abroad ForwardEvents 0",  # The answer, if nothing came since,
        "home hub ForwardEvents 1", "hub abroad ForwardEvents 1",  # and what arrives.
        "abroad hub Deregister 0", "abroad hub Grant 0", "hub home Deregister 0", "hub home Grant 0",
        "home hub Grant 0", "hub elsewhere Grant 0",
        "elsewhere hub Register 0", "hub home Register 0",
        "home hub ForwardEvents 0", "hub elsewhere ForwardEvents 0",
        "home hub ForwardEvents 1", "hub elsewhere ForwardEvents 1",
        "elsewhere hub Deregister 0", "elsewhere hub Grant 0", "hub home Deregister 0", "hub home Grant 0",
    ]  # fmt: skip
    assert (run.result.delivered, run.result.lost, run.result.violations) == (4, 0, [])
    # Two hops for each notification to the foreign broker.
    assert run.traffic.hops["transfer"] == 6


IN_TRANSIT = """
brokers home-abroad
protocol home_broker
at 0.0 c attach home
at 0.0 p attach home
at 0.1 c subscribe TRUE
at 1.0 c attach abroad
at 2.0 p publish {"x": 1}
at 2.025 c leave
at 3.0 p publish {"x": 2}
at 4.0 c attach abroad
"""


def test_what_is_in_transit_is_lost_and_nothing_else() -> None:
    result = verdict(parse_story(IN_TRANSIT))
    assert (result.expected, result.delivered) == (2, 1)
    assert result.excused == {"lost (in_transit)": 1}
    assert not result.violations


PUBLISHED = """
brokers a-b
protocol {protocol}
at 0.0 c attach a
at 0.1 c subscribe TRUE
at 0.0 p attach a
at 1.0 c attach b
at 2.0 c leave
at 9.0 p publish {{}}
at 10.0 c attach b
"""


def test_without_deregistration_what_is_published_while_away_is_lost() -> None:
    published = verdict(parse_story(PUBLISHED.format(protocol="home_broker:published")))
    assert [violation.kind for violation in published.violations] == ["lost"]
    assert verdict(parse_story(PUBLISHED.format(protocol="home_broker"))).lost == 0


def test_a_subscription_made_abroad_is_carried_out_at_home() -> None:
    story = """
    brokers home-abroad
    protocol home_broker
    at 0.0 c attach home
    at 0.0 p attach home
    at 1.0 c attach abroad
    at 2.0 c subscribe TRUE
    at 3.0 p publish {"x": 1}
    at 4.0 c unsubscribe TRUE
    at 5.0 p publish {"x": 2}
    """
    run = parse_story(story).run()
    assert (run.result.expected, run.result.delivered, run.result.violations) == (1, 1, [])
    assert len(run.network.brokers["home"].router.table) == 0


# --- seeds ---


def test_what_a_full_buffer_gives_up_is_lost_and_nothing_else() -> None:
    for seed in range(6):
        story = draw_story("home_broker", seed)
        result = verdict(replace(story, settings=replace(story.settings, buffer_bytes=200)))
        assert result.violations == []


class Observed(HomeBroker):
    """Counts what the fuzzer reaches."""

    name = "home_broker_observed"
    seen: ClassVar[Counter[str]] = Counter()

    def on_forward_events(self, sender: str, message: ForwardEvents) -> None:
        visit = self.visits.get(message.client)
        if visit is None:
            self.seen["forwarded to a client that is gone"] += 1
        elif visit.number != message.number:
            self.seen["of an earlier visit, in time for this one"] += bool(message.bursts)
        super().on_forward_events(sender, message)

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        self.seen["gone before its session came"] += not self.host.is_attached(session.client)
        super().on_attach(session, came_from, received)

    def on_detach(self, session: Session) -> None:
        visit = self.visits.get(session.client)
        self.seen["left with deliveries under way"] += visit is not None and bool(visit.queue)
        super().on_detach(session)


def test_the_fuzzer_reaches_every_way_of_being_in_transit() -> None:
    Observed.seen.clear()
    assert first_failing_seed(Observed, 25) is None
    assert all(Observed.seen[what] for what in Observed.seen)
    assert len(Observed.seen) == 4


@pytest.mark.slow
def test_the_promise_holds_over_many_seeds() -> None:
    report = fuzz("home_broker", range(1000))
    assert report.violations == 0
    assert report.excused == {"lost (in_transit)": report.lost}
    assert (report.duplicates, report.out_of_order) == (0, 0)


# --- planted breakages: each is one rule left out ---


class StoresWhatItForwards(HomeBroker):
    """The home broker keeps a copy of what it forwards."""

    name = "home_broker_stores_too"

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        super().on_notification(owner, source, burst)
        home = self.homes[owner[0]][owner[1]]
        if home.location:
            self.keep(home.queue, owner[0], burst)


class ForgetsWhatTheClientHas(HomeBroker):
    """The home broker does not look at what the client says it has when it is elsewhere."""

    name = "home_broker_no_rewind"

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        self.host.hand_over(session, destination)


class RegistersTheAbsent(HomeBroker):
    """A client is registered though it is gone before its session came."""

    name = "home_broker_registers_the_absent"

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        super().on_attach(session, came_from, received)
        if self.home_here(session) is None and not self.host.is_attached(session.client):
            home_broker, begun_at = home_of(session)
            self.host.send(home_broker, Register(session.client, session.number, begun_at))


class ForwardsNothingStored(HomeBroker):
    """Registration forwards only what arrives from now on."""

    name = "home_broker_keeps_stored"

    def on_register(self, sender: str, message: Register) -> None:
        home = self.homes[message.client][message.home]
        home.location, home.number = sender, message.number
        self.host.send(sender, ForwardEvents(message.client, message.number, ()))


class DropsWhatCouldBeDelivered(HomeBroker):
    """Now and then a foreign broker gives up for a client that is there."""

    name = "home_broker_gives_up"

    def on_forward_events(self, sender: str, message: ForwardEvents) -> None:
        if message.client in self.visits and any(burst.number % 7 == 0 for burst in message.bursts):
            self.give_up(message.client, message.bursts, "in transit")
            message = ForwardEvents(message.client, message.number, ())
        super().on_forward_events(sender, message)


BREAKAGES: tuple[type[MobilityProtocol], ...] = (
    *(HomeBrokerPublished, StoresWhatItForwards, ForgetsWhatTheClientHas, RegistersTheAbsent),
    *(ForwardsNothingStored, DropsWhatCouldBeDelivered),
)


@pytest.mark.parametrize("protocol", BREAKAGES, ids=lambda one: one.name)
def test_a_planted_breakage_is_caught(protocol: type[MobilityProtocol]) -> None:
    assert first_failing_seed(protocol, 300) is not None, protocol.__doc__
