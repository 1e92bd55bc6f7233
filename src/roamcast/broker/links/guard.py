"""What decides about a message at a link: the rules of its peer, and why messages are refused."""

from __future__ import annotations

from typing import Literal

from roamcast.broker.links.rules import ClientRules, PeerRules, TopicRules, Translation

Reason = Literal[
    "area", "topic", "client", "publisher", "source", "owner", "holder", "forget", "quota", "form"
]
REASONS: dict[str, str] = {
    "area": "messages of a kind that it may not send",
    "topic": "messages on topics that it may not send",
    "client": "messages about clients that it may not speak for",
    "publisher": "messages in the name of clients or brokers of this side",
    "source": "messages in the name of brokers that are not behind it",
    "owner": "requests in the name of users of another site",
    "holder": "sessions that are held here, or are not for here",
    "forget": "orders to forget brokers, which it may not give",
    "quota": "more subscriptions, sessions, brokers or retained messages than it may have here",
    "form": "malformed or implausible messages",
}
"""Texts for refused messages of peers, for log and operators."""


class Refused(Exception):
    """The message is refused, for this reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Guard:
    """The rules of one link, compiled for use."""

    def __init__(self, peer: str, rules: PeerRules) -> None:
        self.rules = rules
        self.is_guest = rules.is_guest
        self.clients = ClientRules(peer, rules.clients if "sessions" in rules.may else ())
        self.incoming = Translation(TopicRules(rules.imports), rules.prefix, adds=True)
        self.outgoing = Translation(TopicRules(rules.exports), rules.prefix, adds=False)
        self.is_open_outwards = self.outgoing.is_open and self.incoming.is_open and not self.is_guest
        """True if outgoing messages need no check."""
        self.is_plain = self.incoming.is_open and self.clients.allow_everyone and "data" in rules.may
        """True if notifications pass unchanged."""
