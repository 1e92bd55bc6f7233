"""What was owed beside what came: every notification of every client, judged once.

Both sides meet in one place for each client and publisher, which is also where
order can be seen, so everything travels once. What travels is numbers: the names
of client and publisher are one (`stream`), incarnation and number of a
notification another (`place`), counted down, so that the later comes first. Spark
brings them together and sorts them; they are judged in Arrow batches, and only
what is worth a second look leaves again, and the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from roamcast.pipeline.subscriptions import MUST
from roamcast.protocol.records import NUMBER_BITS

CLIENT_BITS = 32

VERDICTS = (
    "stream long, place long, standing int, deliveries int, first long, overtaken boolean, "
    "expected long, delivered long"
)
"""A notification that is worth a second look, or (without a place) what a stream was owed and got."""

Numbers = npt.NDArray[np.int64]
NEVER = 1 << 41
"""Later than any sequence."""


def stream() -> Column:
    """What one client gets of one publisher: within it there is an order."""
    return fn.shiftleft(fn.col("client_id").cast("long"), CLIENT_BITS) + fn.col("publisher_id")


def place() -> Column:
    """The place of a notification in its publisher's order, the latest first."""
    return -(fn.shiftleft(fn.col("incarnation_rank").cast("long"), NUMBER_BITS) + fn.col("number"))


def client_id() -> Column:
    return fn.shiftright("stream", CLIENT_BITS).cast("int")


def publisher_id() -> Column:
    return fn.col("stream").bitwiseAND((1 << CLIENT_BITS) - 1).cast("int")


def judged(owed: DataFrame, delivered: DataFrame, *, has_bursts: bool) -> DataFrame:
    """The verdicts on everything that a client was entitled to or got (see VERDICTS).

    Both sides have `stream`, `place` and `notifications`; `owed` also a `standing`, and it may say the
    same several times; `delivered` the `sequence` of its row. A verdict says how the notification
    stands (null: the client was not entitled to it), how many `deliveries` there were, the sequence of
    the `first`, and whether it was `overtaken`: a later one was delivered before it.
    """
    # One column tells both apart: how it stands, below zero, or where among the client's rows it came.
    sides = owed.select("stream", "place", "notifications", (-fn.col("standing")).cast("long").alias("mark"))
    sides = sides.unionByName(
        delivered.select("stream", "place", "notifications", fn.col("sequence").alias("mark"))
    )
    if has_bursts:
        first, last = fn.col("place") - fn.col("notifications") + 1, fn.col("place")
        sides = sides.withColumn("place", fn.explode(fn.sequence(first, last)))
    together = sides.drop("notifications").repartition("stream").sortWithinPartitions("stream", "place")
    return together.mapInArrow(_judge_batches, VERDICTS)


def suspects(verdicts: DataFrame) -> DataFrame:
    return verdicts.where(fn.col("place").isNotNull()).drop("expected", "delivered")


def sums(verdicts: DataFrame) -> DataFrame:
    """What each stream was owed and got: a batch may end in the middle of one."""
    of_streams = verdicts.where(fn.col("place").isNull())
    return of_streams.groupBy("stream").agg(
        fn.sum("expected").alias("expected"), fn.sum("delivered").alias("delivered")
    )


def is_lost() -> Column:
    return (fn.col("standing") == MUST) & (fn.col("deliveries") == 0)


# --- judging, on sorted numbers ---


