"""Every protocol keeps its own promise over many seeds, and fails in no way but the one it admits."""

from __future__ import annotations

import pytest
from tests.mobility.broken import BROKEN, TransfersTooEarly, registered

from roamcast.broker.core import BrokerCore, CoreSettings
from roamcast.errors import InputError
from roamcast.mobility import PROTOCOLS, check_combination, find_protocol
from roamcast.mobility.base import MobilityProtocol, Settings
from roamcast.simulator.fuzz import FuzzReport, draw_story, fuzz
from roamcast.simulator.story import kinds_of, parse_story, violations_of

KEEPING = [name for name in sorted(PROTOCOLS) if ":" not in name]
"""Those that keep what they promise; the rules as published, `name:published`, may not."""

SEEDS = {"none": 60, "durable": 60, "sub_unsub": 60}
"""Fewer for those that have tests of their own."""

_reports: dict[str, FuzzReport] = {}


def report_of(protocol: str) -> FuzzReport:
    """Run once; the tests below look at it from several sides."""
    if protocol not in _reports:
        _reports[protocol] = fuzz(protocol, range(SEEDS.get(protocol, 25)))
    return _reports[protocol]


def explain(report: FuzzReport) -> str:
    return "\n\n".join(f"seed {one.seed}: {one.violations}\n{one.story}" for one in report.failures)


@pytest.mark.parametrize("protocol", KEEPING)
def test_the_promise_is_kept(protocol: str) -> None:
    report = report_of(protocol)
    assert report.violations == 0, explain(report)
    # It was asked something: there were many moves, and much to deliver.
    assert report.seeds >= 25
    assert report.handoffs > 300
    assert report.deliveries > 3_000


@pytest.mark.slow
@pytest.mark.parametrize("protocol", KEEPING)
def test_the_promise_is_kept_over_many_seeds(protocol: str) -> None:
    report = fuzz(protocol, range(500))
    assert report.violations == 0, explain(report)


def test_without_mobility_what_is_published_while_away_is_lost() -> None:
    report = report_of("none")
    assert report.lost > 1000
    assert (report.duplicates, report.out_of_order) == (0, 0)
    assert report.excused == {"lost (away)": report.lost}


def test_durable_subscriptions_repeat_and_leave_a_remainder() -> None:
    report = report_of("durable")
    assert report.duplicates > 1000
    assert report.out_of_order > 100
    assert report.excused["lost (remainder)"] == report.lost > 100
    assert report.excused["duplicate (another_broker)"] == report.duplicates


@pytest.mark.slow  # 8 s
def test_sub_unsub_does_nothing_wrong_at_all() -> None:
    report = report_of("sub_unsub")
    assert (report.lost, report.duplicates, report.out_of_order, report.excused) == (0, 0, 0, {})


def test_the_published_waiting_time_loses() -> None:
    report = fuzz("sub_unsub:published", range(50), failures_max=1)
    assert report.failures, "the fuzzer no longer finds what is wrong with the published rule"
    assert kinds_of(report.failures[0].violations) == {"lost"}


EXPECTED_KINDS = {
    "broken_drop": "lost",
    "broken_repeat": "duplicate",
    "broken_reorder": "out of order",
    "broken_no_rewind": "lost",
    "broken_received": "duplicate",
    "broken_merge": "duplicate",
    "broken_no_wait": "lost",
}


@pytest.mark.parametrize("protocol", BROKEN, ids=lambda one: one.name)
def test_a_mistake_is_found_and_told_in_a_short_story(protocol: type[MobilityProtocol]) -> None:
    with registered(protocol) as name:
        report = fuzz(name, range(50), failures_max=1)
        assert report.failures, f"not found in {report.seeds} seeds: {protocol.__doc__}"
        failure = report.failures[0]
        assert EXPECTED_KINDS[name] in kinds_of(failure.violations)
        story = parse_story(failure.story)
        assert len(story.actions) < 15, failure.story
        # The story is what one is left with: it must fail by itself, and in the same way.
        assert violations_of(story) == failure.violations
    with registered(type("Sound", (PROTOCOLS["sub_unsub"],), {"name": name})):
        assert violations_of(story) == [], "the story fails without the mistake, too"


def test_a_mistake_that_takes_several_moves_is_found() -> None:
    """It needs a client that moves on twice within a handoff, so its story is not always short."""
    with registered(TransfersTooEarly) as name:
        found = (violations_of(draw_story(name, seed)) for seed in range(50))
        assert kinds_of(next((one for one in found if one), [])) == {"lost"}


# --- what protocols declare ---


def test_a_combination_that_is_not_declared_is_refused_in_one_line() -> None:
    class Picky(MobilityProtocol):
        name = "picky"
        strategies = ("simple",)

    with pytest.raises(InputError, match=r"picky does not work with covering routing: valid are simple$"):
        check_combination(Picky, "covering")
    with pytest.raises(InputError, match="'gossip': valid are flooding, simple"):
        check_combination(Picky, "gossip")
    with pytest.raises(InputError, match="does not work with merging"):
        BrokerCore("b0", Picky, CoreSettings(routing="merging"))
    check_combination(Picky, "simple")


def test_an_unknown_protocol_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match=r"'teleport': valid are .*durable.*none.*sub_unsub"):
        find_protocol("teleport")


def test_sub_unsub_asks_for_the_bound_it_needs() -> None:
    with pytest.raises(InputError, match="set delay_bound_s"):
        find_protocol("sub_unsub").check(Settings())
    with pytest.raises(InputError, match="set delay_bound_s"):
        BrokerCore("b0", find_protocol("sub_unsub"))
    find_protocol("sub_unsub").check(Settings(delay_bound_s=0.0))


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_every_protocol_says_what_it_is(protocol: str) -> None:
    found = find_protocol(protocol)
    assert found.name == protocol
    assert 10 < len(found.summary) < 120
    assert found.summary[0].islower()
    assert not found.summary.endswith(".")
