"""Rules of a link: what one peer may send and receive, as configured and as applied."""

from __future__ import annotations

import msgspec

from roamcast.filters.expression import (
    And,
    Compare,
    Expression,
    Matches,
    conjunction,
    names_of,
    topic_matches,
)
from roamcast.filters.filter import Filter
from roamcast.filters.patterns import TopicPattern
from roamcast.protocol.notification import Area, decode_attributes, encode_attributes

TOPIC = "topic"
"""The attribute that is the topic of an MQTT message."""
EVERYTHING = ("#",)
EVERYONE = ("*",)
USUAL: tuple[Area | str, ...] = ("data", "subscriptions", "sessions", "groups")
VERDICTS_MAX = 4096


class PeerRules(msgspec.Struct, frozen=True):
    """Rights of a peer. The defaults are for brokers of one organisation."""

    imports: tuple[str, ...] = EVERYTHING
    """Topic filters: what may come from the peer; "!FILTER" excludes, and the last that fits decides."""
    exports: tuple[str, ...] = EVERYTHING
    """Topic filters of what the peer may receive, in the same form."""
    clients: tuple[str, ...] = EVERYONE
    """Client ids that the peer may speak for."""
    prefix: str = ""
    """Prefix under which the peer's topics appear here."""
    may: tuple[str, ...] = USUAL
    """Areas of messages that the peer may send; "forget" allows removing brokers for good, "operate" giving
    this broker orders (checked by the daemon)."""
    subscriptions_max: int = 1_000_000
    retained_max: int = 1_000_000
    sessions_max: int = 1_000_000

    @property
    def is_guest(self) -> bool:
        """True if the peer is of another organisation: no share group spans the link, no broker here waits
        for the peer's answers, and only the listed clients move over the link."""
        return self.clients != EVERYONE or not {"sessions", "groups"} <= {*self.may}


class TopicRules:
    """Ordered topic filters that allow and exclude."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._rules = [(text[:1] != "!", TopicPattern(text.removeprefix("!"))) for text in texts]
        self.allow_everything = texts == EVERYTHING
        self._allowed = [Filter(topic_matches(TOPIC, one)) for allows, one in self._rules if allows]

    def allow(self, topic: object) -> bool:
        if not isinstance(topic, str):
            return topic is None and self.allow_everything
        verdict = False
        for allows, pattern in self._rules:
            if pattern.accepts(topic):
                verdict = allows
        return verdict

    def overlap(self, filter: Filter) -> bool:
        """True if a subscription can match anything that is allowed."""
        return self.allow_everything or any(filter.overlaps(one) for one in self._allowed)


class ClientRules:
    """The clients that a peer may speak for. Other clients are prefixed with the peer's name, so that they
    cannot collide with clients of this side, and the peer's messages about them concern no client here."""

    def __init__(self, peer: str, patterns: tuple[str, ...]) -> None:
        self.allow_everyone = patterns == EVERYONE
        self._names = frozenset(one for one in patterns if not one.endswith("*"))
        self._beginnings = tuple(one[:-1] for one in patterns if one.endswith("*"))
        self._mark = f"{peer}/"

    def allow(self, client: str) -> bool:
        return self.allow_everyone or client in self._names or client.startswith(self._beginnings)

    def named(self, client: str) -> str:
        """Return the client's name on this side."""
        return client if not client or self.allow(client) else self._mark + client


class Translation:
    """Topics of one direction of a link: which ones pass, and their names on the other side.

    Notifications are checked by their attributes; verdicts are cached by the encoded attributes.
    """

    def __init__(self, rules: TopicRules, prefix: str, adds: bool) -> None:
        self._rules = rules
        self._prefix = f"{prefix}/" if prefix else ""
        self._adds = adds
        self.verdicts: dict[bytes, bytes | None] = {}
        """Encoded attributes to their translation; None if they do not pass."""
        self.is_open = rules.allow_everything and not prefix
        """True if everything passes unchanged, except topics that begin with "$"."""

    def topic(self, topic: object) -> str | None:
        """Return the translated topic; None if it does not pass. The rules are about topics of this side."""
        if not isinstance(topic, str):
            return None
        here = self._prefix + topic if self._adds else topic
        if not here.startswith(self._prefix) or (self._prefix and here == self._prefix):
            return None
        if not self._rules.allow(here) or (self._adds and self._prefix and topic.startswith("$")):
            return None
        return here if self._adds else here.removeprefix(self._prefix)

    def attributes(self, encoded: bytes) -> bytes | None:
        """Return the translated attributes; None if the notification does not pass. May raise InputError."""
        verdict = self.verdicts.get(encoded, encoded)
        if verdict is encoded and encoded not in self.verdicts:
            verdict = self._judged(encoded)
            if len(self.verdicts) >= VERDICTS_MAX:
                self.verdicts.clear()
            self.verdicts[encoded] = verdict
        return verdict

    def _judged(self, encoded: bytes) -> bytes | None:
        attributes = dict(decode_attributes(encoded))
        topic = attributes.get(TOPIC)
        if topic is None:
            return encoded if self.is_open else None
        passed = self.topic(topic)
        if passed is None:
            return None
        return encoded if passed == topic else encode_attributes({**attributes, TOPIC: passed})

    def wanted(self, filter: Filter) -> Filter | None:
        """Translate a subscription of this side for the other side; None if it matches nothing permitted."""
        return self._shifted(filter, adds=False) if self._rules.overlap(filter) else None

    def offered(self, filter: Filter) -> Filter | None:
        """Translate a subscription of the other side for this side; None if it has no equivalent."""
        return self._shifted(filter, adds=True)

    def _shifted(self, filter: Filter, adds: bool) -> Filter | None:
        """Add or remove the prefix: of a conjunction with at most one condition about the topic. Other
        filters cannot be translated, and end at the border."""
        if not self._prefix:
            return filter
        expression = filter.expression
        shifted: list[Expression] = []
        topic = ""
        for part in expression.children if isinstance(expression, And) else (expression,):
            if TOPIC not in names_of(part):
                shifted.append(part)
                continue
            pattern = self._pattern(part, adds)
            if topic or not pattern:
                return None
            topic = pattern
        topic = topic or (f"{self._prefix}#" if adds else "")
        if topic:
            shifted.append(topic_matches(TOPIC, TopicPattern(topic)))
        return Filter(conjunction(shifted))

    def _pattern(self, part: Expression, adds: bool) -> str:
        """Return the topic filter of a condition with the prefix added or removed; "" if there is none."""
        if isinstance(part, Matches) and not part.negative:
            text = part.pattern.text
        elif isinstance(part, Compare) and part.operator == "=":
            text = str(part.value)
        else:
            return ""
        if adds:
            return self._prefix + text
        levels, prefix = text.split("/"), self._prefix.rstrip("/").split("/")
        for place, level in enumerate(prefix):
            if place < len(levels) and levels[place] == "#":
                return "#"
            if place >= len(levels) or levels[place] not in ("+", level):
                return ""
        return "/".join(levels[len(prefix) :])
