"""Client handlers and their buffers: the persistent state of a proxy, as entries of a journal. Pure.

Every change is an entry that is applied here and journalled by the driver; applying the entries since the
last snapshot in order gives the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.messages import channel_name

SEEN_MAX = 100_000
"""Identities remembered for each handler."""
GONE_MAX = 10_000
"""Number of ended handlers whose clients can still be told the reason."""
OVERHEAD_BYTES = 64
"""Bytes counted for each message beside its content, so that empty messages are limited, too."""

Key = tuple[str, str]
"""The client and its ticket."""


class _Entry(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Opened(_Entry, frozen=True):
    id: int
    client: str
    owner: str
    ticket: str
    filters: dict[str, str]
    """Filters, each with a note that only the owner of the handler understands."""
    lease_s: float
    expires: float
    """Expiry if nobody downloads the handler; 0 for never."""
    bytes_max: int
    is_unique: bool
    is_resident: bool
    """True if the handler belongs to a session of the MQTT endpoint, for which it always listens."""
    known: tuple[str, ...] = ()
    """Identities of messages received at the client's last site."""
    copy_of: tuple[str, str] | None = None
    """For a copy ahead of the client: site and ticket of the original handler (ahead.py)."""


class Kept(_Entry, frozen=True):
    """A message that the foreign broker delivered."""

    id: int
    message: ForeignMessage


class Adopted(_Entry, frozen=True):
    """Messages from the handler at the client's last site: they precede messages received here."""

    id: int
    number: int
    """Number of the last of these messages at that site: no message is adopted twice."""
    messages: tuple[ForeignMessage, ...]


class Dropped(_Entry, frozen=True):
    id: int
    count: int


class Taken(_Entry, frozen=True):
    id: int
    number: int


class Frozen(_Entry, frozen=True):
    """The handler no longer listens, and only waits to be downloaded."""

    id: int


class Changed(_Entry, frozen=True):
    id: int
    filters: dict[str, str]
    expires: float
    source: tuple[str, str] | None
    """The site and ticket from which the handler is still being filled."""
    is_promised: bool = False
    """True if another site was told about the handler, and will fetch it unless that site fails."""


class Passing(_Entry, frozen=True):
    """A QoS 2 publish of the client that is forwarded to the foreign broker."""

    id: int
    packet_id: int
    identity: str
    """Identity, the same for repeated forwarding; empty: the client has released the publish."""
    is_passed: bool
    """True if the foreign broker has it."""


class Closed(_Entry, frozen=True):
    id: int
    why: Literal["taken", "expired", "refused", "ended"]


Entry = Opened | Kept | Adopted | Dropped | Taken | Frozen | Changed | Passing | Closed


def size_of(message: ForeignMessage) -> int:
    headers = sum(len(name) + len(value) for name, value in message.headers.items())
    beside = headers + len(message.identity) + len(message.carried)
    return len(message.topic) + len(message.body) + beside + OVERHEAD_BYTES


