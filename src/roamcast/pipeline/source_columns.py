"""Columns of `format("roamcast")` that stand for attributes, and Spark's filters on them as selectors.

An attribute is a user property, or a field of a JSON payload, and has the type that brokers give it: a JSON
scalar where the text is one, otherwise the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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

from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.pipeline.inbox import Received

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
    """Return the columns of a schema that stand for attributes: all except the source's own."""
    columns = {field.name: field.dataType for field in schema.fields if field.name not in set(own)}
    for name, kind in columns.items():
        if not isinstance(kind, (*_INTEGERS, *_FLOATS, BooleanType, StringType)):
            raise InputError(
                f"column {name!r} is {kind.simpleString()}; an attribute is a string, a number or a boolean"
            )
    return columns


def attributes_of(one: Received) -> dict[str, Any]:
    """Return the attributes of a notification without its topic; of several user properties with one name the
    last counts.
    """
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
    """Convert a value to the type of its column; None if its type is another."""
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
    """Return a selector that passes everything these filters pass, and as little else as possible; "" for
    everything.

    Spark evaluates its filters again, so conditions that a selector cannot express are left out.
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
    """Format a value for a selector; "" if a selector cannot express it exactly."""
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
