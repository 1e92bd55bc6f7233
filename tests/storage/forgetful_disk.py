"""A disk that forgets, when the power goes, what was not synced: whole sectors, in any order, and new names.

While a `ForgetfulDisk` is installed, every sync of a file in its folder, or of the folder, also copies what
is synced to a shadow folder. `lose_power` then makes of the folder what such a disk could have left: of each
sector that was written since the last sync of its file, the old or the new content; the names as they are or
as they were at the last sync of the folder. This works for another process, too, which is killed first.
"""

from __future__ import annotations

import json
import os
import random
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

SECTOR_BYTES = 512
NAMES = "names.json"
RWF_DSYNC = os.RWF_DSYNC


class PowerLost(BaseException):
    """Raised instead of a sync: nothing runs any more."""


class ForgetfulDisk:
    def __init__(self, folder: Path, shadow: Path) -> None:
        self.folder, self.shadow = folder.resolve(), shadow
        self.syncs_left: int | None = None
        """The power is lost at the sync after so many; None: it is not."""
        self._real: dict[str, Callable[[int], None]] = {"fsync": os.fsync, "fdatasync": os.fdatasync}
        self._pwritev = os.pwritev
        shadow.mkdir(exist_ok=True)

    def install(self) -> None:
        for name, real in self._real.items():
            setattr(os, name, lambda file, real=real: self._sync(file, real))
        os.pwritev = self._write_synced  # type: ignore[assignment]

    def remove(self) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)
        os.pwritev = self._pwritev

    def _has_power(self) -> bool:
        if self.syncs_left is not None:
            if not self.syncs_left:
                if threading.current_thread() is threading.main_thread():
                    raise PowerLost
                return False
            self.syncs_left -= 1
        return True

    def _write_synced(self, file: int, parts: Sequence[bytes], offset: int, flags: int) -> int:
        """Write; nothing but what is written here is synced."""
        data = b"".join(parts)
        os.pwrite(file, data, offset)
        if flags & RWF_DSYNC and self._has_power():
            shadow = self.shadow / f"{os.fstat(file).st_ino}"
            durable = bytearray(shadow.read_bytes() if shadow.exists() else b"").ljust(offset, b"\0")
            durable[offset : offset + len(data)] = data
            _replace(shadow, bytes(durable))
        return len(data)

    def _sync(self, file: int, real: Callable[[int], None]) -> None:
        if not self._has_power():
            return
        real(file)
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        if path == self.folder:
            _replace(self.shadow / NAMES, json.dumps(names_in(self.folder)).encode())
        elif path.parent == self.folder and stat.S_ISREG(os.fstat(file).st_mode):
            size = os.fstat(file).st_size
            _replace(self.shadow / f"{os.fstat(file).st_ino}", _read(path, size))


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _replace(path: Path, data: bytes) -> None:
    """At once, since this process may be killed."""
    new = path.with_name(f"{path.name}.new-{os.getpid()}")
    new.write_bytes(data)
    new.replace(path)


def names_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir() if path.is_file()}


def lose_power(folder: Path, shadow: Path, rng: random.Random) -> None:
    """Make of the folder what the disk could have left; nobody may use it meanwhile."""
    now = names_in(folder)
    synced: dict[str, int] = json.loads((shadow / NAMES).read_text()) if (shadow / NAMES).exists() else {}
    present = {inode: (folder / name).read_bytes() for name, inode in now.items()}
    left = {}
    for name, inode in (now if rng.random() < 0.5 else synced).items():
        path = shadow / f"{inode}"
        durable = path.read_bytes() if path.exists() else b""
        left[name] = mixed(durable, present.get(inode, durable), rng)
    for name in now:
        (folder / name).unlink()
    for name, data in left.items():
        (folder / name).write_bytes(data)
    for path in shadow.iterdir():
        path.unlink()
    # What is there now is all that there is.
    _replace(shadow / NAMES, json.dumps(names_in(folder)).encode())
    for name in left:
        _replace(shadow / f"{(folder / name).stat().st_ino}", left[name])


def mixed(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Of each sector the old or the new content."""
    size = rng.choice((len(old), len(new)))
    share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    data = bytearray(old[:size].ljust(size, b"\0"))
    for start in range(0, size, SECTOR_BYTES):
        if rng.random() < share:
            piece = new[start : min(start + SECTOR_BYTES, size)]
            data[start : start + len(piece)] = piece
    return bytes(data)
