"""SUBSCRIBE and UNSUBSCRIBE: their requests to the core, and their answers.

A subscription is acknowledged when every broker that must know it does, or after a
timeout. Then retained messages follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.topics import split_shared, subscription_filter
from roamcast.mqtt.codec.user_properties import IDENTITY, WHERE
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.connection import EXPLANATION_LENGTH_MAX, MqttConnection
from roamcast.mqtt.server.sessions import MqttSession, Subscription, subscription_bytes
from roamcast.protocol.effects import Submitted
from roamcast.protocol.messages import ClientSubscribe, ClientUnsubscribe, Request
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.mqtt.server.endpoint import Endpoint

ENTRIES_PER_TURN = 50
"""Entries of one packet handled per turn, so that other clients need not wait. About 5 ms of work."""
CHARACTERS_PER_TURN = 8192
"""Total length of topic filters and selectors handled per turn; about the same work."""

GRANTED = (Reason.GRANTED_QOS_0, Reason.GRANTED_QOS_1, Reason.GRANTED_QOS_2)


Asked = int | tuple[str, str, int]
"""A pending request: to the core, or a group and its filter, in a packet with this id."""


class Withdrawal(msgspec.Struct, frozen=True, array_like=True):
    """A filter of the core that is being withdrawn."""

    name: str
    """The topic filter that needed it."""
    request: int


class Pending(msgspec.Struct):
    """An answer that waits for the core."""

    connection: int
    answer: packets.Suback | packets.Unsuback
    open: int = 0
    """Number of requests that have not settled."""
    recall: list[Subscription] = []
    withdrawn: dict[str, Withdrawal] = {}
    """Core's filters that are withdrawn with the answer."""


class Asking(msgspec.Struct):
    """A SUBSCRIBE or UNSUBSCRIBE that is being carried out."""

    packet: packets.Subscribe | packets.Unsubscribe
    requests: dict[Asked, None] = {}
    """Requests that have not settled."""
    granted: dict[packets.SubscriptionEntry, Reason] = {}
    """Result for each entry; a repeated entry is the same subscription."""
    reasons: list[Reason] = []
    """Reason codes of processed entries."""
    refusals: list[str] = []
    recall: dict[str, Subscription] = {}
    withdrawn: dict[str, Withdrawal] = {}


