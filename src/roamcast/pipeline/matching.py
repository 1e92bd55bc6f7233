"""Which notifications match which subscriptions: Spark's own evaluation of the filters.

Subscriptions are few and notifications many, so the subscriptions are sent to
wherever the notifications are. There each notification is joined with the
subscriptions that ask for a value it has (their equality constraint, the key),
and the rest of each filter is evaluated on these pairs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import BinaryType, BooleanType, StructField, StructType

from roamcast.errors import InputError
from roamcast.filters.expression import And, Constant, Expression, Or, Value, names_of
from roamcast.filters.own import widest
from roamcast.filters.selector import parse
from roamcast.pipeline.conditions import MISSING, Allowed, Box, allowed_by, boxes_of, encode

KEYS_MAX = 16
"""A list of more values than this does not become the key of a box."""
BROADCAST_MAX = 200_000
"""More boxes than this are not sent everywhere: Spark decides how to join them."""
REMEMBERED_MAX = 65_536
NO_KEY = b""
SLOT_BYTES = 2
"""In front of a value that is a key, so that equal values of two attributes are two keys."""


@dataclass(frozen=True)
class FilterTable:
    """Filters as Spark evaluates them."""

    names: tuple[str, ...]
    """Attributes that any of them speaks of; the place of a name is its slot."""
    boxes: pa.Table
    """One row for each box and key: the filter's text, the key, the hull of every slot, the rest."""
    keys: tuple[int, ...]
    """Slots by whose value boxes are found."""
    has_keyless: bool
    unboxed: Mapping[str, Expression]
    """Filters that would need too many boxes."""


def problem_of_filter(text: str) -> str:
    """Why a filter cannot be read; "" if it can."""
    try:
        parse(text)
    except InputError as error:
        return str(error)
    return ""


def filter_table(texts: Iterable[str]) -> FilterTable:
    # Of a filter on its client's own state only the widest instance is known here.
    expressions = {text: widest(parse(text)).expression for text in texts}
    names = tuple(sorted(frozenset[str]().union(*map(names_of, expressions.values()))))
    boxes: list[tuple[str, Box]] = []
    unboxed = {}
    for text, expression in expressions.items():
        found = boxes_of(expression)
        if found is None:
            unboxed[text] = expression
        else:
            boxes += [(text, box) for box in found]
    # Of several equalities the one that tells most notifications apart leaves the fewest pairs.
    values = {name: {point for _, box in boxes for point in _key_points(box, name)} for name in names}
    by_values = sorted(names, key=lambda name: -len(values[name]))
    slots = {name: slot for slot, name in enumerate(names)}
    rows = [row for text, box in boxes for row in _box_rows(text, box, slots, by_values)]
    keys = {row["key"][:SLOT_BYTES] for row in rows} - {NO_KEY}
    return FilterTable(
        names,
        pa.Table.from_pylist(rows, schema=_box_schema(len(names))),
        tuple(sorted(int.from_bytes(key) for key in keys)),
        any(row["key"] == NO_KEY for row in rows),
        unboxed,
    )


def _key_points(box: Box, name: str) -> list[bytes]:
    points = box[name].points if name in box else []
    return points if len(points) <= KEYS_MAX else []


def _key(slot: int, value: bytes) -> bytes:
    return slot.to_bytes(SLOT_BYTES) + value


def _box_rows(
    text: str, box: Box, slots: Mapping[str, int], by_values: Sequence[str]
) -> Iterator[dict[str, Any]]:
    keyed_by = next((name for name in by_values if _key_points(box, name)), None)
    row: dict[str, Any] = {"filter": text}
    for name, slot in slots.items():
        row[f"low{slot}"], row[f"high{slot}"] = box.get(name, Allowed()).hull
    rest = [
        {"slot": slots[name], "intervals": _structs(allowed), "patterns": _patterns(allowed)}
        for name, allowed in sorted(box.items())
        if not allowed.is_hull and not (name == keyed_by and not allowed.patterns)
    ]
    row["rest"] = rest or None
    if keyed_by is None:
        yield {**row, "key": NO_KEY}
        return
    for point in box[keyed_by].points:
        yield {**row, "key": _key(slots[keyed_by], point)}


def _structs(allowed: Allowed) -> list[dict[str, bytes]]:
    return [{"low": low, "high": high} for low, high in allowed.intervals]


def _patterns(allowed: Allowed) -> list[dict[str, object]]:
    return [
        {"regex": rf"(?s)\A(?:{pattern.regex})\z", "negative": pattern.negative}
        for pattern in allowed.patterns
    ]


def _box_schema(slots: int) -> pa.Schema:
    interval = pa.struct([("low", pa.binary()), ("high", pa.binary())])
    pattern = pa.struct([("regex", pa.string()), ("negative", pa.bool_())])
    tests = [("intervals", pa.list_(interval)), ("patterns", pa.list_(pattern))]
    rest = pa.struct([("slot", pa.int32()), *tests])
    ends = [(f"{end}{slot}", pa.binary()) for slot in range(slots) for end in ("low", "high")]
    return pa.schema([("filter", pa.string()), ("key", pa.binary()), ("rest", pa.list_(rest)), *ends])


