"""How `roamcast sub` prints a notification: the formats of mosquitto_sub."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from roamcast.client import Notification
from roamcast.errors import InputError

ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "e": b"\x1b", "a": b"\a", "\\": b"\\"}
PARTS = re.compile(r"%(.?)|\\(.?)|([^%\\]+)", re.DOTALL)


def as_json(one: Notification, payload_is_json: bool = False) -> bytes:
    """One line; a payload that is not UTF-8 is in `payload_base64`."""
    described: dict[str, Any] = {"tst": _now(), "topic": one.topic, "qos": one.qos, "retain": one.retain}
    described |= {"dup": one.dup, "payloadlen": len(one.payload)}
    try:
        text = one.payload.decode()
        described["payload"] = json.loads(text) if payload_is_json else text
    except UnicodeDecodeError:
        described["payload_base64"] = base64.b64encode(one.payload).decode()
    except ValueError:
        described["payload"] = None
    optional: dict[str, Any] = {
        "content_type": one.content_type,
        "message_expiry": one.message_expiry,
        "response_topic": one.response_topic,
        "subscription_identifiers": list(one.subscription_identifiers),
        "properties": [list(pair) for pair in one.user_properties],
        "identity": one.identity._asdict() if one.identity is not None else None,
    }
    described |= {name: value for name, value in optional.items() if value}
    return json.dumps(described, ensure_ascii=False).encode()


def _now() -> str:
    return datetime.now(UTC).astimezone().isoformat(timespec="microseconds")


SHOWN: dict[str, Callable[[Notification], bytes]] = {
    "p": lambda one: one.payload,
    "t": lambda one: one.topic.encode(),
    "x": lambda one: one.payload.hex().encode(),
    "X": lambda one: one.payload.hex().upper().encode(),
    "l": lambda one: b"%d" % len(one.payload),
    "q": lambda one: b"%d" % one.qos,
    "r": lambda one: b"%d" % one.retain,
    "d": lambda one: b"%d" % one.dup,
    "I": lambda one: _now().encode(),
    "U": lambda one: f"{time.time():.9f}".encode(),
    "C": lambda one: (one.content_type or "").encode(),
    "R": lambda one: (one.response_topic or "").encode(),
    "P": lambda one: " ".join(f"{name}:{value}" for name, value in one.user_properties).encode(),
    "j": as_json,
    "J": lambda one: as_json(one, payload_is_json=True),
    "%": lambda one: b"%",
}


class Format:
    """A format text, taken apart once."""

    def __init__(self, text: str) -> None:
        self._parts: list[Callable[[Notification], bytes]] = []
        for found in PARTS.finditer(text):
            mark, escape, plain = found.groups()
            if mark is not None:
                if mark not in SHOWN:
                    known = " ".join(f"%{name}" for name in SHOWN)
                    raise InputError(f"-F {text}: there is no %{mark}; valid are {known}")
                self._parts.append(SHOWN[mark])
            elif escape is not None:
                self._parts.append(_constant(ESCAPES.get(escape, b"\\" + escape.encode())))
            else:
                self._parts.append(_constant(plain.encode("utf-8", "surrogateescape")))

    def show(self, notification: Notification) -> bytes:
        return b"".join(part(notification) for part in self._parts)


def _constant(text: bytes) -> Callable[[Notification], bytes]:
    return lambda one: text
