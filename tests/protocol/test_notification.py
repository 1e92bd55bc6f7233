"""Notifications: what identifies them, how bursts are cut, and canonical attributes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.filters.filter import Value
from roamcast.protocol.notification import Burst, decode_attributes, encode_attributes

VALUES = st.text(max_size=5) | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
ATTRIBUTES = st.dictionaries(st.text(max_size=3), VALUES, max_size=5)


def burst(count: int) -> Burst:
    return Burst("p", 3, 10, b"\x80", 1.5, tuple(bytes([place]) for place in range(count)), count)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5])
def test_head_and_tail_are_the_whole(at: int) -> None:
    whole = burst(5)
    head, tail = whole.head(at), whole.tail(at)
    assert (head.number, head.count, head.bodies) == (10, at, whole.bodies[:at])
    assert (tail.number, tail.count, tail.bodies) == (10 + at, 5 - at, whole.bodies[at:])
    assert head.size + tail.size == whole.size
    assert head.weight + tail.weight == whole.weight == 5
    assert head.last + 1 == tail.number
    assert tail.last == whole.last == 14
    for part in (head, tail):
        assert (part.publisher, part.incarnation, part.attributes, part.published_at) == (
            "p",
            3,
            b"\x80",
            1.5,
        )


def test_size_counts_attributes_once_for_each_notification() -> None:
    assert Burst("p", 0, 1, b"12345", 0.0, (b"abc", b""), 2).size == 2 * 5 + 3


@given(ATTRIBUTES)
def test_attributes_round_trip_with_their_types(attributes: dict[str, Value]) -> None:
    decoded = decode_attributes(encode_attributes(attributes))
    assert decoded == attributes
    assert {name: type(value) for name, value in decoded.items()} == {
        name: type(value) for name, value in attributes.items()
    }


def test_what_is_not_a_number_travels_too() -> None:
    assert math.isnan(float(decode_attributes(encode_attributes({"x": math.nan}))["x"]))


@given(ATTRIBUTES, st.randoms())
def test_the_order_of_names_does_not_matter(attributes: dict[str, Value], rng: Any) -> None:
    items = list(attributes.items())
    rng.shuffle(items)
    assert encode_attributes(dict(items)) == encode_attributes(attributes)


def test_equal_values_of_different_types_are_different_keys() -> None:
    values: list[Value] = [True, 1, 1.0, "1", False, 0, 0.0, "", "true", -0.0]
    keys = [encode_attributes({"x": value}) for value in values]
    for one, other in itertools.combinations(keys, 2):
        assert one != other


@given(ATTRIBUTES, ATTRIBUTES)
def test_keys_are_equal_only_for_equal_attributes(one: dict[str, Value], other: dict[str, Value]) -> None:
    def exact(attributes: dict[str, Value]) -> dict[str, tuple[type, str]]:
        return {name: (type(value), repr(value)) for name, value in attributes.items()}

    assert (encode_attributes(one) == encode_attributes(other)) == (exact(one) == exact(other))


@pytest.mark.parametrize(
    "attributes",
    [
        *({"x": 2**64}, {"x": -(2**63) - 1}, {"x": None}, {"x": [1]}, {"x": b"raw"}, {"x": {"y": 1}}),
        *({"x": object}, {1: 1}, {1: 1, "x": 1}, {"x": "\ud800"}, {"\ud800": 1}, [1, 2], 5, None),
    ],
    ids=repr,
)
def test_what_is_no_attribute_is_refused(attributes: Any) -> None:
    with pytest.raises(InputError, match="valid are names with str, 64-bit int, float or bool"):
        encode_attributes(attributes)


@given(st.binary(max_size=20))
def test_malformed_attributes_give_an_input_error_or_attributes(data: bytes) -> None:
    try:
        decoded = decode_attributes(data)
    except InputError as error:
        assert "malformed attributes" in str(error)  # noqa: PT017
    else:
        assert all(type(value) in (str, int, float, bool) for value in decoded.values())


@pytest.mark.parametrize(
    "data", [b"", b"\x91\x01", b"\x81\xa1x", b"\x81\xa1\xff\x01", b"\x81\xa1x\xc0", b"\x80\x80"]
)
def test_malformed_attributes_are_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="malformed attributes"):
        decode_attributes(data)