# --- notifications ---


def with_values(published: DataFrame, names: Sequence[str]) -> DataFrame:
    """Adds the sortable bytes of the named attributes (`value0`, …), and whether they could be read."""
    added = [StructField(f"value{slot}", BinaryType()) for slot in range(len(names))]
    fields = [*published.schema.fields, *added, StructField("readable", BooleanType())]
    return published.mapInArrow(_decoder(tuple(names)), StructType(fields))


Values = tuple[bytes | bool, ...]
"""The bytes of each attribute, and whether they could be read."""


def _decoder(names: tuple[str, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    added = [*(f"value{slot}" for slot in range(len(names))), "readable"]
    types = [*(pa.binary() for _ in names), pa.bool_()]

    def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known: dict[bytes, Values] = {}
        decode = msgspec.msgpack.Decoder(dict[str, str | bool | int | float]).decode
        for batch in batches:
            rows = []
            for encoded in batch.column("attributes").to_pylist():
                values = known.get(encoded)
                if values is None:
                    if len(known) >= REMEMBERED_MAX:
                        known.clear()
                    values = known[encoded] = _values(encoded, names, decode)
                rows.append(values)
            columns = map(pa.array, zip(*rows, strict=True), types)
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], [*batch.schema.names, *added])

    return decode_batches


def _values(
    encoded: bytes | None, names: tuple[str, ...], decode: Callable[[bytes], Mapping[str, Value]]
) -> Values:
    try:
        attributes = decode(encoded or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return (*(MISSING for _ in names), False)
    return (*(encode(attributes[name]) if name in attributes else MISSING for name in names), True)


# --- pairs ---


def matching_pairs(
    spark: SparkSession, notifications: DataFrame, subscriptions: DataFrame, table: FilterTable
) -> DataFrame:
    """Every notification with every subscription of its run whose filter it matches.

    `notifications` have the values of `with_values`; `subscriptions` have `run` and `filter`. The other
    columns of both are kept, so they must have different names. A pair may come several times.
    """
    count = len(table.names)
    kept = [name for name in notifications.columns if not name.startswith("value")]
    others = [name for name in subscriptions.columns if name != "run"]
    boxes = spark.createDataFrame(table.boxes).join(subscriptions, "filter")
    if table.boxes.num_rows <= BROADCAST_MAX:
        boxes = fn.broadcast(boxes)
    keys = [fn.concat(fn.lit(slot.to_bytes(SLOT_BYTES)), f"value{slot}") for slot in table.keys]
    if table.has_keyless or not keys:
        keys.append(fn.lit(NO_KEY))
    keyed = notifications.withColumn("key", fn.explode(fn.array(*keys)) if len(keys) > 1 else keys[0])
    pairs = keyed.join(boxes, ["run", "key"]).where(_fits(count))
    results = [pairs.select(*kept, *others)]
    columns = {name: fn.col(f"value{slot}") for slot, name in enumerate(table.names)}
    for text, expression in table.unboxed.items():
        found = notifications.where(condition(expression, columns))
        held = fn.broadcast(subscriptions.where(fn.col("filter") == text))
        results.append(found.join(held, "run").select(*kept, *others))
    return reduce(DataFrame.unionByName, results)


def _fits(slots: int) -> Column:
    """Whether every value of a pair lies in its hull, and fits the rest."""
    fits = fn.lit(True)
    for slot in range(slots):
        value = fn.col(f"value{slot}")
        fits = fits & (value >= fn.col(f"low{slot}")) & (value < fn.col(f"high{slot}"))
    if not slots:
        return fits
    values = fn.array(*(f"value{slot}" for slot in range(slots)))
    rest = fn.forall("rest", lambda one: _allows(one, fn.element_at(values, one["slot"] + 1)))
    return fits & (fn.col("rest").isNull() | rest)


def _allows(one: Column, value: Column) -> Column:
    inside = fn.exists(one["intervals"], lambda end: (value >= end["low"]) & (value < end["high"]))
    fits = fn.forall(
        one["patterns"], lambda pattern: fn.rlike(_text(value), pattern["regex"]) != pattern["negative"]
    )
    return inside & fits


def _text(value: Column) -> Column:
    """A string without the letter of its type."""
    return fn.substring(value, fn.lit(2), fn.length(value)).cast("string")


def condition(expression: Expression, columns: Mapping[str, Column]) -> Column:
    """A filter as one condition of Spark's, as it stands."""
    if isinstance(expression, Constant):
        return fn.lit(expression.value)
    if isinstance(expression, And):
        return reduce(Column.__and__, (condition(child, columns) for child in expression.children))
    if isinstance(expression, Or):
        return reduce(Column.__or__, (condition(child, columns) for child in expression.children))
    name, allowed = allowed_by(expression)
    value = columns[name]
    inside = reduce(
        Column.__or__,
        ((value >= fn.lit(low)) & (value < fn.lit(high)) for low, high in allowed.intervals),
        fn.lit(False),
    )
    fits = (fn.rlike(_text(value), fn.lit(one["regex"])) != one["negative"] for one in _patterns(allowed))
    return reduce(Column.__and__, fits, inside)
