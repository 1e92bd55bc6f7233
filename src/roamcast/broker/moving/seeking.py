"""Where a client is: an operator's question follows the ways of the tree, and the answer returns
on them.

Questions are not stored: a lost question is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roamcast.broker.moving.core import MobileCore
from roamcast.broker.seeking import IsHere, WhereIs
from roamcast.mobility.moving.mobile import LOCAL
from roamcast.mqtt.server.sessions import MqttSession
from roamcast.state import State

ASKED_MAX = 1024
"""Limit of questions that are remembered until they are answered."""


def _lift_1(fields: dict[str, Any]) -> None:
    del fields["_sessions"]


class MobileSeeking:
    __state__ = State(
        "mobile-seeking", 2, saved=("_core",), derived=("_askers", "_sessions", "answers"), lifts={1: _lift_1}
    )

    def __init__(self, core: MobileCore, sessions: Mapping[str, MqttSession]) -> None:
        self._core = core
        self._restore()
        self.connect(sessions)

    def connect(self, sessions: Mapping[str, MqttSession]) -> None:
        """Connect the sessions; repeated after thawing."""
        self._sessions = sessions

    def register_handlers(self) -> None:
        self._core.serve(WhereIs, self.on_where_is)
        self._core.serve(IsHere, self.on_is_here)

    def _restore(self) -> None:
        self.answers: list[IsHere] = []
        """Answers that have not been taken yet."""
        self._askers: dict[tuple[str, int], str] = {}

    def on_where_is(self, sender: str, message: WhereIs) -> None:
        known = self._core.machine.known.get(message.client)
        way = known.way if known is not None else None
        if way and way in self._core.machine.peers and way != sender:
            self._askers[message.client, message.number] = sender
            while len(self._askers) > ASKED_MAX:
                del self._askers[next(iter(self._askers))]
            self._core.links.send_fleeting(way, message)
        elif message.client in self._sessions or (known is not None and known.filters):
            self._answer(sender, self._describe(message, is_local=way == LOCAL))

    def _describe(self, message: WhereIs, is_local: bool) -> IsHere:
        client, core = message.client, self._core
        session, visit = self._sessions.get(client), core.visits.get(client)
        queues = [queue for name, queue in core.queues() if name == client]
        in_flight = [burst for _, burst in visit.in_flight] if visit is not None else []
        state = "attached" if visit is not None else "away" if is_local else "out of reach"
        return IsHere(
            client,
            message.number,
            core.id,
            state,
            session.since if session is not None else core.now,
            sum(queue.count for queue in queues) + len(in_flight),
            sum(queue.size_bytes for queue in queues) + sum(burst.held for burst in in_flight),
            len(session.subscriptions) if session is not None else len(core.filters_of(client)),
        )

    def on_is_here(self, sender: str, message: IsHere) -> None:
        asker = self._askers.pop((message.client, message.number), None)
        if asker is not None:
            self._answer(asker, message)

    def _answer(self, asker: str, answer: IsHere) -> None:
        if asker == self._core.id:
            self.answers.append(answer)
        else:
            self._core.links.send_fleeting(asker, answer)
