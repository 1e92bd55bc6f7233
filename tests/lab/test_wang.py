"""Wang's claims: each judgement can fail, and the exact ones are run in a small setting."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.figure import Figure

from roamcast.lab import wang
from roamcast.lab.curves import Curve, Curves, Point
from roamcast.lab.experiment import Outcome
from roamcast.lab.measure import ScenarioJob, measure
from roamcast.lab.report import drawn
from roamcast.lab.rows import Row
from roamcast.lab.sweep import Sweep
from roamcast.lab.wang import COVERING, HOME, MHH, PLAIN, SUB_UNSUB
from roamcast.mobility import PROTOCOLS
from roamcast.mobility.multi_hop_handoff import Hold, MultiHopHandoff, Reference
from roamcast.protocol import records
from roamcast.simulator.network import Action
from roamcast.simulator.story import parse_story
from roamcast.simulator.topology import Topology

PERIODS_S = (1.0, 10.0, 100.0, 1000.0, 10_000.0)
SIZES = (25.0, 100.0, 196.0)

Shape = Callable[[float], float]


def curve(xs: tuple[float, ...], shape: Shape) -> Curve:
    return Curve(tuple(Point(x, shape(x), shape(x), shape(x), 1) for x in xs))


def curves(xs: tuple[float, ...], shapes: Mapping[str, Shape]) -> dict[str, Curve]:
    return {name: curve(xs, shape) for name, shape in shapes.items()}


# --- W1, W2 ---

AS_PUBLISHED_5A: dict[str, Shape] = {
    MHH: lambda s: 900.0,
    SUB_UNSUB: lambda s: 850.0 + 900.0 / s,
    HOME: lambda s: 900.0 + 3.0 * s,
}
AS_PUBLISHED_5B: dict[str, Shape] = {
    MHH: lambda s: 0.34,
    SUB_UNSUB: lambda s: 1.1,
    HOME: lambda s: 0.36,
}


def test_w1_holds_for_curves_as_published() -> None:
    outcome = wang.judge_w1(curves(PERIODS_S, AS_PUBLISHED_5A))
    assert (outcome.holds, outcome.note) == (True, "")
    assert outcome.figures["home broker, exponent of its growth above 100 s"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("name", "shape", "note"),
    [
        (SUB_UNSUB, lambda s: 850.0, "sub-unsub does not climb by 1.25"),
        (HOME, lambda s: 900.0 + 30 * s**0.5, "home broker is not linear"),
        (HOME, lambda s: 900.0 + s**2 / 1000, "home broker is not linear"),
        (HOME, lambda s: 900.0 - s / 100, "home broker does not climb by 1.25; home broker is not linear"),
        (MHH, lambda s: 700.0 + 400 / s, "MHH varies with the period"),
        (MHH, lambda s: 1400.0, "MHH is not the lowest or near it"),
    ],
)
def test_w1_can_fail(name: str, shape: Shape, note: str) -> None:
    outcome = wang.judge_w1(curves(PERIODS_S, {**AS_PUBLISHED_5A, name: shape}))
    assert (outcome.holds, outcome.note) == (False, note)


def test_w2_holds_for_curves_as_published() -> None:
    outcome = wang.judge_w2(curves(PERIODS_S, AS_PUBLISHED_5B))
    assert (outcome.holds, outcome.note) == (True, "")


@pytest.mark.parametrize(
    ("name", "shape", "note"),
    [
        (SUB_UNSUB, lambda s: 0.6, "sub-unsub is not 2 times slower"),
        (HOME, lambda s: 0.5, "home broker and MHH differ by more than a fifth"),
        (HOME, lambda s: 0.2, "home broker and MHH differ by more than a fifth"),
        (MHH, lambda s: 0.34 if s > 5 else 0.5, "MHH is not flat"),
    ],
)
def test_w2_can_fail(name: str, shape: Shape, note: str) -> None:
    outcome = wang.judge_w2(curves(PERIODS_S, {**AS_PUBLISHED_5B, name: shape}))
    assert outcome.holds is False
    assert note in outcome.note


def delay_s(protocol: str, to_last: int, to_home: int) -> float:
    """One handoff to n, so many hops from the last broker and from the home broker, on different sides."""
    lengths = {"l": to_last, "h": to_home}
    arms = [["n", *(f"{arm}{hop}" for hop in range(1, hops + 1))] for arm, hops in lengths.items()]
    rows: list[records.Row] = []
    story = parse_story(f"""
