"""The event log: what is written is read, files appear only when complete, newer versions are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.protocol.records import COLUMNS, FREQUENT_KINDS, KINDS, SCHEMA_VERSION, Row
from roamcast.records import LogWriter, parquet, read_log, schema
from roamcast.records.parquet import VERSION_KEY

TEXTS = st.none() | st.text(max_size=6)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.none() | st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats(allow_nan=False)

ROWS = st.builds(
    Row, sequence=INT64, time=FLOATS, node=st.text("abc", max_size=3), kind=st.sampled_from(KINDS),
    client=TEXTS, broker=TEXTS, peer=TEXTS, publisher=TEXTS, incarnation=st.none() | INT64,
    number=st.none() | INT64, notifications=INT32, message=TEXTS, cause=TEXTS, hops=INT32,
    size_bytes=st.none() | INT64, filter=TEXTS, attributes=st.none() | st.binary(max_size=6), reason=TEXTS,
    published_at=st.none() | FLOATS,
)  # fmt: skip


def rows(count: int, start: int = 0) -> list[Row]:
    return [
        Row(number, number / 8, "b0", "published", number=number) for number in range(start, start + count)
    ]


def parquet_files(folder: Path) -> list[str]:
    """What any reader that looks for Parquet files would find."""
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".parquet"))


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(st.lists(ROWS, max_size=5), max_size=4))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, batches: list[list[Row]]) -> None:
    folder = tmp_path_factory.mktemp("log") / "deep" / "er"
    with LogWriter(folder, "r") as log:
        for batch in batches:
            log.write(batch)
    written = [row for batch in batches for row in batch]
    assert log.rows == len(written)
    if written:
        assert list(read_log(folder)) == written
    else:
        assert parquet_files(folder) == []


def test_every_row_says_which_run_it_is_of(tmp_path: Path) -> None:
    with LogWriter(tmp_path, "run-7") as log:
        log.write(rows(3))
    table = pq.read_table(tmp_path)
    assert table.column("run").to_pylist() == ["run-7"] * 3
    assert table.column_names == list(COLUMNS)
    assert list(COLUMNS) == ["run", *Row._fields]


def test_files_roll_and_keep_the_order(tmp_path: Path) -> None:
    with LogWriter(tmp_path, "r", rows_per_file=100) as log:
        for start in range(0, 1_050, 50):
            log.write(rows(50, start))
    assert parquet_files(tmp_path) == [f"part-{number:05d}.parquet" for number in range(11)]
    assert list(read_log(tmp_path)) == rows(1_050)
    assert pq.read_table(tmp_path / "part-00010.parquet").num_rows == 50


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is written in several goes, so that there is half of one between them."""
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", 50)
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 50)


@pytest.mark.usefixtures("small_batches")
def test_a_file_is_visible_only_when_it_is_complete(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, "r", rows_per_file=100)
    for start in range(0, 250, 50):
        log.write(rows(50, start))
        # Whatever can be seen now is whole and can be read, though the writer goes on.
        visible = parquet_files(tmp_path)
        assert len(visible) == (start + 50) // 100
        assert sum(pq.read_table(tmp_path / name).num_rows for name in visible) == 100 * len(visible)
        assert ds.dataset(tmp_path, format="parquet").count_rows() == 100 * len(visible)
        assert len(list(tmp_path.iterdir())) == len(visible) + (start % 100 == 0)
    log.close()
    assert list(read_log(tmp_path)) == rows(250)
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


@pytest.mark.usefixtures("small_batches")
def test_a_writer_that_is_never_closed_leaves_no_half_of_a_file(tmp_path: Path) -> None:
    """As after a crash: the object is simply gone."""
    log = LogWriter(tmp_path, "r", rows_per_file=100)
    for start in range(0, 250, 50):
        log.write(rows(50, start))
    del log
    assert len(list(tmp_path.iterdir())) == 3
    assert parquet_files(tmp_path) == ["part-00000.parquet", "part-00001.parquet"]
    assert list(read_log(tmp_path)) == rows(200)


def test_when_a_run_fails_its_log_up_to_then_is_complete(tmp_path: Path) -> None:
    class Failed(Exception):
        pass

    def fail_while_writing() -> None:
        with LogWriter(tmp_path, "r") as log:
            log.write(rows(5))
            raise Failed

    with pytest.raises(Failed):
        fail_while_writing()
    assert list(read_log(tmp_path)) == rows(5)


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with LogWriter(tmp_path / name, "r") as log:
            log.write(rows(500))
    one, two = (tmp_path / name / "part-00000.parquet" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_folder_that_holds_a_log_is_refused(tmp_path: Path) -> None:
    with LogWriter(tmp_path, "r") as log:
        log.write(rows(1))
    with pytest.raises(InputError, match="already holds a log: give an empty or a new folder"):
        LogWriter(tmp_path, "r")
    assert list(read_log(tmp_path)) == rows(1)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"log folder .*file"):
        LogWriter(tmp_path / "file", "r")
    with pytest.raises(InputError, match=r"log folder .*deeper"):
        LogWriter(tmp_path / "file" / "deeper", "r")


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no Parquet file in it"):
        list(read_log(tmp_path))
    with pytest.raises(InputError, match="there is no Parquet file in it"):
        list(read_log(tmp_path / "nowhere"))


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 99])
def test_a_newer_schema_is_refused(tmp_path: Path, version: int) -> None:
    newer = schema().with_metadata({VERSION_KEY: str(version).encode()})
    pq.write_table(pa.Table.from_pylist([], schema=newer), tmp_path / "part-00000.parquet")
    with pytest.raises(
        InputError, match=f"schema version {version}: this program reads up to {SCHEMA_VERSION}"
    ):
        list(read_log(tmp_path))


def test_the_version_is_in_every_file(tmp_path: Path) -> None:
    with LogWriter(tmp_path, "r", rows_per_file=10) as log:
        for start in range(0, 30, 10):
            log.write(rows(10, start))
    for name in parquet_files(tmp_path):
        assert pq.read_schema(tmp_path / name).metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()


def test_arrow_reads_the_folder_as_it_is(tmp_path: Path) -> None:
    with LogWriter(tmp_path, "r", rows_per_file=10) as log:
        for start in range(0, 25, 5):
            log.write(rows(5, start))
        log.write([Row(1, 0.5, "c", "delivered", attributes=b"\x80", notifications=3)])
    dataset = ds.dataset(tmp_path, format="parquet")
    assert dataset.count_rows() == 26
    found = dataset.to_table(filter=ds.field("kind") == "delivered").to_pylist()
    assert [(row["node"], row["attributes"], row["notifications"]) for row in found] == [("c", b"\x80", 3)]


def test_duckdb_reads_the_folder_as_it_is(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    with LogWriter(tmp_path, "r", rows_per_file=10) as log:
        for start in range(0, 25, 5):
            log.write(rows(5, start))
    found = duckdb.sql(f"SELECT count(*), max(number) FROM '{tmp_path}/*.parquet' WHERE kind = 'published'")
    assert found.fetchall() == [(25, 24)]


def test_kinds_are_named_once_and_frequent_ones_are_kinds() -> None:
    assert len(set(KINDS)) == len(KINDS)
    assert set(KINDS) > FREQUENT_KINDS
    # Nothing that is owed depends on them, so a checker can do without.
    assert not FREQUENT_KINDS & {"published", "delivered", "subscribed", "unsubscribed", "moved", "dropped"}
