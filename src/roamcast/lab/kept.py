"""Rows of finished runs in a file, so that a sweep that was stopped goes on where it was.

Rows count only for the code that made them: the first line of the file has a digest of it, and a file of
other code begins anew. A line that was being written when the power went is left out, and so is a row that
JSON would change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import roamcast
from roamcast.errors import InputError
from roamcast.lab.rows import Row

FILE = "runs.jsonl"


class KeptRuns:
    """The runs of one folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._rows: dict[str, Row] = {}
        head = json.dumps({"code": code_digest()})
        try:
            lines = self._path.read_text(encoding="utf-8").split("\n") if self._path.exists() else []
            if lines[:1] != [head]:
                self._path.write_text(head + "\n", encoding="utf-8")
            elif lines[-1]:  # The last line was not finished.
                self._path.write_text("".join(f"{line}\n" for line in lines[:-1]), encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self._path}: cannot be read or written ({error})") from None
        if lines[:1] == [head]:
            for line in lines[1:-1]:
                kept = json.loads(line)
                self._rows[kept["run"]] = kept["row"]

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, function: Callable[[Any], Row], job: Any) -> Row | None:
        return self._rows.get(_key(function, job))

    def keep(self, function: Callable[[Any], Row], job: Any, row: Row) -> None:
        key = _key(function, job)
        line = json.dumps({"run": key, "row": row}, default=repr)
        if json.loads(line)["row"] != row:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _key(function: Callable[[Any], Row], job: Any) -> str:
    return f"{function.__module__}.{function.__qualname__} {job!r}"


@cache
def code_digest() -> str:
    """The same for the same source."""
    folder = Path(roamcast.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
