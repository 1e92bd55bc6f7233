"""Field shapes: many clients that each send a message now and then, at a steady total rate.

The figures are the broker's CPU time per delivery (or connection), and the latency from each message's
planned time to its arrival. Every message is checked, as in the other cases.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from roamcast.bench.accounting import Acknowledged, FrameStream, Miscounted, blanked, frames_in
from roamcast.bench.mqtt_load import PATIENCE_S, Figure, LoadConnection, Poller, connect_all
from roamcast.bench.processes import BenchFailed, Process
from roamcast.mqtt.codec.bursts import FrameWriter
from roamcast.mqtt.codec.packet_ids import PACKET_ID_MAX, encode_id
from roamcast.mqtt.codec.packets import Subscribe, SubscriptionEntry

PAYLOAD_BYTES = 64
RETAINED = 1_000
RECALLS = 20
TAKEOVERS = 200
STORM, STORM_TOGETHER = 2_000, 50
AS_OTHERS = {"cpu_us": 1.2, "p99_ms": 3.0}


@dataclass(frozen=True)
class Shape:
    """A load, and the allowed multiples of Mosquitto's figures."""

    name: str
    qos: int
    run: Callable[[Process, float], Figure]
    syncs: tuple[str, ...] = ("process",)
    limits: dict[str, float] = field(default_factory=lambda: AS_OTHERS)


