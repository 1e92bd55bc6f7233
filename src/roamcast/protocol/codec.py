"""Messages to bytes and back: length-prefixed frames, decoded as they come.

A frame is a four-byte length (big-endian) and a msgpack array that begins with
the name of the message's type. Filters travel as their text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Union

import msgspec

from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.protocol.messages import About, Relayed
from roamcast.protocol.notification import Message
from roamcast.protocol.whereabouts import Whereabouts
from roamcast.state import State

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 64 * 1024 * 1024

_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _RelayedFrame(msgspec.Struct, frozen=True, tag="Relayed", array_like=True):
    """A relayed message on the wire: the inner one stays encoded, it can be of any type."""

    __state__ = State("relayed-frame")

    source: str
    destination: str
    message: msgspec.Raw


def message_types() -> list[type[Message]]:
    """Every message type that has been imported, in a stable order."""

    def below(parent: type[Message]) -> Iterator[type[Message]]:
        for child in parent.__subclasses__():
            yield child
            yield from below(child)

    return sorted(set(below(Message)), key=lambda one: one.__name__)


class _AboutFrame(msgspec.Struct, frozen=True, tag="About", array_like=True):
    __state__ = State("about-frame")

    whereabouts: Whereabouts
    message: msgspec.Raw


_WRAPPERS = (Relayed, About)
_FRAMES = (_RelayedFrame, _AboutFrame)


class Codec:
    """Knows every message type that exists when it is made."""

    __state__ = State(
        "link-codec",
        saved=("frame_bytes_max",),
        derived=("_batch_decoder", "_decoder", "_encoder"),
    )  # fmt: skip

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._restore()

    def _restore(self) -> None:
        plain = (one for one in message_types() if one not in _WRAPPERS)
        known: Any = Union[(*plain, _RelayedFrame, _AboutFrame)]
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
        self._decoder = msgspec.msgpack.Decoder(known, dec_hook=_decode_hook)
        self._batch_decoder = msgspec.msgpack.Decoder(list[known], dec_hook=_decode_hook)

    def encode(self, message: Message) -> bytes:
        if isinstance(message, Relayed):
            inner = msgspec.Raw(self.encode(message.message))
            return self._encoder.encode(_RelayedFrame(message.source, message.destination, inner))
        if isinstance(message, About):
            inner = msgspec.Raw(self.encode(message.message))
            return self._encoder.encode(_AboutFrame(message.whereabouts, inner))
        return self._encoder.encode(message)

    def decode(self, data: bytes | memoryview | msgspec.Raw) -> Message:
        try:
            return self._unwrapped(self._decoder.decode(data))
        except _MALFORMED as error:
            raise _malformed("message", data, error) from None

    def decode_batch(self, data: bytes | memoryview) -> list[Message]:
        """The messages of a batch: their encodings one behind the other, after `batch_head`."""
        try:
            messages: list[Any] = self._batch_decoder.decode(data)
            for position, one in enumerate(messages):
                if type(one) in _FRAMES:
                    messages[position] = self._unwrapped(one)
            return messages
        except _MALFORMED as error:
            raise _malformed("batch", data, error) from None

    def _unwrapped(self, decoded: Any) -> Message:
        if isinstance(decoded, _RelayedFrame):
            return Relayed(decoded.source, decoded.destination, self.decode(decoded.message))
        if isinstance(decoded, _AboutFrame):
            return About(decoded.whereabouts, self.decode(decoded.message))
        message: Message = decoded
        return message

    def frame(self, message: Message) -> bytes:
        data = self.encode(message)
        if len(data) > self.frame_bytes_max:
            raise InputError(f"a message of {len(data)} bytes: at most {self.frame_bytes_max} are allowed")
        return len(data).to_bytes(LENGTH_BYTES, "big") + data


class FrameReader:
    """Takes bytes as they arrive and gives the messages that are complete."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._bytes += data
        messages = []
        start = 0
        while len(self._bytes) - start >= LENGTH_BYTES:
            length = int.from_bytes(self._bytes[start : start + LENGTH_BYTES], "big")
            if length > self._codec.frame_bytes_max:
                raise InputError(
                    f"a frame of {length} bytes: at most {self._codec.frame_bytes_max} are allowed"
                )
            end = start + LENGTH_BYTES + length
            if len(self._bytes) < end:
                break
            messages.append(self._codec.decode(bytes(self._bytes[start + LENGTH_BYTES : end])))
            start = end
        del self._bytes[:start]
        return messages


def batch_head(count: int) -> bytes:
    """What comes before so many encoded messages to make one batch of them (a msgpack array)."""
    return b"\xdd" + count.to_bytes(4, "big")


def _malformed(what: str, data: bytes | memoryview | msgspec.Raw, error: Exception) -> InputError:
    # Quoted parts of the message may contain anything, also line ends.
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
