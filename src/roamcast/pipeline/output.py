"""Results in a folder: each part is replaced in one piece, or not at all.

Everything is first written beside its place, under a name that readers pass
over, and then changes places with what was there. Whoever looks meanwhile sees
the old part or the new one; whatever goes wrong before leaves no trace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roamcast.errors import InputError

UNFINISHED = ".unfinished"
OLD = ".old"
_HERE, _EXCHANGE = -100, 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """A folder within `out` for what is being made; it is gone afterwards, whatever happened."""
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
    """Put every part (file or folder) of `made` into `out`, one by one; what else is there stays."""
    out.mkdir(parents=True, exist_ok=True)
    names = sorted(entry.name for entry in made.iterdir() if not entry.name.startswith((".", "_")))
    for name in names:
        replace_part(made / name, out / name)
    return names


def replace_part(new: Path, place: Path) -> None:
    """Put a file or folder where another may be."""
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
    """Let two folders change places at once; False where that is not possible."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))
