"""How a broker handles its clients' subscriptions on behalf of their mobility protocol.

(The part of `mobility.base.Host` that is about routing.) Protocols speak of filters as clients
wrote them; a filter on a client's own state is bound to its client here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from roamcast.broker.issues import IssueTimes
from roamcast.filters.filter import Filter
from roamcast.filters.own import bind
from roamcast.filters.selector import parse
from roamcast.protocol.messages import Cause, Update
from roamcast.routing.router import Owner, Token
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore


class Ended(NamedTuple):
    """Token of an unsubscription, with the owner whose filter and time of issue can be forgotten
    afterwards."""

    owner: Owner
    filter: Filter
    token: Token


class Collecting(NamedTuple):
    """Token of a subscription for an owner that is not a client (see `Broker.collect`)."""

    key: tuple[str, str]


class Subscribing:
    __state__ = State("subscribing", saved=("_broker", "_router", "issues"))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._router = broker.router
        self.issues = IssueTimes(broker.settings.clock_error_s, broker.router.dependents)

    def subscribe(
        self,
        owner: Owner,
        filter: Filter,
        issued_at: float,
        cause: Cause = "handoff",
        token: Token | None = None,
    ) -> None:
        filter = self._bound(filter, owner[0])
        self.issues.note(owner, filter, issued_at)
        self._router.subscribe(owner, filter, self._subscriber_of(owner), cause, token)

    def _subscriber_of(self, owner: Owner) -> str:
        return self._broker.protocol.subscriber_of(owner) if owner[0] else ""

    def _bound(self, filter: Filter, client: str) -> Filter:
        """Bind a filter on a client's own state to its client, which is known here while its session is
        here."""
        if not filter.own:
            return filter
        session = self._broker.sessions.get(client)
        if session is not None:
            self._broker.places.know(session)
        return bind(filter, client)

    def _filters(self, subscriptions: Iterable[str], client: str) -> list[Filter]:
        filters = map(parse, subscriptions)
        return [self._bound(filter, client) if filter.own else filter for filter in filters]

    def _note(self, target: str | Owner, filters: list[Filter], subscriptions: Mapping[str, float]) -> None:
        if not isinstance(target, str):
            for filter, issued_at in zip(filters, subscriptions.values(), strict=True):
                self.issues.note(target, filter, issued_at)

    def _forget(self, source: str | Owner, filters: list[Filter]) -> None:
        if not isinstance(source, str):
            for filter in filters:
                self.issues.forget(source, filter)

    def relocate(
        self,
        subscriptions: Mapping[str, float],
        client: str,
        source: str | Owner,
        target: str | Owner,
        update: Update | None = None,
    ) -> Update | None:
        filters = self._filters(subscriptions, client)
        self._note(target, filters, subscriptions)
        carried = self._router.relocate(filters, client, source, target, update)
        self._forget(source, filters)
        return carried

    def end_relocation(self, subscriptions: Mapping[str, float], client: str, peer: str) -> None:
        self._router.end_relocation(self._filters(subscriptions, client), client, peer)

    def direction(
        self, subscriptions: Mapping[str, float], client: str, subscriber: str
    ) -> str | Owner | None:
        return self._router.direction(self._filters(subscriptions, client), subscriber)

    def way_to(self, client: str, client_named: Callable[[str], str]) -> str | Owner | None:
        return self._router.way_to(client, client_named)

    def divert(
        self,
        subscriptions: Mapping[str, float],
        client: str,
        subscriber: str,
        target: str | Owner,
        onward: str | None,
        update: Update | None = None,
    ) -> Update | None:
        filters = self._filters(subscriptions, client)
        self._note(target, filters, subscriptions)
        return self._router.divert(filters, subscriber, target, onward, update)

    def withdraw(
        self,
        subscriptions: Mapping[str, float],
        client: str,
        subscriber: str,
        source: str | Owner,
        onward: str | None,
        update: Update | None = None,
        last: bool = True,
    ) -> Update | None:
        filters = self._filters(subscriptions, client)
        carried = self._router.withdraw(filters, subscriber, source, onward, update, last)
        self._forget(source, filters)
        return carried

    def listen(self, owner: Owner, filter: Filter, issued_at: float) -> None:
        filter = self._bound(filter, owner[0])
        self.issues.note(owner, filter, issued_at)
        self._router.listen(owner, filter)

    def unlisten(self, owner: Owner, filter: Filter) -> None:
        filter = self._bound(filter, owner[0])
        self.issues.forget(owner, filter)
        self._router.unlisten(owner, filter)

    def unsubscribe(
        self, owner: Owner, filter: Filter, cause: Cause = "handoff", token: Token | None = None
    ) -> None:
        filter = self._bound(filter, owner[0])
        if token is None:
            self._router.unsubscribe(owner, filter, self._subscriber_of(owner), cause)
            self.issues.forget(owner, filter)
        else:
            ended = Ended(owner, filter, token)
            self._router.unsubscribe(owner, filter, self._subscriber_of(owner), cause, ended)
