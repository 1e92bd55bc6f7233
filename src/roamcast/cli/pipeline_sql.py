"""`roamcast pipeline sql`: queries over event logs in SQL."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.cli.output import emit_json, table
from roamcast.cli.spark import (
    LOCAL,
    Conf,
    EngineName,
    Log,
    Master,
    MemoryMb,
    Where,
    run_on_spark,
    takes_embedded,
)
from roamcast.cli.usage import AsJson, show_examples
from roamcast.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from roamcast.pipeline.engines import Engine

LIST = "roamcast pipeline sql --log run/log"
ASK = 'roamcast pipeline sql --log run/log "SELECT client, count(*) FROM handoffs GROUP BY client"'


def register(group: typer.Typer) -> None:
    group.command("sql", epilog=show_examples(LIST, ASK))(sql)


def sql(
    log: Log,
    question: Annotated[
        str, typer.Argument(help="A SELECT over the views; without one they are listed.", show_default=False)
    ] = "",
    rows: Annotated[int, typer.Option("--rows", min=1, help="Maximum number of rows in the answer.")] = 1_000,
    master: Master = LOCAL,
    conf: Conf = None,
    memory_mb: MemoryMb = None,
    engine: EngineName = "auto",
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Query an event log in SQL: views of handoffs, deliveries, sessions, clients, brokers and more.

    Without a query the command lists the views and their columns.
    """
    from roamcast.pipeline.places import place_of

    where, place = Where(master, conf, memory_mb), place_of(log)
    with tempfile.TemporaryDirectory(prefix="roamcast-sql-") as folder:
        scratch = Path(folder)

        def answer(engine: Engine) -> dict[str, Any]:
            return {"answer": asked(engine, question, rows)}

        if takes_embedded(engine, where, place):
            from roamcast.pipeline.engines import duck_engine

            with duck_engine(place, scratch, memory_mb) as embedded:
                found = answer(embedded)
        else:

            def work(spark: Any) -> dict[str, Any]:
                from roamcast.pipeline.output import Output
                from roamcast.pipeline.places import ArrowFiles
                from roamcast.pipeline.spark_engine import read_log, spark_engine

                output = Output(scratch, scratch, ArrowFiles())
                with spark_engine(read_log(spark, place), output, 0) as on_spark:
                    return answer(on_spark)

            found = run_on_spark("asking", where, place, scratch, work)
    show(found["answer"], as_json)


def asked(engine: Engine, question: str, rows: int) -> pa.Table:
    """Answer the query, or list the views; errors in the SQL become one line."""
    import pyarrow as pa

    from roamcast.pipeline.views import ask, views

    if not question:
        known = [
            {"view": name, "a row for each of": view.what, "columns": ", ".join(view.columns)}
            for name, view in views(engine).items()
        ]
        return pa.Table.from_pylist(known)
    try:
        return ask(engine, question, rows)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb", "pyspark"):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InputError(f"the query failed: {lines[0]}") from None


def show(answer: pa.Table, as_json: bool) -> None:
    rows = [{name: plain(value) for name, value in row.items()} for row in answer.to_pylist()]
    if as_json:
        emit_json({"columns": answer.column_names, "rows": rows})
        return
    table(answer.column_names, [list(row.values()) for row in rows])


def plain(value: Any) -> Any:
    """Convert to JSON types: DuckDB sums integers to decimals, and attributes are bytes."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, int | float | str | None) else str(value)