class Subscribing:
    __state__ = State("mqtt-subscribing", saved=("_endpoint", "_pending", "unfinished"))

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pending: dict[tuple[int, Asked], Pending] = {}
        """Pending requests by connection and request."""
        self.unfinished: dict[int, Asking] = {}
        """By connection: packets with so many entries that they take several turns. No other packet of the
        connection is handled before."""

    # --- requests ---

    def on_subscribe(self, connection: MqttConnection, packet: packets.Subscribe) -> None:
        granted = (Reason.GRANTED_QOS_0,) * len(packet.entries)
        connection.check_takes(packets.Suback(packet.packet_id, granted))
        self.unfinished[connection.id] = Asking(packet)
        self.go_on(connection)

    def on_unsubscribe(self, connection: MqttConnection, packet: packets.Unsubscribe) -> None:
        done = (Reason.SUCCESS,) * len(packet.filters)
        connection.check_takes(packets.Unsuback(packet.packet_id, done))
        self.unfinished[connection.id] = Asking(packet)
        self.go_on(connection)

    def go_on(self, connection: MqttConnection) -> None:
        """Handle the next entries; after the last one, wait for the core and answer."""
        session, asking = connection.session, self.unfinished[connection.id]
        assert session is not None
        packet, start = asking.packet, len(asking.reasons)
        if isinstance(packet, packets.Subscribe):
            size = len(packet.entries)
            weight, asked = 0, dict(packet.user_properties)
            for place, entry in enumerate(packet.entries[start : start + ENTRIES_PER_TURN], start):
                self._subscribe(connection, session, asking, entry, place, asked)
                weight += len(entry.filter) + len(asked.get(WHERE, ""))
                if weight > CHARACTERS_PER_TURN:
                    break
        else:
            size = len(packet.filters)
            for name in packet.filters[start : start + ENTRIES_PER_TURN]:
                self._unsubscribe(connection, session, asking, name)
        if len(asking.reasons) == size:
            del self.unfinished[connection.id]
            self._finish(connection, asking)

    def _finish(self, connection: MqttConnection, asking: Asking) -> None:
        requests, reasons, packet = list(asking.requests), tuple(asking.reasons), asking.packet
        if isinstance(packet, packets.Subscribe):
            answer = packets.Suback(packet.packet_id, reasons)
            told = connection.explained(answer, "; ".join(asking.refusals)[:EXPLANATION_LENGTH_MAX])
            pending = Pending(connection.id, told, len(requests), list(asking.recall.values()))
        else:
            pending = Pending(connection.id, packets.Unsuback(packet.packet_id, reasons), len(requests))
        pending.withdrawn = asking.withdrawn
        self._wait(connection, requests, pending)

    def _subscribe(
        self,
        connection: MqttConnection,
        session: MqttSession,
        asking: Asking,
        entry: packets.SubscriptionEntry,
        place: int,
        asked: Mapping[str, str],
    ) -> None:
        packet = asking.packet
        assert isinstance(packet, packets.Subscribe)
        identifier = packet.subscription_identifier
        try:
            self._check_room(session, entry.filter, place)
            if entry in asking.granted:
                asking.reasons.append(asking.granted[entry])
                return
            subscription = self._read(connection, session, entry, identifier, asked)
        except PacketError as error:
            asking.reasons.append(error.reason)
            asking.refusals.append(error.text)
            return
        is_new = entry.filter not in session.subscriptions
        self._enter(connection, session, asking, subscription)
        asking.reasons.append(GRANTED[subscription.qos])
        asking.granted[entry] = GRANTED[subscription.qos]
        if subscription.group:
            asking.requests[subscription.group, subscription.filter, packet.packet_id] = None
        elif entry.retain_handling == 0 or (entry.retain_handling == 1 and is_new):
            asking.recall[subscription.name] = subscription

    def _unsubscribe(
        self, connection: MqttConnection, session: MqttSession, asking: Asking, name: str
    ) -> None:
        former = self._endpoint.unsubscribe(session, name)
        asking.reasons.append(Reason.SUCCESS if former is not None else Reason.NO_SUBSCRIPTION_EXISTED)
        if former is not None:
            self._leave(connection, former)
        self._withdraw(connection, session, asking, name)

    def _check_room(self, session: MqttSession, name: str, place: int) -> None:
        """Check limits before parsing, which takes longer."""
        most = self._endpoint.settings.subscriptions_max
        is_new = name not in session.subscriptions
        if place >= most or (is_new and len(session.subscriptions) >= most):
            raise PacketError(Reason.QUOTA_EXCEEDED, "a client may not have more subscriptions")

    def _read(
        self,
        connection: MqttConnection,
        session: MqttSession,
        entry: packets.SubscriptionEntry,
        identifier: int | None,
        asked: Mapping[str, str],
    ) -> Subscription:
        """Return the subscription that an entry requests, if permitted."""
        endpoint = self._endpoint
        shared = split_shared(entry.filter) if connection.version == 5 else None
        group, text = shared if shared is not None else ("", entry.filter)
        try:
            filter = endpoint.keeper.with_zones(subscription_filter(text, asked.get(WHERE)))
        except InputError as error:
            raise PacketError(Reason.TOPIC_FILTER_INVALID, str(error)) from None
        endpoint.check_size(entry.filter, Reason.TOPIC_FILTER_INVALID)
        if group and not endpoint.settings.shared:
            raise PacketError(Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, "shared subscriptions are off")
        subscription = Subscription(
            entry.filter, filter.text, min(entry.qos, connection.qos_max), entry.no_local,
            entry.retain_as_published, identifier, group, asked.get(IDENTITY) == "1",
        )  # fmt: skip
        if entry.filter not in session.subscriptions:
            self._check_memory(session, subscription_bytes(subscription))
        refusal = endpoint.keeper.refusal_of_filter(filter, connection.client)
        if group and filter.own:
            refusal = "a shared subscription cannot depend on where one client is"
        if refusal:
            raise PacketError(Reason.TOPIC_FILTER_INVALID, refusal)
        if not connection.access.may_subscribe(filter):
            endpoint.traffic.denied["subscribe"] += 1
            endpoint.note(connection, "denied", f"subscribe to {entry.filter}")
            raise PacketError(Reason.NOT_AUTHORIZED, f"{entry.filter} may not be subscribed to")
        return subscription

    def _check_memory(self, session: MqttSession, size_bytes: int) -> None:
        settings = self._endpoint.settings
        if session.subscriptions_bytes + size_bytes > settings.subscriptions_bytes_max:
            raise PacketError(Reason.QUOTA_EXCEEDED, "the client's subscriptions would take too much memory")
        in_all = settings.all_subscriptions_bytes_max
        if not self._endpoint.holdings.has_room_for(session.owner, size_bytes, in_all):
            raise PacketError(Reason.QUOTA_EXCEEDED, "the memory for subscriptions is used up")

    def _enter(
        self, connection: MqttConnection, session: MqttSession, asking: Asking, subscription: Subscription
    ) -> None:
        """Enter the subscription, and what its answer has to wait for."""
        former = session.subscriptions.get(subscription.name)
        self._endpoint.subscribe(session, subscription)
        if not subscription.group:
            # Asked even if the session has the subscription: a repeated request may have had no answer, and
            # the core knows whether the subscription has settled.
            asking.requests[self._ask(connection, ClientSubscribe, subscription.filter)] = None
        else:
            self._endpoint.keeper.join(connection.client, subscription, asks=True)
        if former is not None and former.filter != subscription.filter:
            self._leave(connection, former)
        self._withdraw(connection, session, asking, subscription.name)

    def _leave(self, connection: MqttConnection, former: Subscription) -> None:
        if former.group:
            self._endpoint.keeper.leave(connection.client, former)
        else:
            self._endpoint.keeper.end_recall(connection.client, former)

    def _withdraw(self, connection: MqttConnection, session: MqttSession, asking: Asking, name: str) -> None:
        """Let the core withdraw the filters of a topic filter, and wait until that has settled.

        This includes earlier withdrawals without an answer: the core knows whether they have settled.
        """
        for filter in session.leaving.get(name, ()):
            if not session.holds(filter):  # Another topic filter may still need it.
                request = self._ask(connection, ClientUnsubscribe, filter)
                asking.requests[request] = None
                asking.withdrawn[filter] = Withdrawal(name, request)

    def _ask(
        self, connection: MqttConnection, kind: type[ClientSubscribe | ClientUnsubscribe], filter: str
    ) -> int:
        connection.request += 1
        connection.asked += 1
        request: Request = kind(connection.request, parse(filter))
        self._endpoint.inputs.append(Submitted(connection.client, connection.id, request))
        return connection.request

    # --- answers ---

    def _wait(self, connection: MqttConnection, requests: list[Asked], pending: Pending) -> None:
        if not requests:
            self._answer(pending)
            return
        for request in requests:
            self._pending[connection.id, request] = pending
        endpoint = self._endpoint
        at = endpoint.now + endpoint.settings.settle_timeout_s
        endpoint.timers.set(at, ("suback", connection.id, requests[-1]))

    def on_settled(self, connection: int, request: int) -> None:
        session = self._endpoint.connections[connection].session
        if session is not None:
            session.settled(request)
        self._on_answer(connection, request)

    def _on_answer(self, connection: int, request: Asked) -> None:
        pending = self._pending.pop((connection, request), None)
        if connection in self.unfinished:
            self.unfinished[connection].requests.pop(request, None)
        if pending is not None:
            pending.open -= 1
            if not pending.open:
                self._answer(pending)

    def on_group_settled(self, connection: int, group: tuple[str, str]) -> None:
        for id, asked in list(self._pending):
            if id == connection and isinstance(asked, tuple) and asked[:2] == group:
                self._on_answer(id, asked)
        if connection in self.unfinished:
            open = self.unfinished[connection].requests
            for asked in [one for one in open if isinstance(one, tuple) and one[:2] == group]:
                del open[asked]

    def give_up(self, connection: int, request: Asked) -> None:
        """Answer after a timeout. Notifications of withdrawn filters are not sent any more."""
        pending = self._pending.get((connection, request))
        if pending is None:
            return
        unsettled = [asked for (_, asked), one in self._pending.items() if one is pending]
        for asked in unsettled:
            del self._pending[connection, asked]
        session = self._endpoint.connections[connection].session
        if session is not None:
            withdrawn = pending.withdrawn.items()
            session.silence({text: one.request for text, one in withdrawn if one.request in unsettled})
        self._answer(pending)

    def _answer(self, pending: Pending) -> None:
        endpoint = self._endpoint
        connection = endpoint.connections.get(pending.connection)
        if connection is None:
            return
        endpoint.touched[connection.id] = connection
        connection.out.append(write(pending.answer, connection.version))
        session = connection.session
        if session is not None:
            for filter, withdrawal in pending.withdrawn.items():
                session.has_left(withdrawal.name, filter)
        if pending.recall and session is not None:
            # Subscriptions that were replaced or withdrawn meanwhile get nothing.
            held = [one for one in pending.recall if session.subscriptions.get(one.name) is one]
            endpoint.keeper.recall(connection.client, held)

    def forget(self, connection: int) -> None:
        """Forget the pending answers of a connection that is gone."""
        self.unfinished.pop(connection, None)
        for key in [key for key in self._pending if key[0] == connection]:
            del self._pending[key]
