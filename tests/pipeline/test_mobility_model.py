"""What is learned from logs and traces of visits, compared with what is counted by hand."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.conftest import WriteLog

from roamcast.cli import pipeline_models
from roamcast.errors import InputError
from roamcast.mobility.neighbour_graph import parse_graph
from roamcast.mobility.prediction import Predictor
from roamcast.models.next_broker import count_moves, learned_document
from roamcast.models.residence import exponential_test
from roamcast.pipeline.figures import save_figures
from roamcast.pipeline.mobility_model import (
    ModelSettings,
    contexts,
    edges,
    first_order,
    hit_rates,
    learn,
    lru_of_broker,
    second_order,
)
from roamcast.pipeline.residence import counted_stays, exponential_tests, hot_spots, presence_shares
from roamcast.pipeline.sightings import VISITS_SCHEMA
from roamcast.pipeline.spark_engine import read_log
from roamcast.pipeline.visits import moves, read_visits, visits_of_log
from roamcast.protocol.records import Row
from roamcast.records.parquet import LogWriter
from roamcast.simulator.movement import from_file
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.trace_generator import TraceSettings, generate_trace, write_trace

pytestmark = pytest.mark.xdist_group("spark")

Visits = Iterable[tuple[str, str, float, float | None]]


def frame(spark: SparkSession, visits: Visits) -> DataFrame:
    return spark.createDataFrame([("r", *visit) for visit in visits], VISITS_SCHEMA)


TOUR = [
    ("one", "a", 0.0, 10.0), ("one", "b", 11.0, 20.0), ("one", "b", 25.0, 30.0), ("one", "c", 31.0, 40.0),
    ("two", "a", 0.0, 50.0), ("two", "c", 52.0, None),
]  # fmt: skip


def test_moves_know_where_from_and_returns_are_none(spark: SparkSession) -> None:
    found = moves(frame(spark, TOUR)).orderBy("client", "at_s").collect()
    assert [(row.previous, row.here, row.next, row.left_s, row.at_s) for row in found] == [
        (None, "a", "b", 10.0, 11.0),
        ("a", "b", "c", 30.0, 31.0),
        (None, "a", "c", 50.0, 52.0),
    ]
    ways = second_order(moves(frame(spark, TOUR))).collect()
    assert [(row.previous, row.here, row.next, row.probability) for row in ways] == [("a", "b", "c", 1.0)]


def test_hit_rates_are_of_later_moves_only(spark: SparkSession) -> None:
    """Learned: a leads to b twice and to c once. Later it leads to c, b and d."""
    visits: list[tuple[str, str, float, float | None]] = []
    for number, target in enumerate(["b", "b", "c", "c", "b", "d"]):
        start_s = 100.0 * number
        visits += [(f"c{number}", "a", start_s, start_s + 9), (f"c{number}", target, start_s + 10, None)]
    rows = hit_rates(moves(frame(spark, visits)), 300.0, 3)
    assert [row["moves"] for row in rows] == [3, 3, 3]
    assert [row["first"] for row in rows] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert [row["second"] for row in rows] == [row["first"] for row in rows], "no way is known: the same"
    # Online, c was used last, then c again, then b.
    assert [row["lru"] for row in rows] == pytest.approx([1 / 3, 2 / 3, 2 / 3])


@pytest.mark.slow
def test_the_second_order_tells_what_the_first_cannot(spark: SparkSession) -> None:
    visits = [
        (f"c{number}", broker, 100.0 * number + 10 * place, 100.0 * number + 10 * place + 9)
        for number in range(10)
        for place, broker in enumerate(("w", "m", "e") if number % 2 else ("e", "m", "w"))
    ]
    (row,) = hit_rates(moves(frame(spark, visits)), 600.0, 1)
    assert row["second"] == 1.0
    assert row["first"] == pytest.approx(0.75), "from the middle it guesses"


def test_the_list_of_last_used_destinations() -> None:
    rows = [("a", None, target, float(at), 0) for at, target in enumerate("bcbdc")]
    assert [row[-1] for row in lru_of_broker(rows)] == [None, None, 2, None, 3]


def test_states_times_and_what_came_next(spark: SparkSession) -> None:
    stays = counted_stays(frame(spark, TOUR), 0.0, 60.0, handoff_s=1.5)
    assert stays["a"].total_s == {"connect": 60.0, "disconnect": 2.0, "handoff": 1.0}
    assert stays["a"].left == {
        ("connect", "handoff", "a"): 1, ("handoff", "connect", "b"): 1,
        ("connect", "disconnect", "a"): 1, ("disconnect", "connect", "c"): 1,
    }  # fmt: skip
    assert stays["b"].total_s == {"connect": 14.0, "disconnect": 5.0, "handoff": 1.0}
    assert stays["c"].total_s["connect"] == 17.0, "who stays is there until the period ends"
    shares = presence_shares(frame(spark, TOUR), 0.0, 60.0)
    assert shares == pytest.approx({"a": 60 / 91, "b": 14 / 91, "c": 17 / 91})
    spots = hot_spots(frame(spark, TOUR), 0.0, 60.0).collect()
    assert [(row.broker, row.clients, row.most_at_once) for row in spots] == [
        ("a", 2, 2), ("c", 2, 1), ("b", 1, 1),
    ]  # fmt: skip


@pytest.mark.slow
def test_the_distance_is_kolmogorovs_also_where_times_are_equal(spark: SparkSession) -> None:
    from scipy.stats import kstest

    times = [1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0, 8.0, 8.0, 20.0]
    table = spark.createDataFrame([("a", time) for time in times], "broker string, stay_s double")
    mean = sum(times) / len(times)
    expected = kstest(times, "expon", args=(0, mean)).statistic
    (test,) = exponential_tests(table, 2).values()
    assert test == pytest.approx(exponential_test(float(expected), len(times)))
    assert exponential_tests(table, 11) == {}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    settings = TraceSettings(side=4, clients=20, duration_s=20_000.0, stay_s=600.0, pass_s=60.0)
    write_trace(tmp_path / "trace.csv", generate_trace(settings))
    return tmp_path / "trace.csv"


def test_a_trace_becomes_a_graph_that_proactive_reads(
    spark: SparkSession, trace: Path, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(learn(read_visits(spark, trace), ModelSettings(degree=2))))
    graph, about = parse_graph(json.dumps(document)), document["about"]
    grows, knows_ways = False, 0
    for here in document["contexts"]:
        predictor = Predictor(here, json.dumps(document))
        knows_ways += predictor.knows_ways
        soon, later = (predictor.leaves_within(0.0, seconds) for seconds in (300.0, 1_500.0))
        assert 0 <= soon <= later <= 1
        grows = grows or soon < later
    assert grows
    assert knows_ways > len(graph) / 2, "in a corner of the grid the way says nothing"
    assert max(map(len, graph.values())) == 2
    rates = about["hit_rates"]
    assert 0 < rates[0]["first"] < rates[3]["first"] <= 1
    assert rates[0]["second"] > rates[0]["lru"]
    assert about["chain"]["error"]["fitted chain"] < about["chain"]["error"]["even chain"]
    assert about["residence"]["exponential"]["rejected"], "stays are log-normal"
    files = save_figures(about, tmp_path)
    assert sorted({file.stem for file in files}) == ["hit_rates", "hot_spots", "presence", "residence_times"]
    assert all(file.stat().st_size > 5_000 for file in files)


def test_spark_counts_the_moves_that_plain_python_counts(spark: SparkSession, trace: Path) -> None:
    visits = [[(visit.broker, visit.attach_s) for visit in of] for of in from_file(trace).values()]
    counted = moves(read_visits(spark, trace))
    assert edges(first_order(counted)) == count_moves(visits)
    assert contexts(counted) == learned_document(visits, 0.0)["contexts"]


def test_the_log_of_a_replayed_trace_gives_the_same_moves(
    spark: SparkSession, trace: Path, tmp_path: Path
) -> None:
    """What clients tell (`moved`) and what brokers see (`attached`, `detached`) agree."""
    scenario = Scenario(
        topology="grid:4", clients=5, movement=f"trace:{trace}", duration_s=20_000.0, publish_every_s=5_000.0
    )
    with LogWriter(tmp_path / "log", "replay") as log:
        scenario.run(log.write)
    rows = read_log(spark, tmp_path / "log")
    plain = count_moves(
        [(v.broker, v.attach_s) for v in visits] for _, visits in sorted(from_file(trace).items())[:5]
    )
    for part in (rows, rows.where("kind != 'moved'")):
        found = edges(first_order(moves(visits_of_log(part))))
        assert [edge[:3] for edge in found] == [edge[:3] for edge in plain]


def test_who_leaves_late_for_a_broker_has_not_left_the_next_one(
    spark: SparkSession, write_log: WriteLog
) -> None:
    """What brokers see: the first one finds out that the client is gone when it is elsewhere already."""

    def seen(sequence: int, time: float, kind: str, broker: str) -> Row:
        return Row(sequence, time, broker, kind, client="c", broker=broker)

    rows = [
        seen(1, 0.0, "attached", "a"), seen(1, 5.0, "attached", "b"), seen(2, 5.25, "detached", "a"),
        seen(2, 9.0, "detached", "b"),
    ]  # fmt: skip
    found = visits_of_log(read_log(spark, write_log(rows))).orderBy("attach_s").collect()
    assert [(row.broker, row.attach_s, row.leave_s) for row in found] == [("a", 0.0, 5.0), ("b", 5.0, 9.0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("who,where\n", "columns are 'who,where'; expected 'client,broker"),
        ("client,broker,attach_s,leave_s\n", "no visits"),
        ("client,broker,attach_s,leave_s\nc,a,5,4\n", "is no visit"),
    ],
)
def test_what_is_no_trace_is_refused(spark: SparkSession, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_visits(spark, tmp_path / "trace.csv")


def test_the_options_have_the_defaults_of_the_settings() -> None:
    import inspect

    options = inspect.signature(pipeline_models.neighbours).parameters
    given = {name: option.default for name, option in options.items()}
    names = ("learn_share", "degree", "mass", "k", "handoff")
    assert ModelSettings(*(given[name] for name in names)) == ModelSettings()
