"""Results in a folder: each part is replaced atomically.

Everything is first written beside its final place, under a name that readers skip, and then exchanged with
what was there. Readers see the old part or the new one; an earlier failure leaves nothing behind.

A store cannot exchange folders. There the files of a new part are added before those of the old one are
removed, and the figures (JSON) come last: after an interruption both parts may be present, never none.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from roamcast.errors import InputError
from roamcast.pipeline.places import ArrowFiles, Files, Place, Store, first_line, url_of

UNFINISHED = ".unfinished"
OLD = ".old"
FETCHED = ".fetched"
_HERE, _EXCHANGE = -100, 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@dataclass(frozen=True)
class Output:
    """Results under construction."""

    folder: Path
    """Local folder for the driver's parts."""
    shared: Place
    """Folder for executors' parts: the same folder, unless results go to a store."""
    files: Files

    def url(self, name: str) -> str:
        """Return the URL where Spark writes a part."""
        return url_of(self.shared / name)

    def local(self, name: str) -> Path:
        """Return the local folder of a part that Spark wrote."""
        if isinstance(self.shared, Path):
            return self.shared / name
        folder = self.folder / FETCHED / name
        for file in self.files.listed(self.shared / name):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            self.files.get(self.shared / name / file, folder / file)
        return folder


@contextmanager
def results(out: Place, files: Files | None = None) -> Iterator[Output]:
    """Create results that appear in `out` when the block has ended without an error."""
    files = files or ArrowFiles()
    if isinstance(out, Path):
        with unfinished(out) as made:
            yield Output(made, made, files)
            replace_parts(made, out)
        return
    shared = out / f"{UNFINISHED}-{uuid4().hex[:12]}"
    folder = Path(tempfile.mkdtemp(prefix="roamcast-results-"))
    try:
        yield Output(folder, shared, files)
        _publish(folder, shared, out, files)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{out}: cannot be written ({first_line(error)})") from None
    finally:
        with suppress(Exception):
            files.remove(shared)
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, shared: Store, out: Store, files: Files) -> None:
    """Copy every part to the store; other content stays."""
    from_driver = [file for file in folder.rglob("*") if file.is_file()]
    own = [name for file in from_driver if is_part(name := file.relative_to(folder).as_posix())]
    of_executors = [name for name in files.listed(shared) if is_part(name)]
    new = {*own, *of_executors}
    folders = {name.rpartition("/")[0] for name in new} - {""}
    old = [f"{one}/{name}" for one in folders for name in files.listed(out / one) if "/" not in name]
    for name in of_executors:
        files.move(shared / name, out / name)
    for name in sorted(own, key=lambda name: name.endswith(".json")):
        files.put(folder / name, out / name)
    for name in old:
        if name not in new:
            files.remove(out / name)


def is_part(name: str) -> bool:
    return not any(level.startswith((".", "_")) for level in name.split("/"))


@contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """Create a folder within `out` for unfinished results; it is always removed afterwards."""
    place = out / f"{UNFINISHED}-{os.getpid()}"
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        yield place
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({(error.strerror or str(error)).lower()})") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def replace_parts(made: Path, out: Path) -> list[str]:
    """Move every part (file or folder) of `made` into `out`, one by one; other content stays."""
    out.mkdir(parents=True, exist_ok=True)
    names = sorted(entry.name for entry in made.iterdir() if is_part(entry.name))
    for name in names:
        if _is_partitioned(made / name):
            replace_parts(made / name, out / name)
        else:
            replace_part(made / name, out / name)
    return names


def _is_partitioned(part: Path) -> bool:
    """Return true for a table whose rows lie in folders named after values; each of these folders is replaced
    separately.
    """
    return part.is_dir() and all("=" in entry.name for entry in part.iterdir() if is_part(entry.name))


def replace_part(new: Path, place: Path) -> None:
    """Move a file or folder to a place that may be in use."""
    if not place.is_dir():
        os.replace(new, place)
    elif _exchange(new, place):
        shutil.rmtree(new)
    else:
        # Not every file system can do it at once; then there is a moment without either.
        old = place.with_name(f"{OLD}-{place.name}")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(place, old)
        os.rename(new, place)
        shutil.rmtree(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return False where that is not possible."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))


# --- single files ---


def read_text(place: Place, files: Files) -> str | None:
    """Return the content of a file; None if there is none."""
    if isinstance(place, Path):
        return place.read_text(encoding="utf-8") if place.exists() else None
    folder, _, name = place.hadoop_url.rpartition("/")
    if name not in files.listed(Store(folder)):
        return None
    with tempfile.TemporaryDirectory(prefix="roamcast-read-") as local:
        files.get(place, Path(local, name))
        return Path(local, name).read_text(encoding="utf-8")


def write_file(place: Place, files: Files, write: Callable[[Path], object]) -> None:
    """Write a file atomically; it may replace another one."""
    if isinstance(place, Path):
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f".{place.name}")
        write(new)
        os.replace(new, place)
        return
    with tempfile.TemporaryDirectory(prefix="roamcast-write-") as local:
        file = Path(local, "file")
        write(file)
        files.put(file, place)


def write_text(place: Place, files: Files, text: str) -> None:
    write_file(place, files, lambda file: file.write_text(text, encoding="utf-8"))
