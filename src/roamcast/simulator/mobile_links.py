"""Links of a tree that moves: a link exists from the moment a child chooses a parent until one end gives it
up.

A link is FIFO in both directions and acknowledges what arrives. Each end has its own view of whether the link
exists. An end that gives the link up gets its unacknowledged messages back, although the other end may have
received them.
"""

from __future__ import annotations

from collections import deque

from roamcast.protocol.messages import Message
from roamcast.simulator.links import Link


class Direction:
    """Messages of one end of a link."""

    def __init__(self, link: Link, acknowledging: Link) -> None:
        self.link = link
        self.acknowledging = acknowledging
        self.unacknowledged: deque[Message] = deque()


class TreeLink:
    """A link from a child to its parent."""

    def __init__(self, number: int, child: str, parent: str, directions: dict[str, Direction]) -> None:
        self.number = number
        """Later links have higher numbers."""
        self.child = child
        self.parent = parent
        self.directions = directions
        self.is_cut = False
        """True if nothing arrives any more."""
        self.closed: dict[str, None] = {}
        """The ends that have given the link up."""

    def other(self, end: str) -> str:
        return self.parent if end == self.child else self.child

    @property
    def edge(self) -> frozenset[str]:
        return frozenset((self.child, self.parent))
