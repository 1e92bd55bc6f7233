"""Gaddah's claims: the exact ones hold, each judgement can fail, and a tiny testbed is run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.figure import Figure

from roamcast.lab import gaddah, gaddah_models, gaddah_movement, gaddah_testbed, gaddah_variants
from roamcast.lab.curves import Curve, Point
from roamcast.lab.experiment import Outcome
from roamcast.lab.gaddah import DURABLE, NBR, PROACTIVE, PROTOCOLS, REACTIVE, RND
from roamcast.lab.gaddah_covering import judge as judge_covering
from roamcast.lab.gaddah_models import TIMES
from roamcast.lab.gaddah_testbed import (
    BROKERS,
    CALIBRATED,
    NEIGHBOURS,
    OURS,
    THESIS,
    BuildingJob,
    Costs,
    Testbed,
    building,
    simulate,
)
from roamcast.lab.report import drawn
from roamcast.lab.rows import Row
from roamcast.lab.sweep import Sweep
from roamcast.mobility.neighbour_graph import NeighbourGraph
from roamcast.mobility.reactive import ForwardBuffered
from roamcast.models.ctmc import movement_chain, presence
from roamcast.models.fit import fit
from roamcast.protocol import records
from roamcast.protocol.effects import AttachTo, PublishThis, SubscribeTo
from roamcast.protocol.messages import Grant
from roamcast.protocol.notification import encode_attributes
from roamcast.simulator.links import Delay
from roamcast.simulator.network import Network, NetworkSettings

TINY = BuildingJob(PROACTIVE, subscribers=12, warm_up_s=30.0, window_s=60.0, connect_s=10.0)

# --- G1 to G6 ---


def test_the_exact_claims_hold_and_both_readings_of_the_erratum_are_shown() -> None:
    findings = gaddah_models.models(True, Sweep(1))
    assert [(one.claim, one.holds) for one in findings.outcomes] == [(f"G{n}", True) for n in range(1, 7)]
    assert len(findings.tables["table_3_2"]) == 20
    g1, *_, g6 = findings.outcomes
    both = g1.figures["by his matrix"], g1.figures["by the forks of fig. 6.1"]
    per_broker = [one["subscribers per broker"] for one in both if isinstance(one, dict)]
    assert per_broker == [29.5358, 29.304]
    assert g6.figures["ratio 1, case 1"] == {"printed": 13.95, "by table 3.1": 17.176}
    assert {"fig3_4_to_3_6_bounds", "table6_1_places"} == set(findings.figures)
    for draw in findings.figures.values():
        assert drawn(draw).axes


def test_g6_fails_if_no_other_time_explains_both_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = {**gaddah_models.R2_PRINTED, 1.0: {1: (13.95, 17.18), 5: (5.60, 5.78)}}
    monkeypatch.setattr(gaddah_models, "R2_PRINTED", printed)
    outcome = gaddah_models.judge_g6()
    assert outcome.holds is False
    assert "ratio 1: one other time does not explain both cases" in outcome.note


def test_g1_and_g2_fail_with_other_forks() -> None:
    published, forks, neighbouring = (
        presence(movement_chain(name, NEIGHBOURS, TIMES)) for name in ("RND:published", "RND", "NBR")
    )
    assert gaddah_models.judge_g1(published, forks).holds is True
    assert gaddah_models.judge_g1(forks, published).holds is False
    assert gaddah_models.judge_g2(neighbouring).holds is True
    assert gaddah_models.judge_g2(forks).holds is False


def test_g4_fails_if_a_value_of_the_table_differs() -> None:
    table = gaddah_models.models(True, Sweep(1)).tables["table_3_2"]
    assert gaddah_models.judge_g4(table).holds is True
    assert gaddah_models.judge_g4([{**table[0], "printed": 0.4278}, *table[1:]]).holds is False
    assert gaddah_models.judge_g4(table[1:]).holds is False


# --- G7 to G12, G15: rows as published, and changed ---


def printed(y: str, movement: str, protocol: str, subscribers: int) -> float:
    return gaddah.PRINTED[y][movement][protocol][subscribers]


def published(**changes: object) -> list[Row]:
    """What the thesis found; a change is a column and its value with 200 subscribers, for `protocol`."""
    rows: list[Row] = []
    for movement in (RND, NBR):
        for protocol in PROTOCOLS:
            for subscribers in (10, 100, 200):
                throughput = printed("useful_per_s", movement, protocol, subscribers)
                handoff_s = printed("handoff_mean_s", RND, protocol, subscribers)
                row: Row = {
                    "protocol": protocol, "movement": movement, "subscribers": subscribers, "seed": 1,
                    "handoff_mean_s": handoff_s, "latency_s": handoff_s,
                    "loss_percent": printed("loss_percent", RND, protocol, subscribers),
                    "duplicate_percent": printed("duplicate_percent", RND, protocol, subscribers),
                    "useful_per_s": throughput, "throughput_per_s": throughput,
                    "broker_per_s": {broker: 100 * len(NEIGHBOURS[broker]) for broker in BROKERS},
                    "load_percent": dict.fromkeys(BROKERS, 50.0), "published_per_s": 25.0,
                    "miss_percent": 1.0 if protocol == PROACTIVE else None,
                    "transferred_percent": 40.0 if protocol == REACTIVE else 0.0,
                }  # fmt: skip
                if subscribers == 200 and protocol == changes.get("protocol"):
                    row.update(changes)
                rows.append(row)
    return rows


Judge = Callable[[list[Row]], Outcome]


@pytest.mark.parametrize("judge", [gaddah.judge_g7, gaddah.judge_g8, gaddah.judge_g9, gaddah.judge_g10])
def test_tables_as_published_hold(judge: Judge) -> None:
    outcome = judge(published())
    assert (outcome.holds, outcome.note) == (True, "")
    assert judge([row for row in published() if row["protocol"] != DURABLE]).holds is None


FLAT = dict.fromkeys(BROKERS, 100.0) | {"b5": 101.0}


@pytest.mark.parametrize(
    ("judge", "protocol", "column", "value", "note"),
    [
        (gaddah.judge_g7, REACTIVE, "handoff_mean_s", 0.3, "reactive is not 2 times slower"),
        (gaddah.judge_g7, DURABLE, "handoff_mean_s", 0.3, "pro-active is not above durable"),
        (gaddah.judge_g8, REACTIVE, "loss_percent", 1.0, "RND: another order"),
        (gaddah.judge_g8, PROACTIVE, "loss_percent", 3.0, "RND: pro-active's loss does not fall"),
        (gaddah.judge_g9, REACTIVE, "duplicate_percent", 20.0, "RND: durable is not above reactive"),
        (gaddah.judge_g9, REACTIVE, "duplicate_percent", 0.0, "reactive has none with 200 subscribers"),
        (gaddah.judge_g9, PROACTIVE, "duplicate_percent", 0.001, "pro-active has duplicates"),
        (gaddah.judge_g10, DURABLE, "useful_per_s", 1000, "RND: another order"),
        (gaddah.judge_g10, PROACTIVE, "useful_per_s", 1300, "NBR is not above RND for pro-active"),
        (gaddah.judge_g10, PROACTIVE, "broker_per_s", FLAT, "correlate with its number of neighbours"),
    ],
)
def test_tables_can_fail(judge: Judge, protocol: str, column: str, value: object, note: str) -> None:
    outcome = judge(published(protocol=protocol, **{column: value}))
    assert outcome.holds is False
    assert note in outcome.note


def over_buffers(
    proactive: tuple[float, float] = (0.6, 0.4),
    reactive: tuple[float, float] = (9, 5),
    repeated: tuple[float, float] = (2, 4),
) -> Outcome:
    loss = {DURABLE: (4.6, 1.0), REACTIVE: reactive, PROACTIVE: proactive}
    duplicates = {DURABLE: (17, 30), REACTIVE: repeated, PROACTIVE: (0, 0)}
    rows = [
        {"protocol": name, "buffer_mb": mb, "loss_percent": loss[name][place],
         "duplicate_percent": duplicates[name][place]}
        for name in PROTOCOLS for place, mb in enumerate((1, 4))
    ]  # fmt: skip
    return gaddah.judge_g11(rows)


def test_g11_holds_as_published_and_can_fail() -> None:
    assert over_buffers().holds is True
    assert "pro-active's loss is not constant: 2.00 points" in over_buffers(proactive=(2.5, 0.5)).note
    assert over_buffers(reactive=(5, 5)).note == "reactive's loss does not fall"
    assert over_buffers(repeated=(2, 2.2)).note == "reactive's duplicates do not grow"


@pytest.mark.parametrize(("factor", "holds"), [(3.0, True), (1.5, False), (6.0, False)])
def test_g12_is_about_three(factor: float, holds: bool) -> None:
    rows = [
        {"protocol": name, "disconnect_s": s, "loss_percent": 2.0 * (factor if s == 24.0 else 1.0)}
        for name in PROTOCOLS
        for s in (12.0, 24.0)
    ]
    assert gaddah.judge_g12(rows).holds is holds
    nothing = [{**row, "loss_percent": 0.0} for row in rows]
    assert "from nothing" in gaddah.judge_g12(nothing).note


def test_g15_holds_as_published_and_can_fail() -> None:
    rows = [row for row in published() if row["movement"] == RND]
    sweeps = {
        x: [{**row, x: at} for row in rows if row["subscribers"] == 200 for at in (1.0, 2.0)]
        for x in gaddah.SWEEPS
    }
    assert gaddah.judge_g15(rows, sweeps).note == ""
    fewer = [{**row, "transferred_percent": 9.0} for row in rows]
    assert "9.0 % are transferred" in gaddah.judge_g15(fewer, sweeps).note
    slower = [{**row, "latency_s": 9.0} if row["protocol"] == DURABLE else row for row in rows]
    assert "latency is durable > reactive > proactive" in gaddah.judge_g15(slower, sweeps).note
    sweeps["connect_s"] = [{**row, "loss_percent": 1.0} for row in sweeps["connect_s"]]
    outcome = gaddah.judge_g15(rows, sweeps)
    assert outcome.note == "loss_percent over connect_s is otherwise"
    found = outcome.figures["loss_percent over connect_s"]
    assert isinstance(found, dict)
    assert found["1"] == "durable = reactive = proactive"


# --- G13 ---


def graph_curves(f_neg: Callable[[float], float], neighbours_end: float = 2.7) -> Mapping[str, Curve]:
    def curve(shape: Callable[[float], float]) -> Curve:
        xs = [30.0 * step for step in range(1, 121)]
        return Curve(tuple(Point(x, shape(x), shape(x), shape(x), 1) for x in xs))

    return {
        "f_neg": curve(f_neg),
        "f_pos": curve(lambda t: 0.3 if 1800 < t < 2400 else 0.0),
        "neighbours": curve(lambda t: 5.0 if t < 1800 else neighbours_end),
        "removals": curve(lambda t: 14.0),
    }


def test_g13_holds_for_a_graph_that_learns_and_forgets_and_can_fail() -> None:
    assert gaddah_movement.judge_g13(graph_curves(lambda t: 1.0 if t < 60 else 0.0)).holds is True
    assert (
        gaddah_movement.judge_g13(graph_curves(lambda t: 0.4)).note
        == "F_neg does not start near 1; F_neg does not go to 0"
    )
    assert (
        gaddah_movement.judge_g13(graph_curves(lambda t: 1.0 if t < 60 else 0.0, 4.9)).note
        == "unused edges stay"
    )


def test_a_graph_that_never_forgets_keeps_its_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(gaddah_movement.graph_jobs(True)[0], window_s=1800.0)
    forgetting = simulate(one)["graph"]
    monkeypatch.setattr(NeighbourGraph, "_expire", lambda self, now: False)
    keeping = simulate(one)["graph"]
    assert forgetting[-1]["removals"] > 5
    assert keeping[-1]["removals"] == 0
    assert forgetting[-1]["neighbours"] < keeping[-1]["neighbours"]


# --- G14 ---


def test_g14_agrees_with_the_forks_of_the_simulation_and_not_with_others() -> None:
    short = [
        replace(job, window_s=600.0, subscribers=60)
        for job in gaddah_movement.place_jobs(True)
        if job.seed <= 3
    ]
    runs = [simulate(job) for job in short]
    rows = gaddah_movement.place_rows(runs)
    assert len(rows) == 14
    assert gaddah_movement.judge_g14(rows).holds is True
    moved = [{**run, "movement": {RND: NBR, NBR: RND}[run["movement"]]} for run in runs]
    assert gaddah_movement.judge_g14(gaddah_movement.place_rows(moved)).holds is False


# --- the testbed ---


def test_the_defaults_are_those_of_table_4_1() -> None:
    job = BuildingJob(DURABLE)
    assert (job.subscribers, job.pause_s, job.buffer_mb, job.wireless_mbps) == (200, 0.0, 1, 11.0)
    assert (job.connect_s, job.disconnect_s, job.handoff_s, job.movement) == (60.0, 12.0, 3.0, RND)
    assert gaddah.FULL.populations == (10, 50, 100, 150, 200)
    assert gaddah.FULL.seeds == 5
    assert job.network().routing == "flooding"


def test_the_publisher_waits_until_its_message_is_taken() -> None:
    """15 ms there, 2 ms of work at least, 15 ms back, and the pause."""
    fast, slow = (simulate(replace(TINY, pause_s=pause_s)) for pause_s in (0.0, 1.0))
    assert 25 < fast["published_per_s"] <= 1 / 0.032
    assert 0.9 < slow["published_per_s"] <= 1 / 1.032


def test_a_broker_works_on_each_notification_that_is_transferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durable transfers nothing; and were a transfer one message to work on, reactive would be faster."""
    reactive, durable = (
        simulate(replace(TINY, protocol=name, buffer_mb=100)) for name in (REACTIVE, DURABLE)
    )
    assert reactive["transferred_percent"] > 1
    assert durable["transferred_percent"] == 0
    assert reactive["handoff_mean_s"] > durable["handoff_mean_s"]
    monkeypatch.setattr(ForwardBuffered, "weight", 1)
    monkeypatch.setattr(Grant, "weight", 1)
    assert simulate(replace(TINY, protocol=REACTIVE))["handoff_mean_s"] < reactive["handoff_mean_s"] / 1.2


