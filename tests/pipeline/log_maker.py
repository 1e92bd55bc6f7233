"""A log for the tests, whose rows can be tampered with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from roamcast.protocol.records import Row
from roamcast.simulator.story import parse_story

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

    def insert(self, place: int, **fields: Any) -> int:
        """Another row of the same node, behind this one, and all later rows of it are renumbered."""
        new = self.rows[place]._replace(**fields | {"sequence": self.rows[place].sequence + 1})
        for later, row in enumerate(self.rows):
            if row.node == new.node and row.sequence >= new.sequence:
                self.change(later, sequence=row.sequence + 1)
        self.rows.insert(place + 1, new)
        return place + 1

    def append(self, place: int, client: str, **fields: Any) -> None:
        """A client's word, at the end, that it got what another row tells of."""
        end_s = max(row.time for row in self.rows) + 1.0
        last = max((row.sequence for row in self.rows if row.node == client), default=0)
        row = self.rows[place]._replace(node=client, client=client, sequence=last + 1, time=end_s, **fields)
        self.rows.append(row)


@contextmanager
def as_nobody() -> Iterator[None]:
    """For root every folder is open, so for a moment we are someone else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