class Handler:
    """Represents one client at this site."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.id = opened.id
        self.filters = dict(opened.filters)
        self.expires = opened.expires
        self.first = 1
        """Number of the first message that is still here."""
        self.ready: deque[ForeignMessage] = deque()
        """Messages that may be sent to the client, in this order."""
        self.later: deque[ForeignMessage] = deque()
        """Messages received here while an earlier site still has to send the messages before them."""
        self.bytes = 0
        self.dropped = 0
        self.is_frozen = False
        self.is_promised = False
        self.source: tuple[str, str] | None = opened.copy_of
        self.adopted = 0
        """Number of the last adopted message."""
        self.adopted_identities: dict[str, None] = {}
        """Identities of adopted messages, including those that the client already has: their copies are
        left out of `later`."""
        self.seen = dict.fromkeys(opened.known)
        self.passing: dict[int, tuple[str, bool]] = {}
        """QoS 2 publishes of the client that are not released, by packet id: identity, and whether the
        foreign broker has them."""

    @property
    def client(self) -> str:
        return self.opened.client

    @property
    def key(self) -> Key:
        return self.opened.client, self.opened.ticket

    @property
    def last(self) -> int:
        return self.first + len(self.ready) - 1

    @property
    def name(self) -> str:
        """Name of the handler at the foreign broker: the same after a restart, a different one for each
        stay."""
        return channel_name(*self.key)

    def knows(self, message: ForeignMessage) -> bool:
        return self.opened.is_unique and message.identity != "" and message.identity in self.seen

    def slice(self, first: int, bytes_max: int, count_max: int) -> list[ForeignMessage]:
        """Return messages from a number on: as many as fit, but at least one if there is one."""
        chosen: list[ForeignMessage] = []
        size = 0
        start = first - self.first
        for place in range(start, min(len(self.ready), start + count_max)):
            message = self.ready[place]
            size += size_of(message)
            if chosen and size > bytes_max:
                break
            chosen.append(message)
        return chosen

    # --- entries ---

    def keep(self, message: ForeignMessage) -> None:
        self._remember(message)
        (self.ready if self.source is None else self.later).append(message)
        self.bytes += size_of(message)

    def adopt(self, number: int, messages: Iterable[ForeignMessage]) -> None:
        self.adopted = number
        for message in messages:
            self._remember(message)
            self.adopted_identities[message.identity] = None
            self.ready.append(message)
            self.bytes += size_of(message)

    def take(self, number: int) -> None:
        while self.first <= number and self.ready:
            self.bytes -= size_of(self.ready.popleft())
            self.first += 1

    def change(self, entry: Changed) -> None:
        self.filters, self.expires = dict(entry.filters), entry.expires
        self.is_promised = entry.is_promised
        if self.source is not None and entry.source is None:
            for message in self.later:
                if self.opened.is_unique and message.identity and message.identity in self.adopted_identities:
                    self.bytes -= size_of(message)
                else:
                    self.ready.append(message)
            self.later.clear()
            self.adopted = 0
            self.adopted_identities.clear()
        self.source = entry.source

    def pass_on(self, entry: Passing) -> None:
        if entry.identity:
            self.passing[entry.packet_id] = entry.identity, entry.is_passed
        else:
            self.passing.pop(entry.packet_id, None)

    def _remember(self, message: ForeignMessage) -> None:
        if message.identity and self.opened.is_unique:
            self.seen[message.identity] = None
            if len(self.seen) > SEEN_MAX:
                del self.seen[next(iter(self.seen))]


class _State(msgspec.Struct, frozen=True, array_like=True):
    """A handler in a snapshot."""

    opened: Opened
    filters: dict[str, str]
    expires: float
    first: int
    ready: Sequence[ForeignMessage]
    later: Sequence[ForeignMessage]
    dropped: int
    is_frozen: bool
    is_promised: bool
    source: tuple[str, str] | None
    adopted: int
    adopted_identities: list[str]
    seen: list[str]
    passing: dict[int, tuple[str, bool]] = {}


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    next_id: int
    handlers: list[_State]
    gone: list[tuple[str, str, str]]


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)
_decode_snapshot = msgspec.msgpack.Decoder(_Snapshot).decode


def encode_entry(entry: Entry) -> bytes:
    return _encode(entry)


def decode_entry(data: bytes) -> Entry:
    return _decoder.decode(data)


class Buffers:
    """All handlers of a proxy."""

    def __init__(self) -> None:
        self.next_id = 1
        self.by_id: dict[int, Handler] = {}
        self.by_key: dict[Key, Handler] = {}
        self.by_name: dict[str, Handler] = {}
        self.by_client: dict[str, dict[int, Handler]] = {}
        self.gone: dict[Key, str] = {}
        self.bytes = 0

    def apply(self, entry: Entry) -> None:
        if isinstance(entry, Opened):
            self._open(Handler(entry))
            return
        handler = self.by_id[entry.id]
        before = handler.bytes
        match entry:
            case Kept(message=message):
                handler.keep(message)
            case Adopted(number=number, messages=messages):
                handler.adopt(number, messages)
            case Dropped(count=count):
                handler.dropped += count
            case Taken(number=number):
                handler.take(number)
            case Frozen():
                handler.is_frozen = True
            case Changed():
                handler.change(entry)
            case Passing():
                handler.pass_on(entry)
            case Closed(why=why):
                self._close(handler, why)
        self.bytes += handler.bytes - before

    def _open(self, handler: Handler) -> None:
        self.next_id = max(self.next_id, handler.id + 1)
        self.by_id[handler.id] = self.by_key[handler.key] = self.by_name[handler.name] = handler
        self.by_client.setdefault(handler.client, {})[handler.id] = handler
        self.gone.pop(handler.key, None)

    def _close(self, handler: Handler, why: str) -> None:
        del self.by_id[handler.id], self.by_key[handler.key], self.by_name[handler.name]
        of_client = self.by_client[handler.client]
        del of_client[handler.id]
        if not of_client:
            del self.by_client[handler.client]
        handler.take(handler.last)
        handler.later.clear()
        handler.bytes = 0
        self.gone[handler.key] = why
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]

    # --- snapshots ---

    def freeze(self) -> bytes:
        states = [
            _State(
                one.opened, one.filters, one.expires, one.first, list(one.ready), list(one.later),
                one.dropped, one.is_frozen, one.is_promised, one.source, one.adopted,
                list(one.adopted_identities), list(one.seen), one.passing,
            )
            for one in self.by_id.values()
        ]  # fmt: skip
        gone = [(client, ticket, why) for (client, ticket), why in self.gone.items()]
        return _encode(_Snapshot(self.next_id, states, gone))

    @classmethod
    def thaw(cls, data: bytes | memoryview) -> Buffers:
        snapshot = _decode_snapshot(data)
        buffers = cls()
        for state in snapshot.handlers:
            handler = Handler(state.opened)
            handler.filters, handler.expires, handler.first = state.filters, state.expires, state.first
            handler.ready.extend(state.ready)
            handler.later.extend(state.later)
            handler.dropped, handler.is_frozen, handler.source = state.dropped, state.is_frozen, state.source
            handler.is_promised, handler.adopted = state.is_promised, state.adopted
            handler.adopted_identities = dict.fromkeys(state.adopted_identities)
            handler.seen, handler.passing = dict.fromkeys(state.seen), dict(state.passing)
            handler.bytes = sum(map(size_of, (*handler.ready, *handler.later)))
            buffers._open(handler)
            buffers.bytes += handler.bytes
        buffers.next_id = snapshot.next_id
        buffers.gone = {(client, ticket): why for client, ticket, why in snapshot.gone}
        return buffers
