"""The audit against the simulator's checkers, and on logs that were tampered with."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.log_maker import Tampered

from roamcast.bench.synthetic_log import Planted, write_synthetic_log
from roamcast.mobility import PROTOCOLS
from roamcast.pipeline.audit import audit_embedded, counts_by_run, disagreements, protocol_of
from roamcast.pipeline.audit_sql import is_bad, problem
from roamcast.pipeline.spark_engine import audit_on_spark
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.records import HELD, KINDS, Row
from roamcast.records.parquet import LogWriter, schema
from roamcast.simulator.fuzz_logs import Verdict, write_fuzzed

pytestmark = pytest.mark.xdist_group("spark")


# --- tampered logs ---


def lose(log: Tampered) -> None:
    log.remove(log.of("delivered", client="car", number=2)[0])


def repeat(log: Tampered) -> None:
    log.append(log.of("delivered", client="car", number=2)[0], "car")


def swap(log: Tampered) -> None:
    first, second = (log.of("delivered", client="bus", publisher="garage", number=n)[0] for n in (1, 2))
    log.change(first, number=2)
    log.change(second, number=1)


def deliver_to_a_stranger(log: Tampered) -> None:
    """Someone who subscribed to something else."""
    log.append(log.of("delivered", client="bus", number=2)[0], "depot")


def deliver_to_a_nobody(log: Tampered) -> None:
    """Someone who never subscribed to anything."""
    log.append(log.of("delivered", client="bus", number=2)[0], "nobody")


def deliver_after_the_end(log: Tampered) -> None:
    """What was published after the unsubscription had settled."""
    log.append(log.of("delivered", client="bus", number=8)[0], "car")


def invent(log: Tampered) -> None:
    log.append(log.of("delivered", client="bus", number=8)[0], "bus", number=77)


def invent_a_publisher(log: Tampered) -> None:
    log.append(log.of("delivered", client="bus", number=8)[0], "bus", publisher="ghost", number=1)


def forget_a_field(log: Tampered) -> None:
    log.change(log.of("delivered", client="car", number=2)[0], number=None)


def set_the_clock_back(log: Tampered) -> None:
    for place, row in enumerate(log.rows):
        if row.node == "b" and row.time > 6:
            log.change(place, time=row.time - 3.2)


def cut_a_row_out(log: Tampered) -> None:
    del log.rows[log.of("delivered", client="bus", number=2)[0]]


def copy_a_row(log: Tampered) -> None:
    place = log.of("delivered", client="bus", number=2)[0]
    log.rows.insert(place, log.rows[place])


def hide_a_publication(log: Tampered) -> None:
    log.remove(log.of("published", publisher="garage", number=2)[0])


def change_attributes(log: Tampered) -> None:
    """What was published no longer matches what the car wanted."""
    dearer = encode_attributes({"service": "parking", "cost": 7})
    log.change(log.of("published", publisher="garage", number=2)[0], attributes=dearer)


def garble_attributes(log: Tampered) -> None:
    log.change(log.of("published", publisher="garage", number=2)[0], attributes=b"\xc1")


def settle_later(log: Tampered) -> None:
    """As if the subscription had settled only after the first two were published: they may come."""
    log.change(log.of("subscribed", client="car", reason="settled")[0], time=2.5)


def begin_anew(log: Tampered) -> None:
    """As if the publisher's session had ended before its last two: a new one counts from 1 again."""
    for place, row in enumerate(log.rows):
        if row.publisher == "garage" and (row.number or 0) >= 7:
            log.change(place, incarnation=6_500_000, number=row.number - 6 if row.number else None)


def forget_what_was_before(log: Tampered) -> None:
    """As if the car had subscribed before its broker had a log; the broker tells of it when it starts."""
    log.remove(log.of("subscribed", client="car", reason="issued")[0])
    log.change(log.of("subscribed", client="car", reason="settled")[0], reason=HELD)


