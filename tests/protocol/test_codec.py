"""The codec: every message there is, cut anywhere, and whatever else may come over a wire."""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import roamcast.mobility  # noqa: F401  (its messages exist once it is imported)
from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.protocol.codec import LENGTH_BYTES, Codec, FrameReader, message_types
from roamcast.protocol.messages import Accepted, Burst, Deliver, Message, Relayed, Subscribe, Update, cause_of
from roamcast.protocol.session import Session

TEXTS = ("", "b0", "a client", "ü\U0001f600")
FILTERS = ("TRUE", "x > 3 AND kind LIKE 'a%'", "topic = 'it''s'")


def value_of(wanted: Any, rng: random.Random, depth: int) -> Any:
    """A value of the type, drawn, whatever the type is: a new message needs no new code here."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Literal:
        return rng.choice(inner)
    if origin is tuple and inner[-1] is Ellipsis:
        return tuple(value_of(inner[0], rng, depth) for _ in range(rng.randrange(3)))
    if origin is tuple:
        return tuple(value_of(one, rng, depth) for one in inner)
    if origin is list:
        return [value_of(inner[0], rng, depth) for _ in range(rng.randrange(3))]
    if origin is dict:
        return {
            value_of(inner[0], rng, depth): value_of(inner[1], rng, depth) for _ in range(rng.randrange(3))
        }
    if origin in (typing.Union, types.UnionType):
        return value_of(rng.choice(inner), rng, depth)
    simple: dict[Any, Any] = {
        str: lambda: rng.choice(TEXTS),
        bytes: lambda: rng.randbytes(rng.randrange(5)),
        bool: lambda: rng.random() < 0.5,
        int: lambda: rng.choice((0, 1, -1, 255, 2**40)),
        float: lambda: rng.choice((0.0, 1.5, -2.25, 1e12)),
        Filter: lambda: parse(rng.choice(FILTERS)),
        type(None): lambda: None,
    }
    if wanted in simple:
        return simple[wanted]()
    if wanted is Message:
        return value_of(
            rng.choice([one for one in message_types() if depth or one is not Relayed]), rng, depth
        )
    assert issubclass(wanted, msgspec.Struct), f"the test knows no example of {wanted}"
    return struct_of(wanted, rng, depth - 1)


def struct_of(wanted: type[msgspec.Struct], rng: random.Random, depth: int = 2) -> Any:
    hints = typing.get_type_hints(wanted)
    fields = {
        field.name: value_of(hints[field.name], rng, max(depth, 0))
        for field in msgspec.structs.fields(wanted)
    }
    return wanted(**fields)


def examples(seed: int = 0, of_each: int = 12) -> Iterator[Message]:
    rng = random.Random(seed)
    for wanted in message_types():
        for _ in range(of_each):
            yield struct_of(wanted, rng)


def test_the_types_are_found_and_named_once() -> None:
    names = [one.__name__ for one in message_types()]
    assert {"Update", "Burst", "Relayed", "Grant", "Hello", "Deliver", "Transfer"} <= set(names)
    assert names == sorted(set(names))


@pytest.mark.parametrize("wanted", message_types(), ids=lambda one: one.__name__)
def test_every_message_round_trips(wanted: type[Message]) -> None:
    codec, rng = Codec(), random.Random(wanted.__name__)
    for _ in range(20):
        message = struct_of(wanted, rng)
        decoded = codec.decode(codec.encode(message))
        assert decoded == message
        assert type(decoded) is wanted
        assert decoded.weight == message.weight
        assert cause_of(decoded) == cause_of(message)


def test_filters_come_back_as_the_same_object() -> None:
    codec = Codec()
    message = Update(subscribe=((parse("x  >  3"), "c"),))
    decoded = codec.decode(codec.encode(message))
    assert isinstance(decoded, Update)
    assert decoded.subscribe[0][0] is parse("x > 3")


def test_a_message_that_is_made_later_is_known_to_a_later_codec() -> None:
    known = Codec()

    class MadeInATest(Message, frozen=True):
        session: Session
        cause: ClassVar[str] = "handoff"

    message = MadeInATest(Session("c", subscriptions={"x = 1": 2.0}))
    assert Codec().decode(Codec().encode(message)) == message
    with pytest.raises(InputError, match="MadeInATest"):
        known.decode(known.encode(message))


def test_frames_cut_at_every_byte_come_out_the_same() -> None:
    codec = Codec()
    messages = list(examples(seed=1, of_each=1))
    stream = b"".join(map(codec.frame, messages))
    for cut in range(len(stream) + 1):
        reader = FrameReader(codec)
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == messages
    reader = FrameReader(codec)
    assert [one for byte in stream for one in reader.feed(bytes([byte]))] == messages


def test_a_message_comes_out_with_its_last_byte() -> None:
    codec = Codec()
    frame = codec.frame(Accepted(7))
    reader = FrameReader(codec)
    assert reader.feed(frame[:-1]) == []
    assert reader.feed(frame[-1:] + frame[:3]) == [Accepted(7)]
    assert reader.feed(frame[3:]) == [Accepted(7)]


@given(st.lists(st.integers(0, 400), max_size=12), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_frames_cut_anywhere_come_out_the_same(cuts: list[int], seed: int) -> None:
    codec = Codec()
    messages = list(examples(seed, of_each=1))
    stream = b"".join(map(codec.frame, messages))
    reader, got, start = FrameReader(codec), [], 0
    for size in [*cuts, len(stream)]:
        got += reader.feed(stream[start : start + size])
        start += size
    assert got == messages


def test_frames_may_be_as_large_as_allowed_and_no_larger() -> None:
    message = Burst("p", 0, 1, b"", 0.0, (bytes(1000),))
    size = len(Codec().encode(message))
    exact = Codec(frame_bytes_max=size)
    assert FrameReader(exact).feed(exact.frame(message)) == [message]
    small = Codec(frame_bytes_max=size - 1)
    with pytest.raises(InputError, match=f"at most {size - 1} are allowed"):
        small.frame(message)
    # Refused by its length alone: whoever claims a gigabyte need not send it.
    with pytest.raises(InputError, match=f"a frame of {size} bytes: at most {size - 1}"):
        FrameReader(small).feed(exact.frame(message)[:LENGTH_BYTES])


def feed_garbage(data: bytes) -> None:
    """Anything may come of garbage, but no exception other than an InputError."""
    try:
        for message in FrameReader(Codec(frame_bytes_max=10_000)).feed(data):
            assert isinstance(message, Message)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


@given(st.binary(max_size=60))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x92\xa6Update\xdd\xff\xff\xff\xff")
@example(b"\x93\xa9Subscribe\x01" + b"\x91" * 9_000)
@example(b"\x94\xa7Relayed\xa1a\xa1b" * 800)
@example(b"\x93\xa9Subscribe\x01\xd9\xf0" + b"(" * 240)
@example(b"\x93\xa9Subscribe\x01\x05")
@example(b"\x93\xa9Subscribe\x01\x90")
@example(b"\x93\xa9Subscribe\x01\xa1\xff")
@settings(max_examples=300, deadline=None)
def test_garbage_gives_an_input_error_and_nothing_else(data: bytes) -> None:
    feed_garbage(data)
    feed_garbage(framed(data))


@given(st.integers(0, 10_000), st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_messages_give_an_input_error_and_nothing_else(seed: int, data: st.DataObject) -> None:
    rng = random.Random(seed)
    frame = bytearray(Codec().encode(struct_of(rng.choice(message_types()), rng)))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    feed_garbage(framed(bytes(frame)))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "truncated"),
        (b"\x92\xa7Unknown\x01", "Unknown"),
        (Codec().encode(Accepted(1)) + b"\x00", "trailing"),
        (msgspec.msgpack.encode(["Accepted", "one"]), "int"),
        (msgspec.msgpack.encode(["Subscribe", 1, "x >"]), "selector, position 4"),
    ],
)
def test_errors_say_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Codec().decode(data)


def test_messages_relayed_within_messages_end_somewhere() -> None:
    """A frame of nothing but relayed messages is deeper than any stack."""
    message: Message = Accepted(1)
    for _ in range(50):
        message = Relayed("a", "b", message)
    assert Codec().decode(Codec().encode(message)) == message
    data = Codec().encode(Accepted(1))
    for _ in range(5_000):
        data = msgspec.msgpack.encode(["Relayed", "a", "b", msgspec.Raw(data)])
    with pytest.raises(InputError, match="malformed message"):
        Codec().decode(data)


def test_weights_count_notifications_and_changes() -> None:
    burst = Burst("p", 0, 1, b"", 0.0, (b"", b""), 2)
    entry = (parse("x = 1"), "")
    assert Deliver("s", 1, burst).weight == Relayed("a", "b", burst).weight == 2
    assert Update().weight == 1
    assert Update(subscribe=(entry, entry), unsubscribe=(entry,), advertise=(entry[0],)).weight == 4
    assert Subscribe(1, entry[0]).weight == 1
