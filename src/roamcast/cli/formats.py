"""How `roamcast sub` prints notifications: the formats of mosquitto_sub."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from roamcast.client import Notification
from roamcast.errors import InputError

Shown = Callable[[Notification], bytes]

ESCAPES = {
    "n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "e": b"\x1b", "a": b"\a", "v": b"\v", "\\": b"\\",
}  # fmt: skip
PARTS = re.compile(
    r"%(?P<flags>[-0]*)(?P<width>\d*)(?:\.(?P<longest>\d+))?(?P<mark>[^\d.]?)"
    r"|@(?P<time>.?)|\\(?P<escape>.?)|(?P<plain>[^%@\\]+)",
    re.DOTALL,
)
ZERO_PADDED = "AEFlSxX"


def now() -> datetime:
    return datetime.now(UTC).astimezone()


def described_as_json(one: Notification, is_pretty: bool = False) -> bytes:
    """Return the JSON object of `--json`; a payload that is not UTF-8 is in `payload_base64`."""
    described: dict[str, Any] = {
        "tst": now().isoformat(timespec="microseconds"), "topic": one.topic, "qos": one.qos,
        "retain": one.retain, "dup": one.dup, "payloadlen": len(one.payload),
    }  # fmt: skip
    try:
        described["payload"] = one.payload.decode()
    except UnicodeDecodeError:
        import base64

        described["payload_base64"] = base64.b64encode(one.payload).decode()
    optional: dict[str, Any] = {
        "content_type": one.content_type,
        "message_expiry": one.message_expiry,
        "response_topic": one.response_topic,
        "subscription_identifiers": list(one.subscription_identifiers),
        "properties": [list(pair) for pair in one.user_properties],
        "identity": one.identity._asdict() if one.identity is not None else None,
    }
    return written({**described, **{name: value for name, value in optional.items() if value}}, is_pretty)


def as_mosquitto(one: Notification, payload: Any, is_pretty: bool) -> bytes:
    """Return the JSON object of %j and %J, with the field names of mosquitto_sub."""
    described: dict[str, Any] = {
        "tst": now().strftime("%Y-%m-%dT%H:%M:%S.%fZ%z"), "topic": one.topic, "qos": one.qos,
        "retain": int(one.retain), "payloadlen": len(one.payload),
    }  # fmt: skip
    data = one.correlation_data
    properties = {
        "user-properties": dict(one.user_properties),
        "content-type": one.content_type,
        "response-topic": one.response_topic,
        "correlation-data": data.decode("utf-8", "replace") if data is not None else None,
        "payload-format-indicator": one.payload_format,
        "message-expiry-interval": one.message_expiry,
        "subscription-identifier": one.subscription_identifiers[-1] if one.subscription_identifiers else None,
    }
    properties = {name: value for name, value in properties.items() if value is not None and value != {}}
    if properties:
        described["properties"] = properties
    return written({**described, "payload": payload}, is_pretty)


def written(value: dict[str, Any], is_pretty: bool) -> bytes:
    text = json.dumps(value, ensure_ascii=False, indent=2 if is_pretty else None)
    return text.encode("utf-8", "surrogateescape")


def parsed(one: Notification) -> Any:
    """Return the payload parsed as JSON, or null."""
    try:
        return one.json()
    except ValueError:
        return None


SHOWN: dict[str, Shown] = {
    "p": lambda one: one.payload,
    "t": lambda one: one.topic.encode(),
    "x": lambda one: one.payload.hex().encode(),
    "X": lambda one: one.payload.hex().upper().encode(),
    "l": lambda one: b"%d" % len(one.payload),
    "q": lambda one: b"%d" % one.qos,
    "r": lambda one: b"%d" % one.retain,
    "d": lambda one: b"%d" % one.dup,
    "I": lambda one: now().strftime("%Y-%m-%dT%H:%M:%S%z").encode(),
    "U": lambda one: f"{time.time():.9f}".encode(),
    "A": lambda one: b"",  # This client never requests topic aliases.
    "C": lambda one: (one.content_type or "").encode(),
    "D": lambda one: one.correlation_data or b"",
    "E": lambda one: b"" if one.message_expiry is None else b"%d" % one.message_expiry,
    "F": lambda one: b"" if one.payload_format is None else b"%d" % one.payload_format,
    "P": lambda one: " ".join(f"{name}:{value}" for name, value in one.user_properties).encode(),
    "R": lambda one: (one.response_topic or "").encode(),
    "S": lambda one: b" ".join(b"%d" % number for number in one.subscription_identifiers),
    "%": lambda one: b"%",
}
JSON = ("j", "J")


class Format:
    """A parsed format text."""

    def __init__(
        self, text: str, *, is_json: bool = False, is_pretty: bool = False, ends_line: bool = True
    ) -> None:
        self._text, self._is_pretty = text, is_pretty
        self._end = b"\n" if ends_line else b""
        self._parts: list[Shown] = []
        if is_json:
            self._parts.append(lambda one: described_as_json(one, is_pretty))
        for found in PARTS.finditer(text):
            self._parts.append(self._part(found))
        # Fast path: most formats have only the payload, or topic and payload.
        self._is_payload, self._is_verbose = not is_json and text == "%p", not is_json and text == "%t %p"

    def show_all(self, several: Sequence[Notification]) -> bytes:
        end, parts = self._end, self._parts
        if self._is_payload:
            lines = [one.payload for one in several]
        elif self._is_verbose:
            lines = [b"%b %b" % (one.topic.encode(), one.payload) for one in several]
        else:
            lines = [b"".join([part(one) for part in parts]) for one in several]
        return end.join(lines) + end if lines else b""

    def _part(self, found: re.Match[str]) -> Shown:
        if found["plain"] is not None:
            return _constant(found["plain"].encode("utf-8", "surrogateescape"))
        if found["escape"] is not None:
            return _constant(ESCAPES.get(found["escape"], b"\\" + found["escape"].encode()))
        if found["time"] is not None:
            return self._time(found["time"])
        mark, pretty = found["mark"], self._is_pretty
        if mark == "j":
            return lambda one: as_mosquitto(one, one.text, pretty)
        if mark == "J":
            return lambda one: as_mosquitto(one, parsed(one), pretty)
        if mark not in SHOWN:
            known = " ".join(f"%{name}" for name in (*SHOWN, *JSON))
            raise InputError(f"-F {self._text}: there is no {found[0]}; valid are {known}")
        if found["flags"] or found["width"] or found["longest"]:
            return _padded(SHOWN[mark], mark, found)
        return SHOWN[mark]

    def _time(self, mark: str) -> Shown:
        if mark == "@":
            return _constant(b"@")
        if mark == "N":
            return lambda one: b"%09d" % (time.time_ns() % 1_000_000_000)
        if not mark.isalpha():
            raise InputError(f"-F {self._text}: @ is followed by a letter of strftime, as in @H:@M, or by @")
        return lambda one: now().strftime(f"%{mark}").encode()


def _constant(text: bytes) -> Shown:
    return lambda one: text


def _padded(show: Shown, mark: str, found: re.Match[str]) -> Shown:
    """Pad to the minimum width (left-aligned or with zeros, if given), and cut at the maximum."""
    width, longest = int(found["width"] or 0), int(found["longest"]) if found["longest"] else None
    is_left = "-" in found["flags"]
    fill = b"0" if "0" in found["flags"] and mark in ZERO_PADDED and not is_left else b" "

    def padded(one: Notification) -> bytes:
        text = show(one)[:longest]
        return text.ljust(width) if is_left else text.rjust(width, fill)

    return padded
