"""The event log as Parquet files: rolling, closed atomically, the same bytes for the same rows.

A log is a folder. Each file in it is complete: it is written under another name
and renamed when it is closed, so a reader never meets half of one. Spark, DuckDB
and pandas read the folder as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import InputError, empty_log
from roamcast.protocol.records import COLUMNS, SCHEMA_VERSION, Row

ROWS_PER_BATCH = 4_000
"""Number of rows turned into columns at a time, while they are still in the processor's cache."""
ROWS_PER_GROUP = 50_000
ROWS_PER_FILE = 1_000_000
VERSION_KEY = b"roamcast.schema_version"

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "float64": pa.float64(),
    "int64": pa.int64(),
    "int32": pa.int32(),
}


def schema() -> pa.Schema:
    """Return the schema of a log, with its version."""
    fields = [pa.field(name, _TYPES[kind]) for name, kind in COLUMNS.items()]
    return pa.schema(fields, metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()})


class LogWriter:
    """Writes rows to a folder; use it as a context manager."""

    def __init__(
        self, folder: Path, run: str, rows_per_file: int = ROWS_PER_FILE, *, continued: str = ""
    ) -> None:
        """`continued`: add to files whose names begin with this text, instead of starting a log."""
        self.folder = folder
        self.run = run
        self.rows = 0
        self._rows_per_file = rows_per_file
        self._schema = schema()
        self._types = self._schema.types[1:]
        self._waiting: list[Row] = []
        self._batches: list[pa.RecordBatch] = []
        self._batched_rows = 0
        self._file: pq.ParquetWriter | None = None
        self._file_rows = 0
        self._prefix = continued or "part"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"log folder {folder}: {error.strerror}") from None
        self._files = len(log_files(folder)) if not continued else _following(folder, continued)
        if self._files and not continued:
            raise InputError(f"log folder {folder} already holds a log: give an empty or a new folder")

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, rows: list[Row]) -> None:
        self._waiting += rows
        if len(self._waiting) >= min(ROWS_PER_BATCH, self._rows_per_file):
            self._batch()
            if self._batched_rows >= min(ROWS_PER_GROUP, self._rows_per_file):
                self._flush()

    def close(self) -> None:
        """Write the pending rows and close the last file."""
        if self._waiting:
            self._batch()
        if self._batches:
            self._flush()
        self._close_file()

    def _batch(self) -> None:
        """Turn the pending rows into columns."""
        rows, self._waiting = self._waiting, []
        self.rows += len(rows)
        self._batched_rows += len(rows)
        columns: list[Any] = [pa.repeat(pa.scalar(self.run, pa.string()), len(rows))]
        columns += map(_column, zip(*rows, strict=True), self._types)
        self._batches.append(pa.record_batch(columns, schema=self._schema))

    def _flush(self) -> None:
        """Write the batches as one row group."""
        if self._file is None:
            self._file = pq.ParquetWriter(self._unfinished_path(), self._schema, compression="zstd")
        self._file.write_table(pa.Table.from_batches(self._batches))
        self._file_rows += self._batched_rows
        self._batches, self._batched_rows = [], 0
        if self._file_rows >= self._rows_per_file:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        os.replace(self._unfinished_path(), self.folder / f"{self._name()}.parquet")
        self._file, self._file_rows = None, 0
        self._files += 1

    def _name(self) -> str:
        return f"{self._prefix}-{self._files:05d}"

    def _unfinished_path(self) -> Path:
        # Readers pass over names that begin with a dot or an underscore.
        return self.folder / f".{self._name()}.parquet.unfinished"


def _column(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    """Return one column; most columns have one value in all rows of a batch, which is ten times faster."""
    first = values[0]
    if values.count(first) < len(values):
        return pa.array(values, kind)
    return pa.nulls(len(values), kind) if first is None else pa.repeat(pa.scalar(first, kind), len(values))


def log_files(folder: Path, prefix: str = "") -> list[Path]:
    """Return the files of a log in the order of writing; with a prefix, only files whose names
    begin with it.
    """
    found = [path for path in folder.glob("*.parquet") if not prefix or _prefix(path) == prefix]
    return sorted(found, key=lambda path: (_prefix(path), _number(path), path.name))


def _prefix(path: Path) -> str:
    return path.stem.rpartition("-")[0]


def _number(path: Path) -> int:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _following(folder: Path, prefix: str) -> int:
    files = log_files(folder, prefix)
    return _number(files[-1]) + 1 if files else 0


def highest_sequences(file: Path) -> dict[str, int]:
    """Return the highest sequence of each node in a file."""
    rows = pq.read_table(file, columns=["node", "sequence"])
    table = rows.group_by("node").aggregate([("sequence", "max")])
    nodes, sequences = table.column("node").to_pylist(), table.column("sequence_max").to_pylist()
    return dict(zip(nodes, sequences, strict=True))


def read_log(folder: Path) -> Iterator[Row]:
    """Yield the rows of a log, file by file, in the order of writing."""
    files = log_files(folder)
    if not files:
        raise empty_log(folder)
    for file in files:
        table = pq.read_table(file)
        version = int((table.schema.metadata or {}).get(VERSION_KEY, b"0"))
        if version > SCHEMA_VERSION:
            raise InputError(
                f"{file} has schema version {version}: this program reads up to {SCHEMA_VERSION}"
            )
        names = list(COLUMNS)[1:]
        for values in zip(*(table.column(name).to_pylist() for name in names), strict=True):
            yield Row(*values)
