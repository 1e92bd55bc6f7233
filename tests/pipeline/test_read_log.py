"""Reading a log's files: what is one, and what is said of what is none."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.conftest import WriteLog
from tests.pipeline.log_maker import as_nobody

from roamcast.errors import InputError, empty_log
from roamcast.pipeline.places import VERSION_KEY, find_log_files, spark_schema
from roamcast.pipeline.spark_engine import read_log
from roamcast.protocol.records import COLUMNS, SCHEMA_VERSION, Row
from roamcast.records import parquet

pytestmark = pytest.mark.xdist_group("spark")

ROWS = [
    Row(1, 0.5, "b0", "published", client="p", broker="b0", publisher="p", incarnation=1, number=1,
        notifications=2, size_bytes=9, attributes=b"\x80", published_at=0.5),
    Row(2, 0.75, "b0", "link_up", peer="b1"),
]  # fmt: skip


def test_the_schema_is_the_contract() -> None:
    assert spark_schema().names == list(COLUMNS)
    assert parquet.VERSION_KEY == VERSION_KEY


def test_rows_are_read_as_they_were_written(spark: SparkSession, write_log: WriteLog) -> None:
    log = read_log(spark, write_log(ROWS))
    assert log.columns == list(COLUMNS)
    rows = [tuple(row) for row in log.orderBy("sequence").collect()]
    assert rows == [("r", *row) for row in ROWS]


def test_runs_side_by_side_and_odd_names(spark: SparkSession, tmp_path: Path, write_log: WriteLog) -> None:
    write_log(ROWS, "one", "log/a [b] {c}*?")
    write_log(ROWS, "two", "log/run=7/x,y z%20")
    write_log(ROWS, "hidden", "log/_temporary")
    write_log(ROWS, "hidden", "log/.unfinished")
    log = read_log(spark, tmp_path / "log")
    assert log.columns == list(COLUMNS)
    assert sorted(row.run for row in log.select("run").distinct().collect()) == ["one", "two"]


def rewrite(file: Path, table: pa.Table) -> None:
    pq.write_table(table, file)


@pytest.fixture
def file(write_log: WriteLog) -> Path:
    (file,) = write_log(ROWS).glob("*.parquet")
    return file


def test_an_older_version_lacks_columns(spark: SparkSession, file: Path) -> None:
    table = pq.read_table(file).drop_columns(["published_at", "size_bytes"])
    rewrite(file, table.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION - 1)}))
    row = read_log(spark, file.parent).orderBy("sequence").first()
    assert row is not None
    assert (row.publisher, row.published_at, row.size_bytes) == ("p", None, None)


def test_what_other_tools_make_of_it_is_read_too(spark: SparkSession, file: Path) -> None:
    table = pq.read_table(file)
    kinds = table.column("kind").cast(pa.large_string()).dictionary_encode()
    table = table.set_column(table.schema.get_field_index("kind"), "kind", kinds)
    rewrite(file, table.replace_schema_metadata(None).append_column("extra", pa.array([1, 2])))
    assert read_log(spark, file.parent).orderBy("sequence").select("kind").collect() == [
        (row.kind,) for row in ROWS
    ]


def problem(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        find_log_files(folder)
    return str(caught.value)


def test_no_log(tmp_path: Path, write_log: WriteLog) -> None:
    assert problem(tmp_path) == str(empty_log(tmp_path))
    assert problem(tmp_path / "no") == f"log folder {tmp_path / 'no'}: no such file or directory"
    rewrite(tmp_path / "a.parquet", parquet.schema().empty_table())
    assert problem(tmp_path) == f"log folder {tmp_path}: its files hold no rows"
    assert problem(tmp_path / "a.parquet").endswith("a.parquet: not a directory")


def test_another_schema(file: Path) -> None:
    table = pq.read_table(file)
    rewrite(file, table.drop_columns(["cause"]))
    assert problem(file.parent) == f"log file {file} is no event log: it has no column 'cause'"
    at = table.schema.get_field_index("number")
    rewrite(file, table.set_column(at, "number", table.column("number").cast(pa.string())))
    assert problem(file.parent).endswith("is no event log: column 'number' is string, valid is int64")
    for version in (str(SCHEMA_VERSION + 1), "new"):
        rewrite(file, table.replace_schema_metadata({VERSION_KEY: version}))
        assert f"has schema version {version}: this program reads up to" in problem(file.parent)
    rewrite(file, pa.table({"a": [1]}))
    assert problem(file.parent).endswith("is no event log: it has no column 'run'")


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_file(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    assert problem(file.parent) == f"log file {file}: is not a complete Parquet file (truncated or damaged)"


def test_no_permission(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    with as_nobody():
        assert problem(locked) == f"log folder {locked}: permission denied"
