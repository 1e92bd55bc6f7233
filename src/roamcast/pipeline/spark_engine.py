"""Spark as the engine of a job: its SQL, access to stores, and rows and filters as data frames."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import BinaryType, BooleanType, StructField, StructType

from roamcast.errors import InputError
from roamcast.pipeline import audit_sql as sql
from roamcast.pipeline.audit import audit
from roamcast.pipeline.engines import KEPT, SPARK, DuckEngine, duck_desk
from roamcast.pipeline.matching import Asked, FilterTable, decoded, decoder, pairs_sql, unreadable_in
from roamcast.pipeline.output import Output, results
from roamcast.pipeline.places import (
    VERSION_KEY,
    Files,
    Place,
    Store,
    checked_log,
    find_log_files,
    rows_in,
    spark_schema,
    version_problem,
)
from roamcast.protocol.records import KINDS, LIFE_MARK

COLLECTED_ROWS = 2_000_000
"""Maximum rows of a log whose results come to the driver directly; results of larger logs are written to
files.
"""
DECODED_HERE_ROWS = 100_000
"""Up to this many rows the driver decodes the attributes itself, which is faster than starting a Python
worker."""
DESK_MB = 768
"""Memory of the desk; beyond it the desk uses the disk."""


# --- stores ---


class HadoopFiles:
    """Any store for which Spark has a connector."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._java = context._jvm
        self._conf = context._jsc.hadoopConfiguration()

    def log_files(self, log: Store) -> dict[str, int]:
        names = self.listed(log)
        return checked_log(log, {(log / name).hadoop_url: name for name in names}, self._rows)

    def listed(self, folder: Store) -> list[str]:
        filesystem, path = self._reach(folder)
        if not filesystem.exists(path):
            return []
        names = []
        entries = filesystem.listFiles(path, True)
        whole = filesystem.makeQualified(path).toUri().getPath().rstrip("/")
        while entries.hasNext():
            names.append(entries.next().getPath().toUri().getPath().removeprefix(whole).lstrip("/"))
        return sorted(names)

    def put(self, file: Path, place: Store) -> None:
        filesystem, path = self._reach(place)
        filesystem.mkdirs(path.getParent())
        filesystem.copyFromLocalFile(False, True, self._path(file.absolute().as_uri()), path)

    def get(self, place: Store, file: Path) -> None:
        filesystem, path = self._reach(place)
        filesystem.copyToLocalFile(False, path, self._path(file.absolute().as_uri()), True)

    def move(self, old: Store, new: Store) -> None:
        filesystem, path = self._reach(old)
        target = self._path(new.hadoop_url)
        filesystem.mkdirs(target.getParent())
        if not filesystem.rename(path, target):
            raise InputError(f"{new}: cannot be written ({old} cannot be renamed)")

    def remove(self, place: Store) -> None:
        filesystem, path = self._reach(place)
        filesystem.delete(path, True)

    def _path(self, url: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(url)

    def _reach(self, place: Store) -> tuple[Any, Any]:
        """Return the file system and the path; the error is one line if Spark lacks it: PySpark comes without
        connectors.
        """
        try:
            path = self._path(place.hadoop_url)
            return path.getFileSystem(self._conf), path
        except Py4JJavaError as error:
            reason = str(error.java_exception).partition("\n")[0]
            raise InputError(
                f"{place}: Spark has no file system for it ({reason}); give the connector's jars with"
                " --conf spark.jars=..., or use --engine duckdb"
            ) from None

    def _rows(self, file: str) -> int:
        hadoop = self._java.org.apache.parquet.hadoop
        try:
            reader = hadoop.ParquetFileReader.open(
                hadoop.util.HadoopInputFile.fromPath(self._path(file), self._conf)
            )
        except Py4JJavaError:
            raise InputError(
                f"log file {file}: is not a complete Parquet file (truncated or damaged)"
            ) from None
        try:
            about = reader.getFooter().getFileMetaData()
            names = [field.getName() for field in about.getSchema().getFields()]
            problem = version_problem(about.getKeyValueMetaData().get(VERSION_KEY.decode()), names)
            if problem is not None:
                raise InputError(f"log file {file} {problem}")
            return int(reader.getRecordCount())
        finally:
            reader.close()


# --- the engine ---


class SparkEngine:
    """Spark for the rows of a log, and DuckDB at the driver's desk for the results."""

    dialect = SPARK

    def __init__(self, spark: SparkSession, output: Output, desk: DuckEngine, rows: int) -> None:
        """`rows` is the number of rows in the log."""
        self._unreadable: Callable[[], int] = int
        self.spark = spark
        self.desk = desk
        self._output = output
        self._is_tiny = rows <= DECODED_HERE_ROWS
        self._is_small = rows <= COLLECTED_ROWS
        self._is_observing = False
        """True once a query has been written: results fetched as Arrow reach no observer."""
        self._names: dict[str, None] = {}

    def define(self, name: str, query: str) -> None:
        self.name(name, self.spark.sql(query))

    def name(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._names[name] = None

    def fetch(self, query: str) -> pa.Table:
        return self.spark.sql(query).toArrow()

    def side_by_side(self, *works: Callable[[], Any]) -> list[Any]:
        # While one query is planned, or its last tasks run, cores are free for the others.
        with ThreadPoolExecutor(len(works)) as threads:
            return [one.result() for one in [threads.submit(work) for work in works]]

    def gather(self, name: str, query: str) -> None:
        # Not persist(): Spark does not recognise what it holds if Python is part of the plan.
        if self._is_small and not self._is_observing:
            self.share(name, self.fetch(query))
            return
        self._is_observing = False
        found, part = self.spark.sql(query), f"{KEPT}/{name}"
        found.write.parquet(self._output.url(part))
        self.name(name, self.spark.read.schema(found.schema).parquet(self._output.url(part)))
        files = str(self._output.local(part) / "*.parquet").replace("'", "''")
        self.desk.define(name, f"SELECT * FROM read_parquet('{files}')")

    def share(self, name: str, table: pa.Table) -> None:
        self.desk.register(name, table)
        self.name(name, self.spark.createDataFrame(table))

    def define_values(self, name: str, query: str, names: Sequence[Asked]) -> None:
        if self._is_tiny:
            table = decoded(self.fetch(query), names)
            self._unreadable = lambda: unreadable_in(table)
            self.share(name, table)
            return
        observed, self._is_observing = Observation(), True
        self._unreadable = lambda: int(observed.get["rows"])
        count = fn.count(fn.when(~fn.col("readable"), 1)).alias("rows")
        self.name(name, with_values(self.spark.sql(query), names).observe(observed, count))

    def unreadable(self) -> int:
        return self._unreadable()

    def counters(self) -> dict[str, float]:
        """Return counters of all tasks so far, from Spark's own statistics; `core_s` excludes Python's
        workers."""
        context: Any = self.spark.sparkContext
        java = context._gateway
        nothing = java.jvm.java.util.ArrayList()
        no_quantiles = java.new_array(java.jvm.double, 0)
        stages = context._jsc.sc().statusStore().stageList(nothing, False, False, no_quantiles, nothing)
        found = [stages.apply(number) for number in range(stages.size())]
        return {
            "core_s": sum(stage.executorCpuTime() for stage in found) / 1e9,
            "shuffle_mb": sum(stage.shuffleWriteBytes() for stage in found) / 2**20,
            "spill_mb": sum(stage.diskBytesSpilled() for stage in found) / 2**20,
        }

    def processes(self) -> list[int]:
        """Return this process and Java; Python's workers are small."""
        context: Any = self.spark.sparkContext
        return [os.getpid(), context._gateway.proc.pid]

    def close(self) -> None:
        for name in self._names:
            self.spark.catalog.dropTempView(name)


@contextmanager
def spark_engine(log: DataFrame, output: Output, rows: int) -> Iterator[SparkEngine]:
    """Open Spark with these rows as the table `log`; gathered results are stored beside the final ones
    meanwhile.
    """
    with duck_desk(DESK_MB, output.folder / KEPT) as desk:
        engine = SparkEngine(log.sparkSession, output, desk, rows)
        engine.name("log", log)
        try:
            yield engine
        finally:
            engine.close()


def read_log(spark: SparkSession, log: Place) -> DataFrame:
    """Return every row below the folder as written; columns missing in an older schema are null."""
    if isinstance(log, Store):
        files = list(HadoopFiles(spark).log_files(log))
    else:
        files = [str(file.absolute()) for file in find_log_files(log)]
    # Without the option, a bracket or a star in a name would be taken for a pattern.
    return spark.read.schema(spark_schema()).option("__globPaths__", "false").parquet(*files)


def audit_on_spark(
    spark: SparkSession, log: Place, out: Place, *, clock_error_s: float = 0.0
) -> dict[str, Any]:
    """Audit a log; write the tables to `out`, and return the figures, which are also in `out/audit.json`."""
    files = files_of(spark, log, out)
    rows = rows_in(log, files)
    with results(out, files) as output, spark_engine(read_log(spark, log), output, rows) as engine:
        return audit(engine, output.folder, clock_error_s)


def files_of(spark: SparkSession, *places: Place) -> Files | None:
    """Return the access to stores of this session, if one of the places is in a store."""
    return HadoopFiles(spark) if any(isinstance(place, Store) for place in places) else None


def with_values(published: DataFrame, names: Sequence[Asked]) -> DataFrame:
    """Add the sortable bytes of the named attributes (`value0`, …), and whether they could be read."""
    added = [StructField(f"value{slot}", BinaryType()) for slot in range(len(names))]
    fields = [*published.schema.fields, *added, StructField("readable", BooleanType())]
    return published.mapInArrow(decoder(tuple(names)), StructType(fields))


def matching_pairs(
    spark: SparkSession, notifications: DataFrame, subscriptions: DataFrame, table: FilterTable
) -> DataFrame:
    """Return every notification with every subscription of its run whose filter it matches (see
    `pairs_sql`).
    """
    kept = [name for name in notifications.columns if not name.startswith("value")]
    others = [name for name in subscriptions.columns if name != "run"]
    query = pairs_sql(table, SPARK, kept, others, "{notifications}", "{wanted}", "{held}")
    wanted = subscriptions.join(spark.createDataFrame(table.boxes), "filter")
    named: dict[str, Any] = {"held": subscriptions} if table.unboxed else {}
    return spark.sql(query, notifications=notifications, wanted=wanted, **named)


# --- rows as frames ---


OWN_WORD = f"(node = client OR substr(node, 1, length(client) + 1) = client || '{LIFE_MARK}')"
"""The condition that a client wrote the row itself."""


def problem(*kinds: str) -> Column:
    """Return why a row cannot be used, as a text; null if it can. `kinds` are the possible kinds
    of the row.
    """
    return fn.expr(sql.problem(kinds or KINDS))


def usable(rows: DataFrame, *kinds: str) -> DataFrame:
    """Return the rows of these kinds that can be used."""
    return rows.where(sql.usable(*kinds))


def without_repetitions(rows: DataFrame) -> DataFrame:
    """Return each row once, even if its file was copied or its node wrote it again after a crash."""
    return rows.dropDuplicates(list(sql.ROW))


def one_by_one(bursts: DataFrame) -> DataFrame:
    """Return one row for each notification of a burst, with its own number."""
    last = fn.col("number") + fn.col("notifications") - 1
    return bursts.withColumn("number", fn.explode(fn.sequence(fn.col("number"), last)))
