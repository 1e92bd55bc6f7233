"""Attacks by storage: a few bytes on the wire that take much memory in the broker."""

from __future__ import annotations

from roamcast.bench.attack.base import PATIENCE_S, Attack, Hostile, Target, connected, failures_counted
from roamcast.bench.processes import HOST
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import AcknowledgementProperties, PublishProperties, Will

TOPICS = 4_000
LEVELS = 256
WILLS = 200
WILL_LEVELS = 32_000
PUBLISHES = 400
PROPERTIES = 16
PROPERTY_BYTES = 60_000
"""16 properties of 60,000 bytes are 960 kB of user properties, within any limit on their number."""
TEN_MB = 10_485_760
QUEUES = 2_000


def publish_all(target: Target, client: Hostile, publishes: list[packets.Publish]) -> None:
    """Publish the messages one after the other, each after the acknowledgement of the previous one."""
    for publish in publishes:
        if target.is_over:
            return
        client.send_all(publish)
        answer = client.wait_for(packets.Puback)
        if not isinstance(answer, packets.Puback):
            target.counts["closed by the broker"] += 1
            return
        target.counts["refused" if answer.reason.failed else "accepted"] += 1


def deep_topics(target: Target) -> None:
    client = connected(target, "deep-topics")
    if client is None:
        return
    topics = ["/".join(f"{number}x{level}" for level in range(LEVELS)) for number in range(TOPICS)]
    with failures_counted(target):
        publish_all(
            target, client, [packets.Publish(topic[:4000], b"1", 1, True, packet_id=1) for topic in topics]
        )


def many_properties(count: int, size: int) -> tuple[tuple[str, str], ...]:
    return tuple((f"p{number}", "x" * size) for number in range(count))


def giant_properties(target: Target) -> None:
    """Publish messages with huge properties: half of them retained, half queued for a client that is away."""
    away = connected(target, "away", session_expiry=3600)
    client = connected(target, "giant-properties")
    if away is None or client is None:
        return
    away.subscribe("giant/#")
    away.close()
    described = PublishProperties(user_properties=many_properties(PROPERTIES, PROPERTY_BYTES))
    publishes = [
        packets.Publish(f"giant/{number}", b"1", 1, number % 2 == 0, packet_id=1, properties=described)
        for number in range(PUBLISHES)
    ]
    with failures_counted(target):
        publish_all(target, client, publishes)


def giant_pubrel(target: Target) -> None:
    """Send PUBREL packets of 1 MB full of properties, which no quota counts."""
    while not target.is_over:
        client = connected(target, "giant-pubrel")
        if client is None:
            return
        described = AcknowledgementProperties(user_properties=(("", ""),) * 200_000)
        with failures_counted(target):
            while not target.is_over:
                client.send_all(packets.Pubrel(1, properties=described))
                target.counts["PUBREL sent"] += 1
                if client.wait_for(packets.Pubcomp) is None:
                    target.counts["closed by the broker"] += 1
                    break
        client.close()


def deep_wills(target: Target) -> None:
    clients = []
    for number in range(WILLS):
        if target.is_over:
            break
        will = Will("/".join(["w"] * WILL_LEVELS), b"1", retain=True)
        client = connected(target, f"will-{number}", will=will, session_expiry=3600)
        if client is not None:
            clients.append(client)
    for client in clients:
        client.close()


def leave_queues(target: Target) -> None:
    """Leave lasting sessions with a queued message each."""
    for number in range(QUEUES):
        client = connected(target, f"queue-{number}", session_expiry=3600)
        if client is not None:
            client.subscribe("queued/#")
            client.close()
    publisher = connected(target, "queues")
    if publisher is not None:
        publish_all(target, publisher, [packets.Publish("queued/1", b"1", 1, packet_id=1)])
        publisher.close()


def ask_metrics(target: Target) -> None:
    """Request /metrics without a pause."""
    request = f"GET /metrics HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    while not target.is_over:
        with failures_counted(target), Hostile(target.ports["http"]) as client:
            client.socket.sendall(request)
            target.counts["bytes received"] += client.swallow(PATIENCE_S)
            target.counts["pages"] += 1


ATTACKS = (
    Attack(
        "deep-topics", f"{TOPICS} retained topics of {LEVELS} levels", deep_topics,
        settings=(f"quotas.retained_bytes_max={TEN_MB}",), quotas=("retained_bytes_max",),
    ),
    Attack(
        "giant-properties", f"{PUBLISHES} messages of one byte with 960 kB of user properties, half retained",
        giant_properties,
        settings=(f"quotas.retained_bytes_max={TEN_MB}", f"quotas.queue_bytes_max={TEN_MB}"),
        quotas=("retained_bytes_max", "queue_bytes_max"),
    ),
    Attack("giant-pubrel", "PUBREL of 1 MB, full of empty user properties", giant_pubrel),
    Attack(
        "ask-metrics", f"/metrics without a pause, with {QUEUES} lasting sessions that have queues",
        ask_metrics, prepare=leave_queues,
    ),
    Attack("deep-wills", f"{WILLS} clients with a will of {WILL_LEVELS} levels", deep_wills),
)  # fmt: skip
