"""Find the subscriptions of a client that match a notification, without testing each of them.

The index is built on first use and updated with every change, so the cost of a delivery does not depend
on the number of subscriptions or topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roamcast.filters.expression import names_of
from roamcast.filters.filter import Attributes, Filter
from roamcast.filters.index import FilterIndex
from roamcast.filters.own import widest
from roamcast.filters.selector import parse
from roamcast.mqtt.server.marks import TOPIC

if TYPE_CHECKING:
    from roamcast.mqtt.server.sessions import Subscription

Kind = tuple[bool, int, bool, bool]
"""Shared or not, QoS, retain as published, with an identifier or without."""


class Chooser:
    """The subscriptions of one client, counted by options, and indexed by filter."""

    __slots__ = ("_by_content", "_common", "_index", "_kinds", "_not_own", "_subscriptions")

    def __init__(self, subscriptions: Mapping[str, Subscription]) -> None:
        """The mapping is the session's own; `change` is called after each change of it."""
        self._subscriptions = subscriptions
        self._kinds: dict[Kind, int] = {}
        self._by_content = 0
        """Number of subscriptions that depend on more than the topic."""
        self._not_own = 0
        """Number of subscriptions that exclude the client's own publishes."""
        self._index: FilterIndex[str] | None = None
        """Filters to subscription names, once subscriptions have different options."""
        self._common: dict[bool, tuple[int, bool] | None] = {}
        for one in subscriptions.values():
            self._count(one, +1)

    def change(self, former: Subscription | None, subscription: Subscription | None) -> None:
        """Replace a subscription by another of the same name; None for none."""
        self._common.clear()
        for one, difference in ((former, -1), (subscription, +1)):
            if one is not None:
                self._count(one, difference)
        if self._index is None:
            return
        if subscription is not None:
            self._index.add(subscription.name, _possible(parse(subscription.filter)))
        elif former is not None:
            self._index.remove(former.name)

    def _count(self, one: Subscription, difference: int) -> None:
        kind = (bool(one.group), one.qos, one.retain_as_published, one.identifier is not None)
        count = self._kinds[kind] = self._kinds.get(kind, 0) + difference
        if not count:
            del self._kinds[kind]
        self._by_content += difference * asks_more(one.filter)
        self._not_own += difference * one.no_local

    @property
    def asks_contents(self) -> bool:
        """True if more than the topic decides which subscriptions match."""
        return self._by_content > 0

    @property
    def hides_own(self) -> bool:
        return self._not_own > 0

    def common(self, shared: bool) -> tuple[int, bool] | None:
        """Return QoS and retain-as-published, if all subscriptions of this way have the same and no
        identifiers: then it does not matter which one matches."""
        try:
            return self._common[shared]
        except KeyError:
            kinds = [kind for kind in self._kinds if kind[0] is shared]
            is_common = len(kinds) == 1 and not kinds[0][3]
            found = self._common[shared] = kinds[0][1:3] if is_common else None
            return found

    def wanting(self, attributes: Attributes, shared: bool) -> list[Subscription]:
        """Return the subscriptions that match these attributes."""
        index, subscriptions = self._index, self._subscriptions
        if index is None:
            index = self._index = FilterIndex()
            for one in subscriptions.values():
                index.add(one.name, _possible(parse(one.filter)))
        found = [subscriptions[name] for name in index.match(attributes)]
        return [one for one in found if bool(one.group) is shared]


def asks_more(text: str) -> bool:
    """True if a filter depends on more than the topic."""
    return not names_of(parse(text).expression) <= {TOPIC}


def may_want(text: str, attributes: Attributes) -> bool:
    return _possible(parse(text)).matches(attributes)


def _possible(filter: Filter) -> Filter:
    """Return the filter without conditions on the client's state, which the core has checked already."""
    return widest(filter) if filter.own else filter
