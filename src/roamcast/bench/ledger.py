"""Who published what, who received what, and what of that breaks a promise.

The words are those of a set checker: a publish is acknowledged or unknown (never failed: what timed out
may arrive); an acknowledged one that a subscriber did not get is lost, an unknown one that it got is
recovered, and what nobody published to it is unexpected.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

EXAMPLES_MAX = 20
EXAMPLES_EACH = 3
"""Of one subscriber."""


@dataclass
class Message:
    """One publish; its payload is `publisher/number`."""

    publisher: str
    number: int
    topic: str
    qos: int
    is_acknowledged: bool = False

    @property
    def payload(self) -> str:
        return f"{self.publisher}/{self.number}"


@dataclass
class Ledger:
    subscriptions: dict[str, dict[str, int]] = field(default_factory=dict)
    """Subscriber to topic and QoS: settled before the first publish, and never changed."""
    published: dict[str, Message] = field(default_factory=dict)
    """By payload."""
    received: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Payloads by subscriber, in the order of arrival."""
    lost_sessions: list[str] = field(default_factory=list)
    """Who came back and was told that there is no session."""

    def publish(self, publisher: str, topic: str, qos: int) -> Message:
        number = self._numbers[publisher]
        self._numbers[publisher] += 1
        message = Message(publisher, number, topic, qos)
        self.published[message.payload] = message
        return message

    _numbers: Counter[str] = field(default_factory=Counter)


@dataclass
class Audit:
    published: int = 0
    acknowledged: int = 0
    unknown: int = 0
    deliveries: int = 0
    expected: int = 0
    """Deliveries that acknowledged publishes are owed."""
    lost: int = 0
    recovered: int = 0
    unexpected: int = 0
    duplicated_qos_1: int = 0
    """Allowed."""
    duplicated_qos_2: int = 0
    out_of_order: int = 0
    lost_sessions: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        """Whether every promise was."""
        broken = (self.lost, self.unexpected, self.duplicated_qos_2, self.out_of_order, self.lost_sessions)
        return not any(broken)

    def tell(self, subscriber: str, text: str) -> None:
        self._told[subscriber] += 1
        if len(self.examples) < EXAMPLES_MAX and self._told[subscriber] <= EXAMPLES_EACH:
            self.examples.append(f"{subscriber} {text}")

    def as_dict(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}

    _told: Counter[str] = field(default_factory=Counter)


def audit(ledger: Ledger) -> Audit:
    found = Audit(lost_sessions=len(ledger.lost_sessions))
    found.examples += [f"{client} came back to no session" for client in ledger.lost_sessions[:EXAMPLES_MAX]]
    messages = list(ledger.published.values())
    found.published = len(messages)
    found.acknowledged = sum(message.is_acknowledged for message in messages)
    found.unknown = found.published - found.acknowledged
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        by_topic[message.topic].append(message)
    for subscriber, topics in ledger.subscriptions.items():
        got = list(ledger.received[subscriber])
        found.deliveries += len(got)
        _audit_arrivals(found, ledger, subscriber, topics, got)
        _audit_owed(found, subscriber, (one for topic in topics for one in by_topic[topic]), set(got))
    return found


def _audit_owed(found: Audit, subscriber: str, owed: Iterable[Message], got: set[str]) -> None:
    for message in owed:
        has_come = message.payload in got
        if message.is_acknowledged:
            found.expected += 1
            if not has_come:
                found.lost += 1
                found.tell(subscriber, f"did not get {message.payload} (QoS {message.qos}, {message.topic})")
        elif has_come:
            found.recovered += 1


def _audit_arrivals(
    found: Audit, ledger: Ledger, subscriber: str, topics: dict[str, int], got: list[str]
) -> None:
    seen: set[str] = set()
    newest: dict[str, int] = {}
    for payload in got:
        message = ledger.published.get(payload)
        if message is None or message.topic not in topics:
            found.unexpected += 1
            found.tell(subscriber, f"got {payload!r}, which is not for it")
            continue
        if payload in seen:
            if min(message.qos, topics[message.topic]) == 2:
                found.duplicated_qos_2 += 1
                found.tell(subscriber, f"got {payload} again, with QoS 2")
            else:
                found.duplicated_qos_1 += 1
            continue
        seen.add(payload)
        if message.number < newest.get(message.publisher, -1):
            found.out_of_order += 1
            found.tell(subscriber, f"got {payload} after {message.publisher}/{newest[message.publisher]}")
        newest[message.publisher] = max(message.number, newest.get(message.publisher, -1))
