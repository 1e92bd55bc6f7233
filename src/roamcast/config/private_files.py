"""Files that hold secrets: keys, shared secrets, password hashes.

A file that every user of the machine can read is refused: a warning would be overlooked while the secret is
exposed, and one command corrects the mode. Group permissions are not checked: operators share a key with a
group to give it to several services.
"""

from __future__ import annotations

import stat
from pathlib import Path

from roamcast.errors import InputError

SECRET_BYTES_MAX = 65_536


def check_readable(path: str, key: str) -> None:
    """Refuse a file that does not exist, or that this process cannot read."""
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InputError(f"{key} = {path}: cannot be read ({error.strerror}); name a file") from None


def check_private(path: str, key: str) -> None:
    """Refuse a file that is not readable, and one that any user of the machine can read or write."""
    check_readable(path, key)
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        what = "read" if mode & stat.S_IROTH else "write"
        raise InputError(
            f"{key} = {path}: every user of this machine can {what} it (mode {mode:o}); run: chmod o= {path}"
        )


def read_secret(path: str, key: str) -> str:
    """Return the secret in a file, without surrounding white space."""
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