def test_loss_and_duplicates_are_counted() -> None:
    rows = {name: simulate(replace(TINY, protocol=name, buffer_mb=100)) for name in PROTOCOLS}
    assert rows[PROACTIVE]["duplicate_percent"] == rows[PROACTIVE]["loss_percent"] == 0
    assert rows[DURABLE]["duplicate_percent"] > 5, "old ones again at brokers seen before"
    assert rows[DURABLE]["loss_percent"] == 0, "every broker has stored everything"
    assert {row["expected"] > 1000 for row in rows.values()} == {True}
    again = simulate(replace(TINY, buffer_mb=100))
    assert again == rows[PROACTIVE], "the same job gives the same row"


def test_small_buffers_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaddah_testbed, "MB", 20_000)
    losses = {name: simulate(replace(TINY, protocol=name))["loss_percent"] for name in PROTOCOLS}
    assert min(losses.values()) > 0.5


def test_everyone_has_been_everywhere_before_a_durable_run_starts() -> None:
    testbed = Testbed(replace(TINY, protocol=DURABLE), building())
    attached = [action for action in testbed.actions() if action[0] < gaddah_testbed.START_S]
    visits = {(client, item.broker) for _, client, item in attached if hasattr(item, "broker")}
    assert len(visits) == 12 * 6 + 1


