"""Shared subscriptions: one broker owns each group and filter, and picks the member for each notification.

Which broker that is follows from the names alone, so all brokers agree on it. The owner subscribes once, for
the whole group, and the client's SUBACK waits until that is known everywhere. Connected members come first:
the owner is told when members connect and disconnect, and chooses among all of them only while none is
connected. A notification for a member goes to the broker where the member was; if the member's session has
moved on, it comes back and another member gets it. So a notification is delivered to one member, however
clients move; no order is promised.

When brokers join, another one may have to own a group (`GroupOffer`). It subscribes, and leaves everything to
the former owner until its subscription is known everywhere (`GroupReady`). Notifications from then on are
kept, until the former owner has reported the last notification of each publisher that it handed out
(`GroupOver`). Links do not reorder messages, so notifications that reached the new owner before it sent
`GroupReady` reach the former owner before that message. When an owner is gone for good, all brokers tell the
next one of their members.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import msgspec

from roamcast.broker.shared_messages import (
    GivesBack,
    GroupDeliver,
    GroupJoin,
    GroupJoined,
    GroupLeave,
    GroupOffer,
    GroupOver,
    GroupReady,
    GroupReturn,
    MembersChanged,
    Takes,
)
from roamcast.broker.subscribing import Collecting
from roamcast.filters.selector import parse
from roamcast.mqtt.server.marks import SHARED
from roamcast.protocol.messages import Deliver
from roamcast.protocol.notification import Burst
from roamcast.routing.router import Owner
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

Key = tuple[str, str]
"""Name of the group and text of its filter."""


class Group:
    """A group owned here, or about to be."""

    __state__ = State(
        "group",
        saved=(
            "members", "there", "moving", "turn", "is_settled", "asking", "waiting", "heir", "last", "former",
            "unseen", "left",
        ),
        derived=("fleeting_turn",),
    )  # fmt: skip

    def __init__(self, former: str = "") -> None:
        self.members: dict[str, str] = {}
        """Member to the broker of its session."""
        self.there: dict[str, None] = {}
        """Connected members."""
        self.moving: dict[str, None] = {}
        """Members whose sessions are on their way; the broker where one arrives reports it. Until then the
        group does not end, and keeps waiting notifications."""
        self.turn = 0
        self.is_settled = False
        self.asking: dict[str, str] = {}
        """Members, with their brokers, to be told when the group has settled."""
        self.waiting: list[Burst] = []
        """Notifications that came back while every member was on its way elsewhere, or before this broker may
        choose."""
        self.heir = ""
        """Broker to which the group was offered."""
        self.last: dict[str, tuple[int, int]] = {}
        """Last notification handed out of each publisher since the offer: incarnation and number."""
        self.former = former
        """Broker that still owns the group."""
        self.unseen: list[Burst] = []
        """Notifications received since the former owner was told to stop, which it may not have seen."""
        self.left: dict[tuple[str, str], None] = {}
        """Members that left here and that the former owner may still list."""
        self._restore()

    def _restore(self) -> None:
        self.fleeting_turn = 0
        """Turn for QoS 0 notifications, which are not journalled."""


class GroupFront(Protocol):
    """The access side, where clients are members of groups."""

    def group_settled(self, client: str, key: Key) -> None:
        """Tell a client that its group has settled."""

    def join_all_groups(self) -> None:
        """Report all members here again."""


class SharedSubscriptions:
    __state__ = State(
        "shared-subscriptions",
        saved=("_broker", "_front", "_groups", "_brokers", "_stranded"),
    )

    def __init__(self, broker: BrokerCore, front: GroupFront) -> None:
        self._broker = broker
        self._front = front
        self._groups: dict[Key, Group] = {}
        self._brokers: dict[str, None] = {}
        self._stranded: list[GroupReturn] = []
        """Messages for brokers that are gone, until it is known which brokers remain."""

    def register_handlers(self) -> None:
        broker = self._broker
        for kind, handler in (
            (GroupJoin, self.on_join),
            (GroupJoined, self.on_joined),
            (GroupLeave, self.on_leave),
            (GroupDeliver, self.on_deliver),
            (GroupReturn, self.on_return),
            (GroupOffer, self.on_offer),
            (GroupReady, self.on_ready),
            (GroupOver, self.on_over),
        ):
            broker.serve(kind, handler)
        for order, obeyed in (
            (Takes, self.on_takes),
            (GivesBack, self.on_gives_back),
            (MembersChanged, self.on_members_changed),
        ):
            broker.obey(order, obeyed)
        broker.salvage(GroupDeliver, self.on_undeliverable)
        broker.salvage(GroupReturn, self.on_undeliverable)
        broker.collect, broker.collects = self.on_notification, self.on_settled

    def owner_of(self, group: str, filter: str) -> str:
        """The broker that owns a group: the one with the highest hash among all that exist."""

        def weight(broker: str) -> bytes:
            return blake2b("\0".join((group, filter, broker)).encode(), digest_size=8).digest()

        return max(self._broker.own_members, key=weight)

    def _is_elsewhere(self, message: GroupJoin | GroupLeave | GroupReturn) -> bool:
        """Forward a message about a group that another broker owns; returns whether it did."""
        owner = self.owner_of(message.group, message.filter)
        if (message.group, message.filter) in self._groups or owner == self._broker.id:
            return False
        self._broker.send(owner, message)
        return True

    # --- members ---

    def on_takes(self, command: Takes) -> None:
        if command.joins and command.client not in self._broker.sessions:
            return  # The session has just left; its next broker reports where it is.
        owner = self.owner_of(command.group, command.filter)
        member = (command.group, command.filter, command.client, self._broker.id)
        leave = GroupLeave(*member)
        self._broker.send(
            owner, GroupJoin(*member, command.is_there, command.asks) if command.joins else leave
        )

    def on_join(self, sender: str, message: GroupJoin) -> None:
        if self._is_elsewhere(message):
            return
        key = (message.group, message.filter)
        group = self._groups.get(key) or self._begin(key, Group())
        group.members[message.client] = message.broker
        group.moving.pop(message.client, None)
        group.left.pop((message.client, message.broker), None)
        if message.is_there:
            group.there[message.client] = None
        else:
            group.there.pop(message.client, None)
        if message.asks:
            group.asking[message.client] = message.broker
            self._answer(key, group)
        self._hand_out_waiting(key, group)

    def on_leave(self, sender: str, message: GroupLeave) -> None:
        if self._is_elsewhere(message):
            return
        key = (message.group, message.filter)
        group = self._groups.get(key)
        if group is None:
            return
        if group.former:
            group.left[message.client, message.broker] = None
        group.moving.pop(message.client, None)
        if group.members.get(message.client) == message.broker:
            self._remove(group, message.client)
        self._end_if_empty(key, group)

    def _remove(self, group: Group, client: str) -> None:
        del group.members[client]
        group.there.pop(client, None)
        group.asking.pop(client, None)

    # --- a group begins and ends ---

    def _begin(self, key: Key, group: Group) -> Group:
        self._groups[key] = group
        self._broker.router.subscribe(
            _collector(key), parse(key[1]), _name(key), "subscribe", Collecting(key)
        )
        return group

    def _end(self, key: Key) -> None:
        del self._groups[key]
        self._broker.router.unsubscribe(_collector(key), parse(key[1]), _name(key), "subscribe")

    def _end_if_empty(self, key: Key, group: Group) -> None:
        if not (group.members or group.moving or group.former or group.heir):
            self._end(key)

    def on_settled(self, key: Key) -> None:
        """Record that every broker routes this group's notifications here."""
        group = self._groups.get(key)
        if group is None or group.is_settled:
            return
        group.is_settled = True
        self._answer(key, group)
        if group.former:
            self._broker.send(group.former, GroupReady(*key))

    def _answer(self, key: Key, group: Group) -> None:
        if group.is_settled:
            for client, broker in group.asking.items():
                self._broker.send(broker, GroupJoined(*key, client))
            group.asking = {}

    def on_joined(self, sender: str, message: GroupJoined) -> None:
        self._front.group_settled(message.client, (message.group, message.filter))

    # --- notifications ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        """Hand each notification for a group owned here to the next member."""
        key = (owner[1], owner[2])
        group = self._groups.get(key)
        if group is None:
            return
        if group.former:
            if group.is_settled and not burst.is_fleeting:
                group.unseen.append(burst)
            return
        if group.heir and not burst.is_fleeting:
            group.last[burst.publisher] = (burst.incarnation, burst.last)
        self._hand_out_each(key, group, burst)

    def _hand_out_each(self, key: Key, group: Group, burst: Burst) -> None:
        for position in range(burst.count):
            self._hand_out(key, group, burst.part(position, position + 1))

    def _hand_out_waiting(self, key: Key, group: Group) -> None:
        if group.waiting and not group.former:
            waiting, group.waiting = group.waiting, []
            for burst in waiting:
                self._hand_out(key, group, burst)

    def _hand_out(self, key: Key, group: Group, burst: Burst) -> None:
        members = list(group.there)
        if burst.is_fleeting:
            # QoS 0 may not change the turn of other notifications: that one is journalled.
            turn = group.fleeting_turn = group.fleeting_turn + 1
        else:
            members = members or list(group.members)
            if not members or group.former:
                group.waiting.append(burst)
                return
            turn = group.turn = group.turn + 1
        if members:
            client = members[turn % len(members)]
            self._broker.send(group.members[client], GroupDeliver(*key, client, burst))

    def on_deliver(self, sender: str, message: GroupDeliver) -> None:
        broker, burst, client = self._broker, _marked(message.burst), message.client
        takes_part = self._takes_part(message)
        if burst.is_fleeting:
            if takes_part:
                broker.tell(client, Deliver("", 0, burst))
        elif not takes_part or not broker.enqueue(client, burst):
            back = GroupReturn(message.group, message.filter, client, broker.id, burst)
            broker.send(self.owner_of(message.group, message.filter), back)

    def _takes_part(self, message: GroupDeliver) -> bool:
        """True if the session is a member: it may have left, or have begun anew after a clean start."""
        front = self._broker.front
        return front is None or front.takes_part(message.client, message.group, message.filter)

    def on_return(self, sender: str, message: GroupReturn) -> None:
        """Take back a notification whose member's session has moved or ended; a moved session's broker
        reports it."""
        if self._is_elsewhere(message):
            return
        key = (message.group, message.filter)
        group = self._groups.get(key)
        if group is None:
            return  # All members have left the group.
        if group.members.get(message.client) == message.broker:
            self._remove(group, message.client)
            if not message.is_over:
                group.moving[message.client] = None
        if message.is_over:
            self._end_if_empty(key, group)
        if key in self._groups:
            self._hand_out(key, group, message.burst)

    def on_gives_back(self, command: GivesBack) -> None:
        group, filter, client, burst = command.group, command.filter, command.client, command.burst
        returned = GroupReturn(group, filter, client, self._broker.id, burst, is_over=True)
        self._broker.send(self.owner_of(group, filter), returned)

    # --- another broker has to own a group ---

    def _offer(self, key: Key, group: Group) -> None:
        owner = self.owner_of(*key)
        if owner != self._broker.id and not group.heir and not group.former:
            group.heir = owner
            self._broker.send(owner, GroupOffer(*key))

    def on_offer(self, sender: str, message: GroupOffer) -> None:
        key = (message.group, message.filter)
        if key in self._groups:
            # The group was in use on both sides of a new link.
            self._broker.send(sender, GroupReady(*key))
        else:
            self._begin(key, Group(sender))

    def on_ready(self, sender: str, message: GroupReady) -> None:
        key = (message.group, message.filter)
        group = self._groups.get(key)
        if group is None or group.heir != sender:
            return
        self._end(key)
        over = GroupOver(
            *key, group.members, tuple(group.there), group.last, tuple(group.waiting), tuple(group.moving)
        )
        self._broker.send(sender, over)
        for client, broker in group.asking.items():
            self._broker.send(sender, GroupJoin(*key, client, broker, client in group.there, asks=True))

    def on_over(self, sender: str, message: GroupOver) -> None:
        key = (message.group, message.filter)
        group = self._groups.get(key) or self._begin(key, Group())
        for client, broker in message.members.items():
            if client not in group.members and (client, broker) not in group.left:
                group.members[client] = broker
                if client in message.there:
                    group.there[client] = None
        group.waiting += message.waiting
        known = dict.fromkeys((*group.members, *(client for client, _ in group.left)))
        group.moving.update((client, None) for client in message.moving if client not in known)
        if group.former == sender:
            self._take_over(key, group, message.last)
        self._hand_out_waiting(key, group)
        self._end_if_empty(key, group)

    def _take_over(self, key: Key, group: Group, last: dict[str, tuple[int, int]]) -> None:
        """Become the owner after the former owner has stopped handing out."""
        group.former, group.left = "", {}
        unseen, group.unseen = group.unseen, []
        for burst in unseen:
            incarnation, number = last.get(burst.publisher, (0, 0))
            if (burst.incarnation, burst.number) > (incarnation, number):
                self._hand_out_each(key, group, burst)
            elif (burst.incarnation, burst.last) > (incarnation, number):
                self._hand_out_each(key, group, burst.tail(number - burst.number + 1))
        self._offer(key, group)

    # --- brokers join, or are gone for good ---

    def on_members_changed(self, command: MembersChanged) -> None:
        brokers = dict.fromkeys(self._broker.own_members)
        lost = [one for one in self._brokers if one not in brokers]
        self._brokers = brokers
        for key, group in list(self._groups.items()):
            for client in [client for client, broker in group.members.items() if broker in lost]:
                self._remove(group, client)
            if lost:
                group.moving = {}  # Their sessions may be lost. Sessions that arrive are reported again.
            if group.heir in lost:
                group.heir, group.last = "", {}
            if group.former in lost:
                self._take_over(key, group, {})
            self._offer(key, group)
            self._end_if_empty(key, group)
        if lost:
            self._front.join_all_groups()
        stranded, self._stranded = self._stranded, []
        for back in stranded:
            self._broker.send(self.owner_of(back.group, back.filter), back)

    def on_undeliverable(self, message: GroupDeliver | GroupReturn) -> None:
        """Handle a message for a broker that is gone; a notification for a member goes to another member."""
        if isinstance(message, GroupReturn):
            self._stranded.append(message)
        else:
            back = GroupReturn(message.group, message.filter, message.client, "", message.burst)
            self._stranded.append(back)


def _marked(burst: Burst) -> Burst:
    """Mark a burst as delivered by way of the group, not of the member's other subscriptions."""
    return msgspec.structs.replace(burst, marks=bytes((burst.marks[0] | SHARED,)) + burst.marks[1:])


def _collector(key: Key) -> Owner:
    """Return the group's owner in the routing table: no client has an empty name."""
    return ("", *key)


def _name(key: Key) -> str:
    return f"$share/{key[0]}/{key[1]}"
