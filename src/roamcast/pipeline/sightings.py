"""Turns sightings (who was seen where and when) into visits of each client.

A sighting is a moment, and nothing is known between two of them. These rules fill the gaps:

- Sightings at the same broker, one after the other, are one visit.
- Between sightings at two brokers, the client changed half-way, and was without a broker for a moment.
- A client that is not seen for longer than `away_s` had left, a little after its last sighting (`linger_s`).
- Ping-pong: a client that is elsewhere for less than `ping_pong_s` and then back did not move. Radios
  overlap, and a point near a border falls to either side.
"""

from __future__ import annotations

import csv
import gzip
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from roamcast.errors import InputError
from roamcast.pipeline.visits import Rows, map_groups

VISITS_SCHEMA = "run string, client string, broker string, attach_s double, leave_s double"


@dataclass(frozen=True)
class Rules:
    away_s: float
    linger_s: float
    ping_pong_s: float
    handoff_s: float = 1.0

    def check(self) -> None:
        for name, value in (("away", self.away_s), ("handoff", self.handoff_s)):
            if not 0.0 < value < float("inf"):
                raise InputError(f"--{name} {value}: valid is a number of seconds above 0")
        if not 0.0 <= self.ping_pong_s < float("inf"):
            raise InputError(f"--ping-pong {self.ping_pong_s}: valid is 0 seconds or more")


class Seen(NamedTuple):
    """Consecutive sightings at one broker, from the first to the last."""

    broker: str
    first_s: float
    last_s: float


def visits_of_client(sightings: Iterable[tuple[float, str]], rules: Rules) -> Iterator[Seen]:
    """Return the visits of one client, in order, from its sightings in the order of time."""
    seen = _without_ping_pong(_joined(sightings, rules.away_s), rules)
    attach_s: float | None = None
    for number, one in enumerate(seen):
        start_s = one.first_s if attach_s is None else attach_s
        later = seen[number + 1] if number + 1 < len(seen) else None
        gap_s = later.first_s - one.last_s if later is not None else float("inf")
        attach_s = None
        if later is None or gap_s > rules.away_s:
            leave_s = one.last_s + min(rules.linger_s, gap_s / 2)
        else:
            leave_s = one.last_s + max(gap_s - rules.handoff_s, 0.0) / 2
            attach_s = min(leave_s + rules.handoff_s, later.first_s)
        if leave_s > start_s:
            yield Seen(one.broker, start_s, leave_s)


def _joined(sightings: Iterable[tuple[float, str]], away_s: float) -> list[Seen]:
    seen: list[Seen] = []
    for at_s, broker in sightings:
        last = seen[-1] if seen else None
        if last is not None and last.broker == broker and at_s - last.last_s <= away_s:
            seen[-1] = Seen(broker, last.first_s, at_s)
        else:
            seen.append(Seen(broker, at_s, at_s))
    return seen


def _without_ping_pong(seen: list[Seen], rules: Rules) -> list[Seen]:
    kept: list[Seen] = []
    for one in seen:
        kept.append(one)
        while len(kept) >= 3 and _is_ping_pong(kept[-3], kept[-2], kept[-1], rules):
            back = kept.pop()
            kept.pop()
            kept[-1] = Seen(back.broker, kept[-1].first_s, back.last_s)
    return kept


def _is_ping_pong(here: Seen, there: Seen, back: Seen, rules: Rules) -> bool:
    is_short = back.first_s - here.last_s <= rules.away_s and back.first_s - there.first_s < rules.ping_pong_s
    return here.broker == back.broker and is_short


def visits_of(sightings: DataFrame, run: str, rules: Rules) -> DataFrame:
    """Return the visits of all clients; sightings have a client, a broker and a time `at_s`, in seconds."""
    rules.check()

    def of_client(rows: Rows) -> Rows:
        client, _, _ = first = next(iter(rows))
        for visit in visits_of_client(((at_s, broker) for _, at_s, broker in chain([first], rows)), rules):
            yield (run, client, *visit)

    ordered = sightings.select("client", "at_s", "broker")
    return map_groups(ordered, ["at_s", "broker"], of_client, VISITS_SCHEMA)


# --- files of traces: text, plain, compressed, or in a zip archive ---


@contextmanager
def readable(files: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield the files in a form that Spark can read: the content of zip archives is unpacked until the block
    ends."""
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
    """Return the named columns of the files as text; `columns` maps our names to the names in the files."""
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
    """Convert a time in ISO form, or in seconds since 1970, to seconds since 1970; null if it is neither."""
    stamp = fn.expr(f"try_to_timestamp({column})")
    return fn.coalesce(fn.expr(f"try_cast({column} as double)"), stamp.cast("double"))
