"""Fiege's claims: they hold in a small setting, and each judgement can fail."""

from collections.abc import Iterable, Iterator, Mapping

import pytest
from matplotlib.figure import Figure

from roamcast.lab import fiege
from roamcast.lab.fiege import F1, F2, ONE_PRODUCER, SEVERAL_PRODUCERS, STRATEGIES, RoutingJob
from roamcast.lab.report import drawn
from roamcast.lab.rows import Row
from roamcast.lab.sweep import Sweep
from roamcast.mobility.relocation import Cache, Relocation
from roamcast.protocol import records
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue

# --- F1, F2 ---


def test_f1_and_f2_hold() -> None:
    findings = fiege.figure_5(True, Sweep(1))
    assert [(outcome.claim, outcome.holds, outcome.note) for outcome in findings.outcomes] == [
        ("F1", True, ""), ("F2", True, ""),
    ]  # fmt: skip
    one, several = (outcome.figures["final entries (C, F)"] for outcome in findings.outcomes)
    assert "B5" not in str(one)
    assert "B6" not in str(one)
    assert "B5→B4" in str(several)
    assert "B6" not in str(several)
    assert len(findings.tables["figure_5"]) == 2


def test_f1_fails_if_the_old_path_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A story without advertisements turns every entry round and frees none."""
    story = "\n".join(line for line in ONE_PRODUCER.splitlines() if "advertise" not in line)
    monkeypatch.setitem(fiege.TABLES, story, fiege.PLACED)
    outcome = fiege.judge_figure_5(F1, story)
    assert outcome.holds is False
    assert "the entries differ" in outcome.note


def test_f2_is_not_f1() -> None:
    assert fiege.TABLES[ONE_PRODUCER] != fiege.TABLES[SEVERAL_PRODUCERS]
    outcome = fiege.judge_figure_5(F2, SEVERAL_PRODUCERS)
    assert (outcome.paper, outcome.holds) == (F2.paper, True)


def keep_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old broker answers, and forgets nothing."""
    try_replay = Relocation.try_replay

    def keeps(self: Relocation, cache: Cache) -> None:
        try_replay(self, cache)
        if cache.fetch is not None and not cache.blocked:
            self.caches[cache.fetch.client, cache.number] = cache

    monkeypatch.setattr(Relocation, "try_replay", keeps)


def test_a_broker_that_is_not_freed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_the_cache(monkeypatch)
    assert fiege.judge_figure_5(F1, ONE_PRODUCER).note == "brokers still hold: C at B6"
    rows = [fiege.relocate(fiege.RelocationJob(seed, False)) for seed in range(3)]
    assert sum(row["left_over"] for row in rows) > 0
    assert fiege.judge_f7([*rows, *limited_rows()], fiege.caches()[:3]).holds is False


# --- F7 ---


def limited_rows() -> list[Row]:
    return [fiege.relocate(fiege.RelocationJob(seed, True)) for seed in range(2)]


def test_f7_holds_over_a_few_seeds() -> None:
    rows = [fiege.relocate(fiege.RelocationJob(seed, False)) for seed in range(6)]
    outcome = fiege.judge_f7([*rows, *limited_rows()], fiege.caches())
    assert (outcome.holds, outcome.note) == (True, "")
    assert outcome.figures["of them exactly as expected"] == 3 * len(fiege.LIMITS)


@pytest.mark.parametrize(
    ("ring", "ttl_s", "missing"),
    [(None, None, 0), (10, None, 0), (9, None, 1), (1, None, 9), (None, 5.7, 0), (None, 3.2, 4), (5, 0.7, 9)],
)
def test_what_is_missing_follows_from_size_and_age(
    ring: int | None, ttl_s: float | None, missing: int
) -> None:
    assert fiege.expected_missing(ring, ttl_s) == missing


