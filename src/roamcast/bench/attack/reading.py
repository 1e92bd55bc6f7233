"""Attacks by not reading: output for such a client has to be buffered somewhere."""

from __future__ import annotations

import threading
import time

from roamcast.bench.attack.base import Attack, Hostile, Target, connected, failures_counted
from roamcast.mqtt.codec import packets

SUBSCRIBERS = 30
MESSAGES = 60
OWN_MESSAGES = 300
"""More messages than the quota holds, if each subscriber has its own topic."""
MESSAGE_BYTES = 1_000_000
BUFFERED = 100_000_000


def silent_subscribers(target: Target, qos: int, filters: list[str]) -> list[Hostile]:
    """Clients, one for each filter, that never read again; their kernels hold next to nothing for them."""
    clients = []
    for number, filter in enumerate(filters):
        client = Hostile(target.ports["tcp"], receive_bytes=4096)
        client.connect(f"deaf-{number}", session_expiry=3600)
        client.subscribe(filter, qos)
        clients.append(client)
    return clients


def flood(target: Target, qos: int, topics: list[str], messages: int = MESSAGES) -> None:
    """Publish messages of 1 MB; reconnect if the broker closes the connection."""
    payload = bytes(MESSAGE_BYTES)
    while not target.is_over:
        publisher = connected(target, "loud")
        if publisher is None:
            return
        with failures_counted(target):
            for number in range(messages):
                topic = topics[number % len(topics)]
                publisher.send_all(packets.Publish(topic, payload, qos, packet_id=number + 1 if qos else 0))
                if qos:
                    publisher.wait_for(packets.Puback)
                target.counts["messages published"] += 1
            break
    while not target.is_over:
        time.sleep(0.05)


def non_readers(target: Target, qos: int) -> None:
    with failures_counted(target):
        clients = silent_subscribers(target, qos, ["loud/#"] * SUBSCRIBERS)
        flood(target, qos, ["loud/1"])
        target.counts["subscribers"] += len(clients)


def non_readers_qos_0(target: Target) -> None:
    non_readers(target, 0)


def non_readers_qos_1(target: Target) -> None:
    non_readers(target, 1)


def own_topics(target: Target) -> None:
    """Each subscriber has a topic of its own: nothing is shared between them."""
    topics = [f"own/{number}" for number in range(SUBSCRIBERS)]
    with failures_counted(target):
        clients = silent_subscribers(target, 1, topics)
        flood(target, 1, topics, OWN_MESSAGES)
        for client in clients:
            client.close()


def unread_answers(target: Target) -> None:
    """Send requests forever, and never read an answer."""
    ping = b"\xc0\x00" * 10_000
    clients = [client for number in range(20) if (client := connected(target, f"asks-{number}")) is not None]

    def ask(client: Hostile) -> None:
        with failures_counted(target):
            while not target.is_over:
                client.socket.sendall(ping)

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


SETTINGS = (f"quotas.buffered_bytes_max={BUFFERED}",)
LOAD = f"{SUBSCRIBERS} subscribers that never read, {MESSAGES} messages of 1 MB"
ATTACKS = (
    Attack(
        "non-readers-qos-0", f"{LOAD}, QoS 0", non_readers_qos_0, settings=SETTINGS,
        quotas=("buffered_bytes_max",),
    ),
    Attack(
        "non-readers-qos-1", f"{LOAD}, QoS 1", non_readers_qos_1, settings=SETTINGS,
        quotas=("buffered_bytes_max",),
    ),
    Attack(
        "non-readers-own", f"{SUBSCRIBERS} subscribers that never read, 10 messages of 1 MB for each",
        own_topics, settings=SETTINGS,
        quotas=("buffered_bytes_max",),
    ),
    Attack("unread-answers", "20 clients that send PINGREQ and never read an answer", unread_answers),
)  # fmt: skip
