"""What a mobility proxy needs of a foreign broker, and where the adapters for each kind are found.

An adapter is the service interface of Caporuscio et al. section 3.1: one per process and foreign broker,
used by proxies for their client handlers and by the client library for the client itself. It holds no
protocol: pings, buffers and time-outs are made by others out of publish and subscribe.

To add a kind: write a class with the methods below in a module of its own, and name it in `KINDS`, or
in the entry point group `roamcast.adapters` of another package, or give it to `register`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol

import msgspec

from roamcast.errors import InputError, did_you_mean

IDENTITY_HEADER = "roamcast-identity"
"""The header (user property, message header) in which an identity travels through a foreign broker."""

KINDS: dict[str, str] = {
    "activemq": "roamcast.proxy.activemq:ActiveMqAdapter",
    "mosquitto": "roamcast.proxy.mosquitto:MosquittoAdapter",
    "nats": "roamcast.proxy.nats:NatsAdapter",
    "rabbitmq": "roamcast.proxy.rabbitmq:RabbitMqAdapter",
    "roamcast": "roamcast.proxy.roamcast_broker:RoamcastAdapter",
}
ENTRY_POINTS = "roamcast.adapters"


class AdapterError(Exception):
    """A foreign broker refused something or cannot be reached; the text is one line: what and why."""


class ForeignMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as a foreign broker carries it."""

    topic: str
    body: bytes
    headers: dict[str, str] = {}
    """What the foreign broker carries beside the body, as text; without IDENTITY_HEADER."""
    identity: str = ""
    """The same for all copies of one message and for no other one. In publish: put it into
    IDENTITY_HEADER, where the broker carries headers. In receive: from there, or else the broker's own
    message id if it has one that all subscribers see alike, or else empty."""
    carried: bytes = b""
    """What else there is to know of it, for whoever understands this kind of broker: see mqtt_notes.py."""


Receive = Callable[[ForeignMessage], None]
"""Of a proxy it is a `ReceiveMany`, which is called once for all that is there: see base.give."""


class ReceiveMany(Protocol):
    def __call__(self, message: ForeignMessage) -> None:
        """One message."""

    def many(self, messages: Sequence[ForeignMessage]) -> None:
        """Several, in order: they are written to the disk together, before this returns."""


class Adapter(Protocol):
    """What a mobility proxy needs of a broker that knows nothing of mobility.

    All methods raise AdapterError, and nothing else, for what the foreign broker does not do. After
    `on_lost` was called everything fails until `open` is called again, and then every subscription must
    be made again; `subscribe` is idempotent.
    """

    can_suspend: bool
    """Whether the foreign broker keeps a subscription, and what comes for it, while nobody listens:
    then a subscription made again under its old name continues where it was."""

    async def open(self) -> None:
        """Be connected to the foreign broker when this returns."""

    async def subscribe(self, name: str, filter: str, receive: Receive) -> None:
        """Add a subscription of the handler `name`; returns when the foreign broker has it.

        The filter is in the foreign broker's own language. `receive` is called once for each message
        and filter that the foreign broker delivers, in its order, and does not block. Where messages
        are acknowledged to the foreign broker, that happens after `receive` has returned.
        """

    async def unsubscribe(self, name: str, filter: str) -> None:
        """End it; everything that the foreign broker had sent for it was given to `receive` before this
        returns. Ending a name's last filter also ends what the broker keeps under that name. Also for
        a name and filter that another process subscribed, where `can_suspend`; unknown ones are no error."""

    async def suspend(self, name: str) -> None:
        """Stop listening for a name and let the foreign broker keep its subscriptions (`can_suspend`)."""

    async def resume(self, name: str, filters: Sequence[str], receive: Receive) -> bool:
        """Listen again under a name that this or another process has suspended: what was kept comes first,
        then what comes. False if the foreign broker says that it had nothing under this name any more: then
        the filters are subscribed, but something may be lost."""

    async def publish(self, message: ForeignMessage) -> None:
        """Returns when the foreign broker has it, where it acknowledges. In order of the calls."""

    async def close(self) -> None:
        """Leave the foreign broker. What can be suspended is kept there, everything else ends."""

    def on_lost(self, call: Callable[[str], None]) -> None:
        """Call this with the reason, one line, when the foreign broker went away. Not after `close`."""

    def topic_of(self, levels: Sequence[str]) -> str:
        """A topic made of levels (letters, digits, '-'), which is a filter for exactly itself: a/b or a.b."""


Factory = Callable[..., Adapter]
_registered: dict[str, Factory] = {}


def register(kind: str, factory: Factory) -> None:
    """Make a kind of adapter known in this process; the factory takes the URL and keyword options."""
    _registered[kind] = factory


def known_kinds() -> list[str]:
    found = {entry.name for entry in entry_points(group=ENTRY_POINTS)}
    return sorted({*KINDS, *_registered} | found)


def open_adapter(kind: str, url: str, **options: Any) -> Adapter:
    """An adapter of this kind for the foreign broker there, not yet open; InputError if there is none."""
    return _factory_of(kind)(url, **options)


def _factory_of(kind: str) -> Factory:
    if kind in _registered:
        return _registered[kind]
    if kind in KINDS:
        module, _, name = KINDS[kind].partition(":")
        try:
            factory: Factory = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise InputError(
                f"broker kind {kind!r}: {error.name} is missing; run: pip install 'roamcast[proxy]'"
            ) from None
        return factory
    for entry in entry_points(group=ENTRY_POINTS, name=kind):
        loaded: Factory = entry.load()
        return loaded
    hint = did_you_mean(kind, known_kinds()) or f"known are {', '.join(known_kinds())}"
    raise InputError(f"broker kind {kind!r}: {hint}")
