"""The codec: every message there is, builds of different age, and whatever else may come over a link."""

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
from tests.compat.message_table import import_all_messages

from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.protocol.codec import Codec, Skipped, UnknownMessage, batch_head, message_types, tag_of
from roamcast.protocol.messages import (
    About,
    Burst,
    ClientMessage,
    ClientPublish,
    Command,
    Deliver,
    Message,
    Relayed,
    Settled,
    Update,
    cause_of,
)
from roamcast.protocol.session import Session

import_all_messages()

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


def subclasses(parent: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for child in parent.__subclasses__():
        yield child
        yield from subclasses(child)


def test_the_types_are_found() -> None:
    names = {one.__name__ for one in message_types()}
    assert {"Update", "Burst", "Relayed", "Grant", "Transfer", "GroupDeliver", "Beat"} <= names
    assert Codec().tags == {tag_of(one) for one in message_types()}
    assert {"phoenix.MIG", "Burst"} <= Codec().tags


def test_a_link_decodes_no_command_and_nothing_that_clients_say() -> None:
    local = [*subclasses(Command), *subclasses(ClientMessage)]
    names = {one.__name__ for one in local}
    assert {"HandAway", "Takes", "KeepThis", "Drain", "PublishThat", "Announce", "Hello", "Welcome"} <= names
    assert not names & Codec().tags
    for name in sorted(names):
        with pytest.raises(UnknownMessage, match=f"^the message '{name}', which no broker of this version"):
            Codec().decode(msgspec.msgpack.encode([name, "a", "b", "c", 1]))


def test_a_link_decodes_no_base_of_messages() -> None:
    """Those with a tag are messages themselves."""
    bases = [one for one in message_types() if one.__subclasses__()]
    assert [one.__name__ for one in bases] == ["Burst", "Resubscribe"]
    with pytest.raises(UnknownMessage):
        Codec().decode(msgspec.msgpack.encode(["ToCopies", "c", "b0", 1, []]))


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


# --- builds of different age ---


class Hint(Message, frozen=True, tag="?Hint"):
    """A message that builds of before need not know."""

    text: str
    first_version: ClassVar[int] = 2
    is_optional: ClassVar[bool] = True
    cause: ClassVar[str] = "publish"


def batch(*messages: object) -> bytes:
    return batch_head(len(messages)) + b"".join(map(msgspec.msgpack.encode, messages))


def test_an_unknown_message_is_skipped_if_it_may_be() -> None:
    unknown = ["?Rumour", {"deep": [1, 2]}]
    relayed = ["Relayed", "a", "b", ["About", ["c", 1, {}], unknown]]
    messages = Codec().decode_batch(batch(["Settled", 1], unknown, ["Settled", 2], relayed))
    assert messages == [Settled(1), Skipped("?Rumour"), Settled(2), Skipped("?Rumour")]


@pytest.mark.parametrize("unknown", [["News"], ["Relayed", "a", "b", ["News"]], ["Skipped", "x"]])
def test_an_unknown_message_that_must_be_understood_is_named(unknown: list[object]) -> None:
    with pytest.raises(UnknownMessage, match=r"'(News|Skipped)', which no broker of this version knows"):
        Codec().decode_batch(batch(["Settled", 1], unknown))


def test_fields_that_a_later_build_has_added_are_ignored() -> None:
    settled = Codec().decode(msgspec.msgpack.encode(["Settled", 7, "handoff", "more", [1]]))
    assert settled == Settled(7, "handoff")
    whereabouts = ["c", 1, {"location": ["lobby", None, 0.0, "more"]}, 0.5, "more"]
    about = Codec().decode(msgspec.msgpack.encode(["About", whereabouts, ["Settled", 7], "more"]))
    assert isinstance(about, About)
    assert about.message == Settled(7)
    assert about.whereabouts.places["location"].value == "lobby"


def test_fields_that_an_earlier_build_did_not_have_take_their_defaults() -> None:
    assert Codec().decode(msgspec.msgpack.encode(["Settled", 7])) == Settled(7)
    assert Codec().decode(msgspec.msgpack.encode(["Burst", "p", 0, 1, b""])) == Burst("p", 0, 1, b"")
    with pytest.raises(InputError, match="malformed message"):
        Codec().decode(msgspec.msgpack.encode(["Burst", "p", 0, 1]))


def test_a_message_says_how_new_a_link_must_be_to_carry_it() -> None:
    assert Hint("x").needs == Relayed("a", "b", Hint("x")).needs == 2
    assert Settled(1).needs == 0


def test_an_optional_message_is_known_by_its_tag() -> None:
    class WithoutMark(Message, frozen=True):
        is_optional: ClassVar[bool] = True

    with pytest.raises(TypeError, match="WithoutMark: a tag begins with '\\?' if the message is optional"):
        message_types()
    WithoutMark.is_optional = False
    assert WithoutMark in message_types()


# --- what cannot be read ---


def read_garbage(data: bytes) -> None:
    """Anything may come of garbage, but no exception other than an InputError of one line."""
    for decode in (Codec().decode, Codec().decode_batch):
        try:
            decode(data)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017


@given(st.binary(max_size=60))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x92\xa6Update\xdd\xff\xff\xff\xff")
@example(b"\x93\xa3Sub" + b"\x91" * 9_000)
@example(b"\x94\xa7Relayed\xa1a\xa1b" * 800)
@example(b"\x93\xa3Sub\xd9\xf0" + b"(" * 240)
@example(b"\x93\xa3Sub\x05")
@example(b"\x93\xa3Sub\x90")
@example(b"\x93\xa3Sub\xa1\xff")
@settings(max_examples=300, deadline=None)
def test_garbage_gives_an_input_error_and_nothing_else(data: bytes) -> None:
    read_garbage(data)
    read_garbage(batch_head(1) + data)


@given(st.integers(0, 10_000), st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_messages_give_an_input_error_and_nothing_else(seed: int, data: st.DataObject) -> None:
    rng = random.Random(seed)
    frame = bytearray(Codec().encode(struct_of(rng.choice(message_types()), rng)))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    read_garbage(bytes(frame))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "truncated"),
        (b"\x92\xa7Unknown\x01", "Unknown"),
        (Codec().encode(Settled(1)) + b"\x00", "trailing"),
        (msgspec.msgpack.encode(["Settled", "one"]), "int"),
        (msgspec.msgpack.encode(["Sub", "x >", "c"]), "selector, position 4"),
    ],
)
def test_errors_say_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Codec().decode(data)


def test_messages_relayed_within_messages_end_somewhere() -> None:
    """A frame of nothing but relayed messages is deeper than any stack."""
    message: Message = Settled(1)
    for _ in range(50):
        message = Relayed("a", "b", message)
    assert Codec().decode(Codec().encode(message)) == message
    data = Codec().encode(Settled(1))
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
    assert ClientPublish(1, b"", (b"", b"")).weight == 2
