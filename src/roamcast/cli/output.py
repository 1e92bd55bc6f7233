"""Output of commands: results on stdout, progress on stderr.

A command prints either tables for a person, or with --json exactly one JSON object for a program. Rich is
imported where it is used, because starting must stay fast.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roamcast.errors import InputError
from roamcast.lab.rows import cell as cell
from roamcast.lab.rows import is_number
from roamcast.lab.rows import leaves as leaves

# Called by long work from time to time, with the amount done and the total.
Report = Callable[[int, int], None]


SAY_EVERY_S = 30.0


def emit_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of stdout, its keys in insertion order.

    JSON has no NaN and no infinity; both become null, so that every parser accepts the line.
    """
    sys.stdout.write(json.dumps(plain(value), allow_nan=False) + "\n")


def present(result: dict[str, Any], show: Callable[[dict[str, Any]], None], as_json: bool) -> None:
    """Print a result as JSON, or as a command shows it to a person."""
    if as_json:
        emit_json(result)
    else:
        show(result)


def plain(value: Any) -> Any:
    """Convert to JSON types: numpy numbers to numbers, tuples to lists, paths to text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy's scalars and arrays, without importing numpy
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """Show a progress bar on stderr while the block runs; the block calls the yielded function.

    If stderr is no terminal, a line is printed at the start, at the end and from time to time, since a bar
    would fill a log.
    """
    started = time.monotonic()
    if not sys.stderr.isatty():
        print(f"{title} ...", file=sys.stderr)
        yield _NowAndThen(title, started)
        print(f"{title}: done in {time.monotonic() - started:.1f} s", file=sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _NowAndThen:
    """Prints progress and remaining time, a few times an hour."""

    def __init__(self, title: str, started: float) -> None:
        self._title = title
        self._started = self._said = self._called = started
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done <= self._done:  # A new part of the work has started.
            self._started = self._called
        self._done, self._called = done, now
        if 0 < done < total and now - self._said >= SAY_EVERY_S:
            self._said = now
            left_s = (now - self._started) * (total - done) / done
            print(f"{self._title}: {done} of {total}, about {left_s:.0f} s left", file=sys.stderr)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table on stdout; columns of numbers are right-aligned."""
    from rich.console import Console
    from rich.table import Table

    body = [list(row) for row in rows]
    drawing = Table(title=title, title_justify="left", title_style="bold")
    for index, name in enumerate(columns):
        numeric = bool(body) and all(is_number(row[index]) for row in body)
        drawing.add_column(name, justify="right" if numeric else "left")
    for row in body:
        drawing.add_row(*map(cell, row))
    # A file or a pipe has no width, so lines are not wrapped.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 1000, markup=False)
    console.print(drawing)


def prepare_new_folder(out: Path, *names: str) -> None:
    """Create the folder; refuse one that already has results of these names."""
    prepare_out_folder(out)
    for used in (out / name for name in names):
        if used.is_file() or (used.is_dir() and any(used.iterdir())):
            raise InputError(f"--out {out}: {used} exists already; name a new folder")


def prepare_out_folder(path: Path, *, option: str = "--out") -> Path:
    """Create the folder for results, or fail before long work starts."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Permission bits are not enough: the file system may be read-only, or full.
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"\0")
    except (FileExistsError, NotADirectoryError):
        file = next((place for place in [path, *path.parents] if place.is_file()), path)
        raise InputError(f"{option} {path}: {file} is a file; name a folder") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{option} {path}: cannot be written to ({reason})") from None
    return path
