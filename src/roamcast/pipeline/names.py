"""Clients, publishers and subscriptions of a log as small tables, with a number for every name.

Everything that joins or sorts millions of rows does so by these numbers. The
tables are made by the driver, so the numbers are the same wherever they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from roamcast.filters.selector import parse
from roamcast.pipeline.matching import problem_of_filter
from roamcast.pipeline.subscriptions import subscriptions

CLIENT = ("run", "client")
INCARNATION = ("run", "publisher", "incarnation")


@dataclass(frozen=True)
class Names:
    clients: pa.Table
    """`run`, `client` and `client_id` of everyone who ever subscribed."""
    publishers: pa.Table
    """`run`, `publisher`, `incarnation`, `publisher_id` and `incarnation_rank`; how much was published."""
    subscriptions: pa.Table
    """See subscriptions.py; with `client_id` instead of the client's name."""
    unreadable: Mapping[str, str]
    """Filters that cannot be read, and why not."""

    @property
    def misnumbered(self) -> int:
        """Incarnations of publishers whose numbers do not follow each other, one by one."""
        return sum(
            row["published"] != row["last"] - row["first"] + 1
            or row["sum"] != (row["first"] + row["last"]) * row["published"] // 2
            for row in self.publishers.select(["published", "first", "last", "sum"]).to_pylist()
        )

    def with_client(self, spark: SparkSession, rows: DataFrame, how: str = "inner") -> DataFrame:
        return rows.join(fn.broadcast(spark.createDataFrame(self.clients)), list(CLIENT), how)

    def with_publisher(self, spark: SparkSession, rows: DataFrame, how: str = "inner") -> DataFrame:
        names = self.publishers.select([*INCARNATION, "publisher_id", "incarnation_rank"])
        return rows.join(fn.broadcast(spark.createDataFrame(names)), list(INCARNATION), how)


def names_of(changes: DataFrame, published: DataFrame) -> Names:
    """The names in the rows `subscribed`, `unsubscribed` and `published`, which are there once each."""
    held = subscriptions(changes).toArrow()
    texts = held.column("filter").unique().to_pylist()
    unreadable = {text: problem for text in texts if (problem := problem_of_filter(text))}
    held = held.filter(pc.invert(pc.is_in(held.column("filter"), pa.array(list(unreadable), pa.string()))))
    clients = held.group_by(list(CLIENT)).aggregate([]).sort_by([(name, "ascending") for name in CLIENT])
    clients = clients.append_column("client_id", pa.array(range(len(clients)), pa.int32()))
    return Names(
        clients,
        _publishers(published),
        _never_settled(held.join(clients, list(CLIENT)).drop_columns("client")),
        unreadable,
    )


def _never_settled(held: pa.Table) -> pa.Table:
    """What is owed to a filter on its client's own state cannot be told from here: it may be anything."""
    own = [text for text in held.column("filter").unique().to_pylist() if parse(text).own]
    at = held.schema.get_field_index("settled_time")
    is_own = pc.is_in(held.column("filter"), pa.array(own, pa.string()))
    settled = pc.if_else(is_own, pa.scalar(None, pa.float64()), held.column("settled_time"))
    nodes = pc.if_else(is_own, pa.scalar(None, pa.string()), held.column("settled_node"))
    return held.set_column(at, "settled_time", settled).set_column(at + 1, "settled_node", nodes)


def _publishers(published: DataFrame) -> pa.Table:
    """Publishers numbered by name, and the incarnations of each by their order."""
    last = fn.col("number") + fn.col("notifications") - 1
    found = (
        published.groupBy(*INCARNATION)
        .agg(
            fn.sum("notifications").alias("published"),
            fn.sum(fn.expr("((2 * number + notifications - 1) * notifications) div 2")).alias("sum"),
            fn.min("number").alias("first"),
            fn.max(last).alias("last"),
        )
        .toArrow()
        .sort_by([(name, "ascending") for name in INCARNATION])
    )
    ids: list[int] = []
    ranks: list[int] = []
    pairs = zip(found.column("run").to_pylist(), found.column("publisher").to_pylist(), strict=True)
    for number, (_, incarnations) in enumerate(groupby(pairs)):
        count = sum(1 for _ in incarnations)
        ids += [number] * count
        ranks += range(count)
    return found.append_column("publisher_id", pa.array(ids, pa.int32())).append_column(
        "incarnation_rank", pa.array(ranks, pa.int32())
    )
