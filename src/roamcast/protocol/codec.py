"""Encoding and decoding of messages between brokers.

An encoded message is a msgpack array: its tag, then its fields. Filters travel as their text. Builds of
different versions interoperate: fields that a build does not know come last and are ignored, missing
ones take their defaults, and a message with an unknown tag that begins with "?" is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Union

import msgspec

from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.protocol.messages import About, Relayed
from roamcast.protocol.notification import Message
from roamcast.protocol.whereabouts import Whereabouts
from roamcast.state import State

VERSION_MIN = 1
VERSION_MAX = 2
"""Latest version of the link protocol that this build supports."""

LENGTH_BYTES = 4
OPTIONAL = "?"
"""Prefix of the tag of a message that may be skipped."""

_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class UnknownMessage(InputError):
    """A mandatory message that this build does not know."""


class Skipped(Message, frozen=True):
    """Placeholder for an optional message that this build does not know. It is never sent."""

    unknown_tag: str


class _RelayedFrame(msgspec.Struct, frozen=True, tag="Relayed", array_like=True):
    """A relayed message on the wire: the inner message stays encoded, since it can be of any type."""

    __state__ = State("relayed-frame")

    source: str
    destination: str
    message: msgspec.Raw


class _AboutFrame(msgspec.Struct, frozen=True, tag="About", array_like=True):
    __state__ = State("about-frame")

    whereabouts: Whereabouts
    message: msgspec.Raw


_FRAME_OF: dict[type[Message], type[Any]] = {Relayed: _RelayedFrame, About: _AboutFrame}
_WRAPPER_OF: dict[type[Any], type[Any]] = {frame: wrapper for wrapper, frame in _FRAME_OF.items()}


def tag_of(kind: type[Message]) -> str:
    return str(kind.__struct_config__.tag)


def message_types() -> list[type[Message]]:
    """Every type of message that has been imported, by tag. Two of one tag are an error.

    A class without a tag (`tag=False`) is a base class of messages.
    """

    def below(parent: type[Message]) -> Iterator[type[Message]]:
        for child in parent.__subclasses__():
            if child is not Skipped and child.__struct_config__.tag is not None:
                yield child
            yield from below(child)

    found: dict[str, type[Message]] = {}
    for kind in below(Message):
        tag = tag_of(kind)
        if found.setdefault(tag, kind) is not kind:
            raise TypeError(f"{kind.__qualname__} and {found[tag].__qualname__} both have the tag {tag!r}")
        if kind.is_optional != tag.startswith(OPTIONAL):
            raise TypeError(f"{kind.__qualname__}: a tag begins with {OPTIONAL!r} if the message is optional")
    return [found[tag] for tag in sorted(found)]


@lru_cache(maxsize=2)
def _decoders(kinds: tuple[type[Message], ...]) -> tuple[Any, Any]:
    """Decoders of one message and of a batch; making them takes a millisecond."""
    known: Any = Union[(*(_FRAME_OF.get(one, one) for one in kinds),)]
    one = msgspec.msgpack.Decoder(known, dec_hook=_decode_hook)
    return one, msgspec.msgpack.Decoder(list[known], dec_hook=_decode_hook)


class Codec:
    """Codec for all message types that exist when it is made, except commands and client messages."""

    __state__ = State(
        "link-codec",
        derived=("_batch_decoder", "_decoder", "_encoder", "_tags"),
    )

    def __init__(self) -> None:
        self._restore()

    def _restore(self) -> None:
        kinds = message_types()
        self._tags = frozenset(map(tag_of, kinds))
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
        self._decoder, self._batch_decoder = _decoders(tuple(kinds))

    @property
    def tags(self) -> frozenset[str]:
        """Tags of all types that it decodes."""
        return self._tags

    def encode(self, message: Message) -> bytes:
        frame = _FRAME_OF.get(type(message))
        if frame is None:
            return self._encoder.encode(message)
        *about, inner = msgspec.structs.astuple(message)
        return self._encoder.encode(frame(*about, msgspec.Raw(self.encode(inner))))

    def decode(self, data: bytes | memoryview | msgspec.Raw) -> Message:
        try:
            return self._unwrapped(self._decoder.decode(data))
        except _MALFORMED as error:
            return self._skipped("message", data, error)

    def decode_batch(self, data: bytes | memoryview) -> list[Message]:
        """Decode the messages of a batch: concatenated encodings, after `batch_head`."""
        try:
            messages: list[Any] = self._batch_decoder.decode(data)
            for position, one in enumerate(messages):
                if type(one) in _WRAPPER_OF:
                    messages[position] = self._unwrapped(one)
            return messages
        except _MALFORMED as error:
            try:
                parts = _raw_batch.decode(data)
            except _MALFORMED:
                raise _malformed("batch", data, error) from None
            # One by one: perhaps only some of them are unknown.
            return [self.decode(part) for part in parts]

    def _unwrapped(self, decoded: Any) -> Message:
        message: Message = decoded
        wrapper = _WRAPPER_OF.get(type(decoded))
        if wrapper is not None:
            *about, inner = msgspec.structs.astuple(decoded)
            message = self.decode(inner)
            if type(message) is not Skipped:
                message = wrapper(*about, message)
        return message

    def _skipped(self, what: str, data: bytes | memoryview | msgspec.Raw, error: Exception) -> Skipped:
        """Return a placeholder for an undecodable message, if it may be skipped."""
        try:
            tag = _head.decode(data)[0]
        except (*_MALFORMED, IndexError):
            raise _malformed(what, data, error) from None
        if not isinstance(tag, str) or tag in self._tags:
            raise _malformed(what, data, error) from None
        if not tag.startswith(OPTIONAL):
            raise UnknownMessage(f"the message {_line(tag)!r}, which no broker of this version knows")
        return Skipped(tag)


def without_skipped(messages: list[Message]) -> list[Message]:
    return [message for message in messages if type(message) is not Skipped]


def batch_head(count: int) -> bytes:
    """Return the prefix that makes `count` encoded messages a batch (a msgpack array)."""
    return b"\xdd" + count.to_bytes(4, "big")


_raw_batch = msgspec.msgpack.Decoder(list[msgspec.Raw])
_head = msgspec.msgpack.Decoder(list[Any])


def _line(text: str) -> str:
    """Quoted parts of a message may contain anything, including line breaks."""
    return text[:200].encode("unicode_escape").decode()


def _malformed(what: str, data: bytes | memoryview | msgspec.Raw, error: Exception) -> InputError:
    said = str(error).encode("unicode_escape").decode()
    return InputError(f"malformed {what} of {len(memoryview(data))} bytes: {said}")


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Filter):
        return value.text
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _decode_hook(wanted: type, value: Any) -> Any:
    if wanted is Filter:
        return parse(value)
    raise TypeError(f"a {wanted.__name__} cannot be received")
