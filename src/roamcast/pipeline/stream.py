"""The minutes of a network that runs, from its growing log: Structured Streaming with a state of our own.

Each batch of new files leads from one state (see minutes.py) to the next, which is written to a folder with
the batch's number before Spark commits the batch. A query that is killed repeats its last batch from the
state before it, so it ends in the same state; what is shown is replaced in one piece.

Spark's own watermark drops what comes too late. Ours closes minutes, and corrects them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from roamcast.errors import InputError
from roamcast.pipeline.log_files import find_log_files, has_files
from roamcast.pipeline.minutes import MINUTE_S, NAMES, MinutesState, close, empty_state, shown
from roamcast.pipeline.output import replace_part
from roamcast.pipeline.schema import spark_schema

STATES, CHECKPOINT = "state", "checkpoint"
TOTALS = ("expected", "delivered", "lost", "duplicates", "unexpected")
FILES_PER_BATCH = 1_000
FILE_AGE = "365d"
"""Spark passes over files that are so much older than the newest it has seen."""


@dataclass(frozen=True)
class StreamSettings:
    """Times in seconds."""

    late_s: float = 60.0
    """How far a row may be behind the newest one before its minute is closed."""
    forget_s: float = 86_400.0
    """How long a closed minute can be corrected."""
    clock_error_s: float = 0.0
    every_s: float = 10.0
    """How often new files are looked for."""


@dataclass(frozen=True)
class Progress:
    """How far a stream is."""

    batch: int
    rows: int
    """Of all batches together."""
    newest_s: float | None
    closed_until_s: int | None


Report = Callable[[Progress], None]


def check_stream(log: Path, out: Path, settings: StreamSettings) -> None:
    """Refuse what cannot be streamed, before Spark is started."""
    if not log.is_dir():
        raise InputError(f"log folder {log}: there is no such folder")
    if has_files(log):
        find_log_files(log)
    known = out / "settings.json"
    told = {name: value for name, value in asdict(settings).items() if name != "every_s"}
    told["log"] = str(log.absolute())
    try:
        before = json.loads(known.read_text(encoding="utf-8")) if known.exists() else told
    except ValueError:
        raise InputError(f"{known}: is no JSON; name a new folder") from None
    for name, value in told.items():
        if before.get(name) != value:
            was = f"{name} {before.get(name)}"
            raise InputError(f"--out {out}: was begun with {was}, now {value}; name another folder")
    known.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def start_stream(
    spark: SparkSession, log: Path, out: Path, settings: StreamSettings, report: Report, *, once: bool = False
) -> StreamingQuery:
    """Follow a log; `once`: end when the files that are there now were read."""
    rows = (
        spark.readStream.schema(spark_schema())
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .option("maxFileAge", FILE_AGE)
        .parquet(str(log.absolute()))
    )
    keeper = _Keeper(out, settings, report)
    query = rows.writeStream.foreachBatch(keeper.on_batch).option(
        "checkpointLocation", str((out / CHECKPOINT).absolute())
    )
    if once:
        return query.trigger(availableNow=True).start()
    return query.trigger(processingTime=f"{settings.every_s} seconds").start()


class _Keeper:
    """Leads from state to state."""

    def __init__(self, out: Path, settings: StreamSettings, report: Report) -> None:
        self._out, self._settings, self._report = out.absolute(), settings, report

    def on_batch(self, rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession
        before, state = self._load(spark, batch - 1)
        rows = rows.persist()
        try:
            found = rows.agg(fn.count("*").alias("rows"), fn.max("time").alias("newest")).first()
            assert found is not None
            times = [time for time in (before.newest_s, found.newest) if time is not None]
            newest_s = max(times, default=None)
            until_s = self._closed_until_s(before, newest_s)
            settings = self._settings
            after, at_hand = close(
                spark, state, rows, until_s, forget_s=settings.forget_s, clock_error_s=settings.clock_error_s
            )
            progress = Progress(batch, before.rows + found.rows, newest_s, until_s)
            self._save(after, progress)
            for table in at_hand:
                table.unpersist()
        finally:
            rows.unpersist()
        self._show(spark, progress)
        self._forget(batch)
        self._report(progress)

    def _closed_until_s(self, before: Progress, newest_s: float | None) -> int:
        known = before.closed_until_s or 0
        if newest_s is None:
            return known
        return max(known, int((newest_s - self._settings.late_s) // MINUTE_S) * MINUTE_S)

    # --- states on the disk ---

    def _folder(self, batch: int) -> Path:
        return self._out / STATES / str(batch)

    def _load(self, spark: SparkSession, batch: int) -> tuple[Progress, MinutesState]:
        folder = self._folder(batch)
        if batch < 0:
            return Progress(-1, 0, None, None), empty_state(spark)
        if not (folder / "progress.json").exists():
            raise InputError(f"{folder}: the state of the last batch is gone; begin with a new folder")
        progress = Progress(**json.loads((folder / "progress.json").read_text(encoding="utf-8")))
        schemas = asdict_shallow(empty_state(spark))
        tables = {name: spark.read.schema(schemas[name].schema).parquet(str(folder / name)) for name in NAMES}
        return progress, MinutesState(**tables)

    def _save(self, state: MinutesState, progress: Progress) -> None:
        folder = self._folder(progress.batch)
        shutil.rmtree(folder, ignore_errors=True)
        for name, table in asdict_shallow(state).items():
            table.coalesce(1).write.parquet(str(folder / name))
        # Last, and in one piece: with it the state is whole.
        unfinished = folder / ".progress.json"
        unfinished.write_text(json.dumps(asdict(progress)), encoding="utf-8")
        unfinished.replace(folder / "progress.json")

    def _forget(self, batch: int) -> None:
        """All states but this one and the one before it, from which this batch may be repeated."""
        for folder in (self._out / STATES).iterdir():
            if folder.name.isdecimal() and int(folder.name) < batch - 1:
                shutil.rmtree(folder, ignore_errors=True)

    def _show(self, spark: SparkSession, progress: Progress) -> None:
        _, state = self._load(spark, progress.batch)
        table = shown(state).toArrow().sort_by([("run", "ascending"), ("minute", "ascending")])
        unfinished = self._out / ".minutes.parquet"
        pq.write_table(table, unfinished)
        replace_part(unfinished, self._out / "minutes.parquet")
        unfinished = self._out / ".stream.json"
        unfinished.write_text(json.dumps(figures_of(table, progress), indent=2) + "\n", encoding="utf-8")
        replace_part(unfinished, self._out / "stream.json")


def asdict_shallow(state: MinutesState) -> dict[str, DataFrame]:
    return {name: getattr(state, name) for name in NAMES}


def figures_of(minutes: pa.Table, progress: Progress) -> dict[str, Any]:
    return {
        "minutes": minutes.num_rows,
        **{name: int(pc.sum(minutes.column(name)).as_py() or 0) for name in TOTALS},
        "handoffs": int(pc.sum(minutes.column("handoff_delay_count")).as_py() or 0),
        "transfers": int(pc.sum(minutes.column("transfer_count")).as_py() or 0),
        "records": progress.rows,
        "batches": progress.batch + 1,
        "closed_until_s": progress.closed_until_s,
        "newest_s": progress.newest_s,
    }
