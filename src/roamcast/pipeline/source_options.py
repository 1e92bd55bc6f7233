"""The options of `format("roamcast")`, checked before anything is connected to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roamcast.client import Client, connect
from roamcast.errors import InputError

FORMAT = "roamcast"
RECEIVE_MAX = 1_024
PEEK_MAX = 65_535
"""What a broker sends without an acknowledgement, at most: MQTT has no larger number."""


@dataclass(frozen=True)
class Options:
    brokers: tuple[str, ...]
    client_id: str
    filters: tuple[str, ...] = ()
    where: str | None = None
    qos: int = 1
    user: str | None = None
    password: str | None = None
    cafile: str | None = None
    inbox: Path | None = None
    session_expiry_s: int = 604_800
    batch_max: int = 10_000
    inbox_max: int = 100_000
    partitions: int = 1
    quiet_s: float = 1.0
    timeout_s: float = 60.0
    topic: str | None = None
    retain: bool = False

    def client(self, *, clean: bool, suffix: str = "", receive_maximum: int = RECEIVE_MAX) -> Client:
        return connect(
            list(self.brokers),
            client_id=self.client_id + suffix,
            clean=clean,
            session_expiry=60 if clean else self.session_expiry_s,
            username=self.user,
            password=self.password,
            cafile=self.cafile,
            receive_maximum=receive_maximum,
            queue_max=receive_maximum,
            give_up_after=self.timeout_s if clean else None,
        )

    def of_reader(self) -> Options:
        if not self.filters:
            raise InputError(f'format("{FORMAT}"): option "filter" is missing, such as city/#')
        if not self.client_id:
            raise InputError(f'format("{FORMAT}"): option "clientId" is missing: the name of the session')
        return self

    def of_stream_reader(self) -> Path:
        """The folder of the inbox."""
        self.of_reader()
        if self.inbox is None:
            raise InputError(
                f'format("{FORMAT}"): option "inbox" is missing: a folder of the driver for what has arrived'
                " and is not committed; it belongs to the checkpoint"
            )
        return self.inbox


_NAMES = {
    "brokers": "brokers", "clientid": "client_id", "filter": "filters", "where": "where", "qos": "qos",
    "user": "user", "password": "password", "cafile": "cafile", "inbox": "inbox",
    "sessionexpiry": "session_expiry_s", "maxperbatch": "batch_max", "inboxmax": "inbox_max",
    "partitions": "partitions", "quiet": "quiet_s", "timeout": "timeout_s", "topic": "topic",
    "retain": "retain",
}  # fmt: skip
VALID = (
    "brokers, clientId, filter, where, qos, user, password, cafile, inbox, sessionExpiry, maxPerBatch,"
    " inboxMax, partitions, quiet, timeout, topic, retain"
)
_SPARKS_OWN = {"path", "checkpointlocation"}
_NUMBERS: dict[str, tuple[type[int] | type[float], float, float]] = {
    "qos": (int, 0, 2),
    "session_expiry_s": (int, 1, 2**32 - 1),
    "batch_max": (int, 1, 1_000_000),
    "inbox_max": (int, 1, 100_000_000),
    "partitions": (int, 1, 10_000),
    "quiet_s": (float, 0, 3_600),
    "timeout_s": (float, 0, 86_400),
}


def parse_options(given: Mapping[str, str]) -> Options:
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in _SPARKS_OWN:
            continue
        field = _NAMES.get(name.lower())
        if field is None:
            raise InputError(f'format("{FORMAT}"): there is no option {name!r}; valid are {VALID}')
        values[field] = _value(name, field, text)
    if not values.get("brokers"):
        raise InputError(f'format("{FORMAT}"): option "brokers" is missing, such as 127.0.0.1:1883')
    values.setdefault("client_id", "")
    return Options(**values)


def _value(name: str, field: str, text: str) -> Any:
    if field in ("brokers", "filters"):
        parts = text.split(",") if field == "brokers" else text.splitlines()
        return tuple(part.strip() for part in parts if part.strip())
    if field == "inbox":
        return Path(text)
    if field == "retain":
        if text.lower() not in ("true", "false"):
            raise InputError(f'format("{FORMAT}"): {name} {text!r}: valid are true and false')
        return text.lower() == "true"
    if field not in _NUMBERS:
        return text
    kind, low, high = _NUMBERS[field]
    try:
        number = kind(text)
    except ValueError:
        number = kind(-1)
    if not low <= number <= high:
        raise InputError(f'format("{FORMAT}"): {name} {text!r}: valid is a number from {low:g} to {high:g}')
    return number
