"""Records publishes and arrivals, and finds broken promises.

The terms are those of a set checker: a publish is acknowledged or unknown (never failed, because it may
arrive after a timeout); an acknowledged one that a subscriber did not receive is lost, an unknown one that it
received is recovered, and an arrival that nobody published for it is unexpected.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field

from roamcast.simulator.checkers import Arrivals, Counts, Identity

EXAMPLES_MAX = 20
EXAMPLES_EACH = 3
"""Examples kept for each subscriber."""


@dataclass
class Message:
    """A publish; its payload is `publisher/number`."""

    publisher: str
    number: int
    topic: str
    qos: int
    is_acknowledged: bool = False

    @property
    def payload(self) -> str:
        return f"{self.publisher}/{self.number}"

    @property
    def identity(self) -> Identity:
        return self.publisher, 0, self.number


@dataclass
class Ledger:
    subscriptions: dict[str, dict[str, int]] = field(default_factory=dict)
    """By subscriber: topic to QoS. Subscriptions settle before the first publish and never change."""
    published: dict[str, Message] = field(default_factory=dict)
    """Messages by payload."""
    received: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Payloads by subscriber, in order of arrival."""
    lost_sessions: list[str] = field(default_factory=list)
    """Clients that returned and were told that there is no session."""

    def publish(self, publisher: str, topic: str, qos: int) -> Message:
        number = self._numbers[publisher]
        self._numbers[publisher] += 1
        message = Message(publisher, number, topic, qos)
        self.published[message.payload] = message
        return message

    _numbers: Counter[str] = field(default_factory=Counter)


@dataclass
class Audit(Counts):
    """Result of an audit. `expected` counts the deliveries owed for acknowledged publishes; duplicates are
    allowed below QoS 2.
    """

    acknowledged: int = 0
    unknown: int = 0
    recovered: int = 0
    duplicated_qos_2: int = 0
    lost_sessions: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        """Return whether every promise was kept."""
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
    found.examples += [
        f"{client} found no session when it came back" for client in ledger.lost_sessions[:EXAMPLES_MAX]
    ]
    messages = list(ledger.published.values())
    found.published = len(messages)
    found.acknowledged = sum(message.is_acknowledged for message in messages)
    found.unknown = found.published - found.acknowledged
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        by_topic[message.topic].append(message)
    arrivals = Arrivals(found)
    for subscriber, topics in ledger.subscriptions.items():
        for payload in list(ledger.received[subscriber]):
            _audit_arrival(found, arrivals, subscriber, topics, payload, ledger.published.get(payload))
        for message in (one for topic in topics for one in by_topic[topic]):
            _audit_owed(found, subscriber, message, arrivals.had(subscriber, message.identity))
    return found


def _audit_owed(found: Audit, subscriber: str, message: Message, has_come: bool) -> None:
    if message.is_acknowledged:
        found.expected += 1
        if not has_come:
            found.lost += 1
            found.tell(subscriber, f"did not get {message.payload} (QoS {message.qos}, {message.topic})")
    elif has_come:
        found.recovered += 1


def _audit_arrival(
    found: Audit,
    arrivals: Arrivals,
    subscriber: str,
    topics: dict[str, int],
    payload: str,
    message: Message | None,
) -> None:
    if message is None or message.topic not in topics:
        found.delivered += 1
        found.unexpected += 1
        found.tell(subscriber, f"got {payload!r}, which is not for it")
        return
    kind = arrivals.take(subscriber, message.identity)
    if kind == "duplicate" and min(message.qos, topics[message.topic]) == 2:
        found.duplicated_qos_2 += 1
        found.tell(subscriber, f"got {payload} again, with QoS 2")
    elif kind == "out of order":
        newest = arrivals.newest(subscriber, message.publisher)
        found.tell(subscriber, f"got {payload} after {message.publisher}/{newest}")
