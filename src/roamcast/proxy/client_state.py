"""The persistent state of a client, and how it is written."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from roamcast.errors import InputError


class Suspended(msgspec.Struct, frozen=True):
    """A channel at the foreign broker, which keeps its messages while nobody listens."""

    filters: tuple[str, ...]
    kind: str
    url: str
    """URL of the foreign broker, for a client that returns and finds no proxy."""


class Source(msgspec.Struct, frozen=True):
    """Messages held for this client by a handler of a proxy, or by the foreign broker."""

    site: str
    ticket: str
    suspended: Suspended | None = None
    """The suspended channel; None if a handler holds the messages."""


class ClientState(msgspec.Struct, frozen=True):
    filters: tuple[str, ...]
    sources: tuple[Source, ...]
    """Sources in the order of the client's stays."""
    excluded: tuple[str, ...] = ()
    """Filters for which no messages are kept while the client is away."""


def read_state(path: Path) -> ClientState:
    """Read the last state; an empty one if there is no file."""
    if not path.exists():
        return ClientState((), ())
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClientState)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path}: is no state of a client ({error})") from None


def write_state(path: Path, state: ClientState) -> None:
    """Write the state atomically; tickets are secrets, so no other user may read it."""
    draft = path.with_name(f"{path.name}.tmp")
    with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(msgspec.json.encode(state))
    os.replace(draft, path)
