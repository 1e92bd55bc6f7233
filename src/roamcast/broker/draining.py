"""Handing every session to another broker, as if each client had said that it goes there."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Command, Message
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore


class HandAway(Command, frozen=True):
    """Nobody is connected here any more: what is held goes to this broker."""

    destination: str


class Emptied(Message, frozen=True):
    """A broker hands its sessions away: what was left there for clients that are away must be fetched too."""

    cause: ClassVar[Cause] = "handoff"


class Draining:
    __state__ = State("draining", saved=("_broker",))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def register_handlers(self) -> None:
        self._broker.obey(HandAway, self.on_hand_away)
        self._broker.serve(Emptied, self.on_emptied)

    def on_hand_away(self, command: HandAway) -> None:
        broker = self._broker
        if not broker.is_reachable(command.destination):
            return
        for client in list(broker.sessions):
            if client not in broker.attachments:
                broker.handoffs.send_ahead(broker.clients.here[client], command.destination, {})
        self._tell(broker.id, Emptied())

    def on_emptied(self, sender: str, message: Emptied) -> None:
        self._broker.protocol.on_drain()
        self._tell(sender, message)

    def _tell(self, sender: str, message: Emptied) -> None:
        for peer in self._broker.peers:
            if peer != sender:
                self._broker.send(peer, message)
