"""`roamcast pipeline stream`: follow the growing log of a network that runs."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.cli.output import emit_json, prepare_out_folder
from roamcast.cli.pipeline_audit import ClockError, check_seconds
from roamcast.cli.spark import LOCAL, AsJson, Conf, Log, Master, MemoryMb, need_spark, spark_session
from roamcast.cli.tables import table_in_parts
from roamcast.cli.usage import show_examples

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from roamcast.pipeline.stream import Progress

ONCE = "roamcast pipeline stream --log run/log --out stream --once"
LIVE = "roamcast pipeline stream --log /var/lib/roamcast/events --out stream --late 120"
SHOWN = 10
"""Minutes that are printed; all of them are in a table."""
LOOK_EVERY_S = 0.2


def register(group: typer.Typer) -> None:
    group.command("stream", epilog=show_examples(LIVE, ONCE))(stream)


# The defaults are those of StreamSettings, which cannot be imported where there is no PySpark; a test
# compares them.
def stream(
    log: Log,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the minutes and the checkpoint, with which it goes on.")
    ],
    master: Master = LOCAL,
    conf: Conf = None,
    memory_mb: MemoryMb = None,
    late: Annotated[
        float, typer.Option(min=0.0, help="How long a minute waits for rows of slower nodes, in seconds.")
    ] = 60.0,
    forget: Annotated[
        float, typer.Option(min=60.0, help="How long what comes late corrects its minute, in seconds.")
    ] = 86_400.0,
    every: Annotated[float, typer.Option(min=0.1, help="How often it looks for files, in seconds.")] = 10.0,
    clock_error: ClockError = 0.0,
    once: Annotated[bool, typer.Option("--once", help="End when all files there are were read.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell loss, duplicates and handoff delay by the minute, while files are added to the log.

    It runs until Ctrl-C; started again, it goes on where it was. A minute is told when it is closed (--late),
    and corrected when something owed arrives later (--forget).
    """
    need_spark()
    from roamcast.pipeline.master import check_master
    from roamcast.pipeline.stream import StreamSettings, check_stream, start_stream

    for name, value in (("--late", late), ("--forget", forget), ("--every", every)):
        check_seconds(name, value)
    check_seconds("--clock-error", clock_error)
    check_master(master)
    settings = StreamSettings(late, forget, clock_error, every)
    prepare_out_folder(out)
    check_stream(log, out, settings)
    with spark_session(master, conf=conf, memory_mb=memory_mb, small=True) as spark:
        query = start_stream(spark, log, out, settings, say, once=once)
        with asked_to_end() as is_asked:
            wait(query, is_asked)
    conclude(out, as_json)


def say(progress: Progress) -> None:
    """One line on stderr for each batch."""
    until = progress.closed_until_s
    closed = f"closed until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M}" if until else "none closed"
    print(f"batch {progress.batch}: {progress.rows:,} rows so far, minutes {closed}", file=sys.stderr)


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Set when somebody presses Ctrl-C or ends the process politely."""
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
    query.awaitTermination()  # Raises what ended it, if something did.


def conclude(out: Path, as_json: bool) -> None:
    file = out / "stream.json"
    if not file.exists():
        figures: dict[str, Any] = {"minutes": 0, "records": 0, "batches": 0}
    else:
        figures = json.loads(file.read_text(encoding="utf-8"))
    if as_json:
        emit_json({**figures, "out": out})
        return
    if figures["minutes"]:
        show_minutes(out / "minutes.parquet")
    minutes = f"{figures['minutes']:,} minutes of {figures['records']:,} rows"
    print(f"{minutes}; they are in {out / 'minutes.parquet'}")


def show_minutes(file: Path) -> None:
    import pyarrow.parquet as pq

    rows = pq.read_table(file).to_pylist()
    columns = ("run", "expected", "delivered", "lost", "duplicates", "unexpected",
               "handoff_delay_p95_s", "transfer_p95_s")  # fmt: skip
    last = [[f"{row['minute']:%Y-%m-%d %H:%M}", *(row[name] for name in columns)] for row in rows[-SHOWN:]]
    title = f"The last {len(last)} of {len(rows)} minutes"
    table_in_parts(["minute", *(name.replace("_", " ") for name in columns)], last, title=title)
