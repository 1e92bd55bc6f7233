"""What a broker does with the subscriptions of its clients on behalf of their mobility protocol.

(The part of `mobility.base.Host` that is about routing.) Protocols speak of filters as
clients wrote them; one on a client's own state is bound to its client here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from roamcast.broker.issues import IssueTimes
from roamcast.broker.places import Places
from roamcast.filters.filter import Filter
from roamcast.filters.own import bind
from roamcast.filters.selector import parse
from roamcast.mobility.base import MobilityProtocol
from roamcast.protocol.messages import Cause, Update
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner, Router, Token


class Ended(NamedTuple):
    """The token of an unsubscription, and of whose filter when it was issued can now be forgotten."""

    owner: Owner
    filter: Filter
    token: Token


class Collecting(NamedTuple):
    """The token of a subscription for those who are no client (see `Broker.collect`)."""

    key: tuple[str, str]


class SubscribingHost:
    router: Router
    sessions: dict[str, Session]
    places: Places
    protocol: MobilityProtocol
    _issues: IssueTimes

    def subscribe(
        self,
        owner: Owner,
        filter: Filter,
        issued_at: float,
        cause: Cause = "handoff",
        token: Token | None = None,
    ) -> None:
        filter = self._bound(filter, owner[0])
        self._issues.note(owner, filter, issued_at)
        self.router.subscribe(owner, filter, self._subscriber_of(owner), cause, token)

    def _subscriber_of(self, owner: Owner) -> str:
        return self.protocol.subscriber_of(owner) if owner[0] else ""

    def _bound(self, filter: Filter, client: str) -> Filter:
        """A filter on a client's own state says whose, and that is known here if its session is here."""
        if not filter.own:
            return filter
        if client in self.sessions:
            self.places.know(self.sessions[client])
        return bind(filter, client)

    def as_it_is(self, filter: Filter, client: str) -> Filter:
        """What a filter that a client of this broker is subscribed to matches at present."""
        return self.router.dependents.local(bind(filter, client))

    def _filters(self, subscriptions: Iterable[str], client: str) -> list[Filter]:
        return [self._bound(parse(text), client) for text in subscriptions]

    def relocate(
        self,
        subscriptions: Mapping[str, float],
        client: str,
        source: str | Owner,
        target: str | Owner,
        update: Update | None = None,
    ) -> Update | None:
        filters = self._filters(subscriptions, client)
        if not isinstance(target, str):
            for filter, issued_at in zip(filters, subscriptions.values(), strict=True):
                self._issues.note(target, filter, issued_at)
        carried = self.router.relocate(filters, client, source, target, update)
        if not isinstance(source, str):
            for filter in filters:
                self._issues.forget(source, filter)
        return carried

    def direction(
        self, subscriptions: Mapping[str, float], client: str, subscriber: str
    ) -> str | Owner | None:
        return self.router.direction(self._filters(subscriptions, client), subscriber)

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
        if not isinstance(target, str):
            for filter, issued_at in zip(filters, subscriptions.values(), strict=True):
                self._issues.note(target, filter, issued_at)
        return self.router.divert(filters, subscriber, target, onward, update)

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
        carried = self.router.withdraw(filters, subscriber, source, onward, update, last)
        if not isinstance(source, str):
            for filter in filters:
                self._issues.forget(source, filter)
        return carried

    def listen(self, owner: Owner, filter: Filter, issued_at: float) -> None:
        filter = self._bound(filter, owner[0])
        self._issues.note(owner, filter, issued_at)
        self.router.listen(owner, filter)

    def unlisten(self, owner: Owner, filter: Filter) -> None:
        filter = self._bound(filter, owner[0])
        self._issues.forget(owner, filter)
        self.router.unlisten(owner, filter)

    def unsubscribe(
        self, owner: Owner, filter: Filter, cause: Cause = "handoff", token: Token | None = None
    ) -> None:
        filter = self._bound(filter, owner[0])
        if token is None:
            self.router.unsubscribe(owner, filter, self._subscriber_of(owner), cause)
            self._issues.forget(owner, filter)
        else:
            ended = Ended(owner, filter, token)
            self.router.unsubscribe(owner, filter, self._subscriber_of(owner), cause, ended)
