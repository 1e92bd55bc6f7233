"""Spark for the commands that need it: started, watched and ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from roamcast.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[str, typer.Option(help="Where Spark runs: local[*], local[N], spark://HOST:PORT …")]


@contextmanager
def spark_session(master: str) -> Iterator[SparkSession]:
    """A session that ends with the block."""
    try:
        from roamcast.pipeline.session import start_spark, stop_spark
    except ImportError:
        raise InputError("this needs PySpark: pip install 'roamcast[pipeline]'") from None
    spark = start_spark(master)
    try:
        yield spark
    finally:
        stop_spark(spark)
