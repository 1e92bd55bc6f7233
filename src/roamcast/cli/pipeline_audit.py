"""`roamcast pipeline ingest` and `audit`: clean logs, and prove what was delivered."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from roamcast.cli.output import emit_json, table
from roamcast.cli.spark import (
    LOCAL,
    Conf,
    EngineName,
    Log,
    Master,
    MemoryMb,
    Out,
    Where,
    run_audit,
    run_on_spark,
)
from roamcast.cli.tables import table_in_parts
from roamcast.cli.usage import AsJson, show_examples
from roamcast.errors import InputError

EXIT_FINDINGS = 1
"""Exit code with --strict if the audit found something."""

COUNTS = ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected", "invented")
FAULTS = {
    "bad_rows": "rows cannot be used (see `roamcast pipeline ingest`)",
    "repeated_rows": "rows are there more than once",
    "missing_rows": "rows are missing from the logs of their nodes (see breaks.parquet)",
    "clock_jumps": "times a node's clock went back (see breaks.parquet)",
    "misnumbered": "publishers do not number their notifications one by one",
}


ClockError = Annotated[
    float, typer.Option(min=0.0, help="How far the clocks of two nodes may differ, in seconds.")
]


def check_seconds(option: str, value: float) -> None:
    """Refuse infinity and NaN, which Typer accepts."""
    if not value < float("inf"):
        raise InputError(f"{option} {value}: valid is a number of seconds")


def register(group: typer.Typer) -> None:
    command = "roamcast pipeline {} --log run/log --out {}"
    group.command("ingest", epilog=show_examples(command.format("ingest", "clean")))(ingest)
    examples = (
        command.format("audit", "audit"),
        command.format("audit", "audit --master spark://10.0.0.5:7077 --conf spark.executor.memory=4g"),
    )
    group.command("audit", epilog=show_examples(*examples))(audit)
    group.command("metrics", epilog=show_examples(command.format("metrics", "metrics")))(metrics)


def ingest(
    log: Log, out: Out, master: Master = LOCAL, conf: Conf = None, memory_mb: MemoryMb = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Merge any number of log files into one clean log: each row once, invalid rows set aside with the
    reason.

    Run it again when late files arrive: rows are added, never duplicated.
    """

    from roamcast.pipeline.places import place_of

    def work(spark: Any) -> dict[str, Any]:
        from roamcast.pipeline.ingest import ingest

        return ingest(spark, places[0], places[1])

    places = place_of(log), place_of(out)
    figures = run_on_spark("ingesting", Where(master, conf, memory_mb), *places, work)
    if as_json:
        emit_json(figures)
        return
    reasons = figures.pop("reasons")
    table(["what", "value"], [(name.replace("_", " "), value) for name, value in figures.items()])
    for reason, count in sorted(reasons.items()):
        print(f"  {count} set aside: {reason}")
    print(f"The clean log is in {places[1] / 'records'}")


def audit(
    log: Log,
    out: Out,
    master: Master = LOCAL,
    conf: Conf = None,
    memory_mb: MemoryMb = None,
    engine: EngineName = "auto",
    clock_error: ClockError = 0.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 if the audit finds an error.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute what each subscriber should have received, and compare it with what it received.

    Filters are evaluated again; brokers' decisions are not trusted. Clients without own records are judged by
    the acknowledgements that brokers recorded. Tables with all findings are written to the folder.
    """
    check_seconds("--clock-error", clock_error)
    from roamcast.pipeline.places import place_of

    figures = run_audit(engine, Where(master, conf, memory_mb), place_of(log), place_of(out), clock_error)
    if as_json:
        emit_json(figures)
    else:
        show_audit(figures, out)
    if strict and any(figures[name] for name in (*COUNTS[2:], *FAULTS)):
        raise typer.Exit(EXIT_FINDINGS)


def show_audit(figures: dict[str, Any], out: str) -> None:
    """Print the audit's figures."""
    groups = figures["protocols"]
    if len(groups) > 1:
        groups = {**groups, "all": figures}
    title = (
        f"{figures['records']:,} rows of {figures['runs']:,} runs: {figures['clients']:,} clients, "
        f"{figures['published']:,} notifications, {figures['handoffs']:,} handoffs"
    )
    columns = ["run", *(name.replace("_", " ") for name in COUNTS)]
    rows = [[name, *(group[key] for key in COUNTS)] for name, group in groups.items()]
    table_in_parts(columns, rows, title=title)
    for name, text in FAULTS.items():
        if figures[name]:
            print(f"{figures[name]:,} {text}")
    if figures["clients_judged_by_brokers"]:
        print(
            f"{figures['clients_judged_by_brokers']:,} clients keep no records, or not all: judged by"
            " what brokers say they acknowledged (judged_by in clients.parquet)"
        )
    if figures["unacknowledged"]:
        print(f"{figures['unacknowledged']:,} notifications wait for their clients or for acknowledgements")
    for row in figures["examples"]:
        print(
            f"  {row['kind']}: {row['client']} and {row['publisher']}/{row['number']}"
            f" at {row['time']:.6f} ({row['run']}, {row['node']} row {row['sequence']})"
        )
    print(f"audited with {figures['engine']} in {figures['wall_s']:.1f} s; the tables are in {out}")


def metrics(
    log: Log,
    out: Out,
    master: Master = LOCAL,
    conf: Conf = None,
    memory_mb: MemoryMb = None,
    clock_error: ClockError = 0.0,
    neighbour_timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds after which a neighbour without moves is forgotten.")
    ] = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Measure handoffs, delays, traffic and losses, for each mobility protocol over all of its runs.

    Shows each measure with its mean, its percentiles and the 95 % interval of the mean over runs.
    """
    check_seconds("--clock-error", clock_error)
    check_seconds("--neighbour-timeout", neighbour_timeout)

    from roamcast.pipeline.places import place_of

    def work(spark: Any) -> dict[str, Any]:
        from roamcast.pipeline.metrics import metrics

        return metrics(spark, *places, neighbour_timeout_s=neighbour_timeout, clock_error_s=clock_error)

    places = place_of(log), place_of(out)
    figures = run_on_spark("measuring", Where(master, conf, memory_mb), *places, work)
    if as_json:
        emit_json(figures)
        return
    shown = ("unit", "runs", "samples", "mean", "low", "high", "p05", "p50", "p95", "p99")
    for group, measures in figures["groups"].items():
        rows = [[name.replace("_", " "), *(one[key] for key in shown)] for name, one in measures.items()]
        title = f"{group}: mean over runs with its 95 % interval (low, high), percentiles of all samples"
        table_in_parts(["measure", *shown], rows, title=title)
    print(f"measured in {figures['wall_s']:.1f} s; the tables are in {out}")
