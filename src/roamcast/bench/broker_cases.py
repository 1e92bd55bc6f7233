"""The cases of `roamcast bench broker`: what is sent, to which clients, and the target for the result."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import numpy as np

from roamcast.bench.accounting import Cycle, EvenStream
from roamcast.bench.mqtt_load import (
    WINDOW_QOS_1,
    Figure,
    Flow,
    LoadConnection,
    flow_all,
    many_to_one,
    one_in_flight,
)
from roamcast.bench.processes import Process
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.writing import write

ROUND = 2_000
"""Number of different messages of one publisher before they repeat."""
PAYLOAD_BYTES = 64
TOPIC = "bench/topic"

PUBLISHERS = 10
PER_WRITE = 10
TOPICS_EACH = 10
CLIENTS = 50

SUBSCRIPTIONS = 1_000
ATTRIBUTES = "abcde"
MATCHING = 0.01


@dataclass(frozen=True)
class Case:
    name: str
    qos: int
    run: Callable[[Process, float], Figure]
    """Takes the broker and the seconds, and returns a figure."""
    targets: dict[str, float] = field(default_factory=dict)
    """By way of syncing the journal: the required multiple of Mosquitto's throughput."""
    at_least_per_s: float | None = None
    against_others: bool = True


def numbered(number: int, size: int, publisher: int = 0) -> bytes:
    """Return a payload that is unique within the round."""
    return (b"%02d:%06d:" % (publisher, number)).ljust(size, b"x")


@cache
def even_cycle(qos: int, count: int = ROUND) -> Cycle:
    topics = [TOPIC.encode()] * count
    return Cycle(topics, [numbered(number, PAYLOAD_BYTES) for number in range(count)], qos)


def fan_out(qos: int, subscribers: int, window: int = WINDOW_QOS_1) -> Callable[[Process, float], Figure]:
    def run(broker: Process, seconds: float) -> Figure:
        cycle = even_cycle(qos, 2 * max(window, WINDOW_QOS_1))
        connections = []
        for number in range(subscribers):
            connection = LoadConnection(broker.port, f"bench-subscriber-{number}")
            connection.subscribe([TOPIC], qos)
            connections.append((connection, EvenStream(cycle)))
        publisher = LoadConnection(broker.port, "bench-publisher")
        return flow_all(broker, [Flow(publisher, cycle, connections)], seconds, window=window)

    return run


@cache
def mixed_cycles(qos: int) -> list[Cycle]:
    """Return cycles with topics and sizes (64 to 100 bytes) drawn for each message."""
    cycles = []
    for publisher in range(PUBLISHERS):
        rng = random.Random(publisher)
        topics = [b"bench/%02d/%d" % (publisher, rng.randrange(TOPICS_EACH)) for _ in range(ROUND)]
        payloads = [numbered(number, rng.randint(64, 100), publisher) for number in range(ROUND)]
        cycles.append(Cycle(topics, payloads, qos))
    return cycles


def mixed(qos: int) -> Callable[[Process, float], Figure]:
    return lambda broker, seconds: many_to_one(broker, mixed_cycles(qos), seconds, PER_WRITE)


@cache
def echo_cycles(qos: int) -> list[Cycle]:
    return [
        Cycle([b"bench/%02d" % client] * 20, [numbered(n, PAYLOAD_BYTES, client) for n in range(20)], qos)
        for client in range(CLIENTS)
    ]


def echoes(qos: int) -> Callable[[Process, float], Figure]:
    topics = [f"bench/{client:02d}" for client in range(CLIENTS)]
    return lambda broker, seconds: one_in_flight(broker, echo_cycles(qos), topics, seconds)


# --- content filters ---


@dataclass(frozen=True)
class Content:
    """Subscriptions with a range for each attribute, notifications, and which of them match."""

    filters: list[str]
    cycle: Cycle
    matches: Any
    """Array of truth values, subscriptions by notifications."""

    @property
    def matching(self) -> float:
        return float(self.matches.mean())


@cache
def content() -> Content:
    rng = np.random.default_rng(1)
    # Three digits each, so that all frames have one size.
    values = rng.integers(100, 1_000, (ROUND, len(ATTRIBUTES)))
    # Five independent ranges together let through what is asked for.
    width = int(900 * MATCHING ** (1 / len(ATTRIBUTES)))
    low = rng.integers(100, 1_000 - width, (SUBSCRIPTIONS, len(ATTRIBUTES)))
    high = low + width
    inside = (values[None] >= low[:, None]) & (values[None] <= high[:, None])
    payloads = [msgspec.json.encode(dict(zip(ATTRIBUTES, row.tolist(), strict=True))) for row in values]
    filters = [
        f"{TOPIC}?" + "&".join(f"{name}>={one}&{name}<={other}" for name, one, other in bounds)
        for bounds in (zip(ATTRIBUTES, *pair, strict=True) for pair in zip(low, high, strict=True))
    ]
    described = packets.PublishProperties(content_type="application/json")
    frame = write(packets.Publish("t", b"", properties=described), 5)
    cycle = Cycle([TOPIC.encode()] * ROUND, payloads, 0, frame[5:])
    return Content(filters, cycle, inside.all(axis=2))


def content_filters(subscribers: int) -> Callable[[Process, float], Figure]:
    def run(broker: Process, seconds: float) -> Figure:
        load = content()
        each = SUBSCRIPTIONS // subscribers
        connections: list[tuple[LoadConnection, EvenStream]] = []
        for number in range(subscribers):
            own = slice(number * each, (number + 1) * each)
            connection = LoadConnection(broker.port, f"bench-subscriber-{number}", 5)
            connection.subscribe(load.filters[own], 0)
            due: Sequence[int] = np.flatnonzero(load.matches[own].any(axis=0)).tolist()
            connections.append((connection, EvenStream(load.cycle, due)))
        publisher = LoadConnection(broker.port, "bench-publisher", 5)
        return flow_all(broker, [Flow(publisher, load.cycle, connections)], seconds)

    return run


CASES = (
    Case("1 to 1, pipelined", 0, fan_out(0, 1), {"process": 5.0}),
    Case("1 to 10, pipelined", 0, fan_out(0, 10), {"process": 5.0}),
    Case("1 to 1, pipelined", 1, fan_out(1, 1), {"process": 5.0, "group": 3.0}),
    Case("1 to 10, pipelined", 1, fan_out(1, 10), {"process": 5.0, "group": 3.0}),
    Case("10 to 1, mixed, 10 per write", 0, mixed(0), {"process": 3.0}),
    Case("10 to 1, mixed, 10 per write", 1, mixed(1), {"process": 3.0, "group": 3.0}),
    Case("50 clients, one in flight", 0, echoes(0), {"process": 1.0}),
    Case("50 clients, one in flight", 1, echoes(1), {"process": 1.0, "group": 0.7}),
    Case("1,000 content filters, 1 subscriber", 0, content_filters(1), {"process": 0.0}, 150_000, False),
    Case("1,000 content filters, 10 subscribers", 0, content_filters(10), {"process": 0.0}, 150_000, False),
)
