"""Logs for the tests: of fuzzed stories with the checkers' verdicts, and rows that are tampered with."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from roamcast.core.records import Row
from roamcast.records.parquet import LogWriter
from roamcast.simulator.checkers import Result
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.story import parse_story

COMPARED = ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected", "handoffs")
"""What audit and checkers both count."""


def write_fuzzed(folder: Path, stories: Iterable[tuple[str, int]]) -> dict[str, Result]:
    """The log of each story (protocol and seed) in a folder of its own; run to verdict."""
    results = {}
    for protocol, seed in stories:
        run = f"{protocol}-{seed}"
        with LogWriter(folder / run.replace(":", "_"), run) as log:
            results[run] = draw_story(protocol, seed).run(log.write).result
    return results


def counts_by_run(out: Path) -> dict[str, Counter[str]]:
    """What the tables of an audit say of each run."""
    counts: dict[str, Counter[str]] = {}
    for row in pq.read_table(out / "streams").to_pylist():
        of_run = counts.setdefault(row["run"], Counter())
        of_run.update({name: value for name, value in row.items() if isinstance(value, int)})
    for row in pq.read_table(out / "handoffs.parquet").to_pylist():
        counts.setdefault(row["run"], Counter())["handoffs"] += 1
    return counts


def verdict_of(result: Result) -> dict[str, int]:
    return {name: getattr(result, name) for name in COMPARED}


STORY = """
brokers a-b b-c
protocol sub_unsub
at 0.0 car attach a
at 0.0 bus attach c
at 0.0 garage attach b
at 0.0 depot attach b
at 0.5 car subscribe service = 'parking' AND cost < 3
at 0.5 bus subscribe service LIKE 'park%'
at 0.5 depot subscribe cost > 100
at 2.0 garage publish {"service": "parking", "cost": 1}
at 2.1 garage publish {"service": "parking", "cost": 2}
at 2.2 depot publish {"service": "parking", "cost": 5}
at 3.0 car leave
at 4.0 garage publish {"service": "parking", "cost": 2}
at 5.0 car attach c
at 6.0 garage publish 3 {"service": "parking", "cost": 1}
at 7.0 garage publish {"service": "parking", "cost": 9}
at 8.0 car unsubscribe service = 'parking' AND cost < 3
at 9.0 garage publish {"service": "parking", "cost": 1}
"""
"""The car is owed six notifications, the bus nine; nothing goes wrong."""


@dataclass
class Tampered:
    """The rows of the story's run, to be changed before they are written."""

    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        parse_story(STORY).run(self.rows.extend)

    def of(self, kind: str, **fields: Any) -> list[int]:
        """The places of rows of a kind with these fields."""
        return [
            place
            for place, row in enumerate(self.rows)
            if row.kind == kind and all(getattr(row, name) == value for name, value in fields.items())
        ]

    def change(self, place: int, **fields: Any) -> None:
        self.rows[place] = self.rows[place]._replace(**fields)

    def remove(self, place: int) -> None:
        """Take a row out and close the gap in its node's numbering, as a clever forger would."""
        gone = self.rows.pop(place)
        for later, row in enumerate(self.rows):
            if row.node == gone.node and row.sequence > gone.sequence:
                self.change(later, sequence=row.sequence - 1)

    def append(self, place: int, client: str, **fields: Any) -> None:
        """A client's word, at the end, that it got what another row tells of."""
        end_s = max(row.time for row in self.rows) + 1.0
        last = max((row.sequence for row in self.rows if row.node == client), default=0)
        row = self.rows[place]._replace(node=client, client=client, sequence=last + 1, time=end_s, **fields)
        self.rows.append(row)
