"""The clients of a simulated network, and how they communicate with its brokers.

All clients of a network are of one kind. Clients of `PlainAccess` (the lab) send the core's own messages;
clients of `mqtt_access.MqttAccess` speak MQTT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from roamcast.broker.inputs import MachineEffects
from roamcast.broker.plain_client import Client
from roamcast.protocol.effects import (
    Attached,
    AttachTo,
    ClientEffects,
    Detached,
    Effects,
    Input,
    LeaveFor,
    PublishThis,
    Said,
    Submitted,
    Told,
)
from roamcast.protocol.messages import Deliver, Hello, Leave
from roamcast.protocol.records import Row
from roamcast.simulator.engine import lane_for
from roamcast.simulator.links import Link

if TYPE_CHECKING:
    from roamcast.simulator.network import NetworkBase

CONTROL_BYTES = 64
"""Assumed size of a message without content on a link with limited bandwidth."""


class Access(Protocol):
    def act(self, client: str, item: Input) -> None:
        """Perform an action of a client's application now."""

    def take(self, broker: str, effects: MachineEffects) -> None:
        """Perform the effects of a broker's step on clients."""

    def broker_crashed(self, broker: str) -> None:
        """Break every connection to the broker."""

    def broker_started(self, broker: str) -> None:
        """Note that the broker serves again."""

    def is_attached(self, client: str) -> bool:
        """Return whether the client has a connection."""

    def asked(self) -> Mapping[str, int]:
        """Return how many publishes a client's application requested, where that is counted."""

    def wrongs(self) -> Iterator[tuple[str, str]]:
        """Return kind and text of each violation found at the end."""


class AnyClient(Protocol):
    """A client that exchanges messages with its broker, not bytes."""

    id: str

    @property
    def unaccepted(self) -> int:
        """Requests that no broker has accepted yet."""

    def step(self, now: float, inputs: Iterable[Input]) -> ClientEffects: ...


@dataclass(slots=True, eq=False)
class AccessConnection:
    """One attach of one client, from its hello until it goes away."""

    id: int
    client: AnyClient
    broker: str
    up: Link
    down: Link
    is_open: bool = True
    is_heard: bool = True
    """True while messages of the broker reach the client; false once it has said that it leaves."""

    def close(self) -> None:
        self.is_open = self.is_heard = False


