"""Running Spark from the command line: options that all Spark commands share.

Errors that can be found early are reported before Spark starts, which takes some seconds.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from roamcast.cli.output import prepare_out_folder, progress
from roamcast.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roamcast.pipeline.places import Place

Figures = TypeVar("Figures", bound=dict[str, Any])

SMALL_ROWS = 2_000_000
"""Rows of a log that Spark finishes before Java's compiler would speed it up."""

STORED_ROWS = 50_000_000
"""Assumed rows of a log in a store; Spark revises its plans after the first rows."""
TINY_ROWS = 100_000
"""Up to this number of rows Spark takes longer to compile and revise its plans than to execute them."""
INTERPRETED = (
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
    "spark.sql.adaptive.enabled=false",
)

Log = Annotated[
    str, typer.Option("--log", help="Folder with event logs of any number of nodes, or its URL (s3://, ...).")
]
Out = Annotated[
    str, typer.Option("--out", help="Folder for the results, or its URL; earlier results are replaced.")
]
Master = Annotated[
    str, typer.Option(help="Spark master: local[*], local[N], spark://HOST:PORT, k8s://HOST:PORT.")
]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="A Spark setting, KEY=VALUE. Repeatable.")]
MemoryMb = Annotated[
    int | None,
    typer.Option("--memory-mb", min=512, help="Memory of the driver; default: half of the machine's."),
]
EngineName = Annotated[
    Literal["auto", "spark", "duckdb"],
    typer.Option(
        "--engine",
        help="duckdb (in this process) or spark; auto takes duckdb for small logs.",
    ),
]

LOCAL = "local[*]"


@dataclass(frozen=True)
class Where:
    """The user's options about where Spark runs."""

    master: str = LOCAL
    conf: list[str] | None = None
    memory_mb: int | None = None

    @property
    def is_default(self) -> bool:
        """Return true if no option of Spark was given."""
        return self.master == LOCAL and not self.conf


def takes_embedded(engine: str, where: Where, log: Place) -> bool:
    """Return true if a log suits the embedded engine, which starts at once and runs on this machine."""
    if engine != "auto":
        return engine == "duckdb"
    if not is_installed("duckdb") or not where.is_default:
        return False
    from roamcast.pipeline.places import Store, rows_in

    return (not isinstance(log, Store) or log.is_known_to_arrow) and rows_in(log) <= SMALL_ROWS


def run_audit(
    engine: str, where: Where, log: Place, out: Place, clock_error_s: float = 0.0
) -> dict[str, Any]:
    """Audit a log with a suitable engine; add the engine and the duration to the figures."""
    if not takes_embedded(engine, where, log):

        def work(spark: SparkSession) -> dict[str, Any]:
            from roamcast.pipeline.spark_engine import audit_on_spark

            return audit_on_spark(spark, log, out, clock_error_s=clock_error_s)

        return {**run_on_spark("auditing", where, log, out, work), "engine": "spark"}
    if not is_installed("duckdb"):
        raise InputError("DuckDB is not installed; it comes with: pip install 'roamcast[audit]'")
    from roamcast.pipeline.audit import audit_embedded

    prepare_out_place(out)
    begun = time.perf_counter()
    with progress("auditing"):
        figures = audit_embedded(log, out, clock_error_s=clock_error_s, memory_mb=where.memory_mb)
    return {**figures, "wall_s": round(time.perf_counter() - begun, 3), "engine": "duckdb"}


def prepare_out_place(out: Place) -> None:
    if isinstance(out, Path):
        prepare_out_folder(out)


def is_installed(library: str = "pyspark") -> bool:
    return importlib.util.find_spec(library) is not None


def need_spark() -> None:
    if not is_installed():
        raise InputError("Spark is not installed; it comes with: pip install 'roamcast[pipeline]'")


def run_on_spark(
    title: str, where: Where, log: Place, out: Place, work: Callable[[SparkSession], Figures]
) -> Figures:
    """Inspect the log, start Spark, and do the work with a progress bar; add the durations to the figures.

    Logs in object stores are inspected through Spark, since only Spark can access them.
    """
    need_spark()
    from roamcast.pipeline.places import rows_in
    from roamcast.pipeline.session import check_master, fitting_partitions

    check_master(where.master)
    rows = rows_in(log) if isinstance(log, Path) else STORED_ROWS
    prepare_out_place(out)
    started = time.perf_counter()
    small = rows <= SMALL_ROWS
    conf = [] if small else [f"spark.sql.shuffle.partitions={fitting_partitions(rows)}"]
    conf += [*(INTERPRETED if rows <= TINY_ROWS else ()), *(where.conf or [])]
    # Python reads its libraries while Java starts.
    Thread(target=import_module, args=("roamcast.pipeline.spark_engine",), daemon=True).start()
    with spark_session(where.master, conf=conf, memory_mb=where.memory_mb, small=small) as spark:
        begun = time.perf_counter()
        figures = watched_work(title, spark, work)
        figures["wall_s"] = round(time.perf_counter() - begun, 3)
        figures["spark_start_s"] = round(begun - started, 3)
    return figures


def watched_work(title: str, spark: SparkSession, work: Callable[[SparkSession], Figures]) -> Figures:
    from roamcast.pipeline.session import watched

    with progress(title) as report, watched(spark, report):
        return work(spark)


@contextmanager
def spark_session(
    master: str, *, conf: list[str] | None = None, memory_mb: int | None = None, small: bool = False
) -> Iterator[SparkSession]:
    """A Spark session while the block runs; its errors become one line."""
    need_spark()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from roamcast.pipeline.session import start_spark, stop_spark

    spark = start_spark(master, memory_mb=memory_mb, small=small, settings=parse_conf(conf or []))
    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        raise InputError(f"Spark did not finish: {cause_of(error)}") from None
    finally:
        stop_spark(spark)


def parse_conf(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.startswith("spark."):
            raise InputError(f"--conf {pair!r}: valid is KEY=VALUE, as in spark.executor.memory=4g")
        settings[key] = value
    return settings


def cause_of(error: Exception) -> str:
    """Return the line of a Java stack trace that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by:").strip() for line in lines if line.startswith("Caused by:")]
    return next(iter([*causes[-1:], *lines]), type(error).__name__)
