"""Options of `format("roamcast")`, checked before any connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from roamcast.client import Client, connect
from roamcast.errors import InputError

FORMAT = "roamcast"
RECEIVE_MAX = 1_024
WAITING, RETAINED = READS = ("waiting", "retained")
"""What a batch reads: notifications stored for a session, or the retained messages."""
PEEK_MAX = 65_535
"""Maximum number of unacknowledged messages from a broker; MQTT has no larger number."""


def _option(name: str, default: object, low: float = 0, high: float = 0) -> Any:
    """Declare an option with the name that users write, and with its bounds if it is a number."""
    return field(default=default, metadata={"name": name, "range": (low, high)})


@dataclass(frozen=True)
class Options:
    brokers: tuple[str, ...] = _option("brokers", ())
    client_id: str = _option("clientId", "")
    filters: tuple[str, ...] = _option("filter", ())
    where: str | None = _option("where", None)
    qos: int = _option("qos", 1, 0, 2)
    user: str | None = _option("user", None)
    password: str | None = _option("password", None)
    cafile: str | None = _option("cafile", None)
    inbox: Path | None = _option("inbox", None)  # noqa: RUF009 (it makes a field)
    session_expiry_s: int = _option("sessionExpiry", 604_800, 1, 2**32 - 1)
    batch_max: int = _option("maxPerBatch", 10_000, 1, 1_000_000)
    inbox_max: int = _option("inboxMax", 100_000, 1, 100_000_000)
    partitions: int = _option("partitions", 1, 1, 10_000)
    quiet_s: float = _option("quiet", 1.0, 0, 3_600)
    timeout_s: float = _option("timeout", 60.0, 0, 86_400)
    topic: str | None = _option("topic", None)
    retain: bool = _option("retain", False)
    read: str = _option("read", "waiting")

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

    def of_batch_reader(self) -> Options:
        if self.read not in READS:
            raise InputError(f'format("{FORMAT}"): read {self.read!r}: valid are {" and ".join(READS)}')
        if self.read == RETAINED and not self.filters:
            raise InputError(f'format("{FORMAT}"): option "filter" is missing, such as city/#')
        return self if self.read == RETAINED else self.of_reader()

    def of_stream_reader(self) -> Path:
        """Return the folder of the inbox."""
        self.of_reader()
        if self.inbox is None:
            raise InputError(
                f'format("{FORMAT}"): option "inbox" is missing: a folder of the driver for what has arrived'
                " and is not committed; it belongs to the checkpoint"
            )
        return self.inbox


_FIELDS = {one.metadata["name"].lower(): one for one in fields(Options)}
VALID = ", ".join(one.metadata["name"] for one in fields(Options))
_SPARKS_OWN = {"path", "checkpointlocation"}


def parse_options(given: Mapping[str, str]) -> Options:
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in _SPARKS_OWN:
            continue
        option = _FIELDS.get(name.lower())
        if option is None:
            raise InputError(f'format("{FORMAT}"): there is no option {name!r}; valid are {VALID}')
        values[option.name] = _value(name, option, text)
    if not values.get("brokers"):
        raise InputError(f'format("{FORMAT}"): option "brokers" is missing, such as 127.0.0.1:1883')
    return Options(**values)


def _value(name: str, option: Field[Any], text: str) -> Any:
    if option.name in ("brokers", "filters"):
        parts = text.split(",") if option.name == "brokers" else text.splitlines()
        return tuple(part.strip() for part in parts if part.strip())
    if option.name == "inbox":
        return Path(text)
    if option.name == "retain":
        if text.lower() not in ("true", "false"):
            raise InputError(f'format("{FORMAT}"): {name} {text!r}: valid are true and false')
        return text.lower() == "true"
    low, high = option.metadata["range"]
    if not high:
        return text
    kind: type[int] | type[float] = type(getattr(Options, option.name))
    try:
        number = kind(text)
    except ValueError:
        number = kind(-1)
    if not low <= number <= high:
        raise InputError(f'format("{FORMAT}"): {name} {text!r}: valid is a number from {low:g} to {high:g}')
    return number