# --- runs and figures in a tiny setting ---


def test_every_run_has_a_name_of_its_own() -> None:
    for quick in (True, False):
        size = gaddah.size_of(quick)
        jobs = {
            *gaddah.population_jobs(size),
            *gaddah_movement.graph_jobs(quick),
            *gaddah_movement.place_jobs(quick),
        }
        jobs |= {job for of_it in gaddah.sweep_jobs(size).values() for job in of_it}
        assert len({job.name for job in jobs}) == len(jobs)


@pytest.mark.slow  # 13 s
def test_findings_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = gaddah.Size((10, 14), (14,), (0.0, 1.0), (1, 2), 2, 5.0, 10.0)
    monkeypatch.setattr(gaddah, "QUICK", tiny)
    monkeypatch.setattr(gaddah, "LEARNING_S", 0.0)
    few = [
        replace(job, subscribers=12, window_s=100.0, warm_up_s=10.0)
        for job in gaddah_movement.place_jobs(True)
    ]
    monkeypatch.setattr(gaddah_movement, "place_jobs", lambda quick: few)
    one = gaddah_movement.graph_jobs(True)[:1]
    monkeypatch.setattr(gaddah_movement, "graph_jobs", lambda quick: one)
    sweep = Sweep(1)
    drawings = 0
    for experiment in (
        gaddah.population, gaddah.buffers, gaddah.disconnection, gaddah.sweeps, gaddah_movement.places,
        gaddah_movement.neighbour_graph,
    ):  # fmt: skip
        findings = experiment(True, sweep)
        assert all(findings.tables.values())
        for draw in findings.figures.values():
            figure = drawn(draw)
            assert isinstance(figure, Figure)
            assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
            assert any(axes.get_legend() is not None for axes in figure.axes)
            drawings += 1
    assert drawings == 13
    assert not sweep.failures


