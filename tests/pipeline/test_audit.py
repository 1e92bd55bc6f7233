"""The audit against the simulator's checkers, and on logs that were tampered with."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.log_maker import Tampered, counts_by_run, verdict_of, write_fuzzed

from roamcast.core.notification import encode_attributes
from roamcast.mobility import PROTOCOLS
from roamcast.pipeline.audit import audit, protocol_of
from roamcast.records.parquet import LogWriter

pytestmark = pytest.mark.xdist_group("spark")


def check_agreement(spark: SparkSession, folder: Path, stories: list[tuple[str, int]]) -> dict[str, Any]:
    results = write_fuzzed(folder / "log", stories)
    figures = audit(spark, folder / "log", folder / "out")
    counts = counts_by_run(folder / "out")
    assert figures["runs"] == len(results)
    assert figures["published"] == sum(result.published for result in results.values())
    for run, result in results.items():
        verdict = verdict_of(result)
        assert {name: counts[run][name] for name in verdict} == verdict, run
        assert counts[run]["invented"] == 0
    for name in ("bad_rows", "repeated_rows", "missing_rows", "clock_jumps", "misnumbered"):
        assert figures[name] == 0, name
    return figures


def test_audit_and_checkers_agree_on_every_protocol(spark: SparkSession, tmp_path: Path) -> None:
    stories = [(protocol, seed) for seed, protocol in enumerate(sorted(PROTOCOLS), start=1_000)]
    figures = check_agreement(spark, tmp_path, stories)
    assert set(figures["protocols"]) == set(PROTOCOLS)
    assert figures["lost"] > 0
    assert figures["duplicates"] > 0
    assert figures["out_of_order"] > 0


@pytest.mark.slow
def test_audit_and_checkers_agree_on_200_seeds(spark: SparkSession, tmp_path: Path) -> None:
    protocols = sorted(PROTOCOLS)
    stories = [(protocol, seed) for seed in range(200) for protocol in protocols[seed % 2 :: 2]]
    check_agreement(spark, tmp_path, stories)


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
]
CLEAN = {
    "expected": 15, "delivered": 15, "lost": 0, "duplicates": 0, "out_of_order": 0, "unexpected": 0,
    "invented": 0, "handoffs": 1, "bad": 0, "repeated": 0, "missing": 0, "clock_jumps": 0,
}  # fmt: skip


@dataclass
class Audited:
    figures: dict[str, Any]
    by_run: dict[str, Counter[str]]
    findings: list[dict[str, Any]]


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """All defects in one audit, each in the log of a run of its own: Spark takes as long for one."""
    folder = tmp_path_factory.mktemp("tampered")
    for number, (tamper, _, _) in enumerate(DEFECTS):
        log = Tampered()
        tamper(log)
        with LogWriter(folder / "log" / str(number), f"run {number}") as writer:
            writer.write(log.rows)
    out = folder / "out"
    figures = audit(spark, folder / "log", out)
    by_run = counts_by_run(out)
    for row in pq.read_table(out / "nodes.parquet").to_pylist():
        by_run[row["run"]].update({name: row[name] for name in ("bad", "repeated", "missing")})
    for row in pq.read_table(out / "breaks.parquet").to_pylist():
        by_run[row["run"]]["clock_jumps"] += (row["went_back_s"] or 0) > 0
    return Audited(figures, by_run, pq.read_table(out / "findings").to_pylist())


@pytest.mark.parametrize("number", range(len(DEFECTS)), ids=lambda number: DEFECTS[number][0].__name__)
def test_each_planted_defect_is_found_and_nothing_else(audited: Audited, number: int) -> None:
    _, changed, offending = DEFECTS[number]
    run = f"run {number}"
    counts = audited.by_run[run]
    assert {name: counts[name] for name in CLEAN} == CLEAN | changed
    findings = [row for row in audited.findings if row["run"] == run]
    assert sorted((row["kind"], row["client"], row["number"]) for row in findings) == offending


def test_the_whole_of_the_tampered_logs(audited: Audited) -> None:
    figures = audited.figures
    changes = [CLEAN | changed for _, changed, _ in DEFECTS]
    for name in ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected", "invented"):
        assert figures[name] == sum(change[name] for change in changes), name
    assert figures["runs"] == figures["handoffs"] == len(DEFECTS)
    assert figures["clients"] == 3 * len(DEFECTS) + 1
    assert figures["publishers"] == 2 * len(DEFECTS)
    assert figures["misnumbered"] == 1
    assert figures["bad_rows"] == 2, "one without a field, one with garbled attributes"


def test_a_finding_names_its_row_and_circumstances(audited: Audited) -> None:
    (lost,) = [row for row in audited.findings if row["run"] == "run 1"]
    assert (lost["publisher"], lost["incarnation"], lost["node"], lost["broker"]) == ("garage", 0, "b", "b")
    assert lost["time"] == lost["published_at"] == pytest.approx(2.12)
    assert (lost["handoff"], lost["was_away"], lost["dropped_because"]) == (0, False, None)
    (late,) = [row for row in audited.findings if row["run"] == "run 6"]
    assert (late["handoff"], late["node"], late["published_at"]) == (1, "car", pytest.approx(9.02))


def test_protocols_are_told_by_the_names_of_runs() -> None:
    assert protocol_of("sub_unsub-7") == "sub_unsub"
    assert protocol_of("proactive:published-12") == "proactive:published"
    assert protocol_of("mobile=0.2 protocol=none seed=3") == "none"
    assert protocol_of("2026-11-15") == "2026-11-15"
