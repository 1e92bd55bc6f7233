"""Which rows can be believed: each by itself, and all rows of a node together."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from roamcast.pipeline.schema import ROW_COLUMNS
from roamcast.protocol.records import FREQUENT_KINDS, KINDS, NEEDED, NOTIFICATIONS_MAX, NUMBER_BITS

BLOCK_BITS = 6
"""64 rows of a node are looked at together: one bit for each fits a number."""

NODE = ("run", "node")
ROW = (*NODE, "sequence")
"""What tells a row from every other."""

_CHANGES = ("subscribed", "unsubscribed", "advertised", "unadvertised")


# --- one row ---


def problem(*kinds: str) -> Column:
    """Why a row cannot be used, as a text; null if it can. `kinds` are those it can be of."""
    number, notifications = fn.col("number"), fn.col("notifications")
    reasons = [*_problems_of_any(), _problem_of_kind(kinds or KINDS)]
    fields = {field for kind in kinds or KINDS for field in NEEDED[kind]}
    if "number" in fields:
        out_of_range = (number < 0) | (number >= 1 << NUMBER_BITS)
        reasons.append(fn.when(out_of_range, fn.lit(f"number not within 0 to 2^{NUMBER_BITS}")))
    if "notifications" in fields:
        out_of_range = (notifications < 1) | (notifications > NOTIFICATIONS_MAX)
        reason = f"notifications not within 1 to {NOTIFICATIONS_MAX}"
        reasons.append(fn.when(out_of_range, fn.lit(reason)))
    return fn.coalesce(*reasons)


def _problems_of_any() -> list[Column]:
    """What can be wrong with a row of any kind."""
    reasons = [fn.when(fn.col(name).isNull(), fn.lit(f"no {name}")) for name in ROW_COLUMNS]
    return [*reasons, fn.when(_is_no_number(fn.col("time")), fn.lit("time is no number"))]


def _is_no_number(value: Column) -> Column:
    return fn.isnan(value) | (fn.abs(value) == float("inf"))


def _problem_of_kind(kinds: Iterable[str]) -> Column:
    """What its kind needs and the row lacks. The kinds of which there are most are asked about first."""
    kind, whens = fn.col("kind"), fn.when(fn.lit(False), fn.lit(""))
    often = ("forwarded", "delivered", "published", *sorted(FREQUENT_KINDS))
    for name in sorted(kinds, key=lambda name: often.index(name) if name in often else len(often)):
        whens = whens.when(kind == name, _lacking(name))
    return whens.otherwise(fn.concat(fn.lit("unknown kind "), kind))


def _lacking(kind: str) -> Column:
    reasons = [fn.when(fn.col(field).isNull(), fn.lit(f"{kind} without {field}")) for field in NEEDED[kind]]
    if kind in _CHANGES:
        is_known = fn.col("reason").isin("issued", "settled")
        reasons.append(fn.when(~is_known, fn.lit(f"{kind} neither issued nor settled")))
    return fn.coalesce(*reasons) if reasons else fn.lit(None).cast("string")


def usable(rows: DataFrame, *kinds: str) -> DataFrame:
    """The rows of these kinds that can be used."""
    return rows.where(fn.col("kind").isin(*kinds) & problem(*kinds).isNull())


def without_repetitions(rows: DataFrame) -> DataFrame:
    """Each row once, however often its file was copied or its node wrote it again after a crash."""
    return rows.dropDuplicates(list(ROW))


# --- the rows of a node ---


def nodes(rows: DataFrame) -> DataFrame:
    """What is known of each node's log: its rows, how many are bad, there again or missing, its clock.

    A clock that went back is seen if some row is earlier than the first of its block or than one of an
    earlier block: not always, if it is right again within 64 rows.
    """
    before = Window.partitionBy(*NODE).orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    went_back = (fn.col("time_of_first") > fn.col("earliest")) | (fn.col("time_of_last") < fn.col("latest"))
    went_back = went_back | fn.coalesce(fn.max("latest").over(before) > fn.col("earliest"), fn.lit(False))
    # Rows without a node or a sequence are bad, and not to be told apart.
    distinct = fn.sum(fn.coalesce(fn.bit_count("bits"), "rows"))
    span = fn.coalesce(fn.max("last") - fn.min("first") + 1, distinct)
    return (
        _blocks(rows)
        .withColumn("went_back", went_back)
        .groupBy(*NODE)
        .agg(
            fn.sum("rows").alias("rows"),
            fn.sum("bad").alias("bad"),
            (fn.sum("rows") - distinct).alias("repeated"),
            (span - distinct).alias("missing"),
            fn.coalesce(fn.max("went_back"), fn.lit(False)).alias("went_back"),
            fn.max("longest").alias("longest"),
        )
    )


def _blocks(rows: DataFrame) -> DataFrame:
    """The rows of each node, 64 at a time: which there are, how often, and when they were written.

    One bit for each row is all it takes to know exactly what is missing or there twice, and blocks can
    be made where the rows are: no row has to travel.
    """
    bit = fn.expr(f"shiftleft(1L, cast(pmod(sequence, {1 << BLOCK_BITS}) as int))")
    time = fn.when(fn.col("problem").isNull(), fn.col("time"))
    block = fn.shiftright("sequence", BLOCK_BITS).alias("block")
    return (
        rows.withColumn("problem", problem())
        .groupBy(*NODE, block)
        .agg(
            fn.count("*").alias("rows"),
            fn.count("problem").alias("bad"),
            fn.bit_or(bit).alias("bits"),
            fn.min("sequence").alias("first"),
            fn.max("sequence").alias("last"),
            fn.min(time).alias("earliest"),
            fn.max(time).alias("latest"),
            fn.min_by(time, "sequence").alias("time_of_first"),
            fn.max_by(time, "sequence").alias("time_of_last"),
            fn.max("notifications").alias("longest"),
        )
    )


def breaks(rows: DataFrame) -> DataFrame:
    """Where the log of a node breaks off or its clock goes back: the row behind each such place.

    `rows` are there once each.
    """
    one_by_one = Window.partitionBy(*NODE).orderBy("sequence")
    so_far = one_by_one.rowsBetween(Window.unboundedPreceding, -1)
    missing = fn.col("sequence") - fn.lag("sequence").over(one_by_one) - 1
    time = fn.when(~_is_no_number(fn.col("time")), fn.col("time"))
    went_back_s = fn.last(time, ignorenulls=True).over(so_far) - time
    return (
        rows.dropna(subset=list(ROW))
        .select(*ROW, "time", missing.alias("missing"), went_back_s.alias("went_back_s"))
        .where((fn.col("missing") > 0) | (fn.col("went_back_s") > 0))
    )
