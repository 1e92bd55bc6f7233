"""Rows of finished runs in a file, so that a sweep that was stopped goes on where it was.

Every row is kept with the digest of the source and the commit that made it. Rows count only for the same
source, unless all are asked for: then new judges look at old runs, and `Sweep.commits` says whose they are. A
line that was being written when the power went is left out, and so is a row that JSON would change.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
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

    def __init__(self, folder: Path, *, any_code: bool = False) -> None:
        self._path = folder / FILE
        self._rows: dict[str, tuple[Row, str]] = {}
        try:
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            whole, _, torn = text.rpartition("\n")
            if torn:
                self._path.write_text(whole + "\n" if whole else "", encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self._path}: cannot be read or written ({error})") from None
        for line in whole.splitlines():
            kept = json.loads(line)
            if any_code or kept["code"] == code_digest():
                self._rows[kept["run"]] = kept["row"], kept["commit"]

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, function: Callable[[Any], Row], job: Any) -> tuple[Row, str] | None:
        """The row of a run and the commit that made it."""
        return self._rows.get(_key(function, job))

    def keep(self, function: Callable[[Any], Row], job: Any, row: Row) -> None:
        kept = {"run": _key(function, job), "code": code_digest(), "commit": commit(), "row": row}
        line = json.dumps(kept, default=repr)
        if json.loads(line)["row"] != row:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _key(function: Callable[[Any], Row], job: Any) -> str:
    """By names that stay when a module is renamed."""
    return f"{function.__qualname__} {job!r}"


@cache
def code_digest() -> str:
    """The same for the same source."""
    folder = Path(roamcast.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def commit() -> str:
    """The commit of a checkout, marked if files differ from it; of an installed package its version."""
    folder = Path(roamcast.__file__).parent
    said = [
        subprocess.run(["git", "-C", str(folder), *asked], capture_output=True, text=True, check=False)
        for asked in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "."])
    ]
    if any(one.returncode for one in said):
        return roamcast.__version__
    return said[0].stdout.strip() + ("+changes" if said[1].stdout.strip() else "")
