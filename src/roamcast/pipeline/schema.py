"""The record schema as Spark and Parquet see it. What a row is, is said in protocol/records.py alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from roamcast.protocol.records import COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

VERSION_KEY = b"roamcast.schema_version"
"""Under which a file says which version of the schema it follows."""
UNVERSIONED = 0
"""What a file follows that says nothing: one that was rewritten by another tool."""

ROW_COLUMNS = ("run", "sequence", "time", "node", "kind")
"""What every row has in every version of the schema."""

_SPARK_TYPES = {
    "string": "string", "binary": "binary", "float64": "double", "int64": "bigint", "int32": "int",
}  # fmt: skip
# Which Arrow types hold what the schema asks for without loss: other tools write other ones.
_ARROW_TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "string": (pa.string(), pa.large_string()),
    "binary": (pa.binary(), pa.large_binary()),
    "float64": (pa.float64(),),
    "int64": (pa.int64(), pa.int32()),
    "int32": (pa.int32(),),
}


def spark_schema() -> StructType:
    """The columns of a log, in the order of the contract."""
    from pyspark.sql.types import StructType

    columns = ", ".join(f"{name} {_SPARK_TYPES[kind]}" for name, kind in COLUMNS.items())
    return cast("StructType", StructType.fromDDL(columns))


def arrow_schema() -> pa.Schema:
    """The same for Arrow."""
    return pa.schema([(name, _ARROW_TYPES[kind][0]) for name, kind in COLUMNS.items()])


def schema_problem(schema: pa.Schema) -> str | None:
    """Why a file with this schema is no log that this program can read; None if it is one."""
    told = (schema.metadata or {}).get(VERSION_KEY)
    problem = version_problem(None if told is None else told.decode(errors="replace"), schema.names)
    if problem is not None:
        return problem
    for name, kind in COLUMNS.items():
        if name in schema.names and _plain(schema.field(name).type) not in _ARROW_TYPES[kind]:
            return f"is no event log: column {name!r} is {schema.field(name).type}, valid is {kind}"
    return None


def version_problem(told: str | None, names: Collection[str]) -> str | None:
    """Why a file of this version, with these columns, is no log that this program can read.

    Later versions add columns; a file of this program's own version has them all.
    """
    told = str(UNVERSIONED) if told is None else told
    if not told.isdigit() or int(told) > SCHEMA_VERSION:
        return f"has schema version {told}: this program reads up to {SCHEMA_VERSION}"
    needed = COLUMNS if int(told) == SCHEMA_VERSION else ROW_COLUMNS
    missing = [name for name in needed if name not in names]
    return f"is no event log: it has no column {missing[0]!r}" if missing else None


def _plain(kind: pa.DataType) -> pa.DataType:
    """A dictionary is but a way to store its values."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind
