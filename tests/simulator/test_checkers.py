"""The checkers themselves, on rows made by hand: each check fires, and does not fire without cause."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.mobility.broken import registered

from roamcast.filters.selector import parse
from roamcast.mobility import Promise
from roamcast.mobility.sub_unsub import SubUnsub
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.records import Row
from roamcast.simulator.checkers import Checker, Edges, Identity, Result
from roamcast.simulator.story import kinds_of, parse_story, violations_of

STRICT = Promise()
LAX = Promise(
    lost=frozenset({"away", "remainder", "overflow"}),
    duplicate=frozenset({"another_broker"}),
    reordered=frozenset({"another_broker"}),
    stale=frozenset({"another_broker"}),
    remainder=True,
)
EDGES = Edges(before_leave_s=0.5, after_attach_s=0.25)


class Log:
    """Rows as a run would write them, given to a checker one by one."""

    def __init__(self, promise: Promise = STRICT, violations_max: int = 20, edges: Edges = EDGES) -> None:
        self.checker = Checker(promise, edges, violations_max)
        self.sequence = itertools.count(1)

    def row(self, time: float, node: str, kind: str, **fields: Any) -> Log:
        self.checker.observe([Row(next(self.sequence), time, node, kind, **fields)])
        return self

    def subscribed(self, time: float, reason: str, text: str = "x = 1", client: str = "c") -> Log:
        return self.row(time, "b0", "subscribed", client=client, filter=parse(text).text, reason=reason)

    def unsubscribed(self, time: float, reason: str, text: str = "x = 1", client: str = "c") -> Log:
        return self.row(time, "b0", "unsubscribed", client=client, filter=parse(text).text, reason=reason)

    def published(
        self, time: float, number: int, x: int = 1, publisher: str = "p", incarnation: int = 0
    ) -> Log:
        attributes = encode_attributes({"x": x})
        return self.row(
            time, "b0", "published", client=publisher, publisher=publisher, incarnation=incarnation,
            number=number, notifications=1, attributes=attributes, published_at=time,
        )  # fmt: skip

    def delivered(
        self,
        time: float,
        number: int,
        broker: str = "b0",
        count: int = 1,
        client: str = "c",
        publisher: str = "p",
        incarnation: int = 0,
    ) -> Log:
        return self.row(
            time, client, "delivered", client=client, broker=broker, publisher=publisher,
            incarnation=incarnation, number=number, notifications=count,
        )  # fmt: skip

    def moved(self, time: float, reason: str | None, broker: str = "b0", client: str = "c") -> Log:
        return self.row(time, client, "moved", client=client, broker=broker, reason=reason)

    def attached(self, time: float, node: str = "c", client: str = "c") -> Log:
        return self.row(time, node, "attached", client=client, broker="b0")

    def dropped(self, time: float, number: int, count: int = 1, reason: str = "overflow") -> Log:
        return self.row(
            time, "b0", "dropped", client="c", publisher="p", incarnation=0, number=number,
            notifications=count, reason=reason,
        )  # fmt: skip

    def finish(self, stored: set[tuple[str, Identity]] | None = None) -> Result:
        return self.checker.finish(stored or set())

    def kinds(self, stored: set[tuple[str, Identity]] | None = None) -> list[str]:
        return [violation.kind for violation in self.finish(stored).violations]


def settled(promise: Promise = STRICT, **options: Any) -> Log:
    """A client whose subscription to x = 1 settled at 1.0."""
    return Log(promise, **options).subscribed(0.5, "issued").subscribed(1.0, "settled")


def away(promise: Promise) -> Log:
    """The same, away from 10.0 until it attached again at 20.0."""
    return settled(promise).moved(10.0, "left").moved(19.0, "b0", "b1").attached(20.0)


def test_what_others_were_owed_is_no_duplicate_for_one_who_was_not() -> None:
    """Also once all who were owed have had it, and although it would match a later subscription."""
    log = settled().published(2.0, 1).delivered(2.1, 1)
    log.subscribed(3.0, "issued", client="d").subscribed(3.5, "settled", client="d")
    result = log.delivered(4.0, 1, client="d").delivered(4.1, 1).finish()
    assert (result.unexpected, result.duplicates) == (1, 1)


def test_a_publisher_that_begins_anew_repeats_nothing() -> None:
    """Its numbers begin at 1 again; the incarnation tells them apart, and says which came first."""
    log = settled().published(2.0, 1).published(2.1, 2).delivered(2.2, 1).delivered(2.3, 2)
    log.published(5.0, 1, incarnation=4_000_000).delivered(5.1, 1, incarnation=4_000_000)
    assert log.kinds() == []
    assert log.delivered(6.0, 2).kinds() == ["duplicate"]
    log = settled().published(2.0, 1).published(5.0, 1, incarnation=4_000_000)
    assert log.delivered(5.1, 1, incarnation=4_000_000).delivered(5.2, 1).kinds() == ["out of order"]


# --- outages: the clock of propagation delays stands still ---


def crashed(log: Log, from_s: float, to_s: float) -> Log:
    return log.row(from_s, "network", "crashed", broker="b1").row(to_s, "network", "started", broker="b1")


def cut(log: Log, from_s: float, to_s: float) -> Log:
    for node, peer in (("b0", "b1"), ("b1", "b0")):
        log.row(from_s, node, "link_down", peer=peer)
    for node, peer in (("b0", "b1"), ("b1", "b0")):
        log.row(to_s, node, "link_up", peer=peer)
    return log


@pytest.mark.parametrize("happen", [crashed, cut])
def test_what_waits_during_an_outage_is_not_late(happen: Callable[[Log, float, float], Log]) -> None:
    """Published 5.2 s before the client left, of which the network stood still for 5 s."""
    log = settled(LAX).published(4.8, 1)
    happen(log, 4.9, 9.9).moved(10.0, "left").attached(20.0)
    assert log.finish().excused == {"lost (away)": 1}
    # Without the outage, and with one that ends 0.4 s too early, it is too long ago.
    assert settled(LAX).published(4.8, 1).moved(10.0, "left").attached(20.0).kinds() == ["lost"]
    log = settled(LAX).published(4.8, 1)
    assert happen(log, 4.9, 9.5).moved(10.0, "left").attached(20.0).kinds() == ["lost"]


def test_overlapping_outages_count_once() -> None:
    def log(published_at: float) -> Log:
        log = settled(LAX).published(published_at, 1)
        log.row(4.0, "b0", "link_down", peer="b1").row(5.0, "network", "crashed", broker="b2")
        log.row(6.0, "b0", "link_up", peer="b1").row(8.0, "network", "started", broker="b2")
        return log.moved(8.2, "left").attached(20.0)

    # 4 s of standing still, with half a second of propagation delay before the leave.
    assert log(3.8).finish().excused == {"lost (away)": 1}
    assert log(3.6).kinds() == ["lost"]
    assert (log(3.8).finish().crashes, log(3.8).finish().links_down) == (1, 1)


def test_what_was_under_way_when_a_link_went_down_is_sent_again() -> None:
    """The clock goes on when that has arrived, and never backwards."""
    edges = Edges(before_leave_s=0.5, after_attach_s=0.25, after_outage_s=0.25)
    log = cut(cut(settled(LAX, edges=edges), 4.0, 5.0), 5.125, 6.0)
    # Stood still from 4 to 6.25.
    log.published(3.75, 1).published(3.25, 2).moved(6.5, "left").attached(20.0)
    result = log.finish()
    assert result.excused == {"lost (away)": 1}
    assert [one.text.split(",")[0] for one in result.violations] == ["c never got p/2"]


# --- what clients ask for is published once ---


@pytest.mark.parametrize(("asked", "kinds"), [(1, ["published twice"]), (2, []), (3, ["never published"])])
def test_what_is_published_is_what_was_asked_for(asked: int, kinds: list[str]) -> None:
    log = Log().published(1.0, 1).published(2.0, 2)
    assert [one.kind for one in log.checker.finish(set(), {"p": asked}).violations] == kinds


def test_what_was_refused_counts_as_taken() -> None:
    log = Log().published(1.0, 1)
    log.row(2.0, "b0", "dropped", client="p", publisher="p", notifications=2, reason="not advertised")
    assert log.checker.finish(set(), {"p": 3}).violations == []


# --- the rule and its edges ---


def test_published_at_the_time_of_issuing_at_another_broker_is_not_before_it() -> None:
    def log(node: str, time: float) -> Log:
        log = Log().row(
            time, node, "published", client="p", publisher="p", incarnation=0, number=1, notifications=1,
            attributes=encode_attributes({"x": 1}), published_at=time,
        )  # fmt: skip
        return log.subscribed(0.5, "issued").subscribed(0.6, "settled")

    assert log("b1", 0.5).kinds() == []
    assert log("b1", 0.5).delivered(0.7, 1).kinds() == []
    assert log("b1", 0.5).delivered(0.7, 1).delivered(0.8, 1).kinds() == ["duplicate"]
    assert log("b0", 0.5).delivered(0.7, 1).kinds() == ["stale"]
    assert log("b1", 0.4).delivered(0.7, 1).kinds() == ["stale"]


def test_delivered_once_in_order_is_right() -> None:
    log = settled().published(2.0, 1).published(2.1, 2).delivered(2.2, 1).delivered(2.3, 2)
    result = log.finish()
    assert result.violations == []
    assert (result.published, result.expected, result.delivered, result.lost) == (2, 2, 2, 0)


def test_published_after_settled_must_be_delivered() -> None:
    assert settled().published(1.0, 1).kinds() == ["lost"]
    assert settled().published(1.0, 1).delivered(1.0, 1).kinds() == []


def test_published_between_issued_and_settled_may_be_delivered() -> None:
    def log() -> Log:
        return Log().subscribed(0.5, "issued").published(0.5, 1)

    assert log().subscribed(0.5, "settled").kinds() == []
    assert log().subscribed(0.5, "settled").delivered(0.6, 1).kinds() == []
    assert log().delivered(0.5, 1).kinds() == []


def test_published_before_issued_must_not_be_delivered() -> None:
    def log() -> Log:
        return Log().published(0.5, 1).subscribed(0.5, "issued").subscribed(0.5, "settled")

    assert log().kinds() == []
    assert log().delivered(0.6, 1).kinds() == ["stale"]


def test_published_until_the_unsubscription_is_issued_must_be_delivered() -> None:
    log = settled().published(3.0, 1).unsubscribed(3.0, "issued").unsubscribed(4.0, "settled")
    assert log.kinds() == ["lost"]


def test_published_while_unsubscribing_may_be_delivered() -> None:
    def log() -> Log:
        return settled().unsubscribed(3.0, "issued").published(3.0, 1)

    assert log().unsubscribed(3.0, "settled").kinds() == []
    assert log().unsubscribed(3.0, "settled").delivered(3.5, 1).kinds() == []


def test_published_after_the_unsubscription_settled_must_not_be_delivered() -> None:
    log = settled().unsubscribed(3.0, "issued").unsubscribed(3.0, "settled").published(3.0, 1)
    assert log.delivered(3.1, 1).kinds() == ["stale"]


def test_what_was_owed_before_an_unsubscription_may_come_after_it() -> None:
    log = settled().published(2.9, 1).unsubscribed(3.0, "issued").unsubscribed(3.0, "settled")
    assert log.delivered(3.1, 1).kinds() == []


def test_a_second_subscription_begins_anew() -> None:
    log = settled().unsubscribed(3.0, "issued").unsubscribed(3.0, "settled")
    log.published(3.5, 1).subscribed(4.0, "issued").published(4.5, 2).subscribed(5.0, "settled").published(
        5.5, 3
    )
    assert log.finish().expected == 1
    assert log.kinds() == ["lost", "lost"]  # The same one, judged twice.


def test_of_two_matching_subscriptions_the_settled_one_decides() -> None:
    for order in (("x = 1", "x > 0"), ("x > 0", "x = 1")):
        log = Log()
        for text in order:
            log.subscribed(0.5, "issued", text)
        log.subscribed(1.0, "settled", "x > 0").published(1.0, 1)
        result = log.finish()
        assert (result.expected, result.lost) == (1, 1)


def test_ending_one_of_two_subscriptions_changes_nothing() -> None:
    log = settled().subscribed(1.0, "issued", "x > 0").subscribed(1.0, "settled", "x > 0")
    log.unsubscribed(2.0, "issued").unsubscribed(2.0, "settled").published(3.0, 1)
    assert log.kinds() == ["lost"]


def test_subscriptions_that_come_after_the_attributes_were_seen_count() -> None:
    log = Log().published(0.1, 1).subscribed(0.5, "issued").subscribed(1.0, "settled").published(1.5, 2)
    assert log.kinds() == ["lost"]


# --- anomalies without an excuse ---


def test_what_matches_no_filter_of_the_client() -> None:
    assert settled().published(2.0, 1, x=2).delivered(2.1, 1).kinds() == ["not matching"]
    assert settled(LAX).published(2.0, 1, x=2).delivered(2.1, 1).kinds() == ["not matching"]
    assert settled().published(2.0, 1, x=2).kinds() == []


def test_what_nobody_published() -> None:
    assert settled().delivered(2.1, 1).kinds() == ["invented"]
    log = settled().published(2.0, 1).delivered(2.1, 1, count=2)
    assert log.kinds() == ["invented"]
    assert settled().published(2.0, 1).delivered(2.1, 1).delivered(2.2, 0).kinds() == ["invented"]


def test_numbers_that_do_not_rise_by_one() -> None:
    assert "numbering" in settled().published(2.0, 2).kinds()
    assert "numbering" in settled().published(2.0, 1).published(2.1, 1).kinds()
    other = settled().published(2.0, 1, x=2).published(2.1, 1, x=2, publisher="q")
    assert other.kinds() == []


def test_duplicates() -> None:
    log = settled().published(2.0, 1).delivered(2.1, 1).delivered(2.2, 1)
    assert log.kinds() == ["duplicate"]
    assert log.checker.result.duplicates == 1
    both = settled().subscribed(1.0, "issued", client="d").subscribed(1.0, "settled", client="d")
    both.published(2.0, 1).delivered(2.1, 1).delivered(2.2, 1, client="d")
    assert both.kinds() == []
    assert both.delivered(2.3, 1).kinds() == ["duplicate"]


def test_a_duplicate_of_what_only_might_be_delivered() -> None:
    log = Log().subscribed(0.5, "issued").published(0.6, 1).delivered(0.7, 1).delivered(0.8, 1)
    assert log.kinds() == ["duplicate"]


def test_out_of_order() -> None:
    log = settled().published(2.0, 1).published(2.1, 2).delivered(2.2, 2).delivered(2.3, 1)
    assert log.kinds() == ["out of order"]
    assert log.checker.result.out_of_order == 1
    two = settled().published(2.0, 1, publisher="p").published(2.1, 1, publisher="q")
    assert two.delivered(2.2, 1, publisher="q").delivered(2.3, 1, publisher="p").kinds() == []


def test_a_row_may_stand_for_a_burst() -> None:
    log = settled()
    for number in (1, 2, 3):
        log.published(2.0, number)
    assert log.delivered(2.1, 1, count=3).kinds() == []
    assert log.checker.result.delivered == 3
    assert log.delivered(2.2, 2, count=2).kinds() == ["duplicate", "duplicate"]


# --- excuses ---


@pytest.mark.parametrize(
    ("published_at", "excused"),
    [(9.499, False), (9.5, True), (10.0, True), (15.0, True), (20.0, True), (20.25, True), (20.251, False)],
)
def test_lost_while_away(published_at: float, excused: bool) -> None:
    """Away, and up to one delay before leaving and after attaching; not a moment more."""
    result = away(LAX).published(published_at, 1).finish()
    assert result.lost == 1
    assert result.excused == ({"lost (away)": 1} if excused else {})
    assert [one.kind for one in result.violations] == ([] if excused else ["lost"])
    assert away(STRICT).published(published_at, 1).kinds() == ["lost"]


def test_a_client_that_never_comes_back_is_away_to_the_end() -> None:
    assert settled(LAX).moved(10.0, "left").published(1000.0, 1).kinds() == []
    assert settled(LAX).moved(10.0, "left").attached(11.0).published(1000.0, 1).kinds() == ["lost"]


def test_only_the_client_says_when_it_is_back() -> None:
    log = settled(LAX).moved(10.0, "left").attached(11.0, node="b0").published(15.0, 1).attached(20.0)
    assert log.kinds() == []


def test_another_clients_absence_is_no_excuse() -> None:
    log = settled(LAX).moved(10.0, "left", client="d").published(15.0, 1).attached(20.0, "d", "d")
    assert log.kinds() == ["lost"]


def test_still_stored_elsewhere() -> None:
    stored: set[tuple[str, Identity]] = {("c", ("p", 0, 1))}
    assert settled(LAX).published(2.0, 1).kinds(stored) == []
    assert settled(STRICT).published(2.0, 1).kinds(stored) == ["lost"]
    for other in (("d", ("p", 0, 1)), ("c", ("q", 0, 1)), ("c", ("p", 1, 1)), ("c", ("p", 0, 2))):
        assert settled(LAX).published(2.0, 1).kinds({other}) == ["lost"]


def test_given_up_by_a_full_buffer() -> None:
    log = settled(LAX).published(2.0, 1).published(2.1, 2).published(2.2, 3).dropped(2.3, 1, count=2)
    assert log.kinds() == ["lost"]
    assert log.checker.result.excused == {"lost (overflow)": 2}
    assert log.checker.result.dropped == 2
    assert settled(STRICT).published(2.0, 1).dropped(2.1, 1).kinds() == ["lost"]
    assert settled(LAX).published(2.0, 1).dropped(2.1, 1, reason="away").kinds() == ["lost"]


def test_repeated_by_another_broker() -> None:
    def log(promise: Promise) -> Log:
        return settled(promise).published(2.0, 1).delivered(2.1, 1, "b0")

    assert log(LAX).delivered(2.2, 1, "b1").kinds() == []
    assert log(LAX).delivered(2.2, 1, "b0").kinds() == ["duplicate"]
    assert log(STRICT).delivered(2.2, 1, "b1").kinds() == ["duplicate"]


def test_reordered_by_another_broker() -> None:
    def log(promise: Promise) -> Log:
        return settled(promise).published(2.0, 1).published(2.1, 2).delivered(2.2, 2, "b0")

    assert log(LAX).delivered(2.3, 1, "b1").kinds() == []
    assert log(LAX).delivered(2.3, 1, "b0").kinds() == ["out of order"]
    assert log(STRICT).delivered(2.3, 1, "b1").kinds() == ["out of order"]


def test_stale_from_another_broker() -> None:
    log = settled(LAX).unsubscribed(3.0, "issued").unsubscribed(3.0, "settled").published(4.0, 1)
    assert log.delivered(4.1, 1, "b1").kinds() == []
    assert log.checker.result.excused == {"stale (another_broker)": 1}


# --- figures ---


def test_handoff_delay_is_from_the_move_to_the_first_delivery() -> None:
    log = settled().moved(5.0, "left").published(5.5, 1).moved(6.0, "b0", "b1").delivered(6.75, 1, "b1")
    result = log.published(7.0, 2).delivered(7.1, 2, "b1").finish()
    assert (result.handoffs, result.handoff_delays_s) == (1, [0.75])
    assert (result.handoffs_interrupted, result.handoffs_nothing_waiting) == (0, 0)


def test_handoffs_without_a_delay_are_counted_apart() -> None:
    nothing = settled().moved(5.0, "left").moved(6.0, "b0", "b1").finish()
    assert (nothing.handoffs, nothing.handoffs_nothing_waiting, nothing.handoff_delays_s) == (1, 1, [])
    interrupted = (
        settled().moved(5.0, "left").published(5.5, 1).moved(6.0, "b0", "b1").moved(6.1, "left").finish()
    )
    assert (interrupted.handoffs, interrupted.handoffs_interrupted, interrupted.handoff_delays_s) == (
        1,
        1,
        [],
    )


def test_the_first_attach_and_a_return_are_no_handoffs() -> None:
    log = settled().moved(0.0, None, "b0").moved(5.0, "left").moved(6.0, "b0", "b0")
    assert log.finish().handoffs == 0


def test_so_many_violations_are_enough() -> None:
    log = settled(violations_max=3)
    for number in range(1, 10):
        log.published(2.0, number)
    result = log.finish()
    assert (len(result.violations), result.lost) == (3, 9)


# --- what is looked at when a network has come to rest ---


def test_a_handoff_that_never_finishes_is_seen() -> None:
    class NeverFinishes(SubUnsub):
        name = "broken_unfinished"

        def begin_delivery(self, client: str, queue: Any, received: int) -> None:
            queue.rewind(received)
            self.host.deliver_from(client, queue)

    with registered(NeverFinishes):
        found = violations_of(parse_story("brokers b0\nprotocol broken_unfinished\nat 0 c attach b0\n"))
    assert kinds_of(found) == {"in flight at the end"}
    assert "clients at b0" in found[0]
    assert "handoff under way" in found[0]


def test_a_queue_that_is_never_drained_is_seen() -> None:
    class NeverPumps(SubUnsub):
        name = "broken_pump"

        def on_notification(self, owner: Any, source: str, burst: Any) -> None:
            self.keep(self.stays[owner].queue, owner[0], burst)

    text = "brokers b0\nprotocol broken_pump\nat 0 c attach b0\nat 1 c subscribe TRUE\nat 2 c publish {}\n"
    with registered(NeverPumps):
        assert kinds_of(violations_of(parse_story(text))) == {"lost", "never drained"}
    assert violations_of(parse_story(text.replace("broken_pump", "sub_unsub"))) == []
