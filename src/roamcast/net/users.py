"""The file of users: a name and an argon2 hash on each line, kept so that only the broker can read it.

A user who logs in by SCRAM has a SCRAM verifier after the hash: `NAME:ARGON2:SCRAM-SHA-256$…`.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from roamcast.config.private_files import check_private
from roamcast.errors import InputError
from roamcast.mqtt.scram import SALT_BYTES, ScramVerifier
from roamcast.mqtt.server.access import ANONYMOUS

if TYPE_CHECKING:
    from argon2 import PasswordHasher

USERS_BYTES_MAX = 67_108_864
PASSWORD_BYTES_MAX = 65_535
"""The longest password that MQTT can carry."""

NAME_CHARACTERS_MAX = 128
_NAME = re.compile(r"[^\x00-\x1f\x7f:/+#*]+")

HEADER = "# Users of a Roamcast broker, written by `roamcast user`: NAME:ARGON2, or NAME:ARGON2:SCRAM.\n"


def check_name(name: str) -> str:
    """Return the name if users may have it: it must be safe in topics (%u) and unambiguous in rules."""
    fits = _NAME.fullmatch(name) and len(name) <= NAME_CHARACTERS_MAX and not name.startswith("$")
    if not fits or name != name.strip() or name == ANONYMOUS:
        raise InputError(
            f"user {name[:NAME_CHARACTERS_MAX]!r}: valid is a name of 1 to {NAME_CHARACTERS_MAX} characters "
            f"without : / + # * or control characters, without $ in front or spaces around, "
            f"and not {ANONYMOUS!r}"
        )
    return name


@cache
def hasher() -> PasswordHasher:
    from argon2 import PasswordHasher, Type  # A broker without users does not load it.

    # OWASP's first choice for argon2id. More memory would protect a stolen file better, but after a restart
    # every client of a site proves who it is within seconds, on the cores that serve them.
    return PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1, type=Type.ID)


def hash_password(password: bytes) -> str:
    if not 1 <= len(password) <= PASSWORD_BYTES_MAX:
        raise InputError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes, this one has {len(password)}")
    return hasher().hash(password)


def hash_of(stored: str) -> str:
    """Return the argon2 hash of a user."""
    return stored.partition(":")[0]


def verifier_of(stored: str) -> ScramVerifier | None:
    """Return the SCRAM verifier of a user, if there is one."""
    text = stored.partition(":")[2]
    return ScramVerifier.read(text) if text else None


def with_scram(stored: str, password: bytes) -> str:
    """Return the stored text for a user who may also log in by SCRAM."""
    return f"{stored}:{ScramVerifier.of(password, secrets.token_bytes(SALT_BYTES)).text}"


def read_users(path: str, key: str = "access.users") -> dict[str, str]:
    """Read names and password hashes; an InputError names the line that is wrong."""
    from argon2 import extract_parameters
    from argon2.exceptions import InvalidHash

    check_private(path, key)
    with open(path, "rb") as file:
        content = file.read(USERS_BYTES_MAX + 1)
    if len(content) > USERS_BYTES_MAX:
        raise InputError(f"{key} = {path}: larger than {USERS_BYTES_MAX} bytes; this is not a file of users")
    users: dict[str, str] = {}
    for number, raw in enumerate(content.split(b"\n"), start=1):
        try:
            line = raw.decode("utf-8").strip()
            if line and not line.startswith("#"):
                name, _, digest = line.partition(":")
                extract_parameters(hash_of(digest))
                verifier_of(digest)
                if check_name(name) in users:
                    raise InputError(f"user {name!r} is there twice")
                users[name] = digest
        except (UnicodeDecodeError, InvalidHash):
            # The line itself is not shown: it may hold a secret.
            raise InputError(f"{key} = {path}, line {number}: valid is NAME:HASH, hashed by argon2") from None
        except InputError as error:
            raise InputError(f"{key} = {path}, line {number}: {error}") from None
    return users


@contextmanager
def changing_users(path: str) -> Iterator[dict[str, str]]:
    """Yield the users for the block to change, and write the file at once when the block ends without an
    error.

    Concurrent changes wait for each other. Readers see the old file or the new one.
    """
    target = Path(path).resolve()  # The target of a symbolic link is replaced, not the link.
    try:
        folder = os.open(target.parent, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{path}: its folder cannot be used ({error.strerror})") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        users = read_users(path, "--file") if target.exists() else {}
        before = dict(users)
        yield users
        if users != before:
            _write(target, users)
            os.fsync(folder)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        os.close(folder)


def _write(target: Path, users: dict[str, str]) -> None:
    import tempfile  # With what it loads, half a megabyte that a broker does not use.

    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(HEADER)
            file.writelines(f"{user}:{users[user]}\n" for user in sorted(users))
            file.flush()
            os.fchmod(descriptor, 0o600)
            if target.exists():
                # A change by an administrator must not take the file from the broker's user.
                known = target.stat()
                os.fchmod(descriptor, stat.S_IMODE(known.st_mode) & 0o660)
                os.fchown(descriptor, known.st_uid, known.st_gid)
            os.fsync(descriptor)
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
