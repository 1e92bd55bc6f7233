"""Stores rows of finished runs in a file, so that a stopped sweep can resume.

Every row is kept with the digest of the source and the commit that made it. Rows are reused only with the
same source, unless all are requested: then new judges evaluate old runs, and `Sweep.commits` says which
commits made them. An incomplete line is ignored, and a row that JSON would change is not stored.
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
    """Finished runs stored in one folder."""

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
        """Return the row of a run, and the commit that made it."""
        return self._rows.get(_key(function, job))

    def keep(self, function: Callable[[Any], Row], job: Any, row: Row) -> None:
        kept = {"run": _key(function, job), "code": code_digest(), "commit": commit(), "row": row}
        line = json.dumps(kept, default=repr)
        if json.loads(line)["row"] != row:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _key(function: Callable[[Any], Row], job: Any) -> str:
    """Return a key of names that stay the same when a module is renamed."""
    return f"{function.__qualname__} {job!r}"


@cache
def code_digest() -> str:
    """Return a digest of the source."""
    folder = Path(roamcast.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def commit() -> str:
    """Return the commit of a checkout, marked if files differ from it; for an installed package
    its version.
    """
    folder = Path(roamcast.__file__).parent
    said = [
        subprocess.run(["git", "-C", str(folder), *asked], capture_output=True, text=True, check=False)
        for asked in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "."])
    ]
    if any(one.returncode for one in said):
        return roamcast.__version__
    return said[0].stdout.strip() + ("+changes" if said[1].stdout.strip() else "")
