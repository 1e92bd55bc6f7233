"""Independent runs spread over Spark's executors.

A job and the function that does it travel to an executor, which must have the same program installed; the
result is a row of figures. Each job is a separate task, so a slow one delays no other. An error is returned
like a result; the process that started the sweep handles it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from pyspark.sql import SparkSession

from roamcast.errors import InputError

J = TypeVar("J")
Result = dict[str, Any] | Exception

GROUPS_MAX = 64
"""Maximum number of concurrent jobs, for each of which the driver keeps a thread."""


class LostTask(Exception):
    """Raised if executors ended during a job and during its repetitions."""


def spread(
    spark: SparkSession, function: Callable[[J], dict[str, Any]], jobs: Sequence[J]
) -> Iterator[tuple[J, Result]]:
    """Yield each job with its row or its error, as they finish; a failed job does not affect others."""
    if not jobs:
        return
    slots = min(GROUPS_MAX, max(2 * spark.sparkContext.defaultParallelism, 1), len(jobs))
    with ThreadPoolExecutor(slots) as threads:
        waiting = {threads.submit(_do, spark, function, job): job for job in jobs}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _do(spark: SparkSession, function: Callable[[J], dict[str, Any]], job: J) -> Result:
    """Run one job as a Spark job with one task."""
    try:
        ((row, error),) = spark.sparkContext.parallelize([job], 1).map(_Caught(function)).collect()
    except Exception as problem:  # What Spark itself could not do: the executor is gone.
        return LostTask(str(problem).strip().partition("\n")[0][:300])
    return row if row is not None else RemoteError(error)


class RemoteError(Exception):
    """An error of an executor, as text, because its class may not be known here."""


class _Caught:
    """Calls a function; returns its row and no error, or no row and the error."""

    def __init__(self, function: Callable[[Any], dict[str, Any]]) -> None:
        self.function = function

    def __call__(self, job: Any) -> tuple[dict[str, Any] | None, str]:
        try:
            return self.function(job), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"


def check_logs(spark: SparkSession, folder: Path) -> None:
    """Refuse a folder for logs that executors and driver do not share."""
    probe = folder / f".shared-{uuid4().hex}"
    try:
        spark.sparkContext.parallelize([str(probe)], 1).foreach(_touch)
    except Exception:
        raise InputError(f"{folder}: executors cannot write there; name a shared folder") from None
    if not probe.exists():
        raise InputError(f"{folder}: what executors write is not seen here; name a shared folder")
    probe.unlink()


def _touch(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).touch()