def test_f7_fails_if_a_cache_misses_others_than_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring that gives up one more than it must."""
    trim = Relocation.trim

    def early(self: Relocation, client: str, queue: DeliveryQueue) -> None:
        trim(self, client, queue)
        room = self.settings.cache_notifications
        if room is not None and len(queue) == room:
            self.give_up_first(client, queue, 1, "overflow")

    roomy = fiege.relocate(fiege.RelocationJob(3, False))
    monkeypatch.setattr(Relocation, "trim", early)
    tried = fiege.caches()
    assert not all(row["exactly"] for row in tried)
    assert (
        "caches miss other notifications than expected"
        in fiege.judge_f7([roomy, *limited_rows()], tried).note
    )


def test_f7_fails_at_a_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: Relocation, held_back: Iterable[Burst], _: Iterable[Burst]) -> Iterator[Burst]:
        yield from held_back

    monkeypatch.setattr(Relocation, "without_replayed", everything)
    rows = [fiege.relocate(fiege.RelocationJob(seed, False)) for seed in range(6)]
    outcome = fiege.judge_f7([*rows, *limited_rows()], fiege.caches()[:3])
    assert outcome.holds is False
    assert "duplicates" in outcome.note


def test_f7_is_open_without_runs() -> None:
    assert fiege.judge_f7([], []).holds is None


# --- F8 ---


@pytest.fixture(scope="module")
def routed() -> list[Row]:
    return [fiege.route(RoutingJob(workload, 1, 2)) for workload in fiege.WORKLOADS]


def test_all_strategies_deliver_the_same(routed: list[Row]) -> None:
    for row in routed:
        assert row["handoffs"] > 10
        assert row["deliveries"] > 100
        assert row["clients_changed"] == 0
        assert all(one["violations"] == 0 for one in row["strategies"].values())


def test_a_strategy_that_delivers_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under merging one client hears of nothing: the brokers' checker would say so, and so does F8."""
    names_of = fiege.names_of
    runs: list[str] = []

    def counted(self: RoutingJob, routing: str) -> object:
        runs.append(routing)
        return scenario(self, routing)

    def deaf(row: records.Row) -> Iterator[str]:
        return iter(()) if runs[-1] == "merging" and row.client == "c00" else names_of(row)

    scenario = RoutingJob.scenario
    monkeypatch.setattr(RoutingJob, "scenario", counted)
    monkeypatch.setattr(fiege, "names_of", deaf)
    row = fiege.route(RoutingJob("groups", 1, 2))
    assert row["clients_changed"] == 1
    assert "1 clients received other notifications" in fiege.judge_f8([row], []).note


def means(sizes: Mapping[str, tuple[float, float, float, float]]) -> list[Row]:
    return [
        {"workload": workload, "strategy": strategy, "table_entries": size, "control_hops": size}
        for workload, series in sizes.items()
        for strategy, size in zip(STRATEGIES, series, strict=True)
    ]


def test_f8_holds_if_nothing_rises_and_every_step_falls_somewhere(routed: list[Row]) -> None:
    falling = means({"nested": (9, 8, 5, 2), "groups": (9, 9, 9, 9)})
    assert (fiege.judge_f8(routed, falling).holds, fiege.judge_f8(routed, falling).note) == (True, "")


@pytest.mark.parametrize(
    ("sizes", "note"),
    [
        ((9, 8, 5, 6), "control hops, nested: merging is 1.200 of covering"),
        ((8, 9, 5, 2), "table entries, nested: identity is 1.125 of simple"),
        ((9, 9, 5, 2), "table entries: identity is never below simple"),
    ],
)
def test_f8_can_fail(routed: list[Row], sizes: tuple[float, float, float, float], note: str) -> None:
    outcome = fiege.judge_f8(routed, means({"nested": sizes}))
    assert outcome.holds is False
    assert note in outcome.note


def test_the_measured_order_and_its_figure(routed: list[Row]) -> None:
    """Covering and merging have much to find in nested filters; and the bars have labels."""
    measured = fiege.mean_sizes(routed)
    sizes = {(row["workload"], row["strategy"]): row for row in measured}
    nested = [sizes["nested", strategy]["table_entries"] for strategy in STRATEGIES]
    assert nested[0] == nested[1] > nested[2] > nested[3]
    figure = drawn(fiege.chart(measured))
    assert isinstance(figure, Figure)
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list(STRATEGIES)


def test_lazy_merging_must_say_less_and_let_more_through() -> None:
    def rows(control: tuple[int, int, int], publish: int) -> list[Row]:
        figures = {
            one: {"control_hops": hops, "table_entries": 9, "publish_hops": 100, "violations": 0}
            for one, hops in zip(fiege.LAZY, control, strict=True)
        }
        figures["lazy_merging"]["publish_hops"] = publish
        return [{"workload": "groups", "clients_changed": 0, "strategies": figures}]

    assert fiege.judge_r20(rows((50, 60, 40), 110)).holds
    assert fiege.judge_r20(rows((30, 60, 40), 110)).holds is False
    assert fiege.judge_r20(rows((50, 60, 40), 100)).holds is False
