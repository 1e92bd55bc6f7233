"""Where logs lie and results go: a folder of this machine, or a folder of a store that has a URL.

Stores are reached through Arrow's file systems in this process, and through Hadoop's in Spark. Results for
a store are made in a folder of this machine and copied when they are complete.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from roamcast.errors import InputError
from roamcast.pipeline.log_files import check_file, find_log_files, is_log_file
from roamcast.pipeline.schema import arrow_schema

HADOOP_ALIASES = {"s3a": "s3", "s3n": "s3"}
"""What Hadoop calls a store to what Arrow calls it."""
LAST = "audit.json"
"""Copied behind everything else: where it is, the rest is there."""


@dataclass(frozen=True)
class Store:
    """A folder in a store."""

    url: str
    filesystem: fs.FileSystem
    path: str

    def __str__(self) -> str:
        return self.url

    def log_files(self) -> dict[str, int]:
        """Every Parquet file below, checked, and how many rows it holds."""
        try:
            entries = self.filesystem.get_file_info(fs.FileSelector(self.path, recursive=True))
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"log folder {self.url}: {first_line(error)}") from None
        found = (entry.path for entry in entries if entry.is_file)
        paths = sorted(path for path in found if self._is_log_file(path))
        if not paths:
            raise InputError(f"log folder {self.url}: there is no Parquet file in it")
        return {path: check_file(path, self.filesystem) for path in paths}

    def _is_log_file(self, path: str) -> bool:
        return is_log_file(path.removeprefix(self.path).strip("/").split("/"))

    def dataset(self) -> ds.Dataset:
        """The rows of all log files; columns that an older schema lacks are null."""
        files = list(self.log_files())
        return ds.dataset(files, arrow_schema(), format="parquet", filesystem=self.filesystem)

    def take(self, made: Path) -> None:
        """Replace parts of this folder by those of another, one by one."""
        try:
            for part in sorted(made.iterdir(), key=lambda part: part.name == LAST):
                place = f"{self.path}/{part.name}"
                if part.is_dir():
                    if self.filesystem.get_file_info(place).type == fs.FileType.Directory:
                        self.filesystem.delete_dir(place)
                    self.filesystem.create_dir(place)
                    fs.copy_files(str(part), place, destination_filesystem=self.filesystem)
                else:
                    fs.copy_files(str(part), place, destination_filesystem=self.filesystem)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{self.url}: cannot be written ({first_line(error)})") from None


Place = Path | Store


def place_of(text: str) -> Place:
    """The folder that a path or a URL names."""
    scheme = urlsplit(text).scheme.lower() if "://" in text else ""
    if not scheme:
        return Path(text)
    if scheme == "file":
        return Path(unquote(urlsplit(text).path))
    url = HADOOP_ALIASES.get(scheme, scheme) + text[len(scheme) :]
    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(f"{text}: this is no place that can be reached ({first_line(error)})") from None
    return Store(text, filesystem, path.rstrip("/"))


def rows_in(log: Place) -> int:
    """How many rows a log holds; its files are looked at."""
    return sum((find_log_files(log) if isinstance(log, Path) else log.log_files()).values())


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def made_for(out: Place) -> Iterator[Path]:
    """A folder of this machine for the results; they are copied to a store when the block has ended well."""
    if isinstance(out, Path):
        yield out
        return
    made = Path(tempfile.mkdtemp(prefix="roamcast-results-"))
    try:
        yield made
        out.take(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)
