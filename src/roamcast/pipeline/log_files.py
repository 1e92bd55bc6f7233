"""The files of a log: found, and looked at before Spark reads the first of them.

Spark would find a damaged file in the middle of its work and say so in a page of
stack traces; their footers tell beforehand, and take no time to read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from roamcast.errors import InputError
from roamcast.pipeline.schema import schema_problem

PASSED_OVER = (".", "_")
"""Names of unfinished files begin with a dot, those of a tool's own files with an underscore."""
READERS = 8
"""Files that are looked at at once: the disk or the network is what takes time."""


def find_log_files(folder: Path) -> dict[Path, int]:
    """Every Parquet file below the folder, checked, and how many rows it holds.

    The logs of several runs may lie side by side.
    """
    try:
        files = sorted(_files_below(folder))
    except OSError as error:
        raise InputError(f"log folder {error.filename}: {_reason(error)}") from None
    if not files:
        raise InputError(f"log folder {folder}: there is no Parquet file in it")
    with ThreadPoolExecutor(READERS) as pool:
        rows = dict(zip(files, pool.map(check_file, files), strict=True))
    if not any(rows.values()):
        raise InputError(f"log folder {folder}: its files hold no rows")
    return rows


def has_files(folder: Path) -> bool:
    """Whether there is any Parquet file below the folder."""
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
    """Whether this is a file of a log: the names of the folders down to it, and its own."""
    return names[-1].endswith(".parquet") and not any(name.startswith(PASSED_OVER) for name in names)


def check_file(file: Path | str, filesystem: fs.FileSystem | None = None) -> int:
    """How many rows a file holds, if it is whole and a log."""
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
