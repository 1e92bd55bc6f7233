"""The comparison: its figures are what they say, its judgement can fail, and its pictures are labelled."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from roamcast.lab import comparison
from roamcast.lab.comparison import ComparisonJob, Sampler, Watch
from roamcast.lab.report import drawn
from roamcast.lab.rows import Row
from roamcast.lab.sweep import Sweep
from roamcast.mobility import PROTOCOLS
from roamcast.protocol.messages import AttachRequest, Relayed, Settled
from roamcast.simulator.run import run_checked
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.story import parse_story


def test_every_protocol_is_compared_once() -> None:
    names = comparison.compared()
    assert sorted(names) == sorted(name for name in PROTOCOLS if ":" not in name)
    assert names[:2] == ["none", "durable"]
    for quick in (False, True):
        jobs = comparison.jobs(quick)
        assert len({job.name for job in jobs}) == len(jobs)


def test_the_setting_is_the_one_that_the_documentation_states() -> None:
    scenario = ComparisonJob("none", "uniform", 1, quick=False).scenario()
    assert (scenario.topology, scenario.clients, scenario.mobile) == ("grid:5", 250, 0.2)
    assert (scenario.connect_s, scenario.disconnect_s, scenario.publish_every_s) == (30.0, 30.0, 20.0)
    assert (scenario.selectivity, scenario.duration_s) == (0.0625, 600.0)


def test_a_relayed_message_counts_once_and_its_hops_each() -> None:
    watch = Watch(10.0, 20.0)
    request = AttachRequest("c", "a", 1, 0, {})
    for now, sender, receiver in ((5.0, "a", "b"), (11.0, "a", "b"), (11.01, "b", "c"), (20.0, "a", "b")):
        watch.on_message(now, sender, receiver, Relayed("a", "d", request))
    watch.on_message(12.0, "a", "b", Settled(1, "handoff"))
    assert (watch.hops["handoff"], watch.messages["handoff"]) == (3, 2)


def test_stored_notifications_are_sampled_within_the_window() -> None:
    story = parse_story(
        "brokers a-b\nprotocol sub_unsub\nat 0 c attach a\nat 0 p attach b\nat 0.5 c subscribe TRUE\n"
        "at 1 c leave\n" + "".join(f"at {2 + number} p publish {{}}\n" for number in range(8))
    )
    sampler = Sampler(2.5, 8.5)
    run_checked(
        story.topology, story.settings, sampler.along(story.with_homecoming()), prepare=sampler.prepare
    )
    # The network asks for the next action when it performs one: at 3, 4, … before what is published arrives.
    assert sampler.stored == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Two protocols in a small network."""

    def smaller(self: ComparisonJob) -> Scenario:
        return replace(scenario(self), topology="grid:2", clients=24, duration_s=240.0, selectivity=0.25)

    scenario = ComparisonJob.scenario
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ComparisonJob, "scenario", smaller)
        patch.setattr(comparison, "compared", lambda: ["none", "multi_hop_handoff"])
        findings = comparison.comparison(True, Sweep(1))
    assert [outcome.holds for outcome in findings.outcomes] == [True, None]
    assert len(findings.figures) == len(comparison.QUESTIONS)
    for draw in findings.figures.values():
        figure = drawn(draw)
        assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    assert [row["protocol"] for row in findings.tables["comparison"]] == ["none", "multi_hop_handoff"] * 2
    return findings.tables["comparison_runs"]


def test_what_the_figures_show(rows: list[Row]) -> None:
    none, handoff = rows[:2]
    assert none["lost"] > 0 == handoff["lost"]
    assert none["transfer_per_handoff_hops"] == 0 < handoff["transfer_per_handoff_hops"]
    assert none["stored_per_broker_mean"] < handoff["stored_per_broker_mean"]
    for row in (none, handoff):
        parts = row["signalling_per_handoff_hops"] + row["transfer_per_handoff_hops"]
        assert parts == pytest.approx(row["overhead_per_handoff_hops"])
        assert row["hops_per_notification"] > row["publish_hops_per_notification"] > 0
        assert row["stored_per_broker_max"] >= row["stored_per_broker_mean"]