@dataclass(frozen=True)
class Traffic:
    """Publishers, topics and subscribers of a shape."""

    per_s: float
    topics: Sequence[str]
    """Topics of the messages; {} in a topic stands for a number that no other message has."""
    wants: Sequence[Sequence[int]]
    """By subscriber: numbers of the topics that it wants."""
    publishers: int = 1
    """Publishers send in turn: to the topic of their own number if there are as many topics, otherwise to
    any.
    """
    filters: Sequence[str] = ()
    """Filters of all subscribers, instead of one for each topic."""
    per_write_max: int = 1
    is_lasting: bool = False
    """True if subscribers resume sessions that they left."""

    def writes(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the writes: publisher and topics of each."""
        rng = random.Random(1)
        number = 0
        while True:
            publisher = number % self.publishers
            number += 1
            count = rng.randint(1, self.per_write_max)
            if self.publishers == len(self.topics):
                yield publisher, [publisher] * count
            else:
                yield publisher, [rng.randrange(len(self.topics)) for _ in range(count)]


class Sent:
    """Messages of a run: planned time, publisher, topic, and the frame without packet id."""

    def __init__(self, traffic: Traffic, qos: int) -> None:
        self._topics = traffic.topics
        self._writers: dict[str, FrameWriter] = {}
        self._qos = qos
        self._ids = [0] * traffic.publishers
        self.messages: list[tuple[float, int, int, bytes]] = []
        """Planned time, publisher, topic and frame of each message."""

    def frame(self, at_s: float, publisher: int, topic: int) -> bytes:
        number = len(self.messages)
        name = self._topics[topic].replace("{}", str(number))
        writer = self._writers.get(name) or FrameWriter(name.encode(), self._qos)
        if "{}" not in self._topics[topic]:
            self._writers[name] = writer
        packet_id = self._ids[publisher] + 1
        self._ids[publisher] = packet_id % PACKET_ID_MAX
        frame = writer.write_one((b"%08d:" % number).ljust(PAYLOAD_BYTES, b"x"), packet_id)
        self.messages.append((at_s, publisher, topic, blanked(frame, self._qos)))
        return frame


class Subscriber:
    def __init__(self, connection: LoadConnection, qos: int, wanted: Sequence[int]) -> None:
        self.connection = connection
        self.stream = FrameStream(qos)
        self._qos = qos
        self._wanted = set(wanted)
        self._arrived_s: list[float] = []

    def on_read(self) -> None:
        acks = self.stream.take(self.connection.receive())
        self._arrived_s.append(time.perf_counter())
        if acks:
            self.connection.send(acks)

    def verify(self, sent: Sent) -> list[float]:
        """Return the latencies; raise Miscounted unless all wanted messages came once, in order."""
        took_s: list[float] = []
        last: dict[int, int] = {}
        for arrived_s, data in zip(self._arrived_s, self.stream.kept, strict=True):
            for frame in frames_in(data):
                at = 4 + frame[3] + (2 if self._qos else 0)
                number = int(frame[at : at + 8])
                due_s, publisher, topic, wanted = sent.messages[number]
                if blanked(frame, self._qos) != wanted or topic not in self._wanted:
                    raise Miscounted(f"{frame!r} came, which nobody sent to this subscriber")
                if last.get(publisher, -1) >= number:
                    raise Miscounted(f"message {number} arrived again, or after a later one")
                last[publisher] = number
                took_s.append(arrived_s - due_s)
        return took_s


def paced(traffic: Traffic, qos: int, broker: Process, seconds: float) -> Figure:
    """Publish at a steady rate, and wait until everything has arrived."""
    poller = Poller()
    clients: list[LoadConnection] = []
    try:
        clients += connect_all(broker.port, "bench-s", len(traffic.wants), traffic.is_lasting)
        subscribers = [
            Subscriber(connection, qos, wanted)
            for connection, wanted in zip(clients, traffic.wants, strict=True)
        ]
        for one, wanted in zip(subscribers, traffic.wants, strict=True):
            filters = traffic.filters or [traffic.topics[topic].replace("{}", "+") for topic in wanted]
            one.connection.subscribe(filters, qos)
        publishers = connect_all(broker.port, "bench-p", traffic.publishers)
        clients += publishers
        for one in subscribers:
            poller.add(one.connection, one.on_read)
        answers = [Acknowledged(PACKET_ID_MAX) for _ in publishers]
        for connection, answer in zip(publishers, answers, strict=True):
            poller.add(connection, partial(_acknowledge, connection, answer))
        return _send_paced(traffic, qos, broker, seconds, poller, subscribers, publishers, answers)
    finally:
        poller.close()
        for connection in clients:
            connection.close()


def _acknowledge(connection: LoadConnection, answer: Acknowledged) -> None:
    answer.take(connection.receive(), answer.count + PACKET_ID_MAX)


def _send_paced(
    traffic: Traffic,
    qos: int,
    broker: Process,
    seconds: float,
    poller: Poller,
    subscribers: Sequence[Subscriber],
    publishers: Sequence[LoadConnection],
    answers: Sequence[Acknowledged],
) -> Figure:
    sent, writes, due = Sent(traffic, qos), traffic.writes(), 0
    wanted_by = [0] * len(traffic.topics)
    for wanted in traffic.wants:
        for topic in wanted:
            wanted_by[topic] += 1
    count = max(1, int(traffic.per_s * seconds))
    broker_cpu_s, cpu_s = broker.cpu_s(), time.process_time()
    started_s = now_s = time.perf_counter() + 0.01

    def received() -> int:
        return sum(one.stream.received for one in subscribers)

    while len(sent.messages) < count or received() < due or sum(one.count for one in answers) < qos * count:
        while len(sent.messages) < count and now_s >= started_s + len(sent.messages) / traffic.per_s:
            publisher, topics = next(writes)
            at_s = started_s + len(sent.messages) / traffic.per_s
            topics = topics[: count - len(sent.messages)]
            publishers[publisher].send(b"".join(sent.frame(at_s, publisher, topic) for topic in topics))
            due += sum(wanted_by[topic] for topic in topics)
        # Waiting in the kernel would add its own time to what is measured.
        poller.turn(0)
        now_s = time.perf_counter()
        if now_s > started_s + seconds + PATIENCE_S:
            raise BenchFailed(f"{due - received()} of {due} messages did not arrive")
    took = now_s - started_s, time.process_time() - cpu_s, broker.cpu_s() - broker_cpu_s
    if received() != due:
        raise Miscounted(f"{received()} messages came, {due} were due")
    found = [one.verify(sent) for one in subscribers]
    return Figure(count, due, *took, latencies_s=tuple(one for took_s in found for one in took_s))


# --- connections, and what is retained ---


def _timed(broker: Process, run: Callable[[], list[float]], deliveries_each: int = 1) -> Figure:
    broker_cpu_s, cpu_s, started_s = broker.cpu_s(), time.process_time(), time.perf_counter()
    took_s = run()
    took = time.perf_counter() - started_s, time.process_time() - cpu_s, broker.cpu_s() - broker_cpu_s
    return Figure(len(took_s), len(took_s) * deliveries_each, *took, latencies_s=tuple(took_s))


def connection_storm(broker: Process, seconds: float) -> Figure:
    """Connect clients in groups of fifty, and disconnect them: each connection counts as a delivery."""

    def run() -> list[float]:
        took_s: list[float] = []
        for number in range(0, max(STORM_TOGETHER, int(STORM * min(seconds, 1.0))), STORM_TOGETHER):
            began_s = time.perf_counter()
            names = [f"bench-c{number + one}" for one in range(STORM_TOGETHER)]
            together = [LoadConnection(broker.port, name, wait=False) for name in names]
            for connection in together:
                connection.welcome()
                took_s.append(time.perf_counter() - began_s)
            for connection in together:
                connection.close()
        return took_s

    return _timed(broker, run)


def takeovers(broker: Process, seconds: float) -> Figure:
    """Connect one client again and again while its previous connection is still open."""

    def run() -> list[float]:
        took_s: list[float] = []
        last = LoadConnection(broker.port, "bench-taken", is_lasting=True)
        for _ in range(max(5, int(TAKEOVERS * min(seconds, 1.0)))):
            began_s = time.perf_counter()
            connection = LoadConnection(broker.port, "bench-taken", is_lasting=True)
            took_s.append(time.perf_counter() - began_s)
            if last.socket.recv(1):
                raise Miscounted("a connection that was taken over went on")
            last.close()
            last = connection
        last.close()
        return took_s

    return _timed(broker, run)


def recall(broker: Process, seconds: float) -> Figure:
    """Connect subscribers one after the other; each receives all retained messages."""
    topics = [b"bench/kept/%04d" % number for number in range(RETAINED)]
    frames = [
        FrameWriter(topic, 0, retain=True).write_one(b"%08d" % number, 1)
        for number, topic in enumerate(topics)
    ]
    publisher = LoadConnection(broker.port, "bench-keeper")
    publisher.socket.sendall(b"".join(frames))
    publisher.ping()
    suback = b"\x90\x03" + encode_id(1) + b"\0"
    due = sorted([suback, *frames])

    def one() -> float:
        connection = LoadConnection(broker.port, "bench-recalling")
        began_s = time.perf_counter()
        connection.send_all(Subscribe(1, (SubscriptionEntry("bench/kept/#", 0),)))
        data = b""
        while len(data) < sum(map(len, due)):
            data += connection.receive()
        took_s = time.perf_counter() - began_s
        connection.close()
        if sorted(frames_in(data)) != due:
            raise Miscounted("other messages arrived than the retained ones")
        return took_s

    try:
        count = max(2, int(RECALLS * min(seconds, 1.0)))
        return _timed(broker, lambda: [one() for _ in range(count)], RETAINED)
    finally:
        empty = [FrameWriter(topic, 0, retain=True).write_one(b"", 1) for topic in topics]
        publisher.socket.sendall(b"".join(empty))
        publisher.ping()
        publisher.close()


def _chosen(topics: int, subscribers: int, each: int) -> list[list[int]]:
    rng = random.Random(2)
    return [sorted(rng.sample(range(topics), each)) for _ in range(subscribers)]


ONE = Traffic(500, ["bench/topic"], [[0]])
REPORTS = Traffic(
    2_500, [f"bench/{number}/state" for number in range(5_000)], [range(5_000)] * 10, 5_000, ["bench/#"]
)
SCATTERED = Traffic(
    500, [f"bench/{number}/now" for number in range(1_000)], _chosen(1_000, 100, 100), 10, per_write_max=3
)
COLD = replace(SCATTERED, topics=[f"bench/{number}/{{}}" for number in range(1_000)])
FAN_OUT = Traffic(20, ["bench/topic"], [[0]] * 1_000)
PAIRS = Traffic(
    2_000, [f"bench/{number}" for number in range(1_000)], [[number] for number in range(1_000)], 1_000,
    is_lasting=True,
)  # fmt: skip

BOTH = ("process", "group")
SHAPES = (
    Shape("latency at 500 per second", 0, partial(paced, ONE, 0), limits={"p50_ms": 1.1}),
    Shape("latency at 500 per second", 1, partial(paced, ONE, 1), BOTH, {"p50_ms": 1.3}),
    Shape("5,000 publishers, one message in 2 s, 10 subscribers of all", 1, partial(paced, REPORTS, 1), BOTH),
    Shape("1,000 topics, 100 subscribers, 1 to 3 per write", 1, partial(paced, SCATTERED, 1), BOTH),
    Shape("the same, with topics never used before", 1, partial(paced, COLD, 1), BOTH),
    Shape("1 to 1,000", 0, partial(paced, FAN_OUT, 0)),
    Shape("1 to 1,000", 1, partial(paced, FAN_OUT, 1), BOTH),
    Shape("1,000 pairs, lasting sessions", 1, partial(paced, PAIRS, 1), BOTH),
    Shape("connections, 50 at a time", 0, connection_storm, BOTH),
    Shape("takeovers", 0, takeovers, BOTH, {"p50_ms": 1.3}),
    Shape("1,000 retained messages recalled", 0, recall),
)