# --- the thesis's setting, R7 to R9 ---


def test_the_publisher_of_the_thesis_waits_for_the_slowest_broker() -> None:
    slow = Costs(entry_s=0.02, waits_for_all=True)
    ours, theirs = (simulate(replace(TINY, protocol=DURABLE, costs=costs)) for costs in (OURS, slow))
    assert theirs["published_per_s"] < 0.9 * ours["published_per_s"]
    assert min(theirs["processing_ms"].values()) > min(ours["processing_ms"].values())
    assert (ours["setting"], theirs["setting"]) == ("ours", "neither")


@pytest.mark.parametrize(("is_shared", "last_ms"), [(False, 16.5), (True, 165.1)])
def test_subscribers_of_a_broker_share_its_bandwidth(is_shared: bool, last_ms: float) -> None:
    """Ten get 2,064 bytes at 1 Mbps: at the same time, or one after the other."""
    arrived_s: list[float] = []

    def observe(rows: list[records.Row]) -> None:
        arrived_s.extend(row.time for row in rows if row.kind == "delivered")

    none = Delay(0.0, 0.0)
    settings = NetworkSettings(
        protocol="none", access_delay=none, access_bits_per_s=1e6, access_shared=is_shared
    )
    clients = [f"s{n}" for n in range(10)]
    attached = [(0.0, client, AttachTo("b1", 0)) for client in (*clients, "p")]
    subscribed = [(1.0, client, SubscribeTo("TRUE")) for client in clients]
    network = Network(building(), settings, observe)
    network.run([*attached, *subscribed, (2.0, "p", PublishThis(encode_attributes({}), (bytes(2000),)))])
    assert len(arrived_s) == 10
    assert 1000 * (max(arrived_s) - 2.0) == pytest.approx(last_ms, abs=1.0)


