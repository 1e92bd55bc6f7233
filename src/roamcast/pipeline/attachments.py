"""Where clients were attached, and when: from logs, or from a trace of visits.

The form is that of the simulator's lists of visits, so what is learned from the one can be tried in the
other: client, broker, attach_s, leave_s, in seconds; no leave_s where a client stays.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from roamcast.errors import InputError

SCHEMA = "client string, broker string, attach_s double, leave_s double"
HEADER = "client,broker,attach_s,leave_s"


def attachments_of_log(rows: DataFrame) -> DataFrame:
    """Visits by run and client.

    Clients that tell where they go are believed (`moved`); of others, such as those that speak plain
    MQTT, there is what brokers saw of them (`attached`, `detached`).
    """
    told = rows.where("kind = 'moved' and client is not null")
    seen = rows.where("kind in ('attached', 'detached') and client is not null and node = broker")
    tells = told.select("run", "client").distinct()
    told_events = told.select(
        "run", "client", "time", "sequence", "broker",
        (fn.coalesce(fn.col("reason"), fn.lit("")) == "left").alias("leaves"),
    )  # fmt: skip
    seen_events = seen.join(tells, ["run", "client"], "left_anti").select(
        "run", "client", "time", "sequence", "broker", (fn.col("kind") == "detached").alias("leaves")
    )
    return _visits(told_events.unionByName(seen_events))


def _visits(events: DataFrame) -> DataFrame:
    """A visit lasts until the client leaves or attaches elsewhere, whichever is first."""
    # A broker may see the end of a visit after the client has attached to another one.
    order = Window.partitionBy("run", "client").orderBy("time", "leaves", "sequence")
    after = events.select("*", fn.lead("time").over(order).alias("leave_s"))
    return after.where(~fn.col("leaves")).select(
        "run", "client", "broker", fn.col("time").alias("attach_s"), "leave_s"
    )


def read_visits(spark: SparkSession, file: Path) -> DataFrame:
    """A trace as the importers and the generator write it; its run is the file's name."""
    try:
        with file.open(encoding="utf-8") as lines:
            header = lines.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text in UTF-8"
        raise InputError(f"trace {file}: {reason.lower()}") from None
    if header != HEADER:
        raise InputError(f"trace {file} line 1: columns are {header[:80]!r}; expected {HEADER!r}")
    rows = spark.read.schema(SCHEMA).csv(str(file.absolute()), header=True)
    wrong = rows.where(
        "client is null or broker is null or attach_s is null or leave_s <= attach_s"
    ).first()
    if wrong is not None:
        raise InputError(f"trace {file}: {tuple(wrong)} is no visit; expected {HEADER} with a later leave_s")
    visits = rows.select(fn.lit(file.stem).alias("run"), "*")
    if visits.isEmpty():
        raise InputError(f"trace {file}: there are no visits in it")
    return visits


def moves(visits: DataFrame) -> DataFrame:
    """Where from, where now, where next; and how long between the last two.

    Attaching again where one was is no move.
    """
    order = Window.partitionBy("run", "client").orderBy("attach_s")
    arrived = visits.select(
        "*",
        fn.lag("broker").over(order).alias("_before"),
        fn.lag("leave_s").over(order).alias("left_s"),
    ).where("_before is null or _before != broker")
    return (
        arrived.select(
            "run",
            "client",
            fn.lag("_before").over(order).alias("previous"),
            fn.col("_before").alias("here"),
            fn.col("broker").alias("next"),
            fn.coalesce("left_s", "attach_s").alias("left_s"),
            fn.col("attach_s").alias("at_s"),
        )
        .where("here is not null")
    )
