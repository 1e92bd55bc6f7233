"""The differences between the SQL of Spark and of DuckDB; all other text is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    blob: Callable[[bytes], str]
    """A literal of bytes."""
    text: Callable[[str], str]
    """A literal of text with any characters."""
    unnest: Callable[[Sequence[str]], str]
    """One row for each of these values."""
    unnest_range: Callable[[str, str], str]
    """One row for each number of a range, both ends included."""
    every: Callable[[str, str, str], str]
    """True if the condition holds for each element (list, name of the element, condition)."""
    any: Callable[[str, str, str], str]
    fits: Callable[[str, str], str]
    """Condition that a regular expression matches the bytes of an encoded value."""
    struct: Callable[[Sequence[str]], str]
    """These columns as one value, compared from left to right."""
    last_known: Callable[[str], str]
    """Window function for the last value that is not null."""
    once: Callable[[str, Sequence[str]], str]
    """A query for the rows of a table, one for each value of the key."""


SPARK = Dialect(
    blob=lambda value: f"X'{value.hex()}'",
    text=lambda value: f"CAST(X'{value.encode().hex()}' AS STRING)",
    unnest=lambda values: f"explode(array({', '.join(values)}))",
    unnest_range=lambda first, last: f"explode(sequence({first}, {last}))",
    every=lambda items, name, condition: f"forall({items}, {name} -> {condition})",
    any=lambda items, name, condition: f"exists({items}, {name} -> {condition})",
    fits=lambda value, regex: f"regexp_like(CAST({value} AS STRING), {regex})",
    struct=lambda names: f"struct({', '.join(names)})",
    last_known=lambda value: f"last_value({value}, true)",
    once=lambda table, key: (
        f"SELECT found.* FROM (SELECT any_value(struct(*)) AS found FROM {table} GROUP BY {', '.join(key)})"
    ),
)

DUCKDB = Dialect(
    blob=lambda value: f"from_hex('{value.hex()}')" if value else "''::BLOB",
    text=lambda value: f"decode(from_hex('{value.encode().hex()}'))",
    unnest=lambda values: f"unnest([{', '.join(values)}])",
    unnest_range=lambda first, last: f"unnest(generate_series({first}, {last}))",
    every=lambda items, name, condition: (
        f"coalesce(list_bool_and(list_transform({items}, lambda {name}: {condition})), true)"
    ),
    any=lambda items, name, condition: (
        f"coalesce(list_bool_or(list_transform({items}, lambda {name}: {condition})), false)"
    ),
    # Only strings are text; RE2 needs no atomic groups, and knows none.
    fits=lambda value, regex: (
        f"(CASE WHEN {value} >= 's'::BLOB AND {value} < 't'::BLOB"
        f" THEN regexp_matches(decode({value}), replace({regex}, '(?>', '(?:')) ELSE false END)"
    ),
    struct=lambda names: f"struct_pack({', '.join(f'{name} := {name}' for name in names)})",
    last_known=lambda value: f"last_value({value} IGNORE NULLS)",
    once=lambda table, key: f"SELECT DISTINCT ON ({', '.join(key)}) * FROM {table}",
)
