"""Attributes of a PUBLISH for content filters: from its user properties and from a JSON payload.

- A user property is an attribute. Its value is read as a JSON scalar where it is one (`12`, `2.5`, `true`,
  `"12"` with quotes is a string), and is otherwise the text as it stands. Of several with one name the last
  counts.
- If the content type says JSON, the top-level fields of the payload whose values are strings, numbers or
  booleans are attributes too. A payload that is not a JSON object has none; that is no error. A field that
  is a position (`{"lat": …, "lon": …}`, or a GeoJSON point) becomes its text, `43.263,-2.935`; and if the
  payload itself has a latitude and a longitude, they make an attribute `location`, unless there is one.
- For one name, user properties come before the payload, and `topic` is always the topic itself: no other
  attribute has that name.
- Integers beyond 64 bits become floats. Numbers beyond those, names and strings that are too long,
  attributes beyond the first 256, and payloads that are too large are ignored.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from roamcast.filters.expression import INT_MAX, INT_MIN, Value
from roamcast.filters.geography import read_position
from roamcast.filters.selector import TOPIC
from roamcast.mqtt.codec.properties import PUBLISH, decode
from roamcast.mqtt.server.moves import LOCATION

ATTRIBUTES_MAX = 256
NAME_LENGTH_MAX = 256
TEXT_LENGTH_MAX = 4_096
PAYLOAD_BYTES_MAX = 262_144

# A payload of this size cannot exceed any limit, so it need not be checked.
PAYLOAD_BYTES_SMALL = 256

# Publishers repeat their properties; this limits the memory for remembered ones.
BLOCKS_REMEMBERED = 1_024
BLOCK_BYTES_REMEMBERED_MAX = 512

_Integer = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
_decode_flat = msgspec.json.Decoder(dict[str, str | bool | _Integer | float]).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode
_decode_scalar = msgspec.json.Decoder(str | bool | int | float).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Described = tuple[dict[str, Value], bool]
"""Attributes from user properties, and whether the payload is JSON."""


def content_attributes(property_block: bytes, payload: bytes) -> dict[str, Value]:
    """Return the attributes of a PUBLISH without its topic; the properties are checked ones, without their
    length."""
    (attributes,) = contents_of("", property_block, (payload,))
    del attributes[TOPIC]
    return attributes


def contents_of(topic: str, property_block: bytes, payloads: Sequence[bytes]) -> list[dict[str, Value]]:
    """Return all attributes of PUBLISH packets that share topic and properties."""
    described: Mapping[str, Value] = {}
    is_json = False
    if property_block:
        remembered = len(property_block) <= BLOCK_BYTES_REMEMBERED_MAX
        described, is_json = (_described_before if remembered else _described)(property_block)
    if not is_json:
        return [{**described, TOPIC: topic} for _ in payloads]
    found = _all_fields(payloads)
    for fields in found:
        if described:
            _describe(fields, described)
        fields[TOPIC] = topic
    return found


def _all_fields(payloads: Sequence[bytes]) -> list[dict[str, Any]]:
    if max(map(len, payloads)) <= PAYLOAD_BYTES_SMALL:
        text = b"".join(payloads)
        # Nearly all payloads are such: without a position, and without names that are written with escapes.
        if b'"lat' not in text and b"\\" not in text:
            with suppress(*_UNREADABLE):
                return list(map(_decode_flat, payloads))
    return list(map(_fields, payloads))


def _describe(found: dict[str, Value], described: Mapping[str, Value]) -> None:
    """Add attributes from the properties; these come first, and fields beyond the limit are left out."""
    for name in (TOPIC, *described):
        found.pop(name, None)
    for name in list(found)[ATTRIBUTES_MAX - len(described) :]:
        del found[name]
    found.update(described)


def is_json(content_type: str | None) -> bool:
    """True for JSON content types; parameters such as a character set are ignored."""
    if content_type is None:
        return False
    kind = content_type.partition(";")[0].strip().lower()
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _described(property_block: bytes) -> Described:
    properties = decode(property_block, 0, len(property_block), PUBLISH)
    attributes: dict[str, Value] = {}
    for name, text in properties.get("user_properties", ()):
        if name != TOPIC and len(name) <= NAME_LENGTH_MAX and len(text) <= TEXT_LENGTH_MAX:
            if len(attributes) == ATTRIBUTES_MAX and name not in attributes:
                break
            attributes[name] = typed(text)
    return attributes, is_json(properties.get("content_type"))


_described_before = lru_cache(maxsize=BLOCKS_REMEMBERED)(_described)


def typed(text: str) -> Value:
    """Return the JSON scalar that a text represents, or the text itself."""
    if text[:1] not in '-0123456789tf"' or not text:
        return text
    try:
        value: Value = _decode_scalar(text)
    except _UNREADABLE:
        return text
    in_range = _in_range(value)
    return text if in_range is None else in_range


def _in_range(value: Value) -> Value | None:
    """Return a valid attribute value: integers beyond 64 bits become floats; None beyond those."""
    if not isinstance(value, int) or INT_MIN <= value <= INT_MAX:
        return value
    try:
        return float(value)
    except OverflowError:
        return None


def _fields(payload: bytes) -> dict[str, Value]:
    """Return the top-level scalar fields of a JSON object."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        return {}
    found: dict[str, Any]
    try:
        found = _decode_flat(payload)
        if len(payload) <= PAYLOAD_BYTES_SMALL:
            _locate(found)
            return found
    except msgspec.ValidationError:
        try:
            found = _decode_any(payload)
        except _UNREADABLE:
            return {}
    except _UNREADABLE:
        return {}
    kept: dict[str, Value] = {}
    for name, value in found.items():
        if len(kept) == ATTRIBUTES_MAX:
            break
        if isinstance(value, dict):
            value = read_position(value)
        if not isinstance(value, str | int | float) or len(name) > NAME_LENGTH_MAX:
            continue
        in_range = _in_range(value)
        if in_range is not None and not (isinstance(value, str) and len(value) > TEXT_LENGTH_MAX):
            kept[name] = in_range
    if len(kept) < ATTRIBUTES_MAX:
        _locate(kept)
    return kept


def _locate(fields: dict[str, Value]) -> None:
    """Add the location that a payload states at its top level."""
    if ("lat" in fields or "latitude" in fields) and LOCATION not in fields:
        place = read_position(fields)
        if place is not None:
            fields[LOCATION] = place
