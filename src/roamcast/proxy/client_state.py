"""What a client must know again after a restart of its own, and how that is written down."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from roamcast.errors import InputError


class Suspended(msgspec.Struct, frozen=True):
    """A channel at the foreign broker itself, which keeps what comes while nobody listens."""

    filters: tuple[str, ...]
    kind: str
    url: str
    """URL of the foreign broker, for a client that returns and finds no proxy."""


class Source(msgspec.Struct, frozen=True):
    """Something that is held for this client: by a handler of a proxy, or by the foreign broker."""

    site: str
    ticket: str
    suspended: Suspended | None = None
    """None: a handler has it."""


class ClientState(msgspec.Struct, frozen=True):
    filters: tuple[str, ...]
    sources: tuple[Source, ...]
    """In the order of the client's stays."""
    excluded: tuple[str, ...] = ()
    """Filters for which nothing is kept while the client is away."""


def read_state(path: Path) -> ClientState:
    """What was written last; nothing if there is no such file."""
    if not path.exists():
        return ClientState((), ())
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClientState)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path}: is no state of a client ({error})") from None


def write_state(path: Path, state: ClientState) -> None:
    """Whole or not at all; tickets are secrets, so nobody else may read it."""
    draft = path.with_name(f"{path.name}.tmp")
    with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(msgspec.json.encode(state))
    os.replace(draft, path)