def test_what_is_handed_over_keeps_the_old_broker_busy() -> None:
    free, dear = (
        simulate(replace(TINY, protocol=REACTIVE, costs=Costs(transfer_s=transfer_s)))
        for transfer_s in (0.0, 0.05)
    )
    assert sum(dear["load_percent"].values()) > 1.1 * sum(free["load_percent"].values())


def test_a_subscriber_is_served_where_fewer_are() -> None:
    testbed = Testbed(replace(TINY, selects=True), building())
    testbed.network.run([(0.0, f"s{n:02}", AttachTo("b3", 0)) for n in range(4)])
    assert testbed.chosen("b3") in NEIGHBOURS["b3"]
    assert Testbed(TINY, building()).chosen("b3") == "b3"


def test_r7_fails_if_another_pair_is_nearer() -> None:
    table = [{"message_bytes": one.message_bytes, "entry_ms": 1000 * one.entry_s, "frozen": one == THESIS,
              "squared difference": 1.0 if one == THESIS else 2.0} for one in CALIBRATED]  # fmt: skip
    assert gaddah_movement.judge_r7(table).holds is True
    nearer = [{**row, "squared difference": 0.5} if not row["frozen"] else row for row in table]
    assert gaddah_movement.judge_r7(nearer).holds is False
    assert gaddah_movement.judge_r7(table[:2]).holds is None


