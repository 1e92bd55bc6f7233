"""Files that hold secrets: keys, shared secrets, password hashes.

One that every user of the machine can read is refused, not warned about: a warning scrolls by, the
secret is out from the first day, and the remedy is one command. Groups are the operator's business:
sharing a key with a group is how several services are given one.
"""

from __future__ import annotations

import stat
from pathlib import Path

from roamcast.errors import InputError

SECRET_BYTES_MAX = 65_536


def check_readable(path: str, key: str) -> None:
    """Refuse a file that is not there, or that this process cannot read."""
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InputError(f"{key} = {path}: cannot be read ({error.strerror}); name a file") from None


def check_private(path: str, key: str) -> None:
    """The same, and refuse one that any user of the machine can read or write."""
    check_readable(path, key)
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        what = "read" if mode & stat.S_IROTH else "write"
        raise InputError(
            f"{key} = {path}: every user of this machine can {what} it (mode {mode:o}); run: chmod o= {path}"
        )


def read_secret(path: str, key: str) -> str:
    """The secret in a file, without white space around it."""
    check_private(path, key)
    with open(path, "rb") as file:
        content = file.read(SECRET_BYTES_MAX + 1)
    try:
        secret = content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise InputError(f"{key} = {path}: holds bytes that are no UTF-8 text") from None
    if not secret or len(content) > SECRET_BYTES_MAX:
        raise InputError(f"{key} = {path}: must hold a text of 1 to {SECRET_BYTES_MAX} bytes")
    return secret
