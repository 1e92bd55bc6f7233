"""Code shared by adapters: reporting a lost connection, handlers by name, topics, URLs, errors of
libraries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from roamcast.config.addresses import join_endpoint
from roamcast.errors import InputError
from roamcast.proxy.adapter import IDENTITY_HEADER, AdapterError, ForeignMessage, Receive

DAY_S = 86_400


class ForeignAdapter(ABC):
    """Base class of adapters."""

    can_suspend = False
    separator = "/"
    """The separator between the levels of a topic."""

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
        """Report once that the connection to the foreign broker is lost."""
        if self._is_open:
            self._is_open = False
            if self._lost is not None:
                self._lost(reason)

    @abstractmethod
    async def subscribe(self, name: str, filter: str, receive: Receive) -> None:
        """Subscribe, as described in Adapter."""

    async def resume(self, name: str, filters: Sequence[str], receive: Receive) -> bool:
        """Subscribe again. This suffices if a known name continues and the broker cannot tell whether it
        did."""
        for filter in filters:
            await self.subscribe(name, filter, receive)
        return True


class ForeignConnection(Protocol):
    async def close(self) -> None:
        """Disconnect; the foreign broker keeps its data."""


class ForeignHandler(Protocol):
    """The connection of one name that listens. All methods except `add` raise only AdapterError."""

    receivers: dict[str, Receive]
    """Receivers by filter."""

    def add(self, filter: str, receive: Receive) -> None: ...
    def remove(self, filter: str) -> None: ...
    async def subscribe(self, filter: str) -> None: ...
    async def unsubscribe(self, filter: str) -> None:
        """End a subscription of one name, as described in Adapter."""

    async def close(self, *, forget: bool = False) -> None:
        """Disconnect; `forget` also deletes what the foreign broker keeps under the name."""


Publisher = TypeVar("Publisher", bound=ForeignConnection)
Listener = TypeVar("Listener", bound=ForeignHandler)


class ConnectionsAdapter(ForeignAdapter, Generic[Publisher, Listener]):
    """An adapter with one connection to publish, and one for each name that listens."""

    can_suspend = True

    def __init__(self) -> None:
        super().__init__()
        self._publisher: Publisher | None = None
        self._handlers: dict[str, Listener] = {}

    @abstractmethod
    async def connect_publisher(self) -> Publisher:
        """Connect; AdapterError if that fails."""

    @abstractmethod
    def new_handler(self, name: str) -> Listener:
        """Create a handler without connecting it, so that two concurrent calls for a new name share it."""

    async def open(self) -> None:
        await self._end_all()
        self._publisher = await self.connect_publisher()
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        await self._end_all()

    async def _end_all(self) -> None:
        handlers, self._handlers = self._handlers, {}
        publisher, self._publisher = self._publisher, None
        for handler in handlers.values():
            await handler.close()
        if publisher is not None:
            await publisher.close()

    def handler_of(self, name: str) -> Listener:
        self.check_open()
        if name not in self._handlers:
            self._handlers[name] = self.new_handler(name)
        return self._handlers[name]

    async def subscribe(self, name: str, filter: str, receive: Receive) -> None:
        handler = self.handler_of(name)
        handler.add(filter, receive)
        try:
            await handler.subscribe(filter)
        except AdapterError:
            handler.remove(filter)
            raise

    async def unsubscribe(self, name: str, filter: str) -> None:
        handler = self.handler_of(name)
        await handler.unsubscribe(filter)
        handler.remove(filter)
        if not handler.receivers and self._handlers.pop(name, None) is not None:
            await handler.close(forget=True)

    async def suspend(self, name: str) -> None:
        self.check_open()
        handler = self._handlers.pop(name, None)
        if handler is not None:
            await handler.close()

    @property
    def open_publisher(self) -> Publisher:
        self.check_open()
        assert self._publisher is not None
        return self._publisher


@contextmanager
def adapted(what: object, *errors: type[Exception]) -> Iterator[None]:
    """Turn these errors of a library, and those of the network, into AdapterError."""
    caught: tuple[type[Exception], ...] = (*errors, OSError)
    try:
        yield
    except caught as error:
        text = str(error) or "no answer in time"
        raise AdapterError(f"{what}: {text}" if what else text) from None


class Place(NamedTuple):
    """Address of a foreign broker, and credentials."""

    host: str
    port: int
    user: str | None
    password: str | None

    def __str__(self) -> str:
        return join_endpoint(self.host, self.port)


def parse_url(url: str, scheme: str, port: int) -> Place:
    """Parse the URL of a foreign broker: SCHEME://[USER:PASSWORD@]HOST[:PORT]."""
    try:
        parts = urlsplit(url)
        found = (parts.hostname, parts.port or port)
    except ValueError:
        found = (None, port)
    if found[0] is None or parts.scheme != scheme:
        raise InputError(f"broker URL {url!r}: valid is {scheme}://[USER:PASSWORD@]HOST[:PORT]")
    user, password = (unquote(text) if text else None for text in (parts.username, parts.password))
    return Place(found[0], found[1], user, password)


def give(receive: Receive, messages: Sequence[ForeignMessage]) -> None:
    """Pass messages on together if the receiver accepts several; acknowledge them afterwards."""
    many = getattr(receive, "many", None)
    if many is not None:
        many(messages)
        return
    for message in messages:
        receive(message)


def with_identity(message: ForeignMessage) -> dict[str, str]:
    """Return the headers of a message with its identity added."""
    if not message.identity:
        return message.headers
    return {**message.headers, IDENTITY_HEADER: message.identity}


def without_identity(topic: str, body: bytes, headers: dict[str, str], own: str = "") -> ForeignMessage:
    """Build a message of a foreign broker; `own`, the broker's message id, is the identity if the message
    has none."""
    identity = headers.pop(IDENTITY_HEADER, "") or own
    return ForeignMessage(topic, body, headers, identity)
