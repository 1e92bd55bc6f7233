"""`roamcast demo`: a small network with roaming clients, in a minute."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import typer

from roamcast.cli.output import emit_json, prepare_out_folder, progress
from roamcast.cli.sim import EXIT_VIOLATIONS
from roamcast.cli.spark import Where, run_audit
from roamcast.cli.tables import table_in_parts
from roamcast.cli.usage import AsJson, option, show_examples
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
"""Columns of the table, and their keys in the figures of a run."""
AUDIT_MB = 1_024
"""Memory for the audit; the logs of a demo are small."""


def register(app: typer.Typer) -> None:
    app.command("demo", epilog=show_examples("roamcast demo", "roamcast demo --seed 3 --out demo-3"))(demo)


# The defaults are those of DemoSettings; a test compares them.
def demo(
    out: Path = option(
        Path("demo"), "Folder for logs, figures and pictures; an earlier demo in it is replaced."
    ),
    clients: int = option(80, "Number of clients; a quarter of them roam."),
    duration: float = option(120.0, "Simulated time, in seconds."),
    seed: int = option(7, "Seed of the simulation."),
    brokers: bool = option(True, "Also start real broker processes, and let a client roam between them."),
    audited: bool = option(True, "Audit the logs at the end, with DuckDB.", "--audit/--no-audit"),
    as_json: AsJson = False,
) -> None:
    """Show what roaming clients receive and lose under each mobility protocol."""
    from roamcast.lab.demo import DemoSettings, is_free, play, violations_in

    if not is_free(out):
        raise InputError(
            f"--out {out}: is not empty and not the folder of an earlier demo; name a new folder"
        )
    prepare_out_folder(out)
    settings = DemoSettings(clients=clients, duration_s=duration, seed=seed, brokers=brokers)
    result = play(out, settings, progress)
    violations = violations_in(result)
    if not as_json:
        show(result, violations)
    if audited:
        result["audit"] = audit_demo(out)
    report = write_report(out, result)
    if as_json:
        emit_json({**result, "report": report})
    else:
        show_audit_of_demo(result.get("audit"))
        print(f"Logs, figures and pictures are in {out}")
        print(f"Report: {report}")
        print(f"Watch it again in the browser: {replay_command(out)}")
        if hint := path_hint():
            print(hint)
    if violations:
        raise typer.Exit(EXIT_VIOLATIONS)


def told_of_brokers(scene: dict[str, Any]) -> str:
    """Describe the main scene in two sentences, for the terminal and for the first line of the page."""
    figures = scene["multi_hop_handoff"]
    return (
        "A car roamed between three real broker processes while one of them was killed with kill -9. "
        f"{figures['published']} notifications with QoS 2: {figures['delivered']} delivered, "
        f"{figures['lost']} lost, {figures['duplicates']} duplicates, "
        f"{figures['out_of_order']} out of order; {figures['handoffs']} handoffs, "
        f"median {figures['handoff_median_ms']:g} ms."
    )


def show(result: dict[str, Any], violations: list[str]) -> None:
    if "brokers" in result:
        print(told_of_brokers(result["brokers"]))
        print(f"Picture: {Path(result['folder']) / result['brokers']['pictures'][0]}")
        print()
    print("Simulated: the same roaming clients under each mobility protocol. none is an ordinary broker.")
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
    print("One client that is away for ten seconds:")
    for name, figures in trip.items():
        if isinstance(figures, dict):
            print(f"  {name}: {figures['lost']} of {figures['published']} notifications lost")
    print(f"Picture: {Path(folder) / trip['pictures'][0]}")


# --- the audit and the report ---

AUDITED = ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected")


def audit_demo(out: Path) -> dict[str, Any]:
    """Return the figures of the audit, or why there is none: a demo works without DuckDB."""
    try:
        return run_audit("duckdb", Where(memory_mb=AUDIT_MB), out / "log", out / "audit")
    except InputError as error:
        return {"left_out": str(error)}


def show_audit_of_demo(figures: dict[str, Any] | None) -> None:
    if figures is None:
        return
    print()
    if "left_out" in figures:
        print(f"The audit is skipped: {figures['left_out']}")
        return
    table_in_parts(
        ["run", *(name.replace("_", " ") for name in AUDITED)],
        [[name, *(one[key] for key in AUDITED)] for name, one in figures["protocols"].items()],
        title=f"The audit of {figures['records']:,} log rows, which evaluates every filter anew",
    )


LEAD = """\
{brokers}Roaming clients were simulated under each mobility protocol. "none" is what ordinary brokers do: \
messages published while a client is away are lost. Red figures are expected where a protocol promises \
less than "exactly once"; the table "protocols" has each promise.

To watch it again: {replay}
"""
CAPTIONS = {
    "roaming_brokers": "Real brokers: how long each notification took; red: one broker was down",
    "departure_arrival": "Simulated: one client ten seconds away, without and with support for mobility",
    "audit": "What went wrong under each protocol, as a share of what was owed",
}


def write_report(out: Path, result: dict[str, Any]) -> Path:
    from roamcast.pipeline.figures import draw_into
    from roamcast.pipeline.report import collect, page, write_page

    part = collect(out)
    part.pictures += draw_into(part, out)
    report = out / "report.html"
    brokers = told_of_brokers(result["brokers"]) + "\n\n" if "brokers" in result else ""
    lead = LEAD.format(brokers=brokers, replay=replay_command(out))
    write_page(report, page("Roamcast demo", [part], lead, CAPTIONS))
    return report


def replay_command(out: Path) -> str:
    return f"roamcast view {out / 'log'}"


def path_hint() -> str:
    """Return how to call `roamcast` if the shell does not find it; empty if it does."""
    if shutil.which("roamcast"):
        return ""
    folder = Path(sys.executable).parent
    shown = f"$PWD/{folder.relative_to(Path.cwd())}" if folder.is_relative_to(Path.cwd()) else str(folder)
    return f'To call it by its name: export PATH="{shown}:$PATH"'
