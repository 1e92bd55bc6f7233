"""Where a client's session is, answered to an operator by a question over the tree. The session is not
moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from roamcast.broker.session import Handoff
from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Command, Message
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore
    from roamcast.broker.fronts import ClientFront


class Seek(Command, frozen=True):
    """Command of an operator: find where a client's session is."""

    client: str
    number: int


class WhereIs(Message, frozen=True):
    """Question passed on until it reaches the holder."""

    client: str
    asker: str
    number: int
    """Number that distinguishes the questions of one asker."""
    cause: ClassVar[Cause] = "handoff"


class IsHere(Message, frozen=True):
    """The holder's answer."""

    client: str
    number: int
    broker: str
    state: str
    """"attached", "away", "arriving" (its handoff has not finished) or "ending"; where brokers move also "out
    of reach": the way to the client ends at this broker, which stores notifications for it."""
    since: float
    """Time of the last attach or detach, Unix time."""
    queued: int
    """Notifications queued at the holder, including sent and unacknowledged ones."""
    queued_bytes: int
    subscriptions: int
    cause: ClassVar[Cause] = "handoff"


class Seeking:
    __state__ = State("seeking", saved=("_broker", "_front"), derived=("answers",))

    def __init__(self, broker: BrokerCore, front: ClientFront) -> None:
        self._broker = broker
        self._front = front
        self._restore()

    def register_handlers(self) -> None:
        self._broker.obey(Seek, self.on_seek)
        self._broker.serve(WhereIs, self.on_where_is)
        self._broker.serve(IsHere, self.on_is_here)

    def _restore(self) -> None:
        self.answers: list[IsHere] = []
        """Answers that have not been taken yet."""

    def on_seek(self, command: Seek) -> None:
        self.on_where_is(self._broker.id, WhereIs(command.client, self._broker.id, command.number))

    def on_where_is(self, sender: str, message: WhereIs) -> None:
        broker = self._broker
        if message.client in broker.sessions:
            broker.send(message.asker, self._answer(message))
            return
        for peer in broker.peers:
            if peer != sender:
                broker.send(peer, message)

    def _answer(self, message: WhereIs) -> IsHere:
        client, broker = message.client, self._broker
        session = self._front.sessions.get(client)
        here = broker.clients.here[client]
        if here.is_ending:
            state = "ending"
        elif here.handoff is Handoff.UNDER_WAY:
            state = "arriving"
        else:
            state = "attached" if broker.is_attached(client) else "away"
        bursts = [
            burst for owner, queue in broker.protocol.stored() if owner == client for burst in queue.bursts()
        ]
        return IsHere(
            client,
            message.number,
            broker.id,
            state,
            session.since if session is not None else broker.now,
            sum(burst.count for burst in bursts),
            sum(burst.size for burst in bursts),
            len(broker.sessions[client].subscriptions),
        )

    def on_is_here(self, sender: str, message: IsHere) -> None:
        self.answers.append(message)
