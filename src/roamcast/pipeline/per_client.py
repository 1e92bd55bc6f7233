"""Rules that look at one client's rows in order, applied to all clients.

Spark's own way to do so makes a frame of each group, which for thousands of clients with a few rows each
takes longer than the rules do. Here a partition is sorted, and goes by as one stream of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

ROWS_PER_BATCH = 10_000

Rows = Iterable[tuple[Any, ...]]


def map_groups(frame: DataFrame, order: list[str], rule: Callable[[Rows], Rows], schema: str) -> DataFrame:
    """Apply a rule to the rows of each value of the first column, sorted by the columns of `order`.

    Rows are tuples, and so are those that the rule gives; `schema` says what is in them.
    """
    key = frame.columns[0]
    arrow_schema = to_arrow_schema(cast(StructType, StructType.fromDDL(schema)))

    def of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups = groupby(_rows(batches), key=lambda row: row[0])
        results = (result for _, group in groups for result in rule(group))
        while some := list(islice(results, ROWS_PER_BATCH)):
            columns = zip(*some, strict=True)
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, arrow_schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)

    sorted_rows = frame.repartition(key).sortWithinPartitions(key, *order)
    return sorted_rows.mapInArrow(of_partition, schema)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
