"""Reports of fail-stops: the inputs of the turn that raised, and where it raised.

A report is for people and for a bug report: readable text, and the inputs as the journal would have held
them. Inputs hold no passwords, but they do hold payloads: the files are private to their owner. Both the
size of a report and the number of reports are bounded.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

import msgspec

FOLDER_NAME = "failures"
REPORTS_MAX = 20
ENTRY_BYTES_MAX = 16 << 20
TEXTS_MAX = 200
TEXT_CHARACTERS_MAX = 500
TRACEBACK_CHARACTERS_MAX = 20_000


class Failure(msgspec.Struct, frozen=True):
    """One turn that raised."""

    who: str
    """Id of the broker or site."""
    version: str
    at: float
    error: str
    place: str
    """File and line that raised."""
    traceback: str
    now: float
    """Time of the turn."""
    journal_entry: int
    """Last journal entry before the turn; 0 if there was none."""
    input_count: int
    inputs: list[str]
    """The first inputs, as text."""
    entry: bytes
    """The inputs as a journal entry; left out of a report if it is too large."""


def describe(error: BaseException) -> str:
    """Return the exception on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:TEXT_CHARACTERS_MAX] if text else type(error).__name__


def failure_of(
    error: BaseException, who: str, version: str, now: float, inputs: Iterable[object], entry: bytes,
    journal_entry: int = 0,
) -> Failure:  # fmt: skip
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
    told = "".join(traceback.format_exception(error))
    texts = [_text_of(one) for one in inputs]
    return Failure(
        who, version, time.time(), describe(error), place, told[-TRACEBACK_CHARACTERS_MAX:], now,
        journal_entry, len(texts), texts[:TEXTS_MAX], entry,
    )  # fmt: skip


def _text_of(value: object) -> str:
    text = repr(value)
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}…"


def write_report(data: Path, failure: Failure) -> Path:
    """Write a report into the data folder, and delete the oldest ones; OSError if impossible."""
    if len(failure.entry) > ENTRY_BYTES_MAX:
        failure = msgspec.structs.replace(failure, entry=b"")
    folder = data / FOLDER_NAME
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    milliseconds = int(failure.at * 1000) % 1000
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(failure.at))
    path = folder / f"{stamp}.{milliseconds:03d}-{os.getpid()}.json"
    write_private(path, msgspec.json.format(msgspec.json.encode(failure)) + b"\n")
    for old in sorted(folder.glob("*.json"))[:-REPORTS_MAX]:
        old.unlink(missing_ok=True)
    return path


def write_private(path: Path, data: bytes) -> None:
    """Replace a file as a whole; it is private to its owner."""
    temporary = path.with_suffix(".new")
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
