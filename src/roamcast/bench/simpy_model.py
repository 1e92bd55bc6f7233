"""The same network as a plain SimPy model, for comparison with the simulator.

The model has less to do: clients do not move, routes are computed beforehand from the topology and the
filters, and nothing is checked or recorded. What remains are the messages: a publish goes up and is accepted,
travels by reverse path over the same tree with the same delays, is delivered to every matching client, and
each of them acknowledges.

Two styles share everything else. `stores` is typical SimPy: brokers and clients are processes that receive
from a store. SimPy's own example of latency starts a process for each message on a link; here a timeout puts
the message into the store, which is half as much work. `callbacks` uses SimPy only as a heap: timeouts call
plain functions, and only publishers are processes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import simpy

from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.protocol.effects import AttachTo, PublishThis, SubscribeTo
from roamcast.protocol.notification import decode_attributes
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.topology import Topology

Style = Literal["stores", "callbacks"]
Handle = Callable[[Any], None]
Arrive = Callable[[simpy.Event], None]
"""Called by the timeout of a hop; the value of the event is the message."""
Process = Generator[simpy.Event, Any, None]


@dataclass
class Plan:
    """Actions of the clients of a network without moves, taken from the simulator's own actions."""

    topology: Topology
    homes: dict[str, str] = field(default_factory=dict)
    filters: dict[str, list[Filter]] = field(default_factory=dict)
    publications: dict[str, list[tuple[float, bytes]]] = field(default_factory=dict)

    @classmethod
    def read(cls, topology: Topology, actions: Iterable[Action]) -> Plan:
        plan = cls(topology)
        for at, client, item in actions:
            if isinstance(item, AttachTo):
                if client in plan.homes:
                    raise ValueError(f"{client} moves: this model is for networks where nobody does")
                plan.homes[client] = item.broker
            elif isinstance(item, SubscribeTo):
                plan.filters.setdefault(client, []).append(parse(item.filter))
            elif isinstance(item, PublishThis):
                plan.publications.setdefault(client, []).append((at, item.attributes))
        return plan

    def routes(self) -> dict[str, dict[bytes, tuple[list[str], list[str]]]]:
        """Return for each broker and kind of notification: the peers that lead to interested clients, and its
        own interested clients.
        """
        kinds = {attributes for times in self.publications.values() for _, attributes in times}
        routes: dict[str, dict[bytes, tuple[list[str], list[str]]]] = {
            broker: {kind: ([], []) for kind in sorted(kinds)} for broker in self.topology.brokers
        }
        next_hops = {broker: self.topology.next_hops(broker) for broker in self.topology.brokers}
        for kind in sorted(kinds):
            attributes = decode_attributes(kind)
            wanting = [
                client
                for client, filters in self.filters.items()
                if any(one.matches(attributes) for one in filters)
            ]
            for broker in self.topology.brokers:
                peers, clients = routes[broker][kind]
                clients += [client for client in wanting if self.homes[client] == broker]
                elsewhere = {self.homes[client] for client in wanting} - {broker}
                peers += sorted({next_hops[broker][home] for home in elsewhere})
        return routes


class Model:
    """The network in SimPy. Call `run` once, then read the counts."""

    def __init__(self, plan: Plan, settings: NetworkSettings, style: Style = "stores") -> None:
        self.link_hops = 0
        self.access_hops = 0
        self.delivered = 0
        self._env = simpy.Environment()
        self._style = style
        self._link_s = settings.link_delay.low_s
        self._access_s = settings.access_delay.low_s
        self._plan = plan
        self._brokers: dict[str, Arrive] = {}
        self._clients: dict[str, Arrive] = {}
        for broker, routes in plan.routes().items():
            self._brokers[broker] = self._receiver(self._make_broker(broker, routes))
        for client, home in plan.homes.items():
            self._clients[client] = self._receiver(self._make_client(client, home))
        for client, publications in plan.publications.items():
            self._env.process(self._publish(client, plan.homes[client], publications))

    def run(self) -> None:
        self._env.run()

    def _receiver(self, handle: Handle) -> Arrive:
        """The end of a link: a node that handles one message after the other."""
        if self._style == "callbacks":
            return lambda event: handle(event.value)
        store = simpy.Store(self._env)

        def receive() -> Process:
            while True:
                handle((yield store.get()))

        def arrive(event: simpy.Event) -> None:
            store.put(event.value)

        self._env.process(receive())
        return arrive

    def _send(self, delay_s: float, arrive: Arrive, message: object) -> None:
        """Send a message over one link. All messages of a link take equally long, so they stay in order."""
        self._env.timeout(delay_s, message).callbacks.append(arrive)

    def _make_broker(self, id: str, routes: dict[bytes, tuple[list[str], list[str]]]) -> Handle:
        send, brokers, clients = self._send, self._brokers, self._clients
        sequence = dict.fromkeys(self._plan.homes, 0)
        acknowledged = dict.fromkeys(self._plan.homes, 0)
        published = dict.fromkeys(self._plan.homes, 0)

        def forward(source: str, notification: tuple[str, int, bytes]) -> None:
            peers, local = routes[notification[2]]
            for peer in peers:
                if peer != source:
                    self.link_hops += 1
                    send(self._link_s, brokers[peer], ("burst", id, notification))
            for client in local:
                self.access_hops += 1
                sequence[client] += 1
                send(self._access_s, clients[client], ("deliver", sequence[client], notification))

        def handle(message: tuple[str, str, Any]) -> None:
            kind, source, content = message
            if kind == "burst":
                forward(source, content)
            elif kind == "acknowledge":
                acknowledged[source] = content
            else:
                published[source] += 1
                forward("", (source, published[source], content))
                self.access_hops += 1
                send(self._access_s, clients[source], ("accepted", published[source], None))

        return handle

    def _make_client(self, id: str, home: str) -> Handle:
        send, broker = self._send, self._brokers[home]

        def handle(message: tuple[str, int, Any]) -> None:
            kind, sequence, _ = message
            if kind == "deliver":
                self.delivered += 1
                self.access_hops += 1
                send(self._access_s, broker, ("acknowledge", id, sequence))

        return handle

    def _publish(self, client: str, home: str, publications: list[tuple[float, bytes]]) -> Process:
        broker = self._brokers[home]
        for at, attributes in publications:
            yield self._env.timeout(at - self._env.now)
            self.access_hops += 1
            self._send(self._access_s, broker, ("publish", client, attributes))
