"""What should each subscriber have received, and what did it?

The audit is an oracle of its own. What was owed follows from the rows
`published`, `subscribed` and `unsubscribed` and from Spark's evaluation of the
filters; what came is what the clients' rows say. No broker is asked.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn

from roamcast.pipeline.deliveries import (
    client_id,
    is_lost,
    judged,
    place,
    publisher_id,
    stream,
    sums,
    suspects,
)
from roamcast.pipeline.evidence import Evidence, evidence_of
from roamcast.pipeline.findings import KINDS, Suspicions, find
from roamcast.pipeline.ingest import read_log
from roamcast.pipeline.names import CLIENT, Names, names_of
from roamcast.pipeline.output import replace_parts, unfinished
from roamcast.pipeline.owed import owed
from roamcast.pipeline.rows import NODE, breaks, nodes, without_repetitions
from roamcast.pipeline.visits import visits

STREAM = (*CLIENT, "publisher")
COUNTS = ("expected", "delivered", *KINDS.values())
"""What the tables count, and the figures."""

EVERY_ROW_MAX = 1_000_000
"""Up to here every row is compared with the one before it; in larger logs only where blocks look odd."""

PROTOCOL = re.compile(r"(?:.*\bprotocol=)?([a-z]\w*(?::[a-z]\w*)?)")


def protocol_of(run: str) -> str:
    """Runs of the simulator are named after their mobility protocol; any other is a group of its own."""
    known = PROTOCOL.match(run)
    return known[1] if known else run


@dataclass(frozen=True)
class Health:
    """What the logs of the nodes look like."""

    nodes: pa.Table

    def total(self, column: str) -> int:
        return int(pc.sum(self.nodes.column(column)).as_py() or 0)

    @property
    def has_bursts(self) -> bool:
        return bool((pc.max(self.nodes.column("longest")).as_py() or 1) > 1)

    @property
    def broken(self) -> pa.Table:
        """Nodes whose log has gaps or whose clock went back."""
        is_broken = pc.or_(pc.greater(self.nodes.column("missing"), 0), self.nodes.column("went_back"))
        return self.nodes.filter(is_broken).select(list(NODE))


def audit(spark: SparkSession, log: Path, out: Path, *, clock_error_s: float = 0.0) -> dict[str, Any]:
    """Audit a log; the tables go to `out`, the figures come back and are in `out/audit.json`."""
    rows = read_log(spark, log)
    with unfinished(out) as made:
        figures = audit_rows(spark, rows, made, clock_error_s)
        replace_parts(made, out)
    return figures


def audit_rows(spark: SparkSession, rows: DataFrame, made: Path, clock_error_s: float) -> dict[str, Any]:
    """Audit these rows, and write the tables and the figures into a folder."""
    made.mkdir(exist_ok=True)
    health = Health(nodes(rows).toArrow())
    pq.write_table(health.nodes, made / "nodes.parquet")
    if health.total("repeated"):
        rows = without_repetitions(rows)
    with evidence_of(rows) as evidence:
        names = names_of(evidence.changes, evidence.published)
        unreadable = Observation()
        streams, findings = _judge(spark, evidence, names, unreadable, made, clock_error_s, health.has_bursts)
        handoffs = _write(_handoffs(evidence.moved, findings), made / "handoffs.parquet")
        bad_rows = unreadable.get["rows"] + _rows_with(evidence.changes, names)
    clients = _write(_sums(streams, *CLIENT), made / "clients.parquet")
    pq.write_table(_publishers(streams, names), made / "publishers.parquet")
    broken = _write(_breaks(spark, rows, health), made / "breaks.parquet")
    figures = {
        **_totals(clients),
        "clients": _count_of(CLIENT, clients, names.clients),
        "publishers": _count_of(("run", "publisher"), names.publishers),
        "published": int(pc.sum(names.publishers.column("published")).as_py() or 0),
        "handoffs": handoffs.num_rows,
        "runs": len(pc.unique(health.nodes.column("run"))),
        "records": health.total("rows"),
        "bad_rows": health.total("bad") + bad_rows,
        "repeated_rows": health.total("repeated"),
        "missing_rows": health.total("missing"),
        "clock_jumps": pc.sum(pc.greater(broken.column("went_back_s"), 0)).as_py() or 0,
        "misnumbered": names.misnumbered,
        "protocols": _by_protocol(clients),
    }
    (made / "audit.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return figures


# --- what came, beside what was owed ---


def _judge(
    spark: SparkSession, evidence: Evidence, names: Names, unreadable: Observation, made: Path,
    clock_error_s: float, has_bursts: bool,
) -> tuple[DataFrame, DataFrame]:  # fmt: skip
    """The tables of streams and findings, as they were written."""
    total = Observation()
    verdicts = judged(
        owed(spark, evidence.published, names, clock_error_s, unreadable),
        _delivered(spark, evidence.delivered, names, total),
        has_bursts=has_bursts,
    ).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        suspicions = _suspicions(verdicts, total)
        findings = _kept(find(spark, evidence, suspects(verdicts), suspicions, names), made / "findings")
        return _kept(_streams(spark, sums(verdicts), findings, names), made / "streams"), findings
    finally:
        verdicts.unpersist()


def _delivered(spark: SparkSession, delivered: DataFrame, names: Names, total: Observation) -> DataFrame:
    """What clients say they got; `total` gets the count, also of clients and publishers nobody knows."""
    # Nothing that was not numbered was promised.
    came = delivered.where(fn.col("number") > 0)
    came = came.observe(total, fn.sum("notifications").alias("notifications"))
    known = names.with_publisher(spark, names.with_client(spark, came))
    return known.select(stream().alias("stream"), place().alias("place"), "notifications", "sequence")


def _suspicions(verdicts: DataFrame, total: Observation) -> Suspicions:
    is_suspect, late = fn.col("place").isNotNull(), fn.col("overtaken") | (fn.col("deliveries") > 1)
    (row,) = verdicts.agg(
        fn.count(fn.when(is_lost(), 1)).alias("lost"),
        fn.count(fn.when(late, 1)).alias("repeated_or_late"),
        fn.count(fn.when(is_suspect & fn.col("standing").isNull(), 1)).alias("unwanted"),
        fn.coalesce(fn.sum("delivered"), fn.lit(0)).alias("delivered"),
    ).collect()
    strangers = (total.get["notifications"] or 0) - row.delivered
    return Suspicions(row.lost, row.repeated_or_late, row.unwanted + strangers)


# --- tables ---


def _kept(table: DataFrame, folder: Path) -> DataFrame:
    """A table as it was written, so that nothing of it is worked out again."""
    table.write.parquet(str(folder))
    return table.sparkSession.read.schema(table.schema).parquet(str(folder))


def _write(table: DataFrame, file: Path) -> pa.Table:
    """A table of which there is one row for each client or less: small enough for the driver."""
    arrow = table.toArrow()
    pq.write_table(arrow, file)
    return arrow


def _counted(findings: DataFrame, *key: str) -> DataFrame:
    counts = [fn.count(fn.when(fn.col("kind") == kind, 1)).alias(name) for kind, name in KINDS.items()]
    return findings.groupBy(*key).agg(*counts)


def _streams(spark: SparkSession, sums: DataFrame, findings: DataFrame, names: Names) -> DataFrame:
    """What each client was owed, got and missed of each publisher."""
    publishers = names.publishers.group_by(["publisher", "publisher_id"]).aggregate([])
    owed_and_got = (
        sums.withColumns({"client_id": client_id(), "publisher_id": publisher_id()})
        .join(fn.broadcast(spark.createDataFrame(names.clients)), "client_id")
        .join(fn.broadcast(spark.createDataFrame(publishers)), "publisher_id")
    )
    both = owed_and_got.join(_counted(findings, *STREAM), list(STREAM), "full")
    # Of clients and publishers that nobody knows there is nothing but findings.
    strange = fn.coalesce("unexpected", fn.lit(0)) + fn.coalesce("invented", fn.lit(0))
    return both.withColumn("delivered", fn.coalesce("delivered", strange)).na.fill(0).select(*STREAM, *COUNTS)


def _sums(streams: DataFrame, *key: str) -> DataFrame:
    return streams.groupBy(*key).agg(*(fn.sum(name).alias(name) for name in COUNTS)).orderBy(*key)


def _publishers(streams: DataFrame, names: Names) -> pa.Table:
    """What each publisher published, also if nobody wanted it, and what became of that."""
    key = ["run", "publisher"]
    published = names.publishers.group_by(key).aggregate([("published", "sum")])
    sums = _sums(streams, *key).toArrow()
    both = published.rename_columns([*key, "published"]).join(sums, key, join_type="full outer")
    counts = {name: pc.fill_null(both.column(name), 0) for name in ("published", *COUNTS)}
    table = pa.table({**{name: both.column(name) for name in key}, **counts})
    return table.sort_by([(name, "ascending") for name in key])


def _handoffs(moved: DataFrame, findings: DataFrame) -> DataFrame:
    """Every handoff, and what went wrong from the moment its client left the broker before."""
    key = [*CLIENT, "handoff"]
    begun = visits(moved).where("is_handoff").drop("is_handoff", "node", "sequence")
    return begun.join(_counted(findings, *key), key, "left").na.fill(0, list(KINDS.values())).orderBy(*key)


def _breaks(spark: SparkSession, rows: DataFrame, health: Health) -> DataFrame:
    """Where rows are missing from the log of a node, or its clock went back."""
    if health.total("rows") <= EVERY_ROW_MAX:
        return breaks(rows)
    broken = fn.broadcast(spark.createDataFrame(health.broken))
    return breaks(rows.join(broken, list(NODE), "leftsemi"))


def _rows_with(changes: DataFrame, names: Names) -> int:
    """How many rows carry a filter that cannot be read."""
    if not names.unreadable:
        return 0
    texts = changes.sparkSession.createDataFrame([(text,) for text in names.unreadable], "filter string")
    return changes.join(fn.broadcast(texts), "filter", "leftsemi").count()


# --- figures ---


def _count_of(key: tuple[str, ...], *tables: pa.Table) -> int:
    """How many there are in any of the tables."""
    columns = list(key)
    together = pa.concat_tables(one.select(columns) for one in tables)
    return int(together.group_by(columns).aggregate([]).num_rows)


def _totals(table: pa.Table) -> dict[str, int]:
    return {name: int(pc.sum(table.column(name)).as_py() or 0) for name in COUNTS}


def _by_protocol(clients: pa.Table) -> dict[str, dict[str, int]]:
    protocols = pa.array([protocol_of(run) for run in clients.column("run").to_pylist()], pa.string())
    names = sorted(set(protocols.to_pylist()))
    return {name: _totals(clients.filter(pc.equal(protocols, name))) for name in names}
