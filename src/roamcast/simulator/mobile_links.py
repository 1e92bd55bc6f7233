"""Links of a tree that moves: a link exists from the moment a child chooses a parent until one end gives it
up.

A link is FIFO in both directions and acknowledges what arrives. Each end has its own view of whether the link
exists. An end that gives the link up gets its unacknowledged messages back, although the other end may have
received them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from roamcast.protocol.messages import Message
from roamcast.simulator.links import Link


@dataclass(eq=False)
class Direction:
    """Messages of one end of a link."""

    link: Link
    acknowledging: Link
    unacknowledged: deque[Message] = field(default_factory=deque)


@dataclass(eq=False)
class TreeLink:
    """A link from a child to its parent."""

    number: int
    """Later links have higher numbers."""
    child: str
    parent: str
    directions: dict[str, Direction]
    is_cut: bool = False
    """True if nothing arrives any more."""
    closed: dict[str, None] = field(default_factory=dict)
    """The ends that have given the link up."""

    def other(self, end: str) -> str:
        return self.parent if end == self.child else self.child

    @property
    def edge(self) -> frozenset[str]:
        return frozenset((self.child, self.parent))
