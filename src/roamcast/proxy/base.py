"""What adapters have in common: who is told of a loss, how topics are written, what a URL may hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from roamcast.errors import InputError
from roamcast.proxy.adapter import IDENTITY_HEADER, AdapterError, ForeignMessage


class ForeignAdapter:
    """The part of an adapter that is the same for every foreign broker."""

    can_suspend = False
    separator = "/"
    """Between the levels of a topic."""

    def __init__(self) -> None:
        self._lost: Callable[[str], None] | None = None
        self._is_open = False

    def on_lost(self, call: Callable[[str], None]) -> None:
        self._lost = call

    def topic_of(self, levels: Sequence[str]) -> str:
        return self.separator.join(levels)

    def check_open(self) -> None:
        if not self._is_open:
            raise AdapterError("not connected to the foreign broker")

    def lose(self, reason: str) -> None:
        """The foreign broker went away: say so, once."""
        if self._is_open:
            self._is_open = False
            if self._lost is not None:
                self._lost(reason)


class Place(NamedTuple):
    """Where a foreign broker is, and as whom to go there."""

    host: str
    port: int
    user: str | None
    password: str | None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str, scheme: str, port: int) -> Place:
    """A URL of a foreign broker: SCHEME://[USER:PASSWORD@]HOST[:PORT]."""
    try:
        parts = urlsplit(url)
        found = (parts.hostname, parts.port or port)
    except ValueError:
        found = (None, port)
    if found[0] is None or parts.scheme != scheme:
        raise InputError(f"broker URL {url!r}: valid is {scheme}://[USER:PASSWORD@]HOST[:PORT]")
    user, password = (unquote(text) if text else None for text in (parts.username, parts.password))
    return Place(found[0], found[1], user, password)


def with_identity(message: ForeignMessage) -> dict[str, str]:
    """The headers that a message travels with."""
    if not message.identity:
        return message.headers
    return {**message.headers, IDENTITY_HEADER: message.identity}


def without_identity(topic: str, body: bytes, headers: dict[str, str], own: str = "") -> ForeignMessage:
    """What came from a foreign broker; `own` is its own message id, for messages without an identity."""
    identity = headers.pop(IDENTITY_HEADER, "") or own
    return ForeignMessage(topic, body, headers, identity)
