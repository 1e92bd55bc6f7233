"""The interface between a mobility proxy and a foreign broker, and the registry of adapters.

An adapter is the service interface of Caporuscio et al. section 3.1: one per process and foreign broker, used
by proxies for their client handlers and by the client library for the client itself. It contains no protocol:
callers build pings, buffers and time-outs from publish and subscribe.

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
    """Raised if a foreign broker refuses something or cannot be reached; the text says what and why, in
    one line."""


class ForeignMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as a foreign broker carries it."""

    topic: str
    body: bytes
    headers: dict[str, str] = {}
    """Text headers that the foreign broker carries beside the body; without IDENTITY_HEADER."""
    identity: str = ""
    """Identity that all copies of one message share, and no other message has. publish puts it into
    IDENTITY_HEADER, if the broker carries headers. When receiving, it comes from that header, or else it
    is the broker's own message id if all subscribers see the same one, or else it is empty."""
    carried: bytes = b""
    """Further information for components that understand this kind of broker: see mqtt_notes.py."""


Receive = Callable[[ForeignMessage], None]
"""Called for each message. A proxy passes a `ReceiveMany`, which is called once for all messages at hand:
see base.give."""


class ReceiveMany(Protocol):
    def __call__(self, message: ForeignMessage) -> None:
        """Receive one message."""

    def many(self, messages: Sequence[ForeignMessage]) -> None:
        """Receive several messages in order: they are written to the disk together before this returns."""


class Adapter(Protocol):
    """Connects a mobility proxy with a broker that does not support mobility.

    All methods raise only AdapterError when the foreign broker fails or refuses. After a call of `on_lost`
    every method fails until `open` is called again, and then every subscription must be renewed; `subscribe`
    is idempotent.
    """

    can_suspend: bool
    """True if the foreign broker keeps a subscription and its messages while nobody listens: then a
    subscription renewed under its old name continues where it stopped."""

    async def open(self) -> None:
        """Connect to the foreign broker; return when connected."""

    async def subscribe(self, name: str, filter: str, receive: Receive) -> None:
        """Add a subscription of the handler `name`; return when the foreign broker has it.

        The filter is in the foreign broker's own language. `receive` is called once for each message and
        filter that the foreign broker delivers, in its order, and does not block. If messages are
        acknowledged to the foreign broker, that happens after `receive` has returned.
        """

    async def unsubscribe(self, name: str, filter: str) -> None:
        """End a subscription; all its messages sent by the foreign broker have been given to `receive`
        when this returns. Ending a name's last filter also deletes what the broker keeps under that name.
        With `can_suspend` this also works for subscriptions of another process; unknown ones are no error."""

    async def suspend(self, name: str) -> None:
        """Stop listening for a name; the foreign broker keeps its subscriptions (`can_suspend`)."""

    async def resume(self, name: str, filters: Sequence[str], receive: Receive) -> bool:
        """Listen again under a name that this or another process has suspended: kept messages come first,
        then new ones. Return False if the foreign broker had nothing under this name: then the filters are
        subscribed, but messages may be lost."""

    async def publish(self, message: ForeignMessage) -> None:
        """Publish; return when the foreign broker has acknowledged, if it does so. Order of calls is kept."""

    async def close(self) -> None:
        """Disconnect from the foreign broker. It keeps subscriptions that can be suspended; all others
        end."""

    def on_lost(self, call: Callable[[str], None]) -> None:
        """Set a callback for the loss of the connection, called with the reason in one line. Not called
        after `close`."""

    def topic_of(self, levels: Sequence[str]) -> str:
        """Return a topic made of levels (letters, digits, '-') that is also a filter for exactly itself:
        a/b or a.b."""


Factory = Callable[..., Adapter]
_registered: dict[str, Factory] = {}


def register(kind: str, factory: Factory) -> None:
    """Register a kind of adapter in this process; the factory takes the URL and keyword options."""
    _registered[kind] = factory


def known_kinds() -> list[str]:
    found = {entry.name for entry in entry_points(group=ENTRY_POINTS)}
    return sorted({*KINDS, *_registered} | found)


def open_adapter(kind: str, url: str, **options: Any) -> Adapter:
    """Create an adapter of this kind for the foreign broker at this URL, not yet open; raise InputError if
    there is none."""
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
