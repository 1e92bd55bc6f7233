"""One Spark for all tests of the pipeline: starting it takes longer than most of them.

Tests that use it are marked `spark_tests`, so that they share a worker.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roamcast.errors import InputError
from roamcast.protocol.records import Row
from roamcast.records.parquet import LogWriter

pyspark = pytest.importorskip("pyspark", reason="the pipeline's extra is not installed")

from pyspark.sql import SparkSession  # noqa: E402

from roamcast.pipeline.session import (  # noqa: E402
    find_java,
    start_spark,
    stop_spark,
)

WriteLog = Callable[..., Path]


@pytest.fixture(scope="session")
def java() -> Path:
    try:
        return find_java()
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: Path) -> Iterator[SparkSession]:
    session = start_spark("local[2]", memory_mb=1024, small=True)
    yield session
    stop_spark(session)


@pytest.fixture
def write_log(tmp_path: Path) -> WriteLog:
    """Writes rows as the log of a run."""

    def write(rows: list[Row], run: str = "r", folder: str = "log") -> Path:
        with LogWriter(tmp_path / folder, run) as log:
            log.write(rows)
        return tmp_path / folder

    return write