def forget_and_lose(log: Tampered) -> None:
    forget_what_was_before(log)
    lose(log)


def begin_the_log_late(log: Tampered) -> None:
    """As if the brokers had logs since the first two were published: these may come, and the others must."""
    forget_what_was_before(log)
    place = log.of("subscribed", client="car", reason=HELD)[0]
    held = log.rows[place]
    log.remove(place)
    log.insert(log.of("published", publisher="garage", number=2)[0], **held_fields(held))


def held_fields(row: Row) -> dict[str, Any]:
    """All but where and when it was written."""
    return {name: value for name, value in row._asdict().items() if name not in ("sequence", "time", "node")}


def start_again(log: Tampered) -> None:
    """A broker tells of the car while it is away, and of the bus again and again."""
    forget_what_was_before(log)
    for client, number in (("car", 3), ("bus", 1), ("bus", 2), ("bus", 3)):
        settled = log.of("subscribed", client=client)[0]
        place = log.of("published", publisher="garage", number=number)[0]
        log.insert(place, **held_fields(log.rows[settled]) | {"reason": HELD, "broker": "b"})


def hold_another_session(log: Tampered) -> None:
    """The bus has ended its session and begun another, and subscribed again while there was no log."""
    place = log.of("subscribed", client="bus", reason="settled")[0]
    row = log.rows[place]
    place = log.insert(place, time=row.time + 0.1, kind="detached", reason="session ended", filter=None)
    log.insert(place, **row._replace(time=row.time + 0.2, reason=HELD)._asdict())


DEFECTS: list[tuple[Callable[[Tampered], None], dict[str, int], list[tuple[str, str, int]]]] = [
    (lambda log: None, {}, []),
    (lose, {"delivered": 14, "lost": 1}, [("lost", "car", 2)]),
    (repeat, {"delivered": 16, "duplicates": 1}, [("duplicate", "car", 2)]),
    (swap, {"out_of_order": 1}, [("out of order", "bus", 1)]),
    (deliver_to_a_stranger, {"delivered": 16, "unexpected": 1}, [("unexpected", "depot", 2)]),
    (deliver_to_a_nobody, {"delivered": 16, "unexpected": 1}, [("unexpected", "nobody", 2)]),
    (deliver_after_the_end, {"delivered": 16, "unexpected": 1}, [("unexpected", "car", 8)]),
    (invent, {"delivered": 16, "invented": 1}, [("invented", "bus", 77)]),
    (invent_a_publisher, {"delivered": 16, "invented": 1}, [("invented", "bus", 1)]),
    (forget_a_field, {"delivered": 14, "lost": 1, "bad": 1}, [("lost", "car", 2)]),
    # It was published after the car had unsubscribed; with the wrong clock it seems to be owed.
    (set_the_clock_back, {"expected": 16, "lost": 1, "clock_jumps": 1}, [("lost", "car", 8)]),
    (cut_a_row_out, {"delivered": 14, "lost": 1, "missing": 1}, [("lost", "bus", 2)]),
    (copy_a_row, {"repeated": 1}, []),
    (hide_a_publication, {"expected": 13, "invented": 2}, [("invented", "bus", 2), ("invented", "car", 2)]),
    (change_attributes, {"expected": 14, "unexpected": 1}, [("unexpected", "car", 2)]),
    (
        garble_attributes,
        {"expected": 13, "unexpected": 2},
        [("unexpected", "bus", 2), ("unexpected", "car", 2)],
    ),
    (settle_later, {"expected": 13}, []),
    (begin_anew, {}, []),
    (forget_what_was_before, {}, []),
    (forget_and_lose, {"delivered": 14, "lost": 1}, [("lost", "car", 2)]),
    (begin_the_log_late, {"expected": 13}, []),
    (start_again, {}, []),
    (hold_another_session, {}, []),
]
CLEAN = {
    "expected": 15, "delivered": 15, "lost": 0, "duplicates": 0, "out_of_order": 0, "unexpected": 0,
    "invented": 0, "unacknowledged": 0,
    "handoffs": 1, "bad": 0, "repeated": 0, "missing": 0, "clock_jumps": 0,
}  # fmt: skip


