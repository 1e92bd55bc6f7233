"""Where a client is, as it says so over MQTT: a publish to a control topic.

The payload is a JSON object with the variables that have changed, such as
`{"location": "lobby"}`, or just the name of the location.
"""

from __future__ import annotations

import msgspec

from roamcast.filters.expression import Value

MOVE_TOPIC = b"$roamcast/move"
LOCATION = "location"

_decode = msgspec.json.Decoder(dict[str, str | bool | int | float]).decode


def read_move(payload: bytes) -> dict[str, Value]:
    """What a client says of itself; empty if it cannot be understood."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return {}
    if not text.startswith("{"):
        return {LOCATION: text} if text else {}
    try:
        return _decode(payload)
    except msgspec.MsgspecError:
        return {}


def write_move(values: dict[str, Value]) -> bytes:
    return msgspec.json.encode(values)
