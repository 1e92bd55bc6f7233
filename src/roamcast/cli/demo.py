"""`roamcast demo`: a small network with roaming clients, seen in a minute."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from roamcast.cli.output import emit_json, prepare_out_folder, progress
from roamcast.cli.sim import EXIT_VIOLATIONS
from roamcast.cli.spark import Where, need_spark, run_on_spark
from roamcast.cli.tables import table_in_parts
from roamcast.cli.usage import show_examples
from roamcast.errors import InputError

COLUMNS = {
    "published": "published",
    "expected": "expected",
    "delivered": "delivered",
    "lost": "lost",
    "duplicate": "duplicates",
    "out of order": "out_of_order",
    "handoffs": "handoffs",
    "delay p50 s": "handoff_delay_p50_s",
    "delay p95 s": "handoff_delay_p95_s",
}
"""What the table shows, and where it is in the figures of a run."""
AUDIT_MB = 1_024
"""The logs of a demo are small."""


def register(app: typer.Typer) -> None:
    app.command("demo", epilog=show_examples("roamcast demo", "roamcast demo --seed 3 --out demo-3"))(demo)


# The defaults are those of DemoSettings; a test compares them.
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for logs, figures and pictures; a former demo's is replaced.")
    ] = Path("demo"),
    clients: Annotated[int, typer.Option(help="How many clients; a quarter of them roam.")] = 80,
    duration: Annotated[float, typer.Option(help="Simulated time, in seconds.")] = 120.0,
    seed: Annotated[int, typer.Option(help="What decides everything that is drawn.")] = 7,
    brokers: Annotated[
        bool, typer.Option(help="Start real broker processes, too, and let a client roam between them.")
    ] = True,
    audited: Annotated[
        bool, typer.Option("--audit/--no-audit", help="Let Spark audit the logs at the end.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show what roaming clients get, and what they miss, under each mobility protocol."""
    from roamcast.lab.demo import DemoSettings, is_free, play, violations_in

    if not is_free(out):
        raise InputError(f"--out {out}: is in use and no former demo's folder; name a new one, or empty it")
    prepare_out_folder(out)
    settings = DemoSettings(clients=clients, duration_s=duration, seed=seed, brokers=brokers)
    result = play(out, settings, progress)
    violations = violations_in(result)
    if not as_json:
        show(result, violations)
    if audited:
        result["audit"] = audit_demo(out)
    report = write_report(out)
    if as_json:
        emit_json({**result, "report": report})
    else:
        show_audit_of_demo(result.get("audit"))
        print(f"Logs, figures and pictures are in {out}")
        print(f"The report of it all: {report}")
        print(f"Watch it again in the browser: {replay_command(out)}")
        if hint := path_hint():
            print(hint)
    if violations:
        raise typer.Exit(EXIT_VIOLATIONS)


def show_brokers(scene: dict[str, Any], folder: str) -> None:
    figures = scene["multi_hop_handoff"]
    print("Three real broker processes, one of them killed with kill -9 on the way, and a car that roams:")
    print(
        f"  {figures['published']} notifications with QoS 2, {figures['delivered']} delivered, "
        f"lost {figures['lost']}, twice {figures['duplicates']}, out of order {figures['out_of_order']}; "
        f"{figures['handoffs']} handoffs, half of them within {figures['handoff_median_ms']:g} ms"
    )
    print(f"The picture of it: {Path(folder) / scene['pictures'][0]}")
    print()


def show(result: dict[str, Any], violations: list[str]) -> None:
    if "brokers" in result:
        show_brokers(result["brokers"], result["folder"])
    settings, protocols = result["settings"], result["protocols"]
    title = (
        f"{settings['clients']} clients on {settings['topology']}, {settings['mobile']:.0%} of them roaming, "
        f"{settings['duration_s']:g} s, seed {settings['seed']}"
    )
    table_in_parts(
        ["mobility protocol", *COLUMNS],
        [[name, *(figures[key] for key in COLUMNS.values())] for name, figures in protocols.items()],
        title=title,
    )
    for name, figures in protocols.items():
        print(f"  {name}: {figures['summary']}")
    for violation in violations:
        print(f"violation: {violation}")
    trip, folder = result["departure_arrival"], result["folder"]
    print()
    print("One client, ten seconds away:")
    for name, figures in trip.items():
        if isinstance(figures, dict):
            print(f"  {name}: {figures['lost']} of {figures['published']} notifications lost")
    print(f"The picture of it: {Path(folder) / trip['pictures'][0]}")


# --- the audit and the report ---

AUDITED = ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected")


def audit_demo(out: Path) -> dict[str, Any]:
    """What Spark says of the demo's logs, or why it says nothing: a demo needs neither Spark nor Java."""
    try:
        need_spark()
        from roamcast.pipeline.master import find_java
        from roamcast.pipeline.spark_engine import audit_on_spark

        find_java()
        where = Where(memory_mb=AUDIT_MB)
        return run_on_spark(
            "Auditing the logs with Spark", where, out / "log", out / "audit",
            lambda spark: audit_on_spark(spark, out / "log", out / "audit"),
        )  # fmt: skip
    except InputError as error:
        return {"left_out": str(error)}


def show_audit_of_demo(figures: dict[str, Any] | None) -> None:
    if figures is None:
        return
    print()
    if "left_out" in figures:
        print(f"The Spark audit is left out: {figures['left_out']}")
        return
    table_in_parts(
        ["run", *(name.replace("_", " ") for name in AUDITED)],
        [[name, *(one[key] for key in AUDITED)] for name, one in figures["protocols"].items()],
        title=f"Spark's audit of {figures['records']:,} rows, by its own evaluation of every filter",
    )
    print(f"Audited in {figures['wall_s']:.1f} s, after {figures['spark_start_s']:.1f} s for Spark to start")


LEAD = """\
Clients that move change their broker. What is published while they are on their way must still reach them, \
once and in order. This demo shows what becomes of it.

First, a car roams between three real broker processes, one of which is killed with kill -9 on the way (the \
run "brokers"). Then the same roaming clients are simulated under each mobility protocol. "none" is what a \
plain broker does; the table "protocols" says what each promises. Less than "exactly once" may lose or repeat.

To watch it again: {replay}
"""
CAPTIONS = {
    "roaming_brokers": "Real brokers: how long each notification took; one broker was down in the red time",
    "departure_arrival": "Simulated: one client ten seconds away, without and with support for mobility",
    "audit": "What went wrong under each protocol, as a share of what was owed",
}


def write_report(out: Path) -> Path:
    from roamcast.pipeline.report import collect, page, write_page
    from roamcast.pipeline.report_figures import draw_into

    part = collect(out)
    part.pictures += draw_into(part, out)
    report = out / "report.html"
    write_page(report, page("Roamcast demo", [part], LEAD.format(replay=replay_command(out)), CAPTIONS))
    return report


def replay_command(out: Path) -> str:
    return f"roamcast view {out / 'log'}"


def path_hint() -> str:
    """How to call `roamcast` by its name, where the shell does not find it; empty where it does."""
    if shutil.which("roamcast"):
        return ""
    folder = Path(sys.executable).parent
    shown = f"$PWD/{folder.relative_to(Path.cwd())}" if folder.is_relative_to(Path.cwd()) else str(folder)
    return f'To call it by its name: export PATH="{shown}:$PATH"'