@dataclass
class Audited:
    folder: Path
    verdicts: dict[str, Verdict]
    """Of the checkers, by run."""
    planted: Planted
    figures: dict[str, Any]
    by_run: dict[str, Counter[str]]
    findings: list[dict[str, Any]]


@pytest.fixture(scope="module", params=["duckdb", pytest.param("spark", marks=pytest.mark.slow)])
def audited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """All in one audit, each in the log of a run of its own: Spark takes nearly as long for one."""
    folder = tmp_path_factory.mktemp("audited")
    for number, (tamper, _, _) in enumerate(DEFECTS):
        log = Tampered()
        tamper(log)
        with LogWriter(folder / "log" / "tampered" / str(number), f"run {number}") as writer:
            writer.write(log.rows)
    stories = [(protocol, seed) for seed, protocol in enumerate(sorted(PROTOCOLS), start=1_000)]
    verdicts = dict(write_fuzzed(folder / "log" / "fuzzed", stories))
    planted = write_synthetic_log(folder / "log" / "synthetic", 20_000, subscribers=100)
    out = folder / "out"
    if request.param == "spark":
        spark: SparkSession = request.getfixturevalue("spark")
        figures = audit_on_spark(spark, folder / "log", out)
    else:
        figures = audit_embedded(folder / "log", out)
    by_run = counts_by_run(out)
    for row in pq.read_table(out / "nodes.parquet").to_pylist():
        by_run[row["run"]].update({name: row[name] for name in ("bad", "repeated", "missing")})
    for row in pq.read_table(out / "breaks.parquet").to_pylist():
        by_run[row["run"]]["clock_jumps"] += (row["went_back_s"] or 0) > 0
    return Audited(folder, verdicts, planted, figures, by_run, pq.read_table(out / "findings").to_pylist())


@pytest.mark.parametrize("number", range(len(DEFECTS)), ids=lambda number: DEFECTS[number][0].__name__)
def test_each_planted_defect_is_found_and_nothing_else(audited: Audited, number: int) -> None:
    _, changed, offending = DEFECTS[number]
    name_of_run = f"run {number}"
    counts = audited.by_run[name_of_run]
    assert {name: counts[name] for name in CLEAN} == CLEAN | changed
    findings = [row for row in audited.findings if row["run"] == name_of_run]
    assert sorted((row["kind"], row["client"], row["number"]) for row in findings) == offending


def test_the_whole_is_the_sum_of_its_runs(audited: Audited) -> None:
    figures, runs = audited.figures, len(DEFECTS) + len(audited.verdicts) + 1
    for name in CLEAN.keys() & figures.keys():
        assert figures[name] == sum(counts[name] for counts in audited.by_run.values()), name
    assert figures["runs"] == len(audited.by_run) == runs
    assert set(figures["protocols"]) == {*PROTOCOLS, "run", "synthetic"}
    assert figures["misnumbered"] == 1
    assert figures["bad_rows"] == 2, "one without a field, one with garbled attributes"
    tables = {path.stem for path in (audited.folder / "out").iterdir()}
    assert tables == {"audit", "breaks", "clients", "findings", "handoffs", "nodes", "publishers", "streams"}


def test_audit_and_checkers_agree_on_every_protocol(audited: Audited) -> None:
    differ = disagreements(audited.folder / "out", audited.verdicts)
    assert [one for one in differ if one.run in audited.verdicts] == []
    assert {one.run for one in differ} == audited.by_run.keys() - audited.verdicts.keys()
    for kind in ("lost", "duplicates", "out_of_order"):
        assert sum(verdict[kind] for verdict in audited.verdicts.values()) > 0, kind


