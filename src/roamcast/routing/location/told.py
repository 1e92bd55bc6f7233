"""Locations of clients, as reported in their own notifications.

Attributes that the configuration names hold it: one with a location (a name, or a position such as
`43.263,-2.935`), or two with latitude and longitude. Topic filters may restrict which notifications count.
"""

from __future__ import annotations

from collections.abc import Sequence

from roamcast.filters.expression import Value
from roamcast.filters.filter import Attributes
from roamcast.filters.geography import read_position
from roamcast.filters.patterns import TopicPattern
from roamcast.filters.selector import TOPIC


class Telling:
    """Reads the publisher's location from a notification."""

    def __init__(self, names: Sequence[str], topics: Sequence[str] = ()) -> None:
        self._names = tuple(names)
        self._patterns = [TopicPattern(text) for text in topics]

    def counts(self, topic: str) -> bool:
        """True if publishes to this topic may report their publisher's location."""
        return not self._patterns or any(pattern.accepts(topic) for pattern in self._patterns)

    def place_in(self, attributes: Attributes) -> Value | None:
        """Return the location, or None if the notification has none."""
        if not self.counts(str(attributes.get(TOPIC, ""))):
            return None
        if len(self._names) == 1:
            return attributes.get(self._names[0])
        latitude, longitude = map(attributes.get, self._names)
        return read_position({"lat": latitude, "lon": longitude})
