"""Unix sockets, for what only processes of one user on one machine say to each other."""

from __future__ import annotations

import os
import socket
from pathlib import Path

SCHEME = "unix:"
"""Begins the address of a peer that is reached over a unix socket; the rest is its path."""
PATH_BYTES_MAX = 107


def path_of(address: str) -> str:
    """Where a peer with such an address listens; "" for an address of a network."""
    return short(Path(address.removeprefix(SCHEME))) if address.startswith(SCHEME) else ""


def bound(path: Path, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A socket that only this user can connect to. OSError if it cannot be made."""
    made = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        made.bind(short(path))
    except OSError:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


def short(path: Path) -> str:
    """A unix socket's path must be short; the way there from here may be, where the whole path is not."""
    whole = str(path.absolute())
    return whole if len(os.fsencode(whole)) <= PATH_BYTES_MAX else os.path.relpath(path)
