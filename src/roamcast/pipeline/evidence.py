"""The rows of a log on which verdicts rest, by kind, without those that cannot be used.

Rows of rare kinds are picked out of the log in one go and kept at hand, because
going through all of it takes as long for a few rows as for many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as fn

from roamcast.pipeline.rows import usable

CHANGES = ("subscribed", "unsubscribed")
RARE = (*CHANGES, "moved", "dropped")


@dataclass(frozen=True)
class Evidence:
    rows: DataFrame
    """All of them, each once."""
    rare: DataFrame
    _bad: dict[str, Observation] = field(default_factory=dict)

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
        return self._of("published")

    @property
    def delivered(self) -> DataFrame:
        return self._of("delivered")

    def _of(self, kind: str) -> DataFrame:
        """Whoever asks first has those counted that cannot be used."""
        if kind in self._bad:
            return usable(self.rows, kind)
        self._bad[kind] = Observation()
        return usable(self.rows, kind, bad=self._bad[kind])

    @property
    def bad_rows(self) -> int:
        """How many rows of these kinds cannot be used; known when the others have been gone through."""
        return sum(one.get["rows"] for one in self._bad.values())


@contextmanager
def evidence_of(rows: DataFrame) -> Iterator[Evidence]:
    """The evidence in these rows, which are there once each."""
    bad = Observation()
    rare = usable(rows, *RARE, bad=bad).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield Evidence(rows, rare, {"rare": bad})
    finally:
        rare.unpersist()
