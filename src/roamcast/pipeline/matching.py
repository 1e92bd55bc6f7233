"""Which notifications match which subscriptions: the pipeline's own evaluation of the filters, as SQL.

There are few subscriptions and many notifications, so subscriptions are sent to where the notifications are.
There each notification is joined with the subscriptions that require one of its values (their equality
constraint, the key), and the rest of each filter is evaluated on these pairs only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from roamcast.errors import InputError
from roamcast.filters.expression import And, Constant, Expression, Inside, Or, Value
from roamcast.filters.own import widest
from roamcast.filters.selector import parse
from roamcast.pipeline.conditions import (
    MISSING,
    Allowed,
    Box,
    Derived,
    allowed_by,
    boxes_of,
    encode,
    leaves_of,
)

if TYPE_CHECKING:
    from roamcast.pipeline.engines import Dialect

KEYS_MAX = 16
"""Maximum length of a list of values that becomes the key of a box."""
REMEMBERED_MAX = 65_536
NO_KEY = b""
SLOT_BYTES = 2
"""Bytes before a value that is a key, so that equal values of two attributes are different keys."""


Asked = str | Derived
"""An attribute by its name, or a value derived from one."""


@dataclass(frozen=True)
class FilterTable:
    """Filters in the form that SQL evaluates."""

    names: tuple[str, ...]
    """Attributes in the filters; the position of a name is its slot."""
    boxes: pa.Table
    """One row for each box and key: the filter's text, the key, the hull of every slot, the rest."""
    keys: tuple[int, ...]
    """Slots whose value selects boxes."""
    has_keyless: bool
    unboxed: Mapping[str, Expression]
    """Filters that would need too many boxes, evaluated directly."""
    derived: Mapping[str, Derived]
    """Names that stand for values computed from an attribute."""

    @property
    def values(self) -> tuple[Asked, ...]:
        """Return the values to read from a notification's attributes, by slot."""
        return tuple(self.derived.get(name, name) for name in self.names)


def problem_of_filter(text: str) -> str:
    """Return why a filter cannot be read; "" if it can."""
    try:
        parse(text)
    except InputError as error:
        return str(error)
    return ""


def filter_table(texts: Iterable[str]) -> FilterTable:
    # Of a filter on its client's own state only the widest instance is known here.
    expressions = {text: widest(parse(text)).expression for text in texts}
    leaves = [leaf for expression in expressions.values() for leaf in leaves_of(expression)]
    names = tuple(sorted({allowed_by(leaf)[0] for leaf in leaves}))
    inside = (Derived(leaf.name, leaf.region) for leaf in leaves if isinstance(leaf, Inside))
    derived = {one.column: one for one in inside}
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
        derived,
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


def _patterns(allowed: Allowed) -> list[dict[str, Any]]:
    """Return patterns for the encoded value, which begins with the letter of strings."""
    return [
        {"regex": rf"(?s)\As(?:{pattern.regex})\z", "negative": pattern.negative}
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


Values = tuple[bytes | bool, ...]
"""Encoded values of attributes, and whether they could be read."""


def decoder(names: tuple[Asked, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that adds the sortable bytes of the named attributes (`value0`, …), and whether they
    could be read.
    """
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


def decoded(rows: pa.Table, names: Sequence[Asked]) -> pa.Table:
    """Return the same columns for a table in memory."""
    added = [*((f"value{slot}", pa.binary()) for slot in range(len(names))), ("readable", pa.bool_())]
    schema = pa.schema([*rows.schema, *(pa.field(*one) for one in added)])
    return pa.Table.from_batches(decoder(tuple(names))(iter(rows.to_batches())), schema)


def unreadable_in(table: pa.Table) -> int:
    return sum(chunk.false_count for chunk in table.column("readable").chunks)


def _values(
    encoded: bytes | None, names: tuple[Asked, ...], decode: Callable[[bytes], Mapping[str, Value]]
) -> Values:
    try:
        attributes = decode(encoded or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return (*(MISSING for _ in names), False)
    return (*(_value(attributes, name) for name in names), True)


def _value(attributes: Mapping[str, Value], asked: Asked) -> bytes:
    if isinstance(asked, Derived):
        return asked.encoded(attributes.get(asked.name))
    return encode(attributes[asked]) if asked in attributes else MISSING


# --- pairs ---


def pairs_sql(
    table: FilterTable, dialect: Dialect, kept: Sequence[str], others: Sequence[str], notifications: str,
    wanted: str, held: str,
) -> str:  # fmt: skip
    """Return a query for every notification with every subscription of its run whose filter it matches.

    `notifications` have the values of `decoder`; `held` has `run` and `filter`, and `wanted` is `held` joined
    with the boxes of the filters. `kept` are the columns to keep of notifications, `others` those of `held`.
    A pair may occur several times.
    """
    keys = [f"{dialect.blob(slot.to_bytes(SLOT_BYTES))} || value{slot}" for slot in table.keys]
    if table.has_keyless or not keys:
        keys.append(dialect.blob(NO_KEY))
    key = dialect.unnest(keys) if len(keys) > 1 else keys[0]
    columns = ", ".join([*(f"n.{name}" for name in kept), *(f"b.{name}" for name in others)])
    parts = [
        f"""SELECT /*+ BROADCAST(b) */ {columns}
        FROM (SELECT *, {key} AS key FROM {notifications}) AS n
        JOIN {wanted} AS b ON n.run = b.run AND n.key = b.key WHERE {_fits(len(table.names), dialect)}"""
    ]
    slots = {name: f"value{slot}" for slot, name in enumerate(table.names)}
    for text, expression in table.unboxed.items():
        parts.append(
            f"""SELECT /*+ BROADCAST(b) */ {columns} FROM {notifications} AS n
            JOIN (SELECT * FROM {held} WHERE filter = {dialect.text(text)}) AS b ON n.run = b.run
            WHERE {_condition(expression, slots, dialect)}"""
        )
    return " UNION ALL ".join(parts)


def _fits(slots: int, dialect: Dialect) -> str:
    """Return the condition that every value of a pair lies in its hull and fits the rest."""
    if not slots:
        return "true"
    hulls = [f"value{slot} >= low{slot} AND value{slot} < high{slot}" for slot in range(slots)]
    value = f"CASE one.slot {' '.join(f'WHEN {slot} THEN value{slot}' for slot in range(slots))} END"
    inside = dialect.any("one.intervals", "it", f"{value} >= it.low AND {value} < it.high")
    fits = dialect.every("one.patterns", "it", f"{dialect.fits(value, 'it.regex')} <> it.negative")
    rest = dialect.every("rest", "one", f"{inside} AND {fits}")
    return f"{' AND '.join(hulls)} AND (rest IS NULL OR {rest})"


def _condition(expression: Expression, slots: Mapping[str, str], dialect: Dialect) -> str:
    """Return a filter as one condition."""
    if isinstance(expression, Constant):
        return str(expression.value).lower()
    if isinstance(expression, And | Or):
        sign = " AND " if isinstance(expression, And) else " OR "
        return f"({sign.join(_condition(child, slots, dialect) for child in expression.children)})"
    name, allowed = allowed_by(expression)
    value, blob = slots[name], dialect.blob
    inside = " OR ".join(
        f"({value} >= {blob(low)} AND {value} < {blob(high)})" for low, high in allowed.intervals
    )
    fits = "".join(
        f" AND {dialect.fits(value, dialect.text(one['regex']))} <> {str(one['negative']).lower()}"
        for one in _patterns(allowed)
    )
    return f"(({inside or 'false'}){fits})"