def test_a_disagreement_is_told(audited: Audited) -> None:
    verdicts = {run: dict(verdict) for run, verdict in audited.verdicts.items()}
    verdicts["none-1003"] = {**verdicts.get("none-1003", {}), "lost": -1}
    (one,) = [one for one in disagreements(audited.folder / "out", verdicts) if one.other == -1]
    assert (one.run, one.what) == ("none-1003", "lost")


def test_what_was_planted_in_a_larger_log_is_found(audited: Audited) -> None:
    planted, counts = asdict(audited.planted), audited.by_run["synthetic-1"]
    assert min(planted[name] for name in ("lost", "duplicates", "out_of_order", "unexpected")) == 1
    del planted["records"]
    assert {name: counts[name] for name in planted} == planted


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_the_command_compares_many_runs(tmp_path: Path) -> None:
    """With --seeds 0:200 it takes some minutes. It has a process of its own: there is one Spark in each."""
    out = tmp_path / "out"
    program = "import sys; from roamcast.cli import main; sys.exit(main())"
    command = ["pipeline", "agree", "--seeds", "0:13", "--out", str(out), "--json"]
    result = json.loads(subprocess.check_output([sys.executable, "-c", program, *command]))
    assert result["runs"] == 13 * len(PROTOCOLS)
    assert (result["disagreements"], result["examples"]) == (0, [])
    assert result["lost"] > 0
    assert {path.name for path in out.iterdir()} == {"audit", "log"}


def test_a_finding_names_its_row_and_circumstances(audited: Audited) -> None:
    (lost,) = [row for row in audited.findings if row["run"] == "run 1"]
    assert (lost["publisher"], lost["incarnation"]) == ("garage", 20_000)
    assert (lost["node"], lost["broker"]) == ("b", "b")
    assert lost["time"] == lost["published_at"] == pytest.approx(2.12)
    assert (lost["handoff"], lost["was_away"], lost["dropped_because"]) == (0, False, None)
    (late,) = [row for row in audited.findings if row["run"] == "run 6"]
    assert (late["handoff"], late["node"], late["published_at"]) == (1, "car", pytest.approx(9.02))


def test_protocols_are_told_by_the_names_of_runs() -> None:
    assert protocol_of("sub_unsub-7") == "sub_unsub"
    assert protocol_of("proactive:published-12") == "proactive:published"
    assert protocol_of("mobile=0.2 protocol=none seed=3") == "none"
    assert protocol_of("2026-11-15") == "2026-11-15"


def test_what_is_bad_is_what_has_a_problem() -> None:
    """The audit asks whether a row can be used, `ingest` asks why not."""
    random = Random(7)
    good = Row(
        1, 1.0, "n", "published", client="c", broker="b", peer="p", publisher="p", incarnation=1, number=1,
        notifications=1, message="m", cause="c", hops=1, size_bytes=1, filter="x = 1", attributes=b"",
        reason="issued", published_at=1.0,
    )  # fmt: skip
    odd = {
        "number": -1, "notifications": 0, "time": float("nan"), "reason": "other", "kind": "strange",
    }  # fmt: skip
    rows = []
    for kind in KINDS:
        for _ in range(60):
            row = {"run": "r", **good._asdict(), "kind": kind}
            for name in random.sample(list(row), random.choice((0, 0, 1, 2))):
                row[name] = random.choice((None, odd.get(name)))
            rows.append(row)
    with duckdb.connect() as connection:
        connection.register("log", pa.Table.from_pylist(rows, schema()))
        for kinds in (KINDS, ("published",), ("subscribed", "moved"), ("acknowledged", "delivered")):
            query = f"SELECT {is_bad(kinds)} AS bad, {problem(kinds)} AS why FROM log"
            answers = connection.sql(query).fetchall()
            assert [bad for bad, _ in answers] == [why is not None for _, why in answers]
            assert {bad for bad, _ in answers} == {True, False}
