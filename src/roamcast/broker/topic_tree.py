"""Topics by their levels: those that a topic filter takes in are found without looking at all the others."""

from __future__ import annotations

from collections.abc import Iterator


class _Level:
    __slots__ = ("below", "topic")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.topic: str | None = None
        """The topic that ends here, if there is one."""


class TopicTree:
    def __init__(self) -> None:
        self._root = _Level()

    def add(self, topic: str) -> None:
        at = self._root
        for level in topic.split("/"):
            below = at.below.get(level)
            if below is None:
                below = at.below[level] = _Level()
            at = below
        at.topic = topic

    def discard(self, topic: str) -> None:
        at, way = self._root, []
        for level in topic.split("/"):
            if level not in at.below:
                return
            way.append((at, level))
            at = at.below[level]
        at.topic = None
        for above, level in reversed(way):
            below = above.below[level]
            if below.below or below.topic is not None:
                return
            del above.below[level]

    def matching(self, levels: tuple[str, ...]) -> Iterator[str]:
        """The topics that a topic filter with these levels takes in, and perhaps some that begin with `$`."""
        open = [(self._root, 0)]
        while open:
            at, depth = open.pop()
            if depth == len(levels):
                if at.topic is not None:
                    yield at.topic
            elif levels[depth] == "#":
                # All that is below, and what is above it: `a/#` takes in `a` itself.
                if at.topic is not None:
                    yield at.topic
                open += [(below, depth) for below in at.below.values()]
            elif levels[depth] == "+":
                open += [(below, depth + 1) for below in at.below.values()]
            elif levels[depth] in at.below:
                open.append((at.below[levels[depth]], depth + 1))
