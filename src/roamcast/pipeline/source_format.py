"""The options of `format("roamcast")`, columns that stand for attributes, and filters on them as selectors.

An attribute is a user property, or a field of a JSON payload, and has the type that brokers give it: a JSON
scalar where the text is one, otherwise the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import datasource as spark_filters
from pyspark.sql.datasource import Filter
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from roamcast.client import Client, connect
from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.pipeline.inbox import Received

FORMAT = "roamcast"
RECEIVE_MAX = 1_024
WAITING, RETAINED = READS = ("waiting", "retained")
"""What a batch can read: the notifications that a broker keeps for a session, or the retained messages."""
PEEK_MAX = 65_535
"""Maximum number of notifications that a broker sends without an acknowledgement, by MQTT."""


def _option(name: str, default: object, low: float = 0, high: float = 0) -> Any:
    """Declare an option with the name that users write and, for a number, its valid range."""
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


# --- columns for attributes ---

_INTEGERS, _FLOATS = (IntegerType, LongType), (FloatType, DoubleType)
_COMPARED = {
    spark_filters.EqualTo: "=",
    spark_filters.GreaterThan: ">",
    spark_filters.GreaterThanOrEqual: ">=",
    spark_filters.LessThan: "<",
    spark_filters.LessThanOrEqual: "<=",
}
_SCALAR_BEGINS = '-0123456789tf"'


def attribute_columns(schema: StructType, own: Iterable[str]) -> dict[str, DataType]:
    """Return the columns of a schema that stand for attributes: all but the source's own."""
    columns = {field.name: field.dataType for field in schema.fields if field.name not in set(own)}
    for name, kind in columns.items():
        if not isinstance(kind, (*_INTEGERS, *_FLOATS, BooleanType, StringType)):
            raise InputError(
                f"column {name!r} is {kind.simpleString()}; an attribute is a string, a number or a boolean"
            )
    return columns


def attributes_of(one: Received) -> dict[str, Any]:
    """Return the attributes of a notification except its topic. Of several user properties with the same
    name, the last one counts."""
    found: dict[str, Any] = {}
    if (one.content_type or "").partition(";")[0].strip().lower().endswith(("/json", "+json")):
        try:
            found = msgspec.json.decode(one.payload, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = {}
    return {**found, **{name: _typed(text) for name, text in one.properties}}


def _typed(text: str) -> Any:
    if text[:1] not in _SCALAR_BEGINS or not text:
        return text
    try:
        return msgspec.json.decode(text, type=str | bool | int | float)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return text


def as_column(value: Any, kind: DataType) -> Any:
    """Convert a value to the type of its column; None if it has another type."""
    if isinstance(kind, StringType):
        return value if isinstance(value, str) else None
    if isinstance(kind, BooleanType):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(kind, _INTEGERS):
        bits = 31 if isinstance(kind, IntegerType) else 63
        return value if isinstance(value, int) and -(1 << bits) <= value < 1 << bits else None
    return float(value)


# --- filters ---


def selector_of(filters: Iterable[Filter], columns: Mapping[str, DataType]) -> str:
    """Return a selector that matches everything that passes these filters, and as little else as possible; ""
    if it must match everything.

    Spark evaluates its filters again, so parts that a selector cannot express are left to Spark.
    """
    return " AND ".join(text for one in filters if (text := _selector(one, columns)))


def _selector(one: Filter, columns: Mapping[str, DataType]) -> str:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    name = attribute[0] if len(attribute) == 1 else ""
    if name not in columns:
        return ""
    text = ""
    value = getattr(one, "value", None)
    if isinstance(one, tuple(_COMPARED)):
        literal = _literal(value, columns[name])
        is_ordered = not isinstance(columns[name], StringType | BooleanType)
        if literal and (is_ordered or isinstance(one, spark_filters.EqualTo)):
            text = f"{name} {_COMPARED[type(one)]} {literal}"
    elif isinstance(one, spark_filters.In) and isinstance(value, list | tuple):
        literals = [_literal(item, columns[name]) for item in value]
        if literals and all(literals) and not isinstance(columns[name], BooleanType):
            text = f"{name} IN ({', '.join(literals)})"
    elif isinstance(one, spark_filters.IsNotNull):
        text = f"{name} IS NOT NULL"
    return text if text and _is_selector(text) else ""


def _literal(value: Any, kind: DataType) -> str:
    """Return a value as text for a selector; "" if the text would not be exact."""
    if isinstance(kind, StringType):
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else ""
    if isinstance(kind, BooleanType):
        return str(value).upper() if isinstance(value, bool) else ""
    # A float of four bytes is not the number that its attribute is.
    if isinstance(value, bool) or not isinstance(value, int | float) or isinstance(kind, FloatType):
        return ""
    return repr(value) if math.isfinite(value) else ""


def _is_selector(text: str) -> bool:
    try:
        parse(text)
    except InputError:
        return False
    return True
