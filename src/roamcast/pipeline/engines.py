"""The engine interface for the SQL of a job, and the embedded engine (DuckDB).

DuckDB answers small logs in a second, in this process; Spark (spark_engine.py) is for everything that does
not fit, and for clusters. The text of the queries is the same (audit_sql.py). Queries over the log run in the
engine. Their results have the size of the network, not of the log, and are processed at the desk, which is
DuckDB in both cases.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from roamcast.pipeline.matching import Asked, decoded, unreadable_in
from roamcast.pipeline.places import ArrowFiles, Place, find_log_files
from roamcast.protocol.records import COLUMNS

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Dialect:
    """The differences between the SQL of Spark and of DuckDB; all other text is shared."""

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

MEMORY_SHARE = 0.5
"""Share of the machine's memory for DuckDB; beyond it DuckDB uses the disk."""
KEPT = ".kept"
"""Folder for kept tables within that of unfinished results; names with a dot are not part of the results."""
_TYPES = {"string": "VARCHAR", "binary": "BLOB", "float64": "DOUBLE", "int64": "BIGINT", "int32": "INTEGER"}


class Desk(Protocol):
    """Tables of the size of the network, in DuckDB: a row for each client, subscription, move or finding."""

    def define(self, name: str, query: str) -> None:
        """Define a named query, which is computed at each use."""

    def keep(self, name: str, query: str) -> None:
        """Compute a query once, and keep the result."""

    def register(self, name: str, table: pa.Table) -> None: ...

    def fetch(self, query: str) -> pa.Table: ...

    def write(self, name: str, folder: Path) -> None:
        """Write a table of any size as Parquet into a new folder."""


class Engine(Protocol):
    """Queries over the rows of a log, and a desk for their results."""

    dialect: Dialect

    @property
    def desk(self) -> Desk: ...

    def define(self, name: str, query: str) -> None:
        """Name a query over the log."""

    def fetch(self, query: str) -> pa.Table:
        """Return a result with at most one row for each client, publisher or node."""

    def side_by_side(self, *works: Callable[[], Any]) -> list[Any]:
        """Do what does not depend on each other, and return the results; only one of them uses the desk."""

    def gather(self, name: str, query: str) -> None:
        """Compute a query over the log once; the result has this name at the desk and in later queries."""

    def share(self, name: str, table: pa.Table) -> None:
        """Make a table of the desk available to queries over the log."""

    def define_values(self, name: str, query: str, names: Sequence[Asked]) -> None:
        """Define the rows of a query with the values of these of their attributes (see matching.py)."""

    def unreadable(self) -> int:
        """Return how many rows had unreadable attributes; call it after they have been used."""

    def counters(self) -> dict[str, float]:
        """Return the engine's resource counters since its start, by name, as far as they are known."""

    def processes(self) -> list[int]:
        """Return the ids of the processes on this machine that do the work."""


class DuckEngine:
    """DuckDB for everything: the log and the desk are one."""

    dialect = DUCKDB

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self._unreadable = 0

    @property
    def desk(self) -> Desk:
        return self

    def define(self, name: str, query: str) -> None:
        self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")

    def keep(self, name: str, query: str) -> None:
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    gather = keep

    def side_by_side(self, *works: Callable[[], Any]) -> list[Any]:
        # One query has all cores.
        return [work() for work in works]

    def register(self, name: str, table: pa.Table) -> None:
        self.connection.register(f"{name}_registered", table)
        self.keep(name, f"SELECT * FROM {name}_registered")
        self.connection.unregister(f"{name}_registered")

    share = register

    def fetch(self, query: str) -> pa.Table:
        return self.connection.sql(query).to_arrow_table()

    def write(self, name: str, folder: Path) -> None:
        folder.mkdir()
        file = str(folder / "part-00000.parquet").replace("'", "''")
        self.connection.execute(f"COPY {name} TO '{file}' (FORMAT parquet, COMPRESSION zstd)")

    def define_values(self, name: str, query: str, names: Sequence[Asked]) -> None:
        table = decoded(self.fetch(query), names)
        self._unreadable = unreadable_in(table)
        self.register(name, table)

    def unreadable(self) -> int:
        return self._unreadable

    def counters(self) -> dict[str, float]:
        return {"core_s": time.process_time()}

    def processes(self) -> list[int]:
        return [os.getpid()]


@contextmanager
def duck_desk(memory_mb: int | None, scratch: Path) -> Iterator[DuckEngine]:
    """Open DuckDB in this process, without tables; data beyond its memory goes to the folder `scratch`."""
    import duckdb

    memory = memory_mb or int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20)
    config: dict[str, Any] = {"memory_limit": f"{memory}MB", "temp_directory": str(scratch)}
    with duckdb.connect(config=config) as connection:
        connection.execute("SET enable_progress_bar = false")  # It would go to stdout, which is for results.
        yield DuckEngine(connection)


@contextmanager
def duck_engine(log: Place, scratch: Path, memory_mb: int | None = None) -> Iterator[DuckEngine]:
    """Open the embedded engine with the rows of a log as the table `log`."""
    with duck_desk(memory_mb, scratch) as engine:
        if isinstance(log, Path):
            engine.define("log", log_query(list(find_log_files(log))))
        else:
            engine.connection.register("log", ArrowFiles().dataset(log))
        yield engine


def log_query(files: Sequence[Path]) -> str:
    """Return a query for every row of these files as written; columns missing in an older schema are null."""
    names = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)
    columns = ", ".join(f"{name}::{_TYPES[kind]} AS {name}" for name, kind in COLUMNS.items())
    empty = ", ".join(f"NULL::{_TYPES[kind]} AS {name}" for name, kind in COLUMNS.items())
    return (
        f"SELECT {columns} FROM ((SELECT {empty} WHERE false) UNION ALL BY NAME"
        f" SELECT * FROM read_parquet([{names}], union_by_name = true, hive_partitioning = false))"
    )
