"""Attacks by names: wrong passwords, and sessions whose clients never return."""

from __future__ import annotations

from roamcast.bench.attack.base import Attack, Hostile, Target, connected, failures_counted
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.user_properties import DESTINATION

SESSIONS_MAX = 500


def wrong_passwords(target: Target) -> None:
    for number in target.turns():
        with failures_counted(target), Hostile(target.ports["tcp"]) as client:
            user = "honest" if number % 2 else f"user-{number}"
            target.count_answer(client.connect(f"guess-{number}", username=user, password=b"wrong"), "let in")


def subscribed(target: Target, name: str) -> Hostile | None:
    """Connect a client with a lasting session that holds a subscription."""
    client = connected(target, name, session_expiry=0xFFFFFFFF)
    if client is not None:
        client.subscribe(f"{name}/#")
    return client


def churn(target: Target) -> None:
    """Leave a lasting session behind under each name."""
    for number in target.turns():
        with failures_counted(target):
            client = subscribed(target, f"churn-{number}")
            if client is not None:
                client.close()


def push_sessions(target: Target) -> None:
    """Leave sessions behind that move to the other broker by themselves."""
    for number in target.turns():
        with failures_counted(target):
            client = subscribed(target, f"pushed-{number}")
            if client is not None:
                named = ((DESTINATION, target.other),)
                client.send_all(packets.Disconnect(Reason.NORMAL_DISCONNECTION, user_properties=named))
                target.counts["sessions pushed"] += 1
                client.close()


ATTACKS = (
    Attack(
        "wrong-passwords", "wrong passwords of an honest user and of many others, without a pause",
        wrong_passwords, needs_users=True,
    ),
    Attack(
        "client-id-churn", f"lasting sessions under many client ids, sessions_max {SESSIONS_MAX}", churn,
        settings=(f"quotas.sessions_max={SESSIONS_MAX}",), needs_users=True,
    ),
    Attack(
        "push-sessions", f"sessions sent to another broker with {DESTINATION}, sessions_max {SESSIONS_MAX}",
        push_sessions, settings=(f"quotas.sessions_max={SESSIONS_MAX}",), needs_peer=True,
        needs_users=True,
    ),
)  # fmt: skip
