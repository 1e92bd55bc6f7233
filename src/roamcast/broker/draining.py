"""Draining: hand every session to another broker, as if each client had announced a move
there."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Command, Message
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore


class HandAway(Command, frozen=True):
    """Hand sessions of clients that are not connected to this broker, a slice of them."""

    destination: str
    is_last: bool = True
    """False while clients are still connected; their sessions go with a later slice."""


class Emptied(Message, frozen=True):
    """A broker hands its sessions away: notifications stored there for absent clients must be fetched too."""

    cause: ClassVar[Cause] = "handoff"


SLICE_SESSIONS = 100
"""Connections closed and sessions handed over per turn, so that neither broker delays other clients."""


class Draining:
    __state__ = State("draining", saved=("_broker",), derived=("are_left",))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._restore()

    def _restore(self) -> None:
        self.are_left = False
        """True if the last slice left sessions that can go at once; read in the turn that sets it."""

    def register_handlers(self) -> None:
        self._broker.obey(HandAway, self.on_hand_away)
        self._broker.serve(Emptied, self.on_emptied)

    def on_hand_away(self, command: HandAway) -> None:
        broker = self._broker
        self.are_left = False
        if not broker.is_reachable(command.destination):
            return
        here, attachments = broker.clients.here, broker.attachments
        # Looking at a session may wake it, so the sessions are counted first.
        away = (client for client in list(broker.sessions) if client not in attachments)
        leaving = list(islice((one for one in away if here[one].claim is None), SLICE_SESSIONS + 1))
        for client in leaving[:SLICE_SESSIONS]:
            broker.handoffs.send_ahead(here[client], command.destination, {})
        self.are_left = len(leaving) > SLICE_SESSIONS
        if command.is_last and not self.are_left:
            self._tell(broker.id, Emptied())

    def on_emptied(self, sender: str, message: Emptied) -> None:
        self._broker.protocol.on_drain()
        self._tell(sender, message)

    def _tell(self, sender: str, message: Emptied) -> None:
        for peer in self._broker.peers:
            if peer != sender:
                self._broker.send(peer, message)
