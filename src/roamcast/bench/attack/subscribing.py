"""Attacks by subscriptions: one small packet causes much work in the broker."""

from __future__ import annotations

from collections.abc import Sequence

from roamcast.bench.attack.base import Attack, Hostile, Target, connected, failures_counted
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.user_properties import WHERE

FILL_AT_ONCE = 500
"""Number of messages published before waiting for the first PUBACK."""
DEEP_LEVELS = 200
RECALLS = 10
SELECTOR_TERMS = 400


def fill_retained(target: Target, topics: Sequence[str], payload: bytes = b"retained") -> None:
    """Leave a retained message under each topic."""
    client = connected(target, "fills")
    if client is None:
        return
    for at in range(0, len(topics), FILL_AT_ONCE):
        part = topics[at : at + FILL_AT_ONCE]
        for number, topic in enumerate(part, start=1):
            client.send_all(packets.Publish(topic, payload, 1, retain=True, packet_id=number))
        for _ in part:
            client.wait_for(packets.Puback)
    client.send_all(packets.Disconnect())
    client.close()


def fill_10_000(target: Target) -> None:
    fill_retained(target, [f"retained/{number % 100}/{number}" for number in range(10_000)])


def fill_50_000(target: Target) -> None:
    fill_retained(target, [f"r/{number % 250}/{number}" for number in range(50_000)])


def subscribe_again_and_again(target: Target, name: str, subscribes: Sequence[packets.Subscribe]) -> None:
    """Send all of these, read incoming packets for a second, leave, and begin anew."""
    for number in target.turns():
        with failures_counted(target):
            client = connected(target, f"{name}-{number}")
            if client is None:
                return
            with client:
                for subscribe in subscribes:
                    client.send_all(subscribe)
                    target.counts["SUBSCRIBE sent"] += 1
                target.counts["bytes received"] += client.swallow(1.0)


def subscribe(filters: Sequence[str], packet_id: int = 1) -> packets.Subscribe:
    return packets.Subscribe(packet_id, tuple(packets.SubscriptionEntry(one, 1) for one in filters))


def subscribe_all(target: Target) -> None:
    subscribe_again_and_again(target, "all", [subscribe(["#"] * 200)])


def subscribe_deep(target: Target) -> None:
    filters = [
        "/".join("+" if (number >> level % 10) & 1 else f"{level}" for level in range(DEEP_LEVELS))
        + f"/{number}"
        for number in range(1_000)
    ]
    subscribe_again_and_again(target, "deep", [subscribe(filters)])


def subscribe_plus(target: Target) -> None:
    filters = ["/".join(["+"] * (1 + number % DEEP_LEVELS)) + f"/{number}" for number in range(1_000)]
    subscribe_again_and_again(target, "plus", [subscribe(filters)])


def recall(target: Target) -> None:
    subscribe_again_and_again(target, "recall", [subscribe(["r/#"], number + 1) for number in range(RECALLS)])


def selectors(target: Target) -> None:
    """Subscribe with long selectors that are all different, and unsubscribe."""
    client, number = connected(target, "selectors"), 0
    while client is not None and not target.is_over:
        number += 1
        numbers = range(SELECTOR_TERMS // 2)
        terms = " OR ".join(f"(a{term} > {number} AND b{term} = 'v{number}')" for term in numbers)
        topic = f"selected/{number}"
        with failures_counted(target):
            entries = (packets.SubscriptionEntry(topic),)
            client.send_all(packets.Subscribe(1, entries, user_properties=((WHERE, terms),)))
            if _ended(client, target, client.wait_for(packets.Suback)):
                client = connected(target, "selectors")
                continue
            client.send_all(packets.Unsubscribe(2, (topic,)))
            client.wait_for(packets.Unsuback)


def lasting(target: Target) -> None:
    """Leave lasting sessions behind, each with as many subscriptions as it may have."""
    for number in target.turns():
        with failures_counted(target):
            client = connected(target, f"lasting-{number}", session_expiry=0xFFFFFFFF)
            if client is None:
                return
            for half in range(2):
                filters = [f"$share/{number}-{one}/{'deep/' * 20}{half}" for one in range(500)]
                client.send_all(subscribe(filters, half + 1))
            for _ in range(2):
                answer = client.wait_for(packets.Suback)
                if isinstance(answer, packets.Suback):
                    granted = sum(not reason.failed for reason in answer.reasons)
                    target.counts["subscriptions"] += granted
                    target.counts["subscriptions refused"] += len(answer.reasons) - granted
            client.close()


def _ended(client: Hostile, target: Target, answer: object) -> bool:
    if answer is None:
        target.counts["closed by the broker"] += 1
        client.close()
        return True
    refused = isinstance(answer, packets.Suback) and answer.reasons[0].failed
    target.counts["selectors refused" if refused else "selectors"] += 1
    return False


ATTACKS = (
    Attack(
        "subscribe-all", "200 times # in one SUBSCRIBE over 10,000 retained messages", subscribe_all,
        prepare=fill_10_000,
    ),
    Attack("subscribe-deep", "1,000 filters of 200 levels, half of them +, in one SUBSCRIBE", subscribe_deep),
    Attack(
        "subscribe-plus", "1,000 filters of + and up to 200 levels over 10,000 retained messages",
        subscribe_plus, prepare=fill_10_000,
    ),
    Attack(
        "recall", "r/# ten times in a row over 50,000 retained messages", recall, prepare=fill_50_000,
    ),
    Attack(
        "lasting-subscriptions", "lasting sessions with 1,000 shared subscriptions each", lasting,
        settings=("quotas.subscription_bytes_max=134217728",), quotas=("subscription_bytes_max",),
        needs_users=True,
    ),
    Attack("selectors", f"different selectors of {SELECTOR_TERMS} terms, then UNSUBSCRIBE", selectors),
)  # fmt: skip
