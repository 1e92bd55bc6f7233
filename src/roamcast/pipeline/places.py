"""Places of logs and results: a folder on this machine, or a folder in a store with a URL.

DuckDB accesses stores by Arrow's file systems, and Spark by Hadoop's (spark_engine.py): any store with a
Spark connector works.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from roamcast.errors import InputError, empty_log
from roamcast.pipeline.log_files import arrow_schema, check_file, find_log_files, is_log_file

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
        raise InputError(f"{place}: this is no place that can be reached ({first_line(error)})") from None
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
