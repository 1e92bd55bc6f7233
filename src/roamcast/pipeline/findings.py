"""From what looks wrong to the rows that are: every finding with its time, place and circumstances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from roamcast.pipeline.deliveries import client_id, is_lost, place, publisher_id, stream
from roamcast.pipeline.names import CLIENT, Names
from roamcast.pipeline.rows import usable
from roamcast.pipeline.visits import visits

LOST, DUPLICATE, OUT_OF_ORDER = "lost", "duplicate", "out of order"
UNEXPECTED, INVENTED = "unexpected", "invented"
KINDS = {
    LOST: "lost",
    DUPLICATE: "duplicates",
    OUT_OF_ORDER: "out_of_order",
    UNEXPECTED: "unexpected",
    INVENTED: "invented",
}
"""Kind of finding to the column that counts it."""

DETAILS = (
    "kind", *CLIENT, "publisher", "incarnation", "number",
    "time", "broker", "node", "sequence", "published_at",
)  # fmt: skip
"""Of the offending row: what was delivered; of what was lost, the row that says it was published."""


@dataclass(frozen=True)
class Suspicions:
    """What to look for; where there is nothing, nobody has to look."""

    lost: int
    repeated_or_late: int
    unwanted: int
    """Notifications that their client was not entitled to, or of clients and publishers nobody knows."""


def find(
    spark: SparkSession, rows: DataFrame, suspects: DataFrame, suspicions: Suspicions, names: Names
) -> DataFrame:
    """One row for each thing that is wrong with what clients got.

    `rows` are all of the log, each once; `suspects` are judged notifications (see deliveries.py).
    """
    published = _published(spark, rows, names)
    parts = []
    if suspicions.lost:
        parts.append(_lost(spark, published, suspects, names))
    if suspicions.repeated_or_late or suspicions.unwanted:
        delivered = _delivered(spark, rows, suspects, names)
        parts.append(delivered.where(fn.col("kind") != UNEXPECTED))
        if suspicions.unwanted:
            parts += _known_and_unknown(delivered.where(fn.col("kind") == UNEXPECTED), published)
    if not parts:
        parts.append(rows.where(fn.lit(False)))
    details = [part.select(*DETAILS) for part in parts]
    return _with_circumstances(reduce(DataFrame.unionByName, details), rows)


def one_by_one(bursts: DataFrame) -> DataFrame:
    """One row for each notification of a burst, with its own number."""
    last = fn.col("number") + fn.col("notifications") - 1
    return bursts.withColumn("number", fn.explode(fn.sequence(fn.col("number"), last)))


def _published(spark: SparkSession, rows: DataFrame, names: Names) -> DataFrame:
    """Every notification that was published."""
    return one_by_one(names.with_publisher(spark, usable(rows, "published"))).withColumn("place", place())


def _lost(spark: SparkSession, published: DataFrame, suspects: DataFrame, names: Names) -> DataFrame:
    lost = suspects.where(is_lost()).select(
        client_id().alias("client_id"), publisher_id().alias("publisher_id"), "place"
    )
    clients = spark.createDataFrame(names.clients.select(["client", "client_id"]))
    return (
        lost.join(published.drop("client"), ["publisher_id", "place"])
        .join(fn.broadcast(clients), "client_id")
        .withColumn("kind", fn.lit(LOST))
    )


def _delivered(spark: SparkSession, rows: DataFrame, suspects: DataFrame, names: Names) -> DataFrame:
    """The rows of clients that got something again, too late, or without being entitled to it."""
    known = names.with_client(spark, usable(rows, "delivered"), "left")
    each = one_by_one(names.with_publisher(spark, known, "left"))
    each = each.withColumn("stream", stream()).withColumn("place", place())
    judged = suspects.where(fn.col("deliveries") > 0).withColumn("is_suspect", fn.lit(True))
    is_entitled = fn.col("standing").isNotNull()
    kind = (
        fn.when(fn.col("stream").isNull(), UNEXPECTED)
        .when(fn.col("is_suspect") & ~is_entitled, UNEXPECTED)
        .when(fn.col("is_suspect") & (fn.col("sequence") > fn.col("first")), DUPLICATE)
        .when(fn.col("overtaken") & (fn.col("sequence") == fn.col("first")), OUT_OF_ORDER)
    )
    joined = each.join(judged, ["stream", "place"], "left")
    return joined.withColumn("kind", kind).where(fn.col("kind").isNotNull())


def _known_and_unknown(unwanted: DataFrame, published: DataFrame) -> list[DataFrame]:
    """What was published, if not for this client, and what nobody ever published."""
    keys = ["publisher_id", "place"]
    identities = published.select(*keys)
    return [
        unwanted.join(identities, keys, "leftsemi"),
        unwanted.join(identities, keys, "leftanti").withColumn("kind", fn.lit(INVENTED)),
    ]


def _with_circumstances(findings: DataFrame, rows: DataFrame) -> DataFrame:
    """Adds which handoff of its client a finding belongs to, whether it was away, and brokers' excuses."""
    places = visits(usable(rows, "moved")).select(
        *CLIENT, "handoff", "attached_at", fn.coalesce("left_at", "attached_at").alias("begin"), "until"
    )
    time = fn.col("time")
    during = (time >= fn.col("begin")) & (fn.col("until").isNull() | (time < fn.col("until")))
    of_client = [findings[name] == places[name] for name in CLIENT]
    there = findings.join(places, [*of_client, during], "left").select(
        *(findings[name] for name in DETAILS),
        places["handoff"],
        fn.coalesce(time < places["attached_at"], fn.lit(False)).alias("was_away"),
    )
    key = [*CLIENT, "publisher", "incarnation", "number"]
    given_up = one_by_one(usable(rows, "dropped").where("notifications is not null"))
    reasons = given_up.groupBy(*key).agg(fn.min("reason").alias("dropped_because"))
    return there.join(reasons, key, "left").select(*DETAILS, "handoff", "was_away", "dropped_because")
