"""The load: MQTT clients on raw sockets in one process, which check every byte they receive.

One process loads all brokers in the same way, and is faster than any of them: frames are created beforehand,
written in hundreds, and checked read by read (see `accounting`).
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roamcast.bench.accounting import READ_BYTES, Acknowledged, Cycle, Echo, EvenStream, MixedStream
from roamcast.bench.packet_socket import PacketSocket
from roamcast.bench.processes import HOST, BenchFailed, Process
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet

PATIENCE_S = 30.0
"""Timeout of each step, after which the run is abandoned."""
WINDOW_QOS_0 = 4_000
"""Maximum messages in transit to the slowest subscriber, so few that no broker has a reason to drop any."""
WINDOW_QOS_1 = 1_000
"""Unacknowledged messages of a publisher."""
QUICK_S = 0.25
"""A window that arrives within this time may grow."""
CHUNK = 250
"""Default number of messages in one write."""
EXPIRY_S = 100_000
FILTERS_TOGETHER = 50
"""Topic filters in one SUBSCRIBE."""


Door = Callable[[], socket.socket]
"""Opens a connection to a broker."""


@dataclass(frozen=True)
class Figure:
    """Result of one run."""

    messages: int
    deliveries: int
    seconds: float
    load_cpu_s: float
    broker_cpu_s: float
    """CPU time of the broker during the run, without connects and subscribes."""
    latencies_s: tuple[float, ...] = ()
    """Latencies of deliveries, if measured."""

    @property
    def messages_per_core_s(self) -> float:
        return self.messages / max(self.broker_cpu_s, 1e-6)

    @property
    def messages_per_s(self) -> float:
        return self.messages / self.seconds


class LoadConnection(PacketSocket):
    """A client's connection. It blocks until `go`, and never afterwards."""

    def __init__(
        self,
        port: int | Door,
        client_id: str,
        version: int = 4,
        *,
        wait: bool = True,
        is_lasting: bool = False,
        login: tuple[str, bytes] | None = None,
    ) -> None:
        """`is_lasting` resumes the session of this client id, and leaves it at the end."""
        user, password = login or (None, None)
        opened = port() if callable(port) else socket.create_connection((HOST, port), PATIENCE_S)
        super().__init__(opened, version)
        self.is_resumed = False
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.blocked: set[LoadConnection] = set()
        """Called when the socket accepts no more data."""
        self._waiting = b""
        self._packet_id = 0
        expiry_s = EXPIRY_S if is_lasting and version == 5 else None
        try:
            self.send_all(
                packets.Connect(
                    version, client_id, not is_lasting, 0, user, password, session_expiry=expiry_s
                )
            )
            if wait:
                self.welcome()
        except BaseException:
            self.socket.close()
            raise

    def welcome(self) -> None:
        answer = self.receive_packet()
        if not isinstance(answer, packets.Connack) or answer.reason:
            raise BenchFailed(f"the broker answered CONNECT with {answer}")
        self.is_resumed = answer.session_present

    def receive_packet(self) -> Packet:
        packet = self.receive_or_end()
        if packet is None:
            raise BenchFailed("the broker closed a connection")
        return packet

    def ping(self) -> None:
        """Send a PINGREQ and wait for the answer: the broker has then processed everything before."""
        self.send_all(packets.Pingreq())
        answer = self.receive_packet()
        if not isinstance(answer, packets.Pingresp):
            raise BenchFailed(f"{answer} arrived, but only the answer to a ping was expected")

    def receive_frames(self, size: int, most: int) -> bytes:
        """Read available frames of this size: at least one and at most `most`."""
        while len(self._read) < size:
            self._read += self.receive()
        end = min(len(self._read) // size, most) * size
        frames, self._read = self._read[:end], self._read[end:]
        return frames

    def subscribe(self, filters: Sequence[str], qos: int) -> None:
        """Subscribe to all of these and wait for the acknowledgement."""
        for at in range(0, len(filters), FILTERS_TOGETHER):
            entries = tuple(
                packets.SubscriptionEntry(filter, qos) for filter in filters[at : at + FILTERS_TOGETHER]
            )
            self._packet_id += 1
            self.send_all(packets.Subscribe(self._packet_id, entries))
            answer = self.receive_packet()
            if not isinstance(answer, packets.Suback) or answer.reasons != (qos,) * len(entries):
                raise BenchFailed(f"the broker answered SUBSCRIBE with {answer}")

    def go(self) -> LoadConnection:
        self.socket.setblocking(False)
        return self

    @property
    def is_blocked(self) -> bool:
        return bool(self._waiting)

    def send(self, data: bytes = b"") -> None:
        """Send what the socket accepts now, and keep the rest."""
        data = self._waiting + data if self._waiting else data
        try:
            taken = self.socket.send(data) if data else 0
        except BlockingIOError:
            taken = 0
        self._waiting = data[taken:]
        if self._waiting:
            self.blocked.add(self)

    def receive(self) -> bytes:
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise BenchFailed("the broker closed a connection")
        return data


class Poller:
    """Connections, and the function to call when each is readable."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, tuple[LoadConnection, Callable[[], None]]] = {}
        self._blocked: set[LoadConnection] = set()

    def add(self, connection: LoadConnection, handler: Callable[[], None]) -> None:
        number = connection.go().socket.fileno()
        self._handlers[number] = connection, handler
        connection.blocked = self._blocked
        self._poll.register(number, select.EPOLLIN)

    def turn(self, timeout_s: float) -> None:
        for connection in self._blocked:
            self._poll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)
        for number, events in self._poll.poll(timeout_s):
            connection, handler = self._handlers[number]
            if events & select.EPOLLOUT:
                self._poll.modify(number, select.EPOLLIN)
                self._blocked.discard(connection)
                connection.send()
            if events & ~select.EPOLLOUT:
                handler()

    def close(self) -> None:
        self._poll.close()
        for connection, _ in self._handlers.values():
            connection.close()


class Window:
    """Limit of messages in transit: low at first, and higher as long as they arrive quickly.

    A run ends by waiting for messages in transit, and that wait should not exceed the measurement.
    """

    def __init__(self, size: int, most: int = WINDOW_QOS_0) -> None:
        self.size = size
        self._most = most
        self._from = 0
        self._since_s = time.perf_counter()

    def arrived(self, count: int) -> None:
        """Note how many messages have arrived in total."""
        if count - self._from >= self.size:
            now_s = time.perf_counter()
            if now_s - self._since_s < QUICK_S:
                self.size = min(2 * self.size, self._most)
            self._from, self._since_s = count, now_s


class Publisher:
    """Sends a cycle of messages, some at a time, within its window."""

    def __init__(
        self, connection: LoadConnection, cycle: Cycle, chunk: int, window: int = WINDOW_QOS_1
    ) -> None:
        self.connection = connection
        self.cycle = cycle
        self.sent = 0
        self.chunk = chunk
        self._window = window
        if len(cycle) % chunk:
            raise ValueError("a cycle is a whole number of chunks")
        self._chunks = [b"".join(cycle.frames[at : at + chunk]) for at in range(0, len(cycle), chunk)]
        self.acknowledged = Acknowledged(len(cycle))

    def may_send(self, done: int, window: int) -> bool:
        """Return whether there is room for a chunk when `done` messages have arrived everywhere."""
        if self.connection.is_blocked or self.sent - done > window - self.chunk:
            return False
        return not self.cycle.qos or self.sent - self.acknowledged.count <= self._window - self.chunk

    def send(self) -> None:
        self.connection.send(self._chunks[self.sent // self.chunk % len(self._chunks)])
        self.sent += self.chunk

    def on_read(self) -> None:
        self.acknowledged.take(self.connection.receive(), self.sent if self.cycle.qos else 0)

    @property
    def is_acknowledged(self) -> bool:
        return not self.cycle.qos or self.acknowledged.count == self.sent


def _receiver(connection: LoadConnection, stream: EvenStream | MixedStream) -> Callable[[], None]:
    def on_read() -> None:
        acks = stream.take(connection.receive())
        if acks:
            connection.send(acks)

    return on_read


@dataclass(frozen=True)
class Flow:
    """A publisher, its messages, and the receivers of each."""

    publisher: LoadConnection
    cycle: Cycle
    subscribers: Sequence[tuple[LoadConnection, EvenStream]]


def flow_all(
    broker: Process, flows: Sequence[Flow], seconds: float, chunk: int = CHUNK, window: int = WINDOW_QOS_1
) -> Figure:
    """Every publisher sends as fast as its windows allow; its subscribers get what is due to them.

    `window` is the number of unacknowledged messages of a publisher, less than its cycle has.
    """
    poller = Poller()
    sending: list[tuple[Publisher, list[EvenStream], Window]] = []
    for flow in flows:
        publisher = Publisher(flow.publisher, flow.cycle, chunk, window)
        poller.add(flow.publisher, publisher.on_read)
        for connection, stream in flow.subscribers:
            poller.add(connection, _receiver(connection, stream))
        arriving = Window(2 * chunk, max(window, WINDOW_QOS_0))
        sending.append((publisher, [stream for _, stream in flow.subscribers], arriving))

    def send() -> None:
        for publisher, streams, arriving in sending:
            done = min(stream.done() for stream in streams)
            arriving.arrived(done)
            while publisher.may_send(done, arriving.size):
                publisher.send()

    def is_done() -> bool:
        return all(
            publisher.is_acknowledged and stream.received == stream.expected(publisher.sent)
            for publisher, streams, _ in sending
            for stream in streams
        )

    took = _run(broker, poller, send, is_done, seconds)
    received = sum(stream.received for _, streams, _ in sending for stream in streams)
    return Figure(sum(publisher.sent for publisher, _, _ in sending), received, *took)


def many_to_one(broker: Process, cycles: Sequence[Cycle], seconds: float, chunk: int) -> Figure:
    """Publishers with different topics and sizes send a few messages per write to one subscriber."""
    poller = Poller()
    subscriber = LoadConnection(broker.port, "bench-subscriber")
    subscriber.subscribe(["bench/#"], cycles[0].qos)
    stream = MixedStream(cycles)
    poller.add(subscriber, _receiver(subscriber, stream))
    publishers = [
        Publisher(LoadConnection(broker.port, f"bench-publisher-{number}"), cycle, chunk)
        for number, cycle in enumerate(cycles)
    ]
    for publisher in publishers:
        poller.add(publisher.connection, publisher.on_read)
    together = chunk * len(publishers)
    window = Window(2 * together)

    def send() -> None:
        window.arrived(stream.received)
        # One write for each publisher in turn, so that the broker sees them mixed.
        while sum(one.sent for one in publishers) - stream.received <= window.size - together:
            ready = [one for one in publishers if one.may_send(one.sent, chunk)]
            for publisher in ready:
                publisher.send()
            if not ready:
                break

    def is_done() -> bool:
        return stream.received >= sum(one.sent for one in publishers) and all(
            one.is_acknowledged for one in publishers
        )

    took = _run(broker, poller, send, is_done, seconds)
    stream.verify([one.sent for one in publishers])
    return Figure(sum(one.sent for one in publishers), stream.received, *took)


def one_in_flight(
    broker: Process,
    cycles: Sequence[Cycle],
    topics: Sequence[str],
    seconds: float,
    doors: Sequence[Door] = (),
) -> Figure:
    """Each client sends its next message when the previous one has come back to it.

    They connect through `doors`, in turn, if there are any.
    """
    poller = Poller()
    clients: list[tuple[LoadConnection, Echo]] = []
    open_count = 0
    is_over = False

    def handler(connection: LoadConnection, echo: Echo) -> Callable[[], None]:
        def on_read() -> None:
            nonlocal open_count
            answer = echo.take(connection.receive())
            if answer is not None:
                if is_over:
                    open_count -= 1
                else:
                    connection.send(answer)

        return on_read

    for number, (cycle, topic) in enumerate(zip(cycles, topics, strict=True)):
        door = doors[number % len(doors)] if doors else broker.port
        connection, echo = LoadConnection(door, f"bench-{number}"), Echo(cycle)
        connection.subscribe([topic], cycle.qos)
        clients.append((connection, echo))
        poller.add(connection, handler(connection, echo))

    def send() -> None:
        """Send each client's first message; each arrival sends the next one."""
        nonlocal open_count
        if not open_count:
            open_count = len(clients)
            for connection, echo in clients:
                connection.send(echo.first())

    def is_done() -> bool:
        """Return whether all last messages were answered."""
        nonlocal is_over
        is_over = True
        return not open_count

    took = _run(broker, poller, send, is_done, seconds)
    count = sum(echo.count for _, echo in clients)
    return Figure(count, count, *took)


def connect_all(port: int, name: str, count: int, is_lasting: bool = False) -> list[LoadConnection]:
    """Open connections of `count` clients, a hundred at a time."""
    connections: list[LoadConnection] = []
    try:
        while len(connections) < count:
            fresh = [
                LoadConnection(port, f"{name}-{number}", wait=False, is_lasting=is_lasting)
                for number in range(len(connections), min(len(connections) + 200, count))
            ]
            connections += fresh
            for connection in fresh:
                connection.welcome()
    except BaseException:
        for connection in connections:
            connection.close()
        raise
    return connections


def idle_connections(port: int, count: int, measure: Callable[[], int]) -> int:
    """Measure with this number of silent clients connected."""
    connections = connect_all(port, "idle", count)
    try:
        return measure()
    finally:
        for connection in connections:
            connection.close()


def _run(
    broker: Process,
    poller: Poller,
    send: Callable[[], None],
    is_done: Callable[[], bool],
    seconds: float,
) -> tuple[float, float, float]:
    """Send, then wait until everything has arrived; return seconds: wall clock, CPU of this process, CPU of
    the broker.
    """
    broker_cpu_s = broker.cpu_s()
    started_cpu_s, started_s = time.process_time(), time.perf_counter()
    is_sending = True
    try:
        while is_sending or not is_done():
            now_s = time.perf_counter()
            if is_sending:
                is_sending = now_s - started_s < seconds
                send()
            elif now_s - started_s > seconds + PATIENCE_S:
                raise BenchFailed(f"not everything arrived within {PATIENCE_S:.0f} s")
            poller.turn(0.05)
        took_s = time.perf_counter() - started_s
        return took_s, time.process_time() - started_cpu_s, broker.cpu_s() - broker_cpu_s
    finally:
        poller.close()
