"""Rows of a log as frames of Spark: which can be used, each once, one for each notification."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from roamcast.pipeline import audit_sql as sql
from roamcast.protocol.records import KINDS, LIFE_MARK

OWN_WORD = f"(node = client OR substr(node, 1, length(client) + 1) = client || '{LIFE_MARK}')"
"""The condition that a client wrote the row itself."""


def problem(*kinds: str) -> Column:
    """Why a row cannot be used, as a text; null if it can. `kinds` are those it can be of."""
    return fn.expr(sql.problem(kinds or KINDS))


def usable(rows: DataFrame, *kinds: str) -> DataFrame:
    """The rows of these kinds that can be used."""
    return rows.where(sql.usable(*kinds))


def without_repetitions(rows: DataFrame) -> DataFrame:
    """Each row once, however often its file was copied or its node wrote it again after a crash."""
    return rows.dropDuplicates(list(sql.ROW))


def one_by_one(bursts: DataFrame) -> DataFrame:
    """One row for each notification of a burst, with its own number."""
    last = fn.col("number") + fn.col("notifications") - 1
    return bursts.withColumn("number", fn.explode(fn.sequence(fn.col("number"), last)))
