"""Notifications, and the bursts in which they travel.

A notification is what a publisher publishes: typed attributes, an opaque body
and an identity `(publisher, incarnation, number)`. Nothing here makes an object
per notification: the unit that flows through `step` is the burst, one or more
consecutive notifications of one publisher that carry the same attributes and
therefore take the same route everywhere.

Attributes stay encoded. Their bytes are canonical (sorted by name, types kept
apart), so they double as the key under which a broker remembers a route, and a
broker decodes them only when it meets a key for the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from roamcast.errors import InputError
from roamcast.filters.filter import Attributes, Value

Cause = Literal["publish", "subscribe", "handoff", "transfer"]
"""Cause of a message. Overhead of mobility is the hops of the last two."""

Area = Literal["data", "subscriptions", "sessions", "groups", "overlay"]
"""Subject of a message. A link may be restricted to some areas (`broker/links/border.py`)."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, str | bool | int | float]).decode


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A message between brokers, which links can carry.

    Its tag on the wire is the name of its class, unless it declares another (`tag="..."`). A tag is for
    ever: a class that gets another name declares its old one. New fields come last and have defaults
    (`tests/compat/messages.json` holds what has been shipped).

    A class variable or a field `cause` says why it travels; `weight` is how many
    hops it counts for on one link: the number of notifications it carries (in its
    field `bursts`, if it has one), or 1.
    """

    first_version: ClassVar[int] = 1
    """The version of the link protocol that first had this message."""
    is_optional: ClassVar[bool] = False
    """True if a peer may skip it. Then its tag begins with "?", so that older builds know this."""
    area: ClassVar[Area] = "sessions"
    """Subject of the message; most messages are those of mobility protocols."""
    is_fleeting: ClassVar[bool] = False
    """True for a QoS 0 message: links carry it without a number, and it is not journalled."""

    @property
    def weight(self) -> int:
        bursts = getattr(self, "bursts", ())
        return (count_of(bursts) or 1) if bursts else 1

    @property
    def needs(self) -> int:
        """Lowest version of a link that carries this message; 0 if every link does."""
        return self.first_version if self.is_optional else 0


class ClientMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A message between a broker and a client of the plain front; no link carries it.

    `weight` is as that of a message between brokers.
    """

    @property
    def weight(self) -> int:
        return 1


class Command(msgspec.Struct, frozen=True):
    """A command of a broker to itself. It follows from an input, is never encoded, and no peer can send
    it."""


HELD_BYTES = 320
"""Memory of a notification besides its attributes, body and marks, if it is alone in its burst."""

PICKED = 0x28
"""Bits of the first byte of `Burst.marks`: its broker picked the burst for one client (see `is_picked`)."""


class Burst(Message, frozen=True, gc=False):
    """Consecutive notifications `number … number + count - 1` of one publisher."""

    publisher: str
    incarnation: int
    number: int
    attributes: bytes
    published_at: float = 0.0
    bodies: tuple[bytes, ...] = (b"",)
    count: int = 1
    marks: bytes = b""
    """Notes of the access side; the core transports them and reads only `PICKED`."""
    varied: tuple[bytes, ...] = ()
    """Attributes of each notification, if they differ; `attributes` is empty then."""

    cause = "publish"
    area: ClassVar[Area] = "data"

    @property
    def weight(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """Bytes of content, as buffers and links count them; cutting a burst does not change the sum."""
        if self.count == 1:
            return len(self.attributes) + len(self.bodies[0])
        size = self.count * len(self.attributes) if not self.varied else sum(map(len, self.varied))
        return size + sum(map(len, self.bodies))

    @property
    def held(self) -> int:
        """Memory of this burst, for quotas; cutting a burst does not change the sum."""
        if self.count == 1:
            return HELD_BYTES + len(self.attributes) + len(self.bodies[0]) + len(self.marks)
        return self.size + self.count * (HELD_BYTES + len(self.marks))

    @property
    def last(self) -> int:
        return self.number + self.count - 1

    @property
    def is_picked(self) -> bool:
        """True for a retained message, or one for a member of a shared group: not routed to its client.

        No other broker has it for the client, and it has no order relative to routed notifications. Its
        number is never compared with theirs to find duplicates.
        """
        return bool(self.marks) and bool(self.marks[0] & PICKED)

    def head(self, count: int) -> Burst:
        """The first `count` notifications of this burst."""
        return self.part(0, count)

    def part(self, start: int, end: int) -> Burst:
        """Return the notifications between two positions; this burst itself if that is all of it."""
        if start == 0 and end == self.count:
            return self
        attributes, varied = self.attributes, self.varied[start:end]
        if len(varied) == 1:
            attributes, varied = varied[0], ()
        return msgspec.structs.replace(
            self,
            number=self.number + start if self.number else 0,
            attributes=attributes,
            bodies=self.bodies[start:end],
            count=end - start,
            varied=varied,
        )

    def pick(self, places: Sequence[int]) -> Burst:
        """Return the notifications at these positions, of a burst without numbers; the burst itself if that
        is all."""
        if len(places) == self.count:
            return self
        bodies, varied = self.bodies, self.varied
        return msgspec.structs.replace(
            self,
            bodies=tuple([bodies[place] for place in places]),
            count=len(places),
            varied=tuple([varied[place] for place in places]) if varied else (),
        )

    def tail(self, skip: int) -> Burst:
        """Return this burst without its first `skip` notifications."""
        return self.part(skip, self.count)

    def uniform(self) -> Iterator[Burst]:
        """Return the runs with equal attributes, each as a burst."""
        varied, start = self.varied, 0
        for position in range(1, len(varied) + 1):
            if position == len(varied) or varied[position] != varied[start]:
                part = self.part(start, position)
                if part.varied:
                    part = msgspec.structs.replace(part, attributes=varied[start], varied=())
                yield part
                start = position
        if not varied:
            yield self


class Fleeting(Burst, frozen=True, gc=False):
    """A QoS 0 burst: without numbers, never queued, never handed off."""

    is_fleeting: ClassVar[bool] = True


def count_of(bursts: Iterable[Burst]) -> int:
    """Return the number of notifications."""
    return sum(burst.count for burst in bursts)


def encode_attributes(attributes: Mapping[str, Value]) -> bytes:
    """The canonical bytes of a notification's attributes."""
    try:
        encoded = _encode(dict(sorted(attributes.items())))
        _decode(encoded)  # Refuses what msgpack supports and attributes do not: None, lists, …
    except (AttributeError, OverflowError, TypeError, UnicodeEncodeError, msgspec.ValidationError) as error:
        raise InputError(
            f"attributes {attributes!r}: {error}; valid are names with str, 64-bit int, float or bool"
        ) from None
    return encoded


def decode_attributes(encoded: bytes) -> Attributes:
    """The attributes behind canonical bytes."""
    try:
        return _decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"malformed attributes of {len(encoded)} bytes: {error}") from None
