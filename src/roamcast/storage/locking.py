"""The lock of a journal's folder: only one process at a time holds it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from roamcast.errors import InputError
from roamcast.storage.segments import sync_folder


def lock_folder(folder: Path) -> int:
    """Create the folder if missing, private to its owner, and lock it until the file is closed."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True)
        sync_folder(folder.parent)
    folder.chmod(0o700)
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(file, 20, 0).decode(errors="replace").strip() or "another process"
        os.close(file)
        raise InputError(
            f"journal folder {folder}: in use by process {owner}; stop that, or name another folder"
        ) from None
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file
