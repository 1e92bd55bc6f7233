"""Topics in the order of their levels, so that a topic filter can be searched in slices.

A search can stop anywhere and resume later from a key, even after topics were added or removed. A topic takes
one string, whatever its number of levels. Keys are topics with U+0000 (which no topic contains) in place of
the slash: then everything below a level stands together, behind the level itself.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

CHUNK_MAX = 1024
"""Maximum of keys per chunk; larger chunks are split, so that an insertion moves few others."""


def key_of(topic: str) -> str:
    return topic.replace("/", "\0")


def topic_of(key: str) -> str:
    return key.replace("\0", "/")


class Found(NamedTuple):
    """Result of a search."""

    topics: list[str]
    onward: str | None
    """Key to resume with; None at the end."""
    visits_left: int


class TopicOrder:
    def __init__(self) -> None:
        self._chunks: list[list[str]] = []
        self._lasts: list[str] = []
        """The last key of each chunk."""

    def add(self, topic: str) -> None:
        """Add a topic that is not present yet."""
        key = key_of(topic)
        if not self._chunks:
            self._chunks, self._lasts = [[key]], [key]
            return
        place = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        chunk = self._chunks[place]
        insort(chunk, key)
        self._lasts[place] = chunk[-1]
        if len(chunk) > CHUNK_MAX:
            half = CHUNK_MAX // 2
            self._chunks.insert(place + 1, chunk[half:])
            self._lasts.insert(place, chunk[half - 1])
            del chunk[half:]

    def discard(self, topic: str) -> None:
        key = key_of(topic)
        place, at = self._find(key)
        if place == len(self._chunks) or self._chunks[place][at] != key:
            return
        chunk = self._chunks[place]
        del chunk[at]
        if chunk:
            self._lasts[place] = chunk[-1]
        else:
            del self._chunks[place], self._lasts[place]

    def _find(self, key: str) -> tuple[int, int]:
        """Return chunk and position of the first key that is not lower than this one."""
        place = bisect_left(self._lasts, key)
        return place, bisect_left(self._chunks[place], key) if place < len(self._chunks) else 0

    def search(self, levels: tuple[str, ...], start: str, visits: int) -> Found:
        """Topics from the key `start` on that a topic filter with these levels matches."""
        found: list[str] = []
        is_guarded = levels[0] in ("+", "#")
        place, at = self._find(start or _first_key(levels))
        while place < len(self._chunks):
            chunk = self._chunks[place]
            key = chunk[at]
            if not visits:
                return Found(found, key, 0)
            visits -= 1
            # MQTT 4.7.2: a filter that starts with a wildcard does not match topics that start with `$`.
            onward = "%" if is_guarded and key.startswith("$") else _onward(key, levels)
            if onward is None:
                break
            if onward:
                place, at = self._find(onward)
                continue
            found.append(topic_of(key))
            at += 1
            if at == len(chunk):
                place, at = place + 1, 0
        return Found(found, None, visits)


def _first_key(levels: tuple[str, ...]) -> str:
    """Return the prefix of every key that the filter matches."""
    fixed = 0
    while fixed < len(levels) and levels[fixed] not in ("+", "#"):
        fixed += 1
    return "\0".join(levels[:fixed])


def _onward(key: str, levels: tuple[str, ...]) -> str | None:
    """Return "" if the filter matches; otherwise the lowest key that may match next, None if there is
    none."""
    parts = key.split("\0")
    for place, level in enumerate(levels):
        if level == "#":
            return ""
        if place == len(parts):
            return key + "\0" + (level if level != "+" else "")
        if level in ("+", parts[place]):
            continue
        if parts[place] < level:
            return "\0".join((*parts[:place], level))
        return _past(parts, levels, place)
    if len(parts) == len(levels):
        return ""
    return "\0".join(parts[: len(levels)]) + "\1"


def _past(parts: list[str], levels: tuple[str, ...], place: int) -> str | None:
    """Return the lowest key with another level at the place of the filter's last `+`."""
    for wild in range(place - 1, -1, -1):
        if levels[wild] == "+":
            return "\0".join(parts[: wild + 1]) + "\1"
    return None
