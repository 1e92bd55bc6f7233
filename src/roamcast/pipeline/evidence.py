"""The rows of a log on which verdicts rest, by kind, without those that cannot be used.

Rows of rare kinds are picked out of the log in one go and kept at hand, because
going through all of it takes as long for a few rows as for many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from roamcast.pipeline.rows import usable

CHANGES = ("subscribed", "unsubscribed")
RARE = (*CHANGES, "moved", "dropped")


@dataclass(frozen=True)
class Evidence:
    rows: DataFrame
    """All of them, each once."""
    rare: DataFrame

    @property
    def changes(self) -> DataFrame:
        return self.rare.where(fn.col("kind").isin(*CHANGES))

    @property
    def moved(self) -> DataFrame:
        return self.rare.where(fn.col("kind") == "moved")

    @property
    def dropped(self) -> DataFrame:
        return self.rare.where(fn.col("kind") == "dropped")

    @property
    def published(self) -> DataFrame:
        return usable(self.rows, "published")

    @property
    def delivered(self) -> DataFrame:
        return usable(self.rows, "delivered")


@contextmanager
def evidence_of(rows: DataFrame) -> Iterator[Evidence]:
    """The evidence in these rows, which are there once each."""
    rare = usable(rows, *RARE).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield Evidence(rows, rare)
    finally:
        rare.unpersist()