brokers {" ".join(f"{a}-{b}" for arm in arms for a, b in pairwise(arm))}
protocol {protocol}
at 0.0 c attach h{to_home}
at 0.0 p attach n
at 1.0 c subscribe TRUE
at 5.0 c leave
at 6.0 c attach l{to_last}
at 9.0 c leave
at 10.0 p publish {{}}
at 20.0 c attach n
""")
    assert not story.run(rows.extend).result.violations
    return next(row.time for row in rows if row.kind == "delivered") - 20.0


@pytest.mark.parametrize(("to_last", "to_home"), [(2, 2), (2, 6), (6, 2)])
def test_both_make_one_round_trip_as_the_paper_says(to_last: int, to_home: int) -> None:
    """One to the last broker, the other to the home broker."""
    assert delay_s(MHH, to_last, to_home) == pytest.approx(0.04 + 0.02 * to_last)
    assert delay_s(HOME, to_last, to_home) == pytest.approx(0.04 + 0.02 * to_home)


# --- W3, W4 ---

AS_PUBLISHED_6A: dict[str, Shape] = {
    MHH: lambda n: 8 * n,
    SUB_UNSUB: lambda n: 7 * n,
    HOME: lambda n: 16 * n,
    PLAIN: lambda n: 9 * n,
    COVERING: lambda n: 8.5 * n,
}


def judge_w3(**changes: Shape) -> Outcome:
    drawn_curves = curves(SIZES, {**AS_PUBLISHED_6A, **changes})
    return wang.judge_w3(drawn_curves, drawn_curves)


def test_w3_holds_for_curves_as_published_and_can_fail() -> None:
    assert judge_w3().holds is True
    assert judge_w3(**{HOME: lambda n: 7.5 * n}).note == "home broker does not grow fastest"
    assert judge_w3(**{COVERING: lambda n: 10 * n}).note == "covering does not slow sub-unsub's growth"
    assert judge_w3(**{MHH: lambda n: 900.0}).note == "not all grow at every step"


def delays(mhh: Shape, sub_unsub: Callable[[float, float], float]) -> Outcome:
    """Networks whose diameter is not always the same multiple of the mean distance."""
    rows: list[Row] = []
    for size, mean, diameter in ((25, 5, 12), (25, 6, 13), (100, 14, 36), (100, 15, 40), (196, 18, 42)):
        case = {"brokers": float(size), "mean_distance_hops": mean, "diameter_hops": diameter}
        rows += [
            {**case, "case": MHH, "delay_mean_s": mhh(mean)},
            {**case, "case": HOME, "delay_mean_s": 0.04 + 0.02 * mean},
            {**case, "case": SUB_UNSUB, "delay_mean_s": sub_unsub(mean, diameter)},
        ]
    return wang.judge_w4(rows, Curves(rows, "case", "brokers", "delay_mean_s"))


def test_w4_tells_the_mean_distance_from_the_diameter() -> None:
    outcome = delays(lambda mean: 0.04 + 0.02 * mean, lambda mean, most: 0.04 + 0.02 * mean + 0.02 * most)
    assert (outcome.holds, outcome.note) == (True, "")
    slopes = outcome.figures["s per hop: slope, 95 % low, high"]
    assert isinstance(slopes, dict)
    assert slopes[f"{SUB_UNSUB}, diameter"] == pytest.approx([0.02, 0.02, 0.02])
    outcome = delays(lambda mean: 0.3, lambda mean, most: 0.04 + 0.06 * mean)
    assert outcome.note == "MHH does not follow the mean distance; sub-unsub does not follow the diameter"


@pytest.mark.parametrize("judge", [wang.judge_w1, wang.judge_w2])
def test_without_a_protocol_a_claim_is_open(judge: Callable[[Mapping[str, Curve]], Outcome]) -> None:
    outcome = judge(curves(PERIODS_S, {MHH: lambda s: 1.0, SUB_UNSUB: lambda s: 1.0}))
    assert (outcome.holds, outcome.note) == (None, "no runs of home_broker")


# --- W5 ---


def reliability_row(protocol: str, **changes: int | str) -> Row:
    counts = ("lost", "duplicates", "out_of_order", "unexpected", "violations")
    row = {"protocol": protocol, "expected": 9, "delivered": 9, **dict.fromkeys(counts, 0)}
    return {**row, "first_violation": "", **changes}


def test_w5_allows_home_broker_to_lose_and_nothing_else() -> None:
    good = [reliability_row(MHH), reliability_row(SUB_UNSUB), reliability_row(HOME, lost=3)]
    assert wang.judge_w5(good, 0).holds is True
    assert wang.judge_w5(good[:2], 0).holds is None
    assert wang.judge_w5(good, 1).note == "1 runs crashed"
    lossy = wang.judge_w5([*good, reliability_row(MHH, lost=1, violations=1, first_violation="lost: x")], 0)
    assert (lossy.holds, lossy.note) == (
        False,
        "multi_hop_handoff: 1 lost; multi_hop_handoff: 1 violations; lost: x",
    )
    assert wang.judge_w5([*good, reliability_row(HOME, duplicates=2)], 0).holds is False


# --- W6 ---


def test_w6_holds() -> None:
    (outcome,) = wang.pq_lists(True, Sweep(1)).outcomes
    assert outcome.holds is True
    assert outcome.figures["after two"] == "PQ5→PQ3→PQ1→PQ2→PQ4"
    assert outcome.figures["then delivered"] == outcome.figures["of"] == 202


def test_w6_fails_if_queues_are_read_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_behind = MultiHopHandoff.leave_behind

    def reversed_order(self: MultiHopHandoff, client: str, hold: Hold) -> list[Reference]:
        return list(reversed(leave_behind(self, client, hold)))

    monkeypatch.setattr(MultiHopHandoff, "leave_behind", reversed_order)
    (outcome,) = wang.pq_lists(True, Sweep(1)).outcomes
    assert outcome.holds is False


# --- W7 ---


@pytest.mark.parametrize("routing", ["identity", "covering"])
def test_those_who_stay_notice_nothing(routing: str) -> None:
    row = wang.move_together(wang.TogetherJob(MHH, routing, "nested", side=2, seed=1))
    assert row["handoffs"] > 100
    assert row["deliveries"] > 100
    assert wang.judge_w7([row]).holds is True


def test_w7_sees_a_delivery_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who stays falls silent as soon as others move: those who hear it notice."""
    actions = wang.together_actions

    def quieter(job: wang.TogetherJob, topology: Topology, moving: bool) -> list[Action]:
        every = actions(job, topology, moving)
        return [one for one in every if not (moving and one[1] == "fixed000" and one[0] > 30)]

    monkeypatch.setattr(wang, "together_actions", quieter)
    outcome = wang.judge_w7([wang.move_together(wang.TogetherJob(MHH, "simple", "groups", 2, 1))])
    assert outcome.holds is False
    assert "clients changed" in outcome.note


