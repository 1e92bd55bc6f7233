"""`roamcast bench`: how fast the parts are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from roamcast.cli.output import emit_json, progress, table
from roamcast.cli.usage import new_group, show_examples
from roamcast.errors import InputError


def register(app: typer.Typer) -> None:
    group = new_group(
        "Measure how fast the parts are on this machine.",
        examples=["roamcast bench match --subscriptions 10000", "roamcast bench sim"],
    )
    app.add_typer(group, name="bench")
    group.command("match", epilog=show_examples("roamcast bench match --subscriptions 100000 --json"))(match)
    group.command("sim", epilog=show_examples("roamcast bench sim --repeat 5 --json"))(sim)
    group.command("journal", epilog=show_examples("roamcast bench journal --dir /var/tmp --json"))(journal)


def match(
    subscriptions: Annotated[
        int, typer.Option(min=1, help="How many subscriptions the index holds.")
    ] = 100_000,
    attributes: Annotated[int, typer.Option(min=1, help="How many attributes a notification has.")] = 20,
    events: Annotated[int, typer.Option(min=1, help="How many notifications are matched.")] = 1_000,
    seed: Annotated[int, typer.Option(help="What the subscriptions and notifications are drawn from.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Find the subscriptions that match a notification: the index against one by one."""
    from roamcast.bench import match as benchmark

    with progress("matching") as report:
        result = benchmark.run(
            subscriptions=subscriptions,
            attributes=attributes,
            events=events,
            seed=seed,
            progress=report,
        )
    show(result, title="bench match", as_json=as_json)


def sim(
    side: Annotated[
        list[int] | None,
        typer.Option(min=1, max=100, help="Side of a grid of brokers; once for each size. [default: 5, 14]"),
    ] = None,
    duration: Annotated[
        float, typer.Option(min=1.0, help="Seconds of virtual time in the first; larger ones run shorter.")
    ] = 600.0,
    repeat: Annotated[int, typer.Option(min=1, help="How often each case is measured.")] = 3,
    seed: Annotated[int, typer.Option(help="What topologies, moves and publications are drawn from.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Simulate networks: message hops per second, how that grows, and SimPy beside it."""
    from roamcast.bench import sim as benchmark

    with progress("simulating") as report:
        result = benchmark.run(
            sizes=side or (5, 14), duration_s=duration, repeat=repeat, seed=seed, progress=report
        )
    if as_json:
        emit_json(result)
        return
    cases: Any = result.pop("cases")
    columns = [
        "engine", "brokers", "clients", "mobile", "protocol", "records", "hops", "link_hops", "access_hops",
        "core_s_median", "hops_per_s_median", "hops_per_s_best",
    ]  # fmt: skip
    rows = [[case[name] for name in columns] for case in cases]
    table([name.replace("_", " ") for name in columns], rows, title="bench sim")
    table(["what", "value"], flat(result))


def journal(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="A folder on the disk to measure. [default: a temporary one]")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each case is measured.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Commit to a journal on this disk: per second, with and without a sync, small and large entries."""
    from roamcast.bench import journal as benchmark

    if folder is not None and not folder.is_dir():
        raise InputError(f"--dir {folder}: there is no such folder")
    with progress("committing") as report:
        result = benchmark.run(folder, seconds, progress=report)
    show(result, title="bench journal", as_json=as_json)


def show(result: dict[str, Any], *, title: str, as_json: bool) -> None:
    if as_json:
        emit_json(result)
    else:
        table(["what", "value"], list(flat(result)), title=title)


def flat(result: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested results, each with the words that lead to it."""
    rows: list[tuple[str, Any]] = []
    for key, value in result.items():
        name = f"{prefix} {key}".strip().replace("_", " ")
        rows.extend(flat(value, name) if isinstance(value, dict) else [(name, value)])
    return rows
