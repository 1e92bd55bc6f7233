"""Files of traces: tables of text, plain, compressed, or in a zip archive."""

from __future__ import annotations

import csv
import gzip
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from roamcast.errors import InputError


@contextmanager
def readable(files: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield the files in a form that Spark can read: zip archives are unpacked until the block ends."""
    with TemporaryDirectory(prefix="roamcast-trace-") as folder:
        yield [_unpacked(file, Path(folder) / str(i)) for i, file in enumerate(files)]


def _unpacked(file: Path, folder: Path) -> Path:
    if file.suffix != ".zip":
        return file
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith(".csv")]
            if len(names) != 1:
                raise InputError(f"{file}: holds {len(names)} CSV files; expected one")
            folder.mkdir()
            # Under a name of ours: one from an archive may point anywhere.
            with archive.open(names[0]) as source, (folder / "trace.csv").open("wb") as target:
                shutil.copyfileobj(source, target)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    return folder / "trace.csv"


def read_table(spark: SparkSession, files: Sequence[Path], columns: Mapping[str, str]) -> DataFrame:
    """The named columns of the files as text; `columns` maps our name to theirs."""
    for file in files:
        header = _header(file)
        for ours, theirs in columns.items():
            if theirs not in header:
                raise InputError(
                    f"{file} line 1: no column {theirs!r} for the {ours}; there are {', '.join(header)}"
                )
    frames = spark.read.option("header", True).option("escape", '"').csv([str(f.absolute()) for f in files])
    # In backquotes, because a name may hold dots and brackets.
    return frames.select(*(fn.col(f"`{theirs}`").alias(ours) for ours, theirs in columns.items()))


def _header(file: Path) -> list[str]:
    try:
        with _open(file) as lines:
            line = lines.readline()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {getattr(error, 'strerror', None) or 'is no text in UTF-8'}") from None
    return next(csv.reader([line.strip()]), [])


def _open(file: Path) -> IO[str]:
    return gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8")


def seconds_of(column: str) -> Column:
    """Convert a time in ISO form, or in seconds since 1970, to seconds since 1970; null for other texts."""
    stamp = fn.expr(f"try_to_timestamp({column})")
    return fn.coalesce(fn.expr(f"try_cast({column} as double)"), stamp.cast("double"))