# --- runs and figures in a tiny setting ---


def test_a_run_has_the_setting_of_the_paper() -> None:
    job = wang.job(10, MHH, 10_000.0, 1)
    scenario = job.scenario
    assert (scenario.clients, scenario.mobile, scenario.publish_every_s) == (1000, 0.2, 300.0)
    assert (scenario.selectivity, scenario.proclaimed, scenario.movement) == (0.0625, 0.0, "uniform")
    assert scenario.network.link_delay.high_s == 0.010
    assert scenario.network.access_delay.high_s == 0.020
    assert job.warm_up_s == 2 * 10_300
    assert scenario.duration_s == 4 * 10_300


def test_experiments_compare_what_is_registered() -> None:
    assert wang.compared() == [name for name in wang.COMPARED if name in PROTOCOLS]
    for quick in (False, True):
        jobs = [*wang.fig5_jobs(quick), *wang.fig6_jobs(quick)]
        assert len({job.name for job in jobs}) == len(jobs), "a name tells every run from the others"


def test_figures_are_drawn_from_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def shorter(quick: bool) -> list[ScenarioJob]:
        jobs = [wang.job(2, protocol, s, seed) for protocol in wang.COMPARED for s in (1.0, 100.0, 300.0)
                for seed in (1, 2)]  # fmt: skip
        return [
            replace(job, warm_up_s=300.0, scenario=replace(job.scenario, duration_s=900.0)) for job in jobs
        ]

    monkeypatch.setattr(wang, "fig5_jobs", shorter)
    sweep = Sweep(1)
    findings = wang.fig5(True, sweep)
    assert [outcome.claim for outcome in findings.outcomes] == ["W1", "W2"]
    assert len(findings.tables["fig5_runs"]) == 18
    assert {row["runs"] for row in findings.tables["fig5a_overhead"]} == {2}
    for draw in findings.figures.values():
        figure = drawn(draw)
        assert isinstance(figure, Figure)
        assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
        legends = [legend for axes in figure.axes if (legend := axes.get_legend()) is not None]
        labels = [text.get_text() for legend in legends for text in legend.get_texts()]
        assert {"multi-hop handoff", "home broker", "sub-unsub"} <= set(labels)
    rows = sweep.run(measure, shorter(True))
    assert wang.judge_w5(rows, 0).holds is True
