"""`roamcast pipeline agree`: compares the simulator's checkers with the audit on the same runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from roamcast.cli.fuzz import cores, parse_seeds, process_pool
from roamcast.cli.output import prepare_out_folder, present, progress, table
from roamcast.cli.spark import LOCAL, Conf, Master, MemoryMb, Where, run_audit
from roamcast.cli.usage import AsJson, show_examples

EXIT_DISAGREEMENT = 1
SHOWN = 20
"""Maximum number of disagreements printed or in the JSON; all of them are counted."""
STORIES_PER_CHUNK = 20

Story = tuple[str, int]
"""A drawn run: protocol and seed."""


def register(group: typer.Typer) -> None:
    examples = (
        "roamcast pipeline agree --seeds 0:200",
        "roamcast pipeline agree --protocol sub_unsub --seeds 0:50 --out agreement --json",
    )
    group.command("agree", epilog=show_examples(*examples))(agree)


def agree(
    protocol: Annotated[
        str, typer.Option(help="Mobility protocol, or all, including published rules that are known to fail.")
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Seeds FROM:TO, without TO, or one seed.")] = "0:200",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for logs and tables. [default: not kept]"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that simulate; one for each core if not given.")
    ] = None,
    master: Master = LOCAL,
    conf: Conf = None,
    memory_mb: MemoryMb = None,
    engine: Annotated[
        Literal["both", "auto", "spark", "duckdb"],
        typer.Option(help="Engine of the audit: spark, duckdb, both, or auto (by the size of the log)."),
    ] = "both",
    as_json: AsJson = False,
) -> None:
    """Draw runs from seeds, and judge each with the simulator's checkers and with the audit.

    The checkers see the whole run; the audit has only the log, and evaluates filters by itself. Their counts
    must be equal in every run. Exit code 1 if they are not.
    """
    from roamcast.pipeline.audit import disagreements

    stories = [(name, seed) for name in chosen(protocol) for seed in parse_seeds(seeds)]
    with folder_for(out) as folder:
        verdicts = simulate(folder / "log", stories, workers or cores())
        where = Where(master, conf, memory_mb)
        engines = ("duckdb", "spark") if engine == "both" else (engine,)
        differ = []
        for one in engines:
            figures = run_audit(one, where, folder / "log", folder / "audit")
            differ += disagreements(folder / "audit", verdicts)
    result = {
        "runs": len(verdicts),
        "protocols": len({name for name, _ in stories}),
        **{name: figures[name] for name in ("records", "published", "expected", "delivered", "handoffs")},
        **{name: figures[name] for name in ("lost", "duplicates", "out_of_order", "unexpected", "invented")},
        "disagreements": len(differ),
        "examples": [asdict(one) for one in differ[:SHOWN]],
        "wall_s": figures["wall_s"],
    }
    present(result, show, as_json)
    if differ:
        raise typer.Exit(EXIT_DISAGREEMENT)


def chosen(protocol: str) -> list[str]:
    from roamcast.mobility import PROTOCOLS, find_protocol

    return sorted(PROTOCOLS) if protocol == "all" else [find_protocol(protocol).name]


@contextmanager
def folder_for(out: Path | None) -> Iterator[Path]:
    if out is not None:
        prepare_out_folder(out)
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="roamcast-agree-") as name:
        yield Path(name)


def simulate(folder: Path, stories: list[Story], workers: int) -> dict[str, dict[str, int]]:
    """Write the log of every story; map each run to the checkers' verdict."""
    chunks = [stories[at : at + STORIES_PER_CHUNK] for at in range(0, len(stories), STORIES_PER_CHUNK)]
    verdicts: dict[str, dict[str, int]] = {}
    with progress(f"simulating {len(stories)} runs") as report, mapping(min(workers, len(chunks))) as mapped:
        for done, one in enumerate(mapped(run_chunk, [folder] * len(chunks), chunks), start=1):
            verdicts |= one
            report(done, len(chunks))
    return verdicts


@contextmanager
def mapping(workers: int) -> Iterator[Callable[..., Iterable[dict[str, dict[str, int]]]]]:
    """Return a function like `map` that uses a suitable number of processes."""
    if workers == 1:
        yield map
        return
    with process_pool(workers) as pool:
        yield pool.map


def run_chunk(folder: Path, stories: list[Story]) -> dict[str, dict[str, int]]:
    """Simulate a chunk of stories; called in a worker process."""
    from roamcast.simulator.fuzz_logs import write_fuzzed

    return dict(write_fuzzed(folder, stories))


def show(result: dict[str, Any]) -> None:
    rows = [(name.replace("_", " "), value) for name, value in result.items() if name != "examples"]
    table(["what", "value"], rows, title="checkers and audit")
    for one in result["examples"]:
        print(
            f"{one['run']}: {one['what']} is {one['audit']} by the audit and {one['other']} by the checkers"
        )
    if not result["disagreements"]:
        print("Checkers and audit agree on every run.")
