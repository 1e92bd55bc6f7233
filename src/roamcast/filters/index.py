"""From a notification to the subscriptions it matches."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from roamcast.filters.filter import Attributes, Filter

K = TypeVar("K", bound=Hashable)


class FilterIndex(Generic[K]):
    """Keys with their filters; `match` lists the keys whose filter matches, in the order they were added."""

    def __init__(self) -> None:
        self._filters: dict[K, Filter] = {}

    def add(self, key: K, filter: Filter) -> None:
        self._filters.pop(key, None)
        self._filters[key] = filter

    def remove(self, key: K) -> None:
        del self._filters[key]

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, key: object) -> bool:
        return key in self._filters

    def match(self, attributes: Attributes) -> list[K]:
        return [key for key, filter in self._filters.items() if filter.matches(attributes)]
