"""The files of a log, found and checked before Spark reads them, and the schema of their rows.

Spark would find a damaged file late and report it with a page of stack traces; reading the footers first
takes almost no time and finds it early. Only protocol/records.py defines a row.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from roamcast.errors import InputError, empty_log
from roamcast.protocol.records import COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

VERSION_KEY = b"roamcast.schema_version"
"""Key of the schema version in a file's metadata."""
UNVERSIONED = 0
"""Version assumed for a file without one: another tool rewrote it."""

ROW_COLUMNS = ("run", "sequence", "time", "node", "kind")
"""Columns that every version of the schema has."""

_SPARK_TYPES = {
    "string": "string", "binary": "binary", "float64": "double", "int64": "bigint", "int32": "int",
}  # fmt: skip
# Which Arrow types hold what the schema asks for without loss: other tools write other ones.
_ARROW_TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "string": (pa.string(), pa.large_string()),
    "binary": (pa.binary(), pa.large_binary()),
    "float64": (pa.float64(),),
    "int64": (pa.int64(), pa.int32()),
    "int32": (pa.int32(),),
}


def spark_schema() -> StructType:
    """Return the columns of a log for Spark, in the order of the contract."""
    from pyspark.sql.types import StructType

    columns = ", ".join(f"{name} {_SPARK_TYPES[kind]}" for name, kind in COLUMNS.items())
    return cast("StructType", StructType.fromDDL(columns))


def arrow_schema() -> pa.Schema:
    """Return the columns of a log as an Arrow schema."""
    return pa.schema([(name, _ARROW_TYPES[kind][0]) for name, kind in COLUMNS.items()])


def schema_problem(schema: pa.Schema) -> str | None:
    """Return why a file with this schema is not a readable log; None if it is."""
    told = (schema.metadata or {}).get(VERSION_KEY)
    problem = version_problem(None if told is None else told.decode(errors="replace"), schema.names)
    if problem is not None:
        return problem
    for name, kind in COLUMNS.items():
        if name in schema.names and _plain(schema.field(name).type) not in _ARROW_TYPES[kind]:
            return f"is no event log: column {name!r} is {schema.field(name).type}, valid is {kind}"
    return None


def version_problem(told: str | None, names: Collection[str]) -> str | None:
    """Return why a file of this version with these columns cannot be read as a log; "" if it can.

    Later versions add columns; a file of this program's own version has all of them.
    """
    told = str(UNVERSIONED) if told is None else told
    if not told.isdigit() or int(told) > SCHEMA_VERSION:
        return f"has schema version {told}: this program reads up to {SCHEMA_VERSION}"
    needed = COLUMNS if int(told) == SCHEMA_VERSION else ROW_COLUMNS
    missing = [name for name in needed if name not in names]
    return f"is no event log: it has no column {missing[0]!r}" if missing else None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without a dictionary, which only changes how values are stored."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


# --- files ---

PASSED_OVER = (".", "_")
"""Prefixes of names to skip: unfinished files begin with a dot, a tool's own files with an underscore."""
READERS = 8
"""Number of files checked concurrently: the disk or the network is the bottleneck."""


def find_log_files(folder: Path) -> dict[Path, int]:
    """Check every Parquet file below the folder; return the files with their numbers of rows.

    Logs of several runs may lie side by side.
    """
    try:
        files = sorted(_files_below(folder))
    except OSError as error:
        raise InputError(f"log folder {error.filename}: {_reason(error)}") from None
    if not files:
        raise empty_log(folder)
    with ThreadPoolExecutor(READERS) as pool:
        rows = dict(zip(files, pool.map(check_file, files), strict=True))
    if not any(rows.values()):
        raise InputError(f"log folder {folder}: its files hold no rows")
    return rows


def has_files(folder: Path) -> bool:
    """Return whether there is a Parquet file below the folder."""
    return folder.is_dir() and any(True for _ in _files_below(folder))


def _files_below(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PASSED_OVER):
                continue
            if entry.is_dir():
                yield from _files_below(Path(entry.path))
            elif entry.name.endswith(".parquet"):
                yield Path(entry.path)


def is_log_file(names: Sequence[str]) -> bool:
    """Return whether this is a file of a log, by its own name and those of its folders."""
    return names[-1].endswith(".parquet") and not any(name.startswith(PASSED_OVER) for name in names)


def check_file(file: Path | str, filesystem: fs.FileSystem | None = None) -> int:
    """Return the number of rows of a file; raise an error if it is incomplete or no log."""
    try:
        with pq.ParquetFile(file, filesystem=filesystem) as parquet:
            problem = schema_problem(parquet.schema_arrow)
            rows: int = parquet.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, PermissionError):
            raise InputError(f"log file {file}: {_reason(error)}") from None
        raise InputError(f"log file {file}: is no whole Parquet file (truncated or damaged)") from None
    if problem is not None:
        raise InputError(f"log file {file} {problem}")
    return rows


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
