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
"""Why a message travels. Overhead of mobility is the hops of the last two."""

Area = Literal["data", "subscriptions", "sessions", "groups", "overlay"]
"""What a message is about. A link may carry the messages of some areas only (`broker/links/border.py`)."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, str | bool | int | float]).decode


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What brokers say to each other: all that a link can carry.

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
    """Whether a peer may skip it. Then its tag begins with "?", so that older builds know that they may."""
    area: ClassVar[Area] = "sessions"
    """What it is about; most messages are those of mobility protocols."""

    @property
    def weight(self) -> int:
        bursts = getattr(self, "bursts", ())
        return (count_of(bursts) or 1) if bursts else 1

    @property
    def is_fleeting(self) -> bool:
        """Whether this message promises nothing: links carry it without a number, and no journal holds it."""
        return False

    @property
    def needs(self) -> int:
        """The version below which a link does not carry this message; 0 if every link does."""
        return self.first_version if self.is_optional else 0


class ClientMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What a broker and a client of the plain front say to each other; no link carries it.

    `weight` is as that of a message between brokers.
    """

    @property
    def weight(self) -> int:
        return 1


class Command(msgspec.Struct, frozen=True):
    """What a broker says to itself. It follows from an input, is never encoded, and no peer can say it."""


HELD_BYTES = 320
"""Memory of a notification beside its attributes, body and marks, where it is alone in its burst."""

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
    """What the access side noted of these notifications; the core carries it along and looks at `PICKED`."""
    varied: tuple[bytes, ...] = ()
    """The attributes of each notification, where they are not all the same; `attributes` is empty then."""

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
        """Memory that this burst takes, for quotas; cutting a burst does not change the sum."""
        if self.count == 1:
            return HELD_BYTES + len(self.attributes) + len(self.bodies[0]) + len(self.marks)
        return self.size + self.count * (HELD_BYTES + len(self.marks))

    @property
    def last(self) -> int:
        return self.number + self.count - 1

    @property
    def is_picked(self) -> bool:
        """Whether it is a retained message, or for a member of a shared group: not routed to its client.

        No other broker has it for the client, and it comes in no order with what was routed. Its number
        never tells that something else is a duplicate, nor the other way round.
        """
        return bool(self.marks) and bool(self.marks[0] & PICKED)

    def head(self, count: int) -> Burst:
        """The first `count` notifications of this burst."""
        return self.part(0, count)

    def part(self, start: int, end: int) -> Burst:
        """The notifications from one position up to another; this burst itself if that is all of it."""
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
        """The notifications at these positions, of a burst that has no numbers; itself if that is all."""
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
        """What is left of this burst without its first `skip` notifications."""
        return self.part(skip, self.count)

    def uniform(self) -> Iterator[Burst]:
        """The runs with the same attributes, each as a burst of its own."""
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
    """A burst that promises nothing: without numbers, never queued, never handed off."""

    @property
    def is_fleeting(self) -> bool:
        return True


def count_of(bursts: Iterable[Burst]) -> int:
    """How many notifications these are."""
    return sum(burst.count for burst in bursts)


def encode_attributes(attributes: Mapping[str, Value]) -> bytes:
    """The canonical bytes of a notification's attributes."""
    try:
        encoded = _encode(dict(sorted(attributes.items())))
        _decode(encoded)  # Refuses what msgpack knows and attributes may not be: None, lists, …
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
