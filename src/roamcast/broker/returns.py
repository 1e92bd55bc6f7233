"""Handle messages for a broker that is gone for good: some of their content can be saved.

All messages for a broker behind a link went over that link, so the broker at its near end has the
unacknowledged ones, in the order of sending (`SendFailed`). That broker takes over: a session among these
messages stays there, and messages that uninformed brokers still send take their usual way and end there, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from roamcast.protocol.messages import About, Grant, Message, Relayed
from roamcast.protocol.notification import Burst
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore


class Returns:
    __state__ = State("returns", saved=("_broker", "_former_hops"))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._former_hops: dict[str, str] = {}
        """Brokers that are gone, and the former peer towards each; this broker itself for former
        neighbours."""

    def overlay_changed(
        self, old: Mapping[str, str], new: Mapping[str, str], gone_peers: Collection[str]
    ) -> None:
        for broker, hop in old.items():
            if broker not in new:
                self._former_hops[broker] = self._broker.id if hop in gone_peers else hop
        for broker in new:
            self._former_hops.pop(broker, None)

    def is_gone(self, broker: str) -> bool:
        """True for a broker that was known, and was given up."""
        return broker in self._former_hops

    def hop_towards(self, broker: str) -> str:
        """Return the peer towards a broker that is gone; this broker itself if the way ends here."""
        hop = self._former_hops.get(broker, "")
        return hop if self._broker.router.has_peer(hop) else self._broker.id

    def send_failed(self, peer: str, messages: Iterable[Message]) -> None:
        """Handle the unacknowledged messages of a link that was given up."""
        for message in messages:
            self.came_back(peer, message)

    def came_back(self, destination: str, message: Message) -> None:
        """Handle a message that can no longer reach its destination."""
        if message.is_fleeting:
            return
        broker = self._broker
        if isinstance(message, Relayed):
            destination = message.destination
        while isinstance(message, Relayed | About):
            message = message.message
        if isinstance(message, Burst):
            broker.pass_back(destination, message)
        elif isinstance(message, Grant) and broker.protocol.takes_back:
            broker.locator.take_back(message.session)
        elif type(message) in broker.salvagers:
            broker.salvagers[type(message)](message)
        elif not (broker.locator.came_back(message) or broker.protocol.on_undeliverable(message)):
            broker.record(
                "dropped", peer=destination, message=type(message).__name__, reason="broker is gone"
            )
