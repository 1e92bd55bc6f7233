"""What content filters see of a message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.filters.filter import Value
from roamcast.mqtt.codec.packets import PublishProperties, UserProperties
from roamcast.mqtt.codec.properties import PUBLISH, encode
from roamcast.mqtt.server import attributes
from roamcast.mqtt.server.attributes import ATTRIBUTES_MAX, content_attributes, is_json, typed
from roamcast.protocol.notification import decode_attributes, encode_attributes


def block(*user: tuple[str, str], content_type: str | None = None) -> bytes:
    return encode(PublishProperties(content_type=content_type, user_properties=user), PUBLISH)


JSON = block(content_type="application/json")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-0", 0),
        ("2.50", 2.5),
        ("1e3", 1000.0),
        ("true", True),
        ("false", False),
        ('"12"', "12"),
        ('"a\\nb"', "a\nb"),
        ("tram", "tram"),
        ("True", "True"),
        ("true story", "true story"),
        ("null", "null"),
        ("[1]", "[1]"),
        ("{}", "{}"),
        ("", ""),
        ("-", "-"),
        ("012", "012"),
        ("1.2.3", "1.2.3"),
        ('"open', '"open'),
        (" 12", " 12"),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", 2.0**63),
        ("-9223372036854775809", -(2.0**63)),
        ("1" * 400, "1" * 400),
        ("1" * 4_000, "1" * 4_000),
    ],
)
def test_user_properties_have_types(text: str, value: Value) -> None:
    found = typed(text)
    assert found == value
    assert type(found) is type(value)
    assert content_attributes(block(("x", text)), b"") == {"x": value}


def test_without_properties_there_are_no_attributes() -> None:
    assert content_attributes(b"", b'{"a": 1}') == {}


def test_the_payload_counts_only_as_json() -> None:
    payload = b'{"a": 1, "b": 2.5, "c": "x", "d": true}'
    assert content_attributes(block(content_type="text/plain"), payload) == {}
    assert content_attributes(block(("e", "1")), payload) == {"e": 1}
    assert content_attributes(JSON, payload) == {"a": 1, "b": 2.5, "c": "x", "d": True}


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("Application/JSON ; charset=utf-8", True),
        ("text/json", True),
        ("application/geo+json", True),
        ("application/senml+json;v=2", True),
        ("application/jsonl", False),
        ("json", False),
        ("text/plain; kind=application/json", False),
        ("", False),
        (None, False),
    ],
)
def test_what_says_json(content_type: str | None, expected: bool) -> None:
    assert is_json(content_type) is expected


@pytest.mark.parametrize(
    ("payload", "wanted"),
    [
        (b'{"a": 1, "b": null, "c": [1], "d": {"e": 2}}', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"a": 9223372036854775808}', {"a": 2.0**63}),
        (b'{"a": 1' + b"0" * 400 + b', "b": 1}', {"b": 1}),
        (b'{"a": 1e999, "b": 1}', {}),
        (b'{"a": 1', {}),
        (b"[1]", {}),
        (b"1", {}),
        (b"", {}),
        (b'{"a": "\xff"}', {}),
        (b'{"a": "\\ud800"}', {}),
        (b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b', "b": 1}', {}),
        (b'{"a": NaN}', {}),
        (b'{"\xc3\xbc": "\\u0000"}', {"ü": "\0"}),
    ],
)
def test_the_fields_of_a_payload(payload: bytes, wanted: dict[str, Value]) -> None:
    found = content_attributes(JSON, payload)
    assert found == wanted
    assert [type(found[name]) for name in wanted] == [type(value) for value in wanted.values()]


def test_user_properties_come_before_the_payload_and_the_topic_before_all() -> None:
    given_user = block(("a", "1"), ("topic", "no"), ("b", "2"), ("b", "3"), content_type="text/json")
    assert content_attributes(given_user, b'{"a": 9, "c": 4, "topic": "no"}') == {"a": 1, "b": 3, "c": 4}
    assert content_attributes(JSON, b'{"topic": "no", "c": 4}') == {"c": 4}


def test_what_is_returned_belongs_to_the_caller() -> None:
    user = block(("a", "1"))
    content_attributes(user, b"")["a"] = 2
    assert content_attributes(user, b"") == {"a": 1}
    both = block(("a", "1"), content_type="text/json")
    content_attributes(both, b"{}")["a"] = 2
    assert content_attributes(both, b"{}") == {"a": 1}


def test_there_is_a_limit_to_everything() -> None:
    many = json.dumps({f"n{number}": number for number in range(400)}).encode()
    assert list(content_attributes(JSON, many)) == [f"n{number}" for number in range(ATTRIBUTES_MAX)]
    users: UserProperties = tuple((f"u{number}", "1") for number in range(300))
    assert len(content_attributes(block(*users), b"")) == ATTRIBUTES_MAX
    few = block(*users[:10], content_type="text/json")
    found = content_attributes(few, many)
    assert len(found) == ATTRIBUTES_MAX
    assert set(found) == {f"u{n}" for n in range(10)} | {f"n{n}" for n in range(ATTRIBUTES_MAX - 10)}

    long = "x" * 5_000
    payload = json.dumps({long: 1, "a": long, "b": long[:4_096], long[:256]: 2}).encode()
    assert content_attributes(JSON, payload) == {"b": long[:4_096], long[:256]: 2}
    assert content_attributes(block((long, "1"), ("a", long), ("b", "1")), b"") == {"b": 1}
    assert content_attributes(JSON, b'{"a": 1}' + b" " * attributes.PAYLOAD_BYTES_MAX) == {}


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
values = st.one_of(st.text(max_size=5), st.integers(), st.floats(), st.booleans(), st.none())


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(texts, values),
    st.lists(st.tuples(texts, texts), max_size=3),
    st.binary(max_size=20),
)
def test_what_is_found_can_always_be_an_attribute(
    fields: dict[str, Value], user: list[tuple[str, str]], junk: bytes
) -> None:
    described = block(*user, content_type="application/json")
    plain = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
    for payload in (json.dumps(fields).encode(), plain, junk):
        found = content_attributes(described, payload)
        assert {name for name, _ in user} - {"topic"} <= set(found)
        assert decode_attributes(encode_attributes(found)) == found
