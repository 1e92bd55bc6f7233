"""From what looks wrong to the rows that are: every finding with its time, place and circumstances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from roamcast.pipeline.deliveries import client_id, is_lost, place, publisher_id, stream
from roamcast.pipeline.evidence import Evidence
from roamcast.pipeline.names import CLIENT, Names
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

BROADCAST_MAX = 1_000_000

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

    @property
    def are_few(self) -> bool:
        """Whether all suspects fit into the memory of whoever reads the log's rows."""
        return self.lost + self.repeated_or_late + self.unwanted <= BROADCAST_MAX


def find(
    spark: SparkSession, evidence: Evidence, suspects: DataFrame, suspicions: Suspicions, names: Names
) -> DataFrame:
    """One row for each thing that is wrong with what clients got; `suspects` are of deliveries.py."""
    if suspicions.are_few:
        # The log stays where it is, and they go there.
        suspects = fn.broadcast(suspects)
    published = _published(spark, evidence.published, names)
    parts = []
    if suspicions.lost:
        parts.append(_lost(spark, published, suspects, names))
    if suspicions.repeated_or_late or suspicions.unwanted:
        came = _delivered(spark, evidence.delivered, suspects, names)
        parts.append(_known(came, published) if suspicions.unwanted else came)
    if not parts:
        parts.append(evidence.published.where(fn.lit(False)))
    details = reduce(DataFrame.unionByName, (part.select(*DETAILS) for part in parts))
    return _with_circumstances(details, evidence)


def one_by_one(bursts: DataFrame) -> DataFrame:
    """One row for each notification of a burst, with its own number."""
    last = fn.col("number") + fn.col("notifications") - 1
    return bursts.withColumn("number", fn.explode(fn.sequence(fn.col("number"), last)))


def _published(spark: SparkSession, published: DataFrame, names: Names) -> DataFrame:
    """Every notification that was published."""
    return one_by_one(names.with_publisher(spark, published)).withColumn("place", place())


def _lost(spark: SparkSession, published: DataFrame, suspects: DataFrame, names: Names) -> DataFrame:
    ids = {"client_id": client_id(), "publisher_id": publisher_id()}
    lost = suspects.where(is_lost()).withColumns(ids).select(*ids, "place")
    clients = spark.createDataFrame(names.clients.select(["client", "client_id"]))
    return (
        lost.join(published.drop("client"), ["publisher_id", "place"])
        .join(fn.broadcast(clients), "client_id")
        .withColumn("kind", fn.lit(LOST))
    )


def _delivered(spark: SparkSession, delivered: DataFrame, suspects: DataFrame, names: Names) -> DataFrame:
    """The rows of clients that got something again, too late, or without being entitled to it."""
    known = names.with_client(spark, delivered, "left")
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


def _known(came: DataFrame, published: DataFrame) -> DataFrame:
    """Tells what was published, if not for this client, from what nobody ever published."""
    identities = published.select("publisher_id", "place", fn.lit(True).alias("is_known")).distinct()
    is_invented = (fn.col("kind") == UNEXPECTED) & fn.col("is_known").isNull()
    kind = fn.when(is_invented, INVENTED).otherwise(fn.col("kind"))
    return came.join(identities, ["publisher_id", "place"], "left").withColumn("kind", kind)


def _with_circumstances(findings: DataFrame, evidence: Evidence) -> DataFrame:
    """Adds which handoff of its client a finding belongs to, whether it was away, and brokers' excuses."""
    places = visits(evidence.moved).select(
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
    given_up = one_by_one(evidence.dropped.where("notifications is not null"))
    reasons = given_up.groupBy(*key).agg(fn.min("reason").alias("dropped_because"))
    return there.join(reasons, key, "left").select(*DETAILS, "handoff", "was_away", "dropped_because")
