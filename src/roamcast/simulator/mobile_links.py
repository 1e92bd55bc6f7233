"""Links of a tree that moves: each lasts from when a child takes a parent until one end gives it up.

A link is FIFO in both directions and acknowledges what arrives. Each end has its own idea of whether the link
is there. What an end has sent and not seen acknowledged when it gives the link up comes back to it, though
the other end may have got it.
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
        """Later ones have higher numbers."""
        self.child = child
        self.parent = parent
        self.directions = directions
        self.is_cut = False
        """Nothing arrives any more."""
        self.closed: dict[str, None] = {}
        """The ends that have given it up."""

    def other(self, end: str) -> str:
        return self.parent if end == self.child else self.child

    @property
    def edge(self) -> frozenset[str]:
        return frozenset((self.child, self.parent))
