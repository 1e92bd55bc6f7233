"""`roamcast pipeline stream`: follows the growing log of a running network."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.cli.output import emit_json
from roamcast.cli.pipeline_audit import ClockError, check_seconds
from roamcast.cli.spark import (
    LOCAL,
    Conf,
    Log,
    Master,
    MemoryMb,
    need_spark,
    prepare_out_place,
    spark_session,
)
from roamcast.cli.tables import table_in_parts
from roamcast.cli.usage import AsJson, show_examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from roamcast.pipeline.places import Place
    from roamcast.pipeline.stream import Progress

ONCE = "roamcast pipeline stream --log run/log --out stream --once"
LIVE = "roamcast pipeline stream --log /var/lib/roamcast/events --out stream --late 120"
SHOWN = 10
"""Number of minutes printed; the table has all of them."""
LOOK_EVERY_S = 0.2


def register(group: typer.Typer) -> None:
    group.command("stream", epilog=show_examples(LIVE, ONCE))(stream)


# The defaults are those of StreamSettings, which cannot be imported where there is no PySpark; a test
# compares them.
def stream(
    log: Log,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            help="Folder or URL for the minutes and the checkpoint; a stopped stream resumes from it.",
        ),
    ],
    master: Master = LOCAL,
    conf: Conf = None,
    memory_mb: MemoryMb = None,
    late: Annotated[
        float, typer.Option(min=0.0, help="How long a minute waits for rows of slower nodes, in seconds.")
    ] = 60.0,
    forget: Annotated[
        float, typer.Option(min=60.0, help="Seconds for which late rows still correct their minute.")
    ] = 86_400.0,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two scans for new files.")] = 10.0,
    clock_error: ClockError = 0.0,
    once: Annotated[bool, typer.Option("--once", help="Stop after reading all present files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show loss, duplicates and handoff delay by the minute, while files are added to the log.

    Runs until Ctrl-C; started again, it resumes. A minute is reported when it is closed (--late), and
    corrected when rows arrive later (--forget).
    """
    need_spark()
    from roamcast.pipeline.places import place_of
    from roamcast.pipeline.session import check_master
    from roamcast.pipeline.stream import StreamSettings, check_log, start_stream

    for name, value in (("--late", late), ("--forget", forget), ("--every", every)):
        check_seconds(name, value)
    check_seconds("--clock-error", clock_error)
    check_master(master)
    settings = StreamSettings(late, forget, clock_error, every)
    source, target = place_of(log), place_of(out)
    prepare_out_place(target)
    check_log(source)
    with spark_session(master, conf=conf, memory_mb=memory_mb, small=True) as spark:
        query = start_stream(spark, source, target, settings, say, once=once)
        with asked_to_end() as is_asked:
            wait(query, is_asked)
        figures, minutes = shown_so_far(spark, target)
    conclude(out, figures, minutes, as_json)


def say(progress: Progress) -> None:
    """Print one line on stderr for each batch."""
    until = progress.closed_until_s
    closed = f"closed until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M}" if until else "none closed"
    print(f"batch {progress.batch}: {progress.rows:,} rows so far, minutes {closed}", file=sys.stderr)


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Return an event that is set on SIGINT or SIGTERM."""
    asked = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: asked.set())
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(query: StreamingQuery, is_asked: threading.Event) -> None:
    while query.isActive:
        if is_asked.wait(LOOK_EVERY_S):
            query.stop()
            return
    query.awaitTermination()  # Raises the exception that ended the stream, if any.


def shown_so_far(spark: SparkSession, out: Place) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the figures of a stream, with its last minutes."""
    from roamcast.pipeline.output import read_text
    from roamcast.pipeline.places import ArrowFiles, url_of
    from roamcast.pipeline.spark_engine import files_of

    told = read_text(out / "stream.json", files_of(spark, out) or ArrowFiles())
    if told is None:
        return {"minutes": 0, "records": 0, "batches": 0}, []
    table = spark.read.parquet(url_of(out / "minutes.parquet")).orderBy("run", "minute").toArrow()
    return json.loads(told), table.slice(max(0, table.num_rows - SHOWN)).to_pylist()


def conclude(out: str, figures: dict[str, Any], minutes: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        emit_json({**figures, "out": out})
        return
    if minutes:
        columns = ("run", "expected", "delivered", "lost", "duplicates", "unexpected",
                   "handoff_delay_p95_s", "transfer_p95_s")  # fmt: skip
        rows = [[f"{row['minute']:%Y-%m-%d %H:%M}", *(row[name] for name in columns)] for row in minutes]
        title = f"The last {len(rows)} of {figures['minutes']} minutes"
        table_in_parts(["minute", *(name.replace("_", " ") for name in columns)], rows, title=title)
    counted = f"{figures['minutes']:,} minutes of {figures['records']:,} rows"
    print(f"{counted}; they are in {out}/minutes.parquet")
