"""Computes the minutes of a running network from its growing log: Structured Streaming with its own state.

Each batch of new files leads from one state (see minutes.py) to the next, which is written to a folder with
the batch's number before Spark commits the batch. A query that is killed repeats its last batch from the
state before it, so it ends in the same state; the visible result is replaced atomically.

Spark's own watermark drops late rows; this one closes minutes, and corrects them later.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from roamcast.errors import InputError
from roamcast.pipeline.minutes import MINUTE_S, NAMES, MinutesState, close, empty_state, shown
from roamcast.pipeline.output import read_text, write_file, write_text
from roamcast.pipeline.places import ArrowFiles, Files, Place, find_log_files, has_files, spark_schema, url_of
from roamcast.pipeline.spark_engine import files_of

STATES, CHECKPOINT = "state", "checkpoint"
TOTALS = ("expected", "delivered", "lost", "duplicates", "unexpected")
FILES_PER_BATCH = 1_000
FILE_AGE = "365d"
"""Spark skips files that are older than the newest seen one by more than this."""


@dataclass(frozen=True)
class StreamSettings:
    """Times in seconds."""

    late_s: float = 60.0
    """How late a row may be, relative to the newest one, before its minute is closed."""
    forget_s: float = 86_400.0
    """How long a closed minute can still be corrected."""
    clock_error_s: float = 0.0
    every_s: float = 10.0
    """Seconds between two scans for new files."""


@dataclass(frozen=True)
class Progress:
    """Progress of a stream."""

    batch: int
    rows: int
    """Rows of all batches."""
    newest_s: float | None
    closed_until_s: int | None


Report = Callable[[Progress], None]


def check_log(log: Place) -> None:
    """Refuse a log of this machine that cannot be streamed, before Spark is started."""
    if isinstance(log, Path):
        if not log.is_dir():
            raise InputError(f"log folder {log}: there is no such folder")
        if has_files(log):
            find_log_files(log)


def check_settings(log: Place, out: Place, settings: StreamSettings, files: Files) -> None:
    """Refuse to resume a stream with other settings than it was started with."""
    known = out / "settings.json"
    told = {name: value for name, value in asdict(settings).items() if name != "every_s"}
    told["log"] = url_of(log)
    try:
        before = json.loads(read_text(known, files) or json.dumps(told))
    except ValueError:
        raise InputError(f"{known}: is not JSON; name a new folder") from None
    for name, value in told.items():
        if before.get(name) != value:
            was = f"{name} {before.get(name)}"
            raise InputError(f"--out {out}: was begun with {was}, now {value}; name another folder")
    write_text(known, files, json.dumps(told, indent=2) + "\n")


def start_stream(
    spark: SparkSession,
    log: Place,
    out: Place,
    settings: StreamSettings,
    report: Report,
    *,
    once: bool = False,
) -> StreamingQuery:
    """Follow a log; with `once`, end when the present files have been read."""
    files = files_of(spark, log, out) or ArrowFiles()
    check_settings(log, out, settings, files)
    rows = (
        spark.readStream.schema(spark_schema())
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .option("maxFileAge", FILE_AGE)
        .parquet(url_of(log))
    )
    keeper = _Keeper(out, settings, report, files)
    query = rows.writeStream.foreachBatch(keeper.on_batch).option(
        "checkpointLocation", url_of(out / CHECKPOINT)
    )
    if once:
        return query.trigger(availableNow=True).start()
    return query.trigger(processingTime=f"{settings.every_s} seconds").start()


class _Keeper:
    """Advances from state to state."""

    def __init__(self, out: Place, settings: StreamSettings, report: Report, files: Files) -> None:
        self._out = out.absolute() if isinstance(out, Path) else out
        self._settings, self._report, self._files = settings, report, files

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
        # All states go but this one and the one before it, from which this batch may be repeated.
        self._remove(self._folder(batch - 2))
        self._report(progress)

    def _closed_until_s(self, before: Progress, newest_s: float | None) -> int:
        known = before.closed_until_s or 0
        if newest_s is None:
            return known
        return max(known, int((newest_s - self._settings.late_s) // MINUTE_S) * MINUTE_S)

    # --- states where the results are ---

    def _folder(self, batch: int) -> Place:
        return self._out / STATES / str(batch)

    def _remove(self, folder: Place) -> None:
        if isinstance(folder, Path):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            self._files.remove(folder)

    def _load(self, spark: SparkSession, batch: int) -> tuple[Progress, MinutesState]:
        folder = self._folder(batch)
        if batch < 0:
            return Progress(-1, 0, None, None), empty_state(spark)
        told = read_text(folder / "progress.json", self._files)
        if told is None:
            raise InputError(f"{folder}: the state of the last batch is gone; begin with a new folder")
        schemas = asdict_shallow(empty_state(spark))
        tables = {
            name: spark.read.schema(schemas[name].schema).parquet(url_of(folder / name)) for name in NAMES
        }
        return Progress(**json.loads(told)), MinutesState(**tables)

    def _save(self, state: MinutesState, progress: Progress) -> None:
        folder = self._folder(progress.batch)
        self._remove(folder)
        for name, table in asdict_shallow(state).items():
            table.coalesce(1).write.parquet(url_of(folder / name))
        # Last, and in one piece: with it the state is whole.
        write_text(folder / "progress.json", self._files, json.dumps(asdict(progress)))

    def _show(self, spark: SparkSession, progress: Progress) -> None:
        _, state = self._load(spark, progress.batch)
        table = shown(state).toArrow().sort_by([("run", "ascending"), ("minute", "ascending")])
        write_file(self._out / "minutes.parquet", self._files, partial(pq.write_table, table))
        text = json.dumps(figures_of(table, progress), indent=2) + "\n"
        write_text(self._out / "stream.json", self._files, text)


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