class PlainAccess:
    def __init__(self, network: NetworkBase) -> None:
        settings = network.settings
        self._network = network
        self._settings = settings
        self._rng = network.rng_for("network")
        self._link = Link(settings.access_delay, self._rng)
        self._lane = lane_for(settings.access_delay, settings.access_bits_per_s)
        self._is_prompt = not settings.service_s
        """True if brokers need no processing time, so that messages that arrive together are one step."""
        self._together_at = -1.0
        self._together: list[tuple[AccessConnection, Said]] = []
        """The last messages sent, and their arrival time."""
        self.clients: dict[str, AnyClient] = {}
        self.closed_by_broker: list[str] = []
        self._connections: dict[str, AccessConnection] = {}
        self._connections_made = 0
        self._media: dict[str, Link] = {}
        """Shared medium of each broker whose clients share one."""
        self._waiting: dict[str, str] = {}
        """Clients that try to attach to a broker that is down."""
        self._asked: Counter[str] = Counter()

    # --- what applications do ---

    def act(self, client: str, item: Input) -> None:
        if type(item) is AttachTo:
            self._attach(client, item.broker)
        elif type(item) is LeaveFor:
            self._leave(client, item.destination)
        else:
            if type(item) is PublishThis:
                self._asked[client] += len(item.bodies)
            self._step(client, item)

    def _client(self, id: str) -> AnyClient:
        client = self.clients.get(id)
        if client is None:
            client = self.clients[id] = self._make_client(id)
        return client

    def _make_client(self, id: str) -> AnyClient:
        return Client(id, self._settings.names_last_broker)

    def _step(self, id: str, item: Input) -> None:
        effects = self._client(id).step(self._network.now, (item,))
        if effects.sends:
            self._send_up(self._connections[id], effects.sends)
        if effects.records:
            self._network.observe(effects.records)

    def _attach(self, client: str, broker: str) -> None:
        self._leave(client, "")
        if self._network.is_down(broker):
            self._waiting[client] = broker
            return
        self._connections_made += 1
        number = self._connections_made
        up, down = self._links(client, broker, number)
        self._connections[client] = AccessConnection(number, self._client(client), broker, up, down)
        self._step(client, AttachTo(broker, number))

    def _links(self, client: str, broker: str, number: int) -> tuple[Link, Link]:
        """Create one link for each direction. Without randomness all connections share them, because a random
        source takes 2,500 bytes.
        """
        if self._lane is not None:
            return self._link, self._link
        settings, rng_for = self._settings, self._network.rng_for
        up, down = (
            Link(settings.access_delay, rng_for(client, str(number), way), settings.access_bits_per_s)
            for way in ("up", "down")
        )
        if settings.access_shared:
            return up, self._media.setdefault(broker, down)
        return up, down

    def _leave(self, client: str, destination: str) -> None:
        self._waiting.pop(client, None)
        connection = self._connections.get(client)
        if connection is None or not connection.is_open:
            return
        self._step(client, LeaveFor(destination))
        if destination:
            return  # The connection ends when the broker learns of it.
        connection.close()
        delay = self._settings.notice_delay
        notice_s = delay.low_s + (delay.high_s - delay.low_s) * self._rng.random()
        item = Detached(client, connection.id)
        network = self._network
        network.push(network.now + notice_s, network.arrive, connection.broker, (item,))

    # --- between clients and brokers ---

    def _send_up(self, connection: AccessConnection, sends: list[tuple[str, Said]]) -> None:
        network, lane = self._network, self._lane
        network.traffic.access_hops += len(sends)
        for _, message in sends:
            is_leave = type(message) is Leave
            if is_leave:
                # Messages that it already sent arrive, but it receives nothing any more.
                connection.is_heard = False
                del self._connections[connection.client.id]
            elif lane is not None:
                self._send_together([(connection, message)])
                continue
            handle = self._arrive_leave if is_leave else self._arrive_up
            if lane is None:
                at = connection.up.arrival_s(network.now, CONTROL_BYTES)
                network.push(at, handle, connection, message)
            else:
                at = network.now + self._settings.access_delay.low_s
                network.push_lane(lane, at, handle, connection, message)

    def _send_together(self, sent: list[tuple[AccessConnection, Said]]) -> None:
        """Send messages through the lane; those that arrive together are one event."""
        network, lane = self._network, self._lane
        assert lane is not None
        at = network.now + self._settings.access_delay.low_s
        if at == self._together_at and self._is_prompt and lane and lane[-1][3] is self._together:
            self._together += sent
        else:
            self._together_at, self._together = at, sent
            network.push_lane(lane, at, self._arrive_together, sent, None)

    def _arrive_together(self, sent: Sequence[tuple[AccessConnection, Said]], _: None) -> None:
        """Pass messages that clients of one broker sent at the same time to one step of the broker."""
        broker, are_plain = "", True
        inputs: list[Any] = []
        for connection, message in sent:
            if not connection.is_open:
                continue
            if connection.broker != broker:
                if inputs:
                    self._network.submit(broker, inputs, are_plain)
                broker, inputs, are_plain = connection.broker, [], True
            if type(message) is Hello:
                inputs.append(Attached(connection.client.id, connection.id, message))
                are_plain = False
            else:
                inputs.append(Submitted(connection.client.id, connection.id, message))  # type: ignore[arg-type]
        if inputs:
            self._network.submit(broker, inputs, are_plain)

    def _arrive_up(self, connection: AccessConnection, message: Said) -> None:
        self._arrive_together(((connection, message),), None)

    def _arrive_leave(self, connection: AccessConnection, message: Said) -> None:
        self._arrive_up(connection, message)
        connection.close()

    def take(self, broker: str, effects: Effects) -> None:
        network, connections, lane = self._network, self._connections, self._lane
        hops = 0
        together = []
        for client, number, message in effects.to_clients:
            connection = connections.get(client)
            if connection is None or connection.id != number or not connection.is_open:
                continue
            hops += message.burst.count if type(message) is Deliver else message.weight
            if lane is not None:
                together.append((connection, message))
            else:
                content = message.burst.size if type(message) is Deliver else 0
                at = connection.down.arrival_s(network.now, CONTROL_BYTES + content)
                network.push(at, self._arrive_down, ((connection, message),))
        network.traffic.access_hops += hops
        if together and lane is not None:
            at = network.now + self._settings.access_delay.low_s
            network.push_lane(lane, at, self._arrive_down, together, None)
        for client, number, reason in effects.client_closes:
            # The protocol has failed a client that is still connected.
            connection = connections.get(client)
            if connection is not None and connection.id == number and connection.is_open:
                connection.close()
                when = f"{client} at {connection.broker} at {network.now:.6f}"
                self.closed_by_broker.append(f"{when}: {reason}")

    def _arrive_down(self, deliveries: Sequence[tuple[AccessConnection, Said]], _: None) -> None:
        network = self._network
        now, is_plain = network.now, self._lane is not None and self._is_prompt
        records: list[Row] = []
        acknowledged: list[tuple[AccessConnection, Said]] = []
        for connection, message in deliveries:
            if not connection.is_heard:
                continue
            client = connection.client
            if is_plain and type(message) is Deliver and type(client) is Client:
                acknowledged.append((connection, client.take(now, message, records)))
                continue
            if acknowledged:
                self._acknowledge(acknowledged, records)
                acknowledged, records = [], []
            effects = client.step(now, (Told(connection.broker, message),))
            if effects.sends:
                self._send_up(connection, effects.sends)
            if effects.records:
                network.observe(effects.records)
        if acknowledged:
            self._acknowledge(acknowledged, records)

    def _acknowledge(self, acknowledged: list[tuple[AccessConnection, Said]], records: list[Row]) -> None:
        """Send the acknowledgements of deliveries that came together, and write the rows of these."""
        network = self._network
        network.traffic.access_hops += len(acknowledged)
        self._send_together(acknowledged)
        if records:
            network.observe(records)

    # --- brokers crash ---

    def broker_crashed(self, broker: str) -> None:
        """Let the clients notice, and retry until the broker is back."""
        for client, connection in list(self._connections.items()):
            if connection.broker == broker and connection.is_open:
                connection.close()
                self._step(client, LeaveFor())
                self._waiting[client] = broker

    def broker_started(self, broker: str) -> None:
        for client in [client for client, wanted in self._waiting.items() if wanted == broker]:
            self._attach(client, broker)

    # --- for those who look on ---

    def is_attached(self, client: str) -> bool:
        connection = self._connections.get(client)
        return connection is not None and connection.is_open

    def asked(self) -> Mapping[str, int]:
        """Number of requests of each client whose requests were all accepted."""
        return {id: count for id, count in self._asked.items() if not self.clients[id].unaccepted}

    def wrongs(self) -> Iterator[tuple[str, str]]:
        for reason in self.closed_by_broker:
            yield "closed", reason
        for client, broker in self._waiting.items():
            yield "in flight at the end", f"the attach of {client} to {broker}, which is down"
        for node in self.clients.values():
            if node.unaccepted and self.is_attached(node.id):
                yield "in flight at the end", f"{node.unaccepted} requests of {node.id}"
