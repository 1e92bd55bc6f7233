"""Speed of the audit: synthetic logs audited by Spark on two cores, and by DuckDB with the same SQL.

Every audit has its own processes, which are measured: wall clock and CPU seconds, both without start-up, and
the memory of all processes together. Each audit must find exactly the faults planted in the log. Spark is for
logs that exceed one machine, so the ratio to DuckDB is reported, and is no target.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roamcast.bench.process_tree import Taken, run_watched
from roamcast.bench.processes import roamcast_command, running_on
from roamcast.bench.report import Report, silent
from roamcast.bench.synthetic_log import Planted, write_synthetic_log
from roamcast.errors import InputError

CORES = 2
MEMORY_MB, MEMORY_MB_LARGE = 3_072, 8_192
"""Memory limit of all processes of an audit: up to ten million records, and beyond."""
HEAP_SHARE = 0.5
"""Share of the memory for Java's heap; the rest is for Java itself, Python's workers and the driver."""
SIZES = (1_000_000, 10_000_000)
LOG_BYTES_PER_RECORD = 8
SCRATCH_BYTES_PER_RECORD = 100
"""Maximum temporary disk space of an audit, per record."""
SECONDS_MAX = 7_200.0

WALL_S_MAX = 90.0
"""Allowed seconds for ten million records, without start-up."""
GROWTH_MAX = 1.3
RATIO_MAX = 5.0
Row = dict[str, Any]
DUCKDB_MISSING = "duckdb is not installed: pip install duckdb, or roamcast[bench]"


def run(
    sizes: Sequence[int] = SIZES,
    subscribers: int = 1_000,
    memory_mb: int | None = None,
    folder: Path | None = None,
    progress: Report = silent,
) -> dict[str, Any]:
    """Write and audit a log of each size; logs and tables go to a temporary folder and are removed."""
    has_duckdb = importlib.util.find_spec("duckdb") is not None
    contestants = [name for name in COMMANDS if has_duckdb or name != "duckdb"]
    steps, done = len(sizes) * (1 + len(contestants)), 0

    def step() -> None:
        nonlocal done
        done += 1
        progress(done, steps)

    cores = frozenset(sorted(os.sched_getaffinity(0))[:CORES])
    cases = []
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-", dir=folder) as name, running_on(cores):
        for size in sizes:
            place = Path(name) / str(size)
            _check_room(place.parent, size)
            planted = write_synthetic_log(place / "log", size, subscribers=subscribers)
            step()
            size_bytes = sum(file.stat().st_size for file in (place / "log").iterdir())
            case = {
                "records": planted.records,
                "memory_mb": memory_mb or fitting_memory_mb(size),
                "log_mb": round(size_bytes / 2**20, 1),
                "planted": asdict(planted),
            }
            for contestant in contestants:
                command = COMMANDS[contestant](place, memory_mb or fitting_memory_mb(size))
                case[contestant] = _measured(run_watched(command, "auditing", SECONDS_MAX), planted)
                step()
            cases.append({**case, **_against_duckdb(case)})
    return {
        "cores": len(cores),
        "subscribers": subscribers,
        "cases": cases,
        **_growth(cases),
        "holds": _holds(cases),
        "skipped": {} if has_duckdb else {"duckdb": DUCKDB_MISSING},
    }


def fitting_memory_mb(records: int) -> int:
    return MEMORY_MB if records <= SIZES[-1] else MEMORY_MB_LARGE


def _check_room(folder: Path, records: int) -> None:
    place = os.statvfs(folder)
    free = place.f_bavail * place.f_frsize
    needed = records * (LOG_BYTES_PER_RECORD + SCRATCH_BYTES_PER_RECORD)
    if needed > free:
        raise InputError(
            f"{records:,} records need {needed >> 30} GB on the disk and {folder.parent} has {free >> 30};"
            " name a folder on a larger one with --dir"
        )


# --- the contestants ---


def _audit(place: Path, engine: str, memory_mb: float, *options: str) -> list[str]:
    return roamcast_command(
        "pipeline", "audit", "--engine", engine, "--log", str(place / "log"), "--out", str(place / engine),
        "--memory-mb", str(int(memory_mb)), "--json", *options,
    )  # fmt: skip


def _spark(place: Path, memory_mb: int) -> list[str]:
    where = ("--master", f"local[{CORES}]", "--conf", f"spark.local.dir={place}")
    return _audit(place, "spark", HEAP_SHARE * memory_mb, *where)


def _duckdb(place: Path, memory_mb: int) -> list[str]:
    return _audit(place, "duckdb", 0.9 * memory_mb)


COMMANDS = {"spark": _spark, "duckdb": _duckdb}


def _measured(taken: Taken, planted: Planted) -> dict[str, Any]:
    figures = json.loads(taken.output)
    core_s = taken.core_s - taken.start_core_s
    wrong = {name: figures.get(name) for name, count in asdict(planted).items() if figures.get(name) != count}
    return {
        "wall_s": figures["wall_s"],
        "core_s": round(core_s, 2),
        "start_core_s": round(taken.start_core_s, 2),
        "peak_mb": taken.peak_mb,
        "us_per_record": round(1e6 * figures["wall_s"] / planted.records, 2),
        "core_us_per_record": round(1e6 * core_s / planted.records, 2),
        "steps": figures["steps"],
        "finds_what_was_planted": not wrong,
        "wrong": wrong,
    }


# --- what it comes to ---


def _ratios(above: Row, below: Row, names: Mapping[str, str]) -> dict[str, float]:
    return {name: round(above[part] / below[part], 2) for name, part in names.items()}


def _against_duckdb(case: Row) -> dict[str, float]:
    if "duckdb" not in case:
        return {}
    return _ratios(case["spark"], case["duckdb"], {"ratio": "wall_s", "ratio_core": "core_s"})


def _growth(cases: list[Row]) -> dict[str, float]:
    """Return how the cost per record grows from the second largest log to the largest."""
    if len(cases) < 2:
        return {}
    names = {"growth": "us_per_record", "growth_core": "core_us_per_record"}
    return _ratios(cases[-1]["spark"], cases[-2]["spark"], names)


def _holds(cases: list[Row]) -> dict[str, bool]:
    """Return whether the targets are met, as far as these sizes show."""
    growth = _growth(cases).get("growth_core")
    of_ten_million = [case for case in cases if case["records"] // SIZES[-1] == 1]
    holds = {
        "finds_what_was_planted": all(
            case[name]["finds_what_was_planted"] for case in cases for name in COMMANDS if name in case
        ),
        "peak_within_memory": all(case["spark"]["peak_mb"] <= case["memory_mb"] for case in cases),
    }
    if growth is not None:
        holds[f"core_seconds_per_record_below_{GROWTH_MAX}_times"] = growth < GROWTH_MAX
    for case in of_ten_million:
        holds[f"ten_million_below_{WALL_S_MAX:.0f}_s"] = case["spark"]["wall_s"] < WALL_S_MAX
        if "ratio" in case:
            holds[f"ratio_within_{RATIO_MAX:.0f}"] = case["ratio"] <= RATIO_MAX
    return holds