def test_sums_and_means(rows: list[Row]) -> None:
    first = {**rows[0], "lost": 3, "delay_mean_s": None, "hops_per_notification": 2.0}
    second = {**rows[0], "lost": 4, "delay_mean_s": 0.5, "hops_per_notification": 3.0}
    (summary,) = comparison.summarise([first, second])
    assert (summary["runs"], summary["lost"]) == (2, 7)
    assert (summary["delay_mean_s"], summary["hops_per_notification"]) == (0.5, 2.5)


def test_round_trips_are_those_between_the_two_brokers(rows: list[Row]) -> None:
    handoff = rows[1]
    assert handoff["delay_round_trips"] == pytest.approx(1.0, abs=0.3)


def test_a_roaming_publisher_is_watched_from_its_attach_on() -> None:
    story = parse_story(
        "brokers a-b\nprotocol multi_hop_handoff\nat 0 p attach a\nat 0 c attach b\nat 1 c subscribe TRUE\n"
        "at 2 p leave\nat 3 p publish {}\nat 4 p attach b\nat 9 p publish {}\n"
    )
    watch = Watch(0.0, 10.0, story.topology, story.settings)
    run_checked(story.topology, story.settings, watch.along(story.with_homecoming()), watch.observe)
    # A round trip for the session, and the way to the broker and from there to the subscriber.
    assert watch.publisher_delays_s == [pytest.approx(0.08, abs=0.03)]


def test_the_busiest_hour_of_the_last_third_of_a_trace_is_replayed(tmp_path: Path) -> None:
    trace, overlay = tmp_path / "walk.csv", tmp_path / "walk.txt"
    overlay.write_text("a b\n")
    stays = [
        ("a", 0.0, 20_000.0),
        ("b", 20_001.0, 29_000.0),
        ("a", 29_001.0, 29_500.0),
        ("b", 29_501.0, 36_000.0),
    ]
    lines = [f"c,{broker},{attach_s},{leave_s}" for broker, attach_s, leave_s in stays]
    trace.write_text("client,broker,attach_s,leave_s\n" + "\n".join(lines) + "\n")
    replayed = comparison.replayed_trace(trace, overlay)
    assert (replayed.from_s, replayed.clients) == (28_800.0, 1)
    learned = json.loads(comparison.model_before(replayed))
    assert list(learned["brokers"]["a"]) == ["b"]
    row = comparison.compare(ComparisonJob("roam", "walk", 1, False, replayed))
    assert (row["handoffs"], row["lost"], row["violations"]) == (2, 0, 0)


def test_p2_can_fail(rows: list[Row]) -> None:
    better = {"delay_p50_s": 0.04, "delay_p95_s": 0.1, "copies_per_handoff": 1.0}
    costs = {"overhead_per_handoff_hops": 20.0, "hops_per_notification": 2.0}
    plain = {
        **rows[1],
        "movement": "NBR",
        "delay_p50_s": 0.08,
        "delay_p95_s": 0.1,
        "copies_per_handoff": 0.0,
        **costs,
    }
    roam = {**plain, "protocol": "roam", **better}
    proactive = {**plain, "protocol": "proactive", "copies_per_handoff": 2.0, "hops_per_notification": 3.0}
    assert comparison.judge_p2([plain, roam, proactive]).holds is True
    for worse in ({"delay_p50_s": 0.2}, {"delay_p95_s": 0.2}, {"overhead_per_handoff_hops": 41.0},
                  {"copies_per_handoff": 3.0}, {"hops_per_notification": 4.0}):  # fmt: skip
        assert comparison.judge_p2([plain, {**roam, **worse}, proactive]).holds is False
    on_trace = [{**row, "movement": "trace"} for row in (plain, roam, proactive)]
    assert comparison.judge_p2(on_trace).holds is True
    assert (
        comparison.judge_p2([on_trace[0], {**on_trace[1], "delay_p50_s": 0.05}, on_trace[2]]).holds is False
    )


def test_p1_can_fail(rows: list[Row]) -> None:
    none, handoff = rows[:2]
    assert comparison.judge_p1([none, handoff]).holds is True
    assert comparison.judge_p1([none, {**handoff, "lost": 2}]).note == "multi_hop_handoff: 2 lost"
    broken = {**none, "violations": 1, "first_violation": "lost: c never got p/1"}
    assert comparison.judge_p1([broken]).note == "none: lost: c never got p/1"
    assert comparison.judge_p1([]).holds is None
