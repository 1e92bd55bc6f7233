"""Brokers and clients driven step by step in virtual time, with brokers whose inputs stop for a while.

No driver and no journal: a broker that is down is not stepped. What was meant for
it is kept until it is back, as links that survive do, or is lost; and it comes
back as it was, or as a new one without memory. A broker that is cut off runs on,
and what it and the others say to each other is kept.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from roamcast.broker.core import BrokerCore, CoreSettings
from roamcast.broker.plain_client import Client
from roamcast.mobility import Settings
from roamcast.mobility.proactive import Proactive
from roamcast.protocol.effects import (
    Attached,
    AttachTo,
    ClientEffects,
    Deadline,
    Detached,
    Effects,
    Input,
    LeaveFor,
    OverlayChanged,
    PublishThis,
    Received,
    Said,
    SessionOver,
    Submitted,
    SubscribeTo,
    Told,
    UnsubscribeFrom,
)
from roamcast.protocol.messages import Deliver, Hello, Message, Relayed
from roamcast.protocol.notification import encode_attributes
from roamcast.simulator.topology import from_edges

LINK_S = 0.01


class FailingNetwork:
    """A message takes `LINK_S` for a link between brokers; between client and broker it takes no time."""

    def __init__(self, edges: str, settings: Settings, protocol: type[Proactive] = Proactive) -> None:
        pairs = [(one, other) for one, other in (edge.split("-") for edge in edges.split())]
        names = tuple(sorted({end for pair in pairs for end in pair}))
        self.topology = from_edges("test", names, pairs)
        self.settings = settings
        self.protocol = protocol
        self.now = 0.0
        self.clients: dict[str, Client] = {}
        self.connections: dict[str, int] = {}
        self.said: list[tuple[float, str, str, Message]] = []
        """Every message between brokers, from its sender to its receiver: when, from, to, what."""
        self.got: dict[str, list[str]] = defaultdict(list)
        """What each client was delivered, as publisher/number."""
        self._down: dict[str, list[Input] | None] = {}
        """Brokers that are down or cut off, and what is kept for them."""
        self._cut_off: dict[str, list[tuple[str, Message]]] = {}
        """Brokers that run and cannot be reached, and what they have said."""
        self._events: list[tuple[float, int, str, Input]] = []
        self._pushed = 0
        self.brokers = {name: self._make(name) for name in names}
        for name in names:
            self._configure(name)

    def _make(self, name: str) -> BrokerCore:
        # As in section 3.2, notifications are flooded: no routing table is lost with a memory.
        return BrokerCore(name, self.protocol, CoreSettings(routing="flooding", protocol=self.settings))

    def _configure(self, name: str) -> None:
        self._step(name, OverlayChanged(self.topology.peers(name), self.topology.next_hops(name)))

    def at(self, broker: str) -> Proactive:
        protocol = self.brokers[broker].protocol
        assert isinstance(protocol, Proactive)
        return protocol

    def say(self, sender: str, receiver: str, message: Message) -> None:
        """Have a broker hear this from another, which did not say it."""
        way = self.topology.next_hops(receiver)[sender]
        self._arrive(receiver, Received(way, Relayed(sender, receiver, message)))

    # --- time ---

    def run(self, until_s: float = float("inf")) -> None:
        """Until this time, or until nothing is left to do."""
        while True:
            timers = [
                (at, name) for name, one in self.brokers.items()
                if (name not in self._down or name in self._cut_off) and (at := one.deadline()) is not None
            ]  # fmt: skip
            timer_s, name = min(timers, default=(float("inf"), ""))
            arrival_s = self._events[0][0] if self._events else float("inf")
            next_s = min(timer_s, arrival_s)
            if next_s > until_s or next_s == float("inf"):
                break
            self.now = max(self.now, next_s)
            if arrival_s <= timer_s:
                _, _, broker, item = heapq.heappop(self._events)
                self._arrive(broker, item)
            else:
                self._step(name, Deadline())
        self.now = max(self.now, until_s) if until_s < float("inf") else self.now

    def _arrive(self, broker: str, item: Input) -> None:
        if broker not in self._down:
            self._step(broker, item)
        elif (kept := self._down[broker]) is not None:
            kept.append(item)

    def _step(self, broker: str, item: Input) -> None:
        self._perform(broker, self.brokers[broker].step(self.now, [item]))

    def _perform(self, broker: str, effects: Effects) -> None:
        if broker in self._cut_off:
            self._cut_off[broker] += effects.sends
        else:
            self._send(broker, effects.sends)
        for client, connection, message in effects.to_clients:
            if self.connections.get(client) == connection:
                self._tell(client, broker, message)

    def _send(self, broker: str, sends: list[tuple[str, Message]]) -> None:
        for peer, message in sends:
            self._pushed += 1
            item = Received(broker, message)
            heapq.heappush(self._events, (self.now + LINK_S, self._pushed, peer, item))
            if not isinstance(message, Relayed):
                self.said.append((self.now, broker, peer, message))
            elif message.source == broker:
                self.said.append((self.now, broker, message.destination, message.message))

    def _tell(self, client: str, broker: str, message: Said) -> None:
        effects = self.clients[client].step(self.now, [Told(broker, message)])
        if isinstance(message, Deliver) and effects.records:
            burst = message.burst
            self.got[client] += [f"{burst.publisher}/{burst.number + i}" for i in range(burst.count)]
        self._submit(client, broker, effects)

    # --- clients ---

    def attach(self, client: str, broker: str) -> None:
        self.leave(client)
        node = self.clients.setdefault(client, Client(client))
        self.connections[client] = self.connections.get(client, 0) + 1
        self._submit(client, broker, node.step(self.now, [AttachTo(broker, 0)]))

    def leave(self, client: str) -> None:
        node = self.clients.get(client)
        if node is not None and node.broker:
            broker = node.broker
            node.step(self.now, [LeaveFor()])
            self._arrive(broker, Detached(client, self.connections[client]))

    def end_session(self, client: str, broker: str) -> None:
        """It has been away for too long."""
        self._arrive(broker, SessionOver(client))

    def subscribe(self, client: str, filter: str) -> None:
        self._ask(client, SubscribeTo(filter))

    def unsubscribe(self, client: str, filter: str) -> None:
        self._ask(client, UnsubscribeFrom(filter))

    def publish(self, client: str, x: int) -> None:
        self._ask(client, PublishThis(encode_attributes({"x": x})))

    def _ask(self, client: str, item: Input) -> None:
        node = self.clients[client]
        self._submit(client, node.broker, node.step(self.now, [item]))

    def _submit(self, client: str, broker: str, effects: ClientEffects) -> None:
        connection = self.connections[client]
        for _, message in effects.sends:
            if isinstance(message, Hello):
                self._arrive(broker, Attached(client, connection, message))
            else:
                self._arrive(broker, Submitted(client, connection, message))  # type: ignore[arg-type]

    # --- failures ---

    def fail(self, broker: str, keep: bool = True) -> None:
        """From now on it does nothing. What comes for it is kept, or lost."""
        self._down[broker] = [] if keep else None

    def cut_off(self, broker: str) -> None:
        """From now on nothing comes to it or from it, and is kept; its timers run."""
        self._down[broker], self._cut_off[broker] = [], []

    def recover(self, broker: str) -> None:
        """It is there again, or can be reached again, as it was."""
        self._send(broker, self._cut_off.pop(broker, []))
        for item in self._down.pop(broker) or []:
            self._step(broker, item)

    def recover_without_memory(self, broker: str) -> None:
        del self._down[broker]
        self.brokers[broker] = self._make(broker)
        self._configure(broker)

    # --- looking on ---

    def kinds(self, since_s: float, *left_out: str) -> list[str]:
        """The protocol's own messages since then: who says what to whom."""
        return [
            f"{sender} {type(message).__name__} {receiver}"
            for at, sender, receiver, message in self.said
            if at >= since_s
            and type(message).__module__.startswith("roamcast.mobility")
            and type(message).__name__ not in left_out
        ]

    def unfinished(self) -> list[str]:
        return [reason for broker in self.brokers.values() for reason in broker.unfinished()]
