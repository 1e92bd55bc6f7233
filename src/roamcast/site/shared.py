"""Shared subscriptions: one broker owns each group and filter, and picks the member for each notification.

Which broker that is follows from the names alone, so all brokers agree on it. The
owner subscribes once, for the whole group. Members that are connected come first: the
owner hears of it when they come and go, and only while nobody is there it chooses among
all of them. What it sends to a member goes to the broker where the member was; if the
member's session has moved on, it comes back and another member gets it. So a
notification is delivered to one member, whatever moves; no order is promised.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar

import msgspec

from roamcast.core.messages import Cause, Deliver
from roamcast.core.notification import Burst, Fleeting, Message
from roamcast.core.routing import Owner
from roamcast.filters.selector import parse
from roamcast.mqtt.marks import SHARED

if TYPE_CHECKING:
    from roamcast.node.broker import Broker

Key = tuple[str, str]
"""The name of the group and the text of its filter."""


class GroupJoin(Message, frozen=True):
    """A client takes part; its session is at this broker."""

    group: str
    filter: str
    client: str
    broker: str
    is_there: bool
    """Whether it is connected."""
    cause: ClassVar[Cause] = "subscribe"


class GroupLeave(Message, frozen=True):
    group: str
    filter: str
    client: str
    broker: str
    """Where its session was: a later join from elsewhere stays."""
    cause: ClassVar[Cause] = "subscribe"


class GroupDeliver(Message, frozen=True):
    """For this member, from the owner of the group."""

    group: str
    filter: str
    client: str
    burst: Burst | Fleeting
    cause: ClassVar[Cause] = "publish"

    @property
    def weight(self) -> int:
        return self.burst.count


class GroupReturn(Message, frozen=True):
    """The member was not there any more."""

    group: str
    filter: str
    client: str
    broker: str
    burst: Burst
    cause: ClassVar[Cause] = "publish"

    @property
    def weight(self) -> int:
        return self.burst.count


class Takes(Message, frozen=True):
    """A client of this broker takes part in a group, or takes part no more."""

    group: str
    filter: str
    client: str
    joins: bool
    is_there: bool = False
    cause: ClassVar[Cause] = "subscribe"


class SharedSubscriptions:
    __unsaved__ = ("_fleeting_turns",)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups: dict[Key, dict[str, str]] = {}
        """Of the groups owned here: member to the broker of its session."""
        self._there: dict[Key, dict[str, None]] = {}
        """Of these the members that are connected."""
        self._turns: dict[Key, int] = {}
        self._waiting: dict[Key, list[Burst]] = {}
        """What came back while every member was on its way to another broker."""
        for kind, handler in (
            (Takes, self.on_takes),
            (GroupJoin, self.on_join),
            (GroupLeave, self.on_leave),
            (GroupDeliver, self.on_deliver),
            (GroupReturn, self.on_return),
        ):
            broker.serve(kind, handler)
        broker.collect = self.on_notification
        self._restore()

    def _restore(self) -> None:
        self._fleeting_turns: dict[Key, int] = {}
        """Whose turn it is for what promises nothing: a journal does not know of it."""

    def owner_of(self, group: str, filter: str) -> str:
        """The broker that owns a group: the one with the highest hash among all that exist."""

        def weight(broker: str) -> bytes:
            return blake2b("\0".join((group, filter, broker)).encode(), digest_size=8).digest()

        return max(self._broker.members, key=weight)

    # --- members ---

    def on_takes(self, sender: str, message: Takes) -> None:
        owner = self.owner_of(message.group, message.filter)
        member = (message.group, message.filter, message.client, self._broker.id)
        told = GroupJoin(*member, message.is_there) if message.joins else GroupLeave(*member)
        self._broker.send(owner, told)

    def on_join(self, sender: str, message: GroupJoin) -> None:
        key = (message.group, message.filter)
        if key not in self._groups:
            self._groups[key], self._there[key] = {}, {}
            self._turns[key] = 0
            filter = parse(message.filter)
            self._broker.router.subscribe(_collector(key), filter, _name(key), "subscribe")
        self._groups[key][message.client] = message.broker
        if message.is_there:
            self._there[key][message.client] = None
        else:
            self._there[key].pop(message.client, None)
        for burst in self._waiting.pop(key, ()):
            self._hand_out(key, burst)

    def on_leave(self, sender: str, message: GroupLeave) -> None:
        key = (message.group, message.filter)
        members = self._groups.get(key)
        if members is None or members.get(message.client) != message.broker:
            return
        del members[message.client]
        self._there[key].pop(message.client, None)
        if not members:
            del self._groups[key], self._there[key], self._turns[key]
            self._waiting.pop(key, None)
            self._fleeting_turns.pop(key, None)
            filter = parse(message.filter)
            self._broker.router.unsubscribe(_collector(key), filter, _name(key), "subscribe")

    # --- notifications ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        """Something for a group that is owned here: each notification goes to the next member."""
        key = (owner[1], owner[2])
        for position in range(burst.count):
            self._hand_out(key, burst.part(position, position + 1))

    def _hand_out(self, key: Key, burst: Burst) -> None:
        if key not in self._groups:
            return
        members = list(self._there[key])
        if isinstance(burst, Fleeting):
            # What promises nothing may not change whose turn it is for the rest: that is in the journal.
            turn = self._fleeting_turns[key] = self._fleeting_turns.get(key, 0) + 1
        else:
            members = members or list(self._groups[key])
            if not members:
                self._waiting.setdefault(key, []).append(burst)
            turn = self._turns[key] = self._turns[key] + 1
        if members:
            client = members[turn % len(members)]
            self._broker.send(self._groups[key][client], GroupDeliver(*key, client, burst))

    def on_deliver(self, sender: str, message: GroupDeliver) -> None:
        broker, burst, client = self._broker, _marked(message.burst), message.client
        if isinstance(burst, Fleeting):
            broker.tell(client, Deliver("", 0, burst))
        elif client in broker.sessions:
            broker.enqueue(client, burst)
        else:
            back = GroupReturn(message.group, message.filter, client, broker.id, burst)
            broker.send(self.owner_of(message.group, message.filter), back)

    def on_return(self, sender: str, message: GroupReturn) -> None:
        """The member's session has moved; wherever it is now, that broker will say so."""
        key = (message.group, message.filter)
        members = self._groups.get(key, {})
        if members.get(message.client) == message.broker:
            del members[message.client]
            self._there[key].pop(message.client, None)
        self._hand_out(key, message.burst)


def _marked(burst: Burst) -> Burst:
    """As what it is for its member: by way of the group, and not of what else it subscribed to."""
    return msgspec.structs.replace(burst, marks=bytes((burst.marks[0] | SHARED,)) + burst.marks[1:])


def _collector(key: Key) -> Owner:
    """The owner in the routing table: no client has the empty name."""
    return ("", *key)


def _name(key: Key) -> str:
    return f"$share/{key[0]}/{key[1]}"