class Rows(NamedTuple):
    """The two sides of some notifications, by stream and place."""

    stream: Numbers
    place: Numbers
    mark: Numbers

    def part(self, start: int, end: int | None) -> Rows:
        return Rows(self.stream[start:end], self.place[start:end], self.mark[start:end])

    def then(self, other: Rows) -> Rows:
        return Rows(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


def _judge_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Judge what is complete; the last notification of a batch may go on in the next."""
    judge = Judge()
    waiting: Rows | None = None
    for batch in batches:
        rows = Rows(*(batch.column(name).to_numpy() for name in Rows._fields))
        if not len(rows.stream):
            continue
        rows = rows if waiting is None else waiting.then(rows)
        is_last = (rows.stream == rows.stream[-1]) & (rows.place == rows.place[-1])
        end = int(np.argmax(is_last))
        waiting = rows.part(end, None)
        if end:
            yield judge.judge(rows.part(0, end))
    if waiting is not None:
        yield judge.judge(waiting)


class Judge:
    """Judges notifications in order of stream and place, one lot after the other."""

    def __init__(self) -> None:
        self._stream = -1
        self._first = NEVER
        """In the stream that was last: when the earliest so far of its notifications was delivered."""

    def judge(self, rows: Rows) -> pa.RecordBatch:
        starts = _starts(rows.stream, rows.place)
        stream, place = rows.stream[starts], rows.place[starts]
        came = rows.mark >= 0
        standing = np.maximum.reduceat(np.where(came, 0, -rows.mark), starts)
        deliveries = np.add.reduceat(came.astype(np.int64), starts)
        first = np.minimum.reduceat(np.where(came, rows.mark, NEVER), starts)
        # What a client was not entitled to has no place in the order.
        in_order = np.where(standing > 0, first, NEVER)
        overtaken = (self._first_of_later(stream, in_order) < in_order) & (in_order < NEVER)
        lost = (standing == MUST) & (deliveries == 0)
        shown = np.flatnonzero(lost | (standing == 0) | (deliveries > 1) | overtaken)
        columns = [stream, place, standing, deliveries, first, overtaken]
        found = [column[shown] for column in columns]
        ends = _starts(stream)
        totals = [
            stream[ends],
            np.add.reduceat((standing == MUST).astype(np.int64), ends),
            np.add.reduceat(deliveries, ends),
        ]
        return _verdicts(found, totals)

    def _first_of_later(self, stream: Numbers, first: Numbers) -> Numbers:
        """For each notification: when the earliest of those behind it in the order was delivered."""
        number = np.cumsum(np.concatenate([[False], stream[1:] != stream[:-1]]))
        # One running minimum for all streams: each begins below whatever was before it.
        offset = number * (2 * NEVER)
        so_far = np.minimum.accumulate(first - offset) + offset
        if stream[0] == self._stream:
            so_far = np.where(number == 0, np.minimum(so_far, self._first), so_far)
        before = np.concatenate([[self._first if stream[0] == self._stream else NEVER], so_far[:-1]])
        before[1:][stream[1:] != stream[:-1]] = NEVER
        self._stream, self._first = int(stream[-1]), int(so_far[-1])
        return before


def _starts(*columns: Numbers) -> Numbers:
    """Where something new begins in sorted columns."""
    changes = np.zeros(len(columns[0]), dtype=bool)
    changes[0] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def _verdicts(found: list[npt.NDArray[Any]], totals: list[Numbers]) -> pa.RecordBatch:
    stream, place, standing, deliveries, first, overtaken = found
    count = len(totals[0])
    types = [pa.int64(), pa.int64(), pa.int32(), pa.int32(), pa.int64(), pa.bool_()]
    notifications = [
        pa.array(stream), pa.array(place),
        pa.array(standing, pa.int32(), mask=standing == 0),
        pa.array(deliveries, pa.int32()),
        pa.array(first, mask=deliveries == 0),
        pa.array(overtaken),
    ]  # fmt: skip
    streams = [pa.array(totals[0]), *(pa.nulls(count, kind) for kind in types[1:])]
    columns = [pa.concat_arrays(pair) for pair in zip(notifications, streams, strict=True)]
    for total in totals[1:]:
        columns.append(pa.concat_arrays([pa.nulls(len(stream), pa.int64()), pa.array(total)]))
    names = [column.split()[0] for column in VERDICTS.split(", ")]
    return pa.RecordBatch.from_arrays(columns, names)
