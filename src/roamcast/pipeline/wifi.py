"""Associations with Wi-Fi access points, in snapshots of a controller, made into attachments.

A snapshot lists a device at several access points at once: entries linger after it has gone, and one spot has
two radios. These rules decide:

1. The radios of a spot are one broker; so are the spots of a room, if rooms are asked for.
2. Of several brokers in a snapshot, the device is at the one whose unbroken run of listings began last:
   entries linger, they do not come early.
3. If several began at once, it is where it was before, if that is among them; otherwise the first by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Literal

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from roamcast.pipeline.sightings import seconds_of
from roamcast.pipeline.visits import Rows, map_groups

By = Literal["spot", "room"]

COLUMNS: Mapping[str, str] = {
    "time": "Zeit",
    "access_point": "Accesspoint",
    "room": "Raum",
    "x": "x (ungefähr)",
    "y": "y (ungefähr)",
    "client": "fortlaufende Gerätenummer",
}
"""Columns of the re:publica 2013 data, the default of the importer."""

RADIO = r"-m\d+(?=-|$)"
"""Part of an access point's name that distinguishes the radios of a spot."""


def listings(table: DataFrame, by: By, radio: str = RADIO) -> DataFrame:
    """Return usable rows: client, time, broker and its position, each once."""
    name = fn.regexp_replace("access_point", radio, "") if by == "spot" else fn.col("room")
    return (
        table.select(
            fn.concat(fn.lit("d"), fn.regexp_replace("client", r"[\s,]+", "-")).alias("client"),
            seconds_of("time").alias("at_s"),
            fn.regexp_replace(name, r"[\s,]+", "-").alias("broker"),
            fn.col("x").cast("double").alias("x"),
            fn.col("y").cast("double").alias("y"),
        )
        .where("client is not null and at_s is not null and broker is not null")
        .dropDuplicates(["client", "at_s", "broker"])
    )


def snapshot_gap_s(listed: DataFrame) -> float:
    """Return the usual time between two snapshots."""
    times = listed.select("at_s").distinct()
    gap = fn.col("at_s") - fn.lag("at_s").over(Window.partitionBy().orderBy("at_s"))
    (row,) = times.select(gap.alias("gap_s")).agg(fn.percentile_approx("gap_s", 0.5)).collect()
    return float(row[0] or 0.0)


def sightings(listed: DataFrame) -> DataFrame:
    """Return one broker for each device and snapshot, by the rules above."""
    times = listed.select("at_s").distinct()
    number = fn.row_number().over(Window.partitionBy().orderBy("at_s"))
    numbered = times.select("at_s", number.alias("snapshot"))
    rows = listed.join(fn.broadcast(numbered), "at_s").select("client", "snapshot", "at_s", "broker")
    return map_groups(rows, ["snapshot", "broker"], choose, "client string, at_s double, broker string")


def choose(rows: Rows) -> Rows:
    """Choose one broker for each snapshot of a device; rows are (client, snapshot, at_s, broker)."""
    began: dict[str, tuple[int, int]] = {}
    """By broker: the snapshot in which its run of listings began, and the last one that listed it."""
    here = ""
    for snapshot, group in groupby(rows, key=lambda row: row[1]):
        listed = list(group)
        brokers = [row[3] for row in listed]
        for broker in brokers:
            first, last = began.get(broker, (snapshot, snapshot))
            began[broker] = (first if last >= snapshot - 1 else snapshot, snapshot)
        newest = max(began[broker][0] for broker in brokers)
        candidates = [broker for broker in brokers if began[broker][0] == newest]
        here = here if here in candidates else candidates[0]
        yield listed[0][0], listed[0][2], here


def positions(listed: DataFrame) -> dict[str, tuple[float, float]]:
    """Return the position of each broker; a room is in the middle of its spots."""
    rows = listed.groupBy("broker").agg(fn.avg("x").alias("x"), fn.avg("y").alias("y")).collect()
    return {row.broker: (row.x, row.y) for row in rows if row.x is not None and row.y is not None}
