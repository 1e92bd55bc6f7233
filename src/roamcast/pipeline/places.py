"""Places of logs and results: a folder on this machine, or a folder in a store with a URL.

Stores are reached through Arrow's file systems where DuckDB does the work, and through Hadoop's where Spark
does (spark_engine.py): any store with a Spark connector works. The files of a log are checked by their
footers before Spark reads the first of them: Spark would report damage late, with a page of stack traces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
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
    """The columns of a log, in the order of the contract."""
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
    """Return why this program cannot read a file of this version with these columns; None if it can.

    Later versions add columns; a file of this program's own version has them all.
    """
    told = str(UNVERSIONED) if told is None else told
    if not told.isdigit() or int(told) > SCHEMA_VERSION:
        return f"has schema version {told}: this program reads up to {SCHEMA_VERSION}"
    needed = COLUMNS if int(told) == SCHEMA_VERSION else ROW_COLUMNS
    missing = [name for name in needed if name not in names]
    return f"is no event log: it has no column {missing[0]!r}" if missing else None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary, and other types unchanged."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


# --- files ---

PASSED_OVER = (".", "_")
"""Names of unfinished files begin with a dot, those of a tool's own files with an underscore."""
READERS = 8
"""Number of files checked concurrently: the disk or the network is the bottleneck."""


def find_log_files(folder: Path) -> dict[Path, int]:
    """Check every Parquet file below the folder; return the files with their numbers of rows.

    The logs of several runs may lie side by side.
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
    """Return whether a file belongs to a log, by the names of its folders and its own name."""
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
        raise InputError(f"log file {file}: is not a complete Parquet file (truncated or damaged)") from None
    if problem is not None:
        raise InputError(f"log file {file} {problem}")
    return rows


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


HADOOP_ALIASES = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of stores, with Arrow's names."""
ARROW_SCHEMES = frozenset({"s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss", "mock"})
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True)
class Store:
    """A folder in a store. Only Arrow uses the part after a question mark."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Store:
        base, mark, query = self.url.partition("?")
        return Store(f"{base.rstrip('/')}/{name}{mark}{query}")

    @property
    def hadoop_url(self) -> str:
        return self.url.partition("?")[0]

    @property
    def is_known_to_arrow(self) -> bool:
        scheme = urlsplit(self.url).scheme.lower()
        return HADOOP_ALIASES.get(scheme, scheme) in ARROW_SCHEMES


Place = Path | Store


def place_of(text: str) -> Place:
    """Return the folder that a path or a URL names."""
    found = _SCHEME.match(text)
    if not found:
        return Path(text)
    if found[1].lower() == "file":
        return Path(unquote(urlsplit(text).path))
    return Store(text)


def url_of(place: Place) -> str:
    """Return Spark's URL of a place."""
    return str(place.absolute()) if isinstance(place, Path) else place.hadoop_url


class Files(Protocol):
    """Access to the files of stores."""

    def log_files(self, log: Store) -> dict[str, int]:
        """Check every Parquet file below the folder; return the files with their numbers of rows."""

    def listed(self, folder: Store) -> list[str]:
        """Return the files below a folder, by their paths within it; none if there is no such folder."""

    def put(self, file: Path, place: Store) -> None:
        """Copy a file from this machine."""

    def get(self, place: Store, file: Path) -> None:
        """Copy a file to this machine."""

    def move(self, old: Store, new: Store) -> None:
        """Rename a file."""

    def remove(self, place: Store) -> None:
        """Remove a file, or a folder with its content; do nothing if it does not exist."""


class ArrowFiles:
    """Stores accessed by Arrow, with the credentials of the environment."""

    def log_files(self, log: Store) -> dict[str, int]:
        filesystem, path = _reach(log)
        try:
            names = self.listed(log)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"log folder {log}: {first_line(error)}") from None
        return checked_log(
            log, {f"{path}/{name}": name for name in names}, lambda file: check_file(file, filesystem)
        )

    def listed(self, folder: Store) -> list[str]:
        filesystem, path = _reach(folder)
        selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
        entries = filesystem.get_file_info(selector)
        return sorted(entry.path.removeprefix(path).strip("/") for entry in entries if entry.is_file)

    def put(self, file: Path, place: Store) -> None:
        filesystem, path = _reach(place)
        filesystem.create_dir(path.rpartition("/")[0])
        fs.copy_files(str(file), path, destination_filesystem=filesystem)

    def get(self, place: Store, file: Path) -> None:
        filesystem, path = _reach(place)
        fs.copy_files(path, str(file), source_filesystem=filesystem)

    def move(self, old: Store, new: Store) -> None:
        filesystem, path = _reach(old)
        filesystem.move(path, _reach(new)[1])

    def remove(self, place: Store) -> None:
        filesystem, path = _reach(place)
        kind = filesystem.get_file_info(path).type
        if kind == fs.FileType.Directory:
            filesystem.delete_dir(path)
        elif kind == fs.FileType.File:
            filesystem.delete_file(path)

    def dataset(self, log: Store) -> ds.Dataset:
        """Return the rows of all log files; columns missing in an older schema are null."""
        files = list(self.log_files(log))
        return ds.dataset(files, arrow_schema(), format="parquet", filesystem=_reach(log)[0])


def _reach(place: Store) -> tuple[fs.FileSystem, str]:
    scheme = urlsplit(place.url).scheme
    url = HADOOP_ALIASES.get(scheme.lower(), scheme) + place.url[len(scheme) :]
    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(f"{place}: cannot be reached ({first_line(error)})") from None
    return filesystem, path.rstrip("/")


class CountRows(Protocol):
    def __call__(self, file: str, /) -> int:
        """Return the number of rows of a file, if it is complete and a log."""


def checked_log(log: Store, files: dict[str, str], count: CountRows) -> dict[str, int]:
    """Return the files (path to path within the log) that belong to a log, with their numbers of rows."""
    found = {file: count(file) for file, name in files.items() if is_log_file(name.split("/"))}
    if not found:
        raise empty_log(log)
    if not any(found.values()):
        raise InputError(f"log folder {log}: its files hold no rows")
    return found


def rows_in(log: Place, files: Files | None = None) -> int:
    """Return the number of rows in a log, after checking its files."""
    found = find_log_files(log) if isinstance(log, Path) else (files or ArrowFiles()).log_files(log)
    return sum(found.values())


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