def test_the_calibration_has_a_row_for_each_pair_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = [replace(TINY, protocol=DURABLE, subscribers=10, costs=one) for one in (CALIBRATED[0], THESIS)]
    monkeypatch.setattr(gaddah_movement, "calibration_jobs", lambda quick: tried)
    (table,) = gaddah_movement.calibration(True, Sweep(1)).tables.values()
    assert [(row["message_bytes"], row["frozen"]) for row in table] == [(4_000, False), (6_000, True)]


def foretold(movement: str, **changed: float) -> Row:
    brokers = {broker: (100.0, changed.get(broker, 102.0)) for broker in BROKERS}
    totals = (sum(pair[at] for pair in brokers.values()) for at in (0, 1))
    return {"movement": movement, "subscribers": 200, "brokers": brokers,
            **dict(zip(("foretold", "measured"), totals, strict=True))}  # fmt: skip


def test_r8_fails_if_the_curve_is_off() -> None:
    fitted = fit([1, 2, 3, 4, 5], [1, 2, 3, 4, 6])
    assert gaddah_movement.judge_r8([foretold(RND), foretold(NBR)], fitted).holds is True
    assert gaddah_movement.judge_r8([foretold(RND, b2=50.0), foretold(NBR)], fitted).holds is False
    assert gaddah_movement.judge_r8([foretold(RND), foretold(NBR, b3=90.0)], fitted).holds is False


def test_r9_compares_with_and_without_selection() -> None:
    rows = [{"selects": selects, "spread": 20 - 10 * selects, "slowest_ms": 9 - selects, "loss_percent": 1.0,
             "useful_per_s": 100.0} for selects in (False, True)]  # fmt: skip
    assert gaddah_movement.judge_r9(rows).holds is True
    assert gaddah_movement.judge_r9([rows[0], {**rows[1], "spread": 30}]).holds is False
    assert gaddah_movement.judge_r9(rows[:1]).holds is None


def test_covering_is_judged_by_what_is_propagated_delivered_and_stored() -> None:
    like: dict[str, Any] = {"workload": "nested", "handoffs": 10, "contexts": 90, "delivered": 500, "lost": 0,
                            "violations": 0, "stored": 100, "stored_once": 70}  # fmt: skip
    simple = {**like, "routing": "simple", "updates": 160}
    assert judge_covering([simple, {**like, "routing": "covering", "updates": 40}]).holds is True
    for wrong in ({"updates": 160}, {"updates": 40, "delivered": 499}, {"updates": 40, "lost": 1}):
        assert judge_covering([simple, {**like, "routing": "covering", **wrong}]).holds is False


def test_in_the_thesis_setting_every_protocol_works_on_what_it_stores() -> None:
    """Pro-active has a buffer of its own; its entries cost as much as those of the others."""
    for protocol in ("durable", "reactive", "proactive"):
        free = BuildingJob(protocol, subscribers=10, warm_up_s=40.0, window_s=20.0)
        loads = [
            sum(simulate(replace(free, costs=replace(THESIS, entry_s=entry_s)))["load_percent"].values())
            for entry_s in (0.0, 0.001)
        ]
        assert loads[1] > loads[0], protocol


def test_variants_name_which_choice_gives_what() -> None:
    variants = gaddah_variants
    parts = (variants.LOWEST, variants.REACTIVE_MOST, variants.HANDOFF, variants.DURABLE_LAST)
    held = {name: dict.fromkeys(parts, False) for name in variants.VARIANTS}
    judges = (variants.judge_r26, variants.judge_r27, variants.judge_r28)
    assert [judge(held).holds for judge in judges] == [False] * 3
    for name in (variants.OWN_QUEUES, variants.BOTH):
        held[name][variants.LOWEST] = True
    for name in (variants.ASIDE, variants.BOTH):
        held[name] |= {variants.HANDOFF: True, variants.DURABLE_LAST: True}
    assert [judge(held).holds for judge in judges] == [True] * 3
    held[variants.AS_SET] = dict.fromkeys(parts, True)
    assert [judge(held).holds for judge in judges] == [False] * 3
