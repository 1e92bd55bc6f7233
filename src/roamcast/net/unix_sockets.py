"""Unix sockets, for processes of one user on one machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

SCHEME = "unix:"
"""Prefix of the address of a peer that is reached over a unix socket; the rest is its path."""
PATH_BYTES_MAX = 107


def path_of(address: str) -> str:
    """Return the path in such an address; "" for a network address."""
    return short(Path(address.removeprefix(SCHEME))) if address.startswith(SCHEME) else ""


def bound(path: Path, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Create a socket that only this user can connect to; raise OSError if that fails."""
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
    """Return the path, relative if the whole path is too long for a unix socket."""
    whole = str(path.absolute())
    return whole if len(os.fsencode(whole)) <= PATH_BYTES_MAX else os.path.relpath(path)
