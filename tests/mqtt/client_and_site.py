"""Clients and a broker without sockets: every byte between them can be cut off, and every connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from roamcast.broker.inputs import ClientConnected, ClientFrames, ConnectionLost, MachineInput, Started
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.client.client import Accepted, ClientSession, ClientSettings, Event
from roamcast.mqtt.client.outgoing import Acknowledged
from roamcast.mqtt.client.requests import Granted
from roamcast.mqtt.codec.packets import Publish, Subscribe, SubscriptionEntry
from roamcast.mqtt.codec.reading import cut, parse_connect
from roamcast.mqtt.server.access import Identity


class Machine:
    """One client's machine and the connection it has, in pieces on the way."""

    def __init__(self, world: World, id: str, **settings: Any) -> None:
        given = {"clean": False, "session_expiry_s": 3600, **settings}
        self.session = ClientSession(ClientSettings(client_id=id, **given))
        self.world = world
        self.connection = 0
        self.up = b""
        self.down = b""
        self.events: list[Event] = []
        self.taken: list[Publish] = []

    # --- the connection ---

    def connect(self) -> None:
        self.cut()
        self.connection = self.world.new_connection(self)
        self.session.begin(self.world.now)
        self.collect()

    def cut(self) -> None:
        """What is on its way is lost, in both directions."""
        if self.connection:
            self.world.gone(self.connection)
            self.session.cut()
        self.connection, self.up, self.down = 0, b"", b""

    def collect(self) -> None:
        self.up += self.session.take_out(self.world.now)

    def carry_up(self, count: int) -> None:
        data, self.up = self.up[:count], self.up[count:]
        if data and self.connection:
            self.world.read(self.connection, data)

    def carry_down(self, count: int) -> None:
        data, self.down = self.down[:count], self.down[count:]
        if data:
            self.events += self.session.receive(self.world.now, data)
            self.collect()

    # --- the application ---

    def publish(self, topic: str, payload: str, qos: int, **more: Any) -> int:
        token, events = self.session.publish(Publish(topic, payload.encode(), qos, **more))
        self.events += events
        self.collect()
        return token

    def subscribe(self, filter: str, qos: int, properties: Iterable[tuple[str, str]] = ()) -> int:
        packet = Subscribe(0, (SubscriptionEntry(filter, qos),), user_properties=tuple(properties))
        token = self.session.subscribe(packet)
        self.collect()
        return token

    def take(self, count: int = 1 << 20) -> None:
        while len(self.session.incoming) and count:
            self.taken.append(self.session.take())
            count -= 1
        self.collect()

    @property
    def payloads(self) -> list[str]:
        return [publish.payload.decode() for publish in self.taken]

    def acknowledged(self) -> dict[int, Acknowledged]:
        return {event.token: event for event in self.events if isinstance(event, Acknowledged)}

    def granted(self) -> dict[int, Granted]:
        return {event.token: event for event in self.events if isinstance(event, Granted)}

    def presents(self) -> list[bool]:
        return [event.connack.session_present for event in self.events if isinstance(event, Accepted)]


class World:
    def __init__(self) -> None:
        self.now = 1_000.0
        settings = MachineSettings("a")
        self.site = BrokerMachine(settings)
        self.machines: dict[int, Machine] = {}
        self._first: dict[int, bytes] = {}
        self._connections = 0
        self._step([Started(settings)])

    def new_connection(self, machine: Machine) -> int:
        self._connections += 1
        self.machines[self._connections] = machine
        self._first[self._connections] = b""
        return self._connections

    def read(self, connection: int, data: bytes) -> None:
        first = self._first.get(connection)
        if first is None:
            self._step([ClientFrames(connection, data)])
            return
        first += data
        whole = cut(first, 0, 1 << 20)
        if whole is None:
            self._first[connection] = first
            return
        connect = parse_connect(first[whole[1] : whole[2]])
        del self._first[connection]
        self._step([ClientConnected(connection, connect, Identity(client=connect.client_id))])
        if first[whole[2] :]:
            self._step([ClientFrames(connection, first[whole[2] :])])

    def gone(self, connection: int) -> None:
        del self.machines[connection]
        if self._first.pop(connection, None) is None:
            self._step([ConnectionLost(connection)])

    def _step(self, inputs: list[MachineInput]) -> None:
        self.now += 0.001
        effects = self.site.step(self.now, inputs)
        for connection, data in effects.writes.items():
            if connection in self.machines:
                self.machines[connection].down += b"".join(data)

    def settle(self, *machines: Machine) -> None:
        """Everything arrives, and is taken."""
        for _ in range(10_000):
            for machine in machines:
                machine.carry_up(1 << 20)
                machine.carry_down(1 << 20)
                machine.take()
            if not any(machine.up or machine.down for machine in machines):
                return
        raise AssertionError("it does not come to rest")
