"""Event logs of fuzzed stories together with the checkers' verdicts, for comparison with other judges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from roamcast.records.parquet import LogWriter
from roamcast.simulator.checkers import Counts
from roamcast.simulator.fuzz import draw_story

Verdict = dict[str, int]
COUNTED = (*(field.name for field in fields(Counts)), "handoffs")
"""Counts in a verdict."""


def write_fuzzed(folder: Path, stories: Iterable[tuple[str, int]]) -> Iterator[tuple[str, Verdict]]:
    """Run stories (protocol and seed), write each one's log to a folder of its own, and yield it with its
    verdict.
    """
    for protocol, seed in stories:
        run = f"{protocol}-{seed}"
        with LogWriter(folder / protocol.replace(":", "_") / str(seed), run) as log:
            result = draw_story(protocol, seed).run(log.write).result
        yield run, {name: getattr(result, name) for name in COUNTED}
