"""Common base of the machines of both families."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Generic, Protocol, TypeVar
from zlib import crc32

import msgspec

from roamcast.broker.contract import AnyLinks
from roamcast.broker.figures import Figures
from roamcast.broker.fronts import ClientFront
from roamcast.broker.history import History
from roamcast.broker.inputs import (
    AccessRevoked,
    MachineEffects,
    MachineInput,
    PeerProgress,
    RulesChanged,
    SettingsChanged,
    Started,
    StateChecked,
)
from roamcast.broker.links.links import Offer
from roamcast.broker.seeking import IsHere
from roamcast.broker.settings import MachineSettings
from roamcast.broker.wills import PublishThat
from roamcast.errors import InputError
from roamcast.mqtt.server.endpoint import Endpoint
from roamcast.protocol.effects import CommandGiven, Input
from roamcast.state import State

CHECK_EVERY = 4096
"""Journalled turns between two checks of the state."""
SESSIONS_CHECKED = 256
"""Sessions per check; the next check continues behind them, so that no turn takes long."""


class StateDiverged(InputError):
    """A replay gave another state than the one journalled."""


class Answering(Protocol):
    answers: list[IsHere]


AFront = TypeVar("AFront", bound=ClientFront)


ALinks = TypeVar("ALinks", bound=AnyLinks)
ASeeking = TypeVar("ASeeking", bound=Answering)


class MachineBase(ABC, Generic[AFront, ALinks, ASeeking]):
    id: str
    settings: MachineSettings
    front: AFront
    links: ALinks
    seeking: ASeeking
    _out: MachineEffects

    __state__ = State(
        "machine-base",
        saved=("settings", "id", "starts", "front", "history", "_sessions_checked"),
        unhashed=("_turns_unchecked",),
        derived=("_expected", "_out"),
    )

    def __init__(self, settings: MachineSettings) -> None:
        self.settings = settings
        self.id = settings.id
        self.starts = 0
        """Number of times that a process has begun to drive this site."""
        self.history = History(settings.id)
        self._turns_unchecked = 0
        self._sessions_checked = 0
        """Sessions checked in the current round over all sessions."""

    def _restore(self) -> None:
        self._out = MachineEffects()
        self._expected: StateChecked | None = None
        """Checksums in the journal for the end of the turn that is replayed."""

    def journalled(self, over: Collection[str] = ()) -> None:
        """Note that everything this site has received is in the journal, so that peers may be told.

        `over` are the peers with too much buffered; while there are any, the other peers are told nothing.
        """
        for peer, end in self.links.ends.items():
            if not over or (peer in over and len(over) == 1):
                end.acknowledge()

    def refused(self, peer: str) -> Mapping[str, int]:
        """Nothing is refused where every broker is of one organisation."""
        return {}

    # --- the handshake: these methods change no state ---

    def offer(self, peer: str) -> Offer:
        """Return the handshake offer to a peer."""
        return msgspec.structs.replace(self.links.offer(peer), history=self.history.told())

    def doubt(self, peer: str, offer: Offer, is_linked: bool = False) -> str:
        """Return why the peer's history is refused; "" if accepted (see `History.doubt`)."""
        return self.history.doubt(peer, offer.history, is_linked)

    def refusal(self, peer: str, offer: Offer) -> str:
        """Return another reason to refuse the link, as one line; "" if none."""
        if peer in self.history.fences:
            return ""  # The peer no longer refuses. If the link does not fit, it is made anew.
        if self.history.fences:
            return f"{self.id} makes no link: {self.history.refusal}"
        return self.links.refusal(peer, offer)

    def begins_anew(self, peer: str, offer: Offer) -> bool:
        """True if `LinkUp` needs an incarnation."""
        is_refused = peer in self.history.fences and bool(self.links.refusal(peer, offer))
        return is_refused or self.links.begins_anew(peer, offer)

    def _begin(self, start: int) -> None:
        self.starts += 1
        self.history.begin(start)

    def _check_state(self, durable: list[MachineInput | Input]) -> None:
        """At the end of a turn, compare the state with the journal's checksums, or record them
        periodically."""
        if type(durable[0]) is not PeerProgress or any(type(item) is not PeerProgress for item in durable):
            self.history.position += 1
        expected = self._expected
        if expected is None:
            self._turns_unchecked += 1
            if self._turns_unchecked < CHECK_EVERY:
                return
        self._expected = None
        sums = self._sums()
        known = expected.sums if expected is not None else {}
        differ = [name for name in sums if known.get(name, sums[name]) != sums[name]]
        if differ:
            raise StateDiverged(
                f"the replayed state differs from the one that was journalled in: {', '.join(differ)}"
            )
        durable.append(StateChecked(sums))
        self._turns_unchecked = 0
        self._sessions_checked += SESSIONS_CHECKED
        if self._sessions_checked >= len(self._clients()):
            self._sessions_checked = 0

    def _sums(self) -> dict[str, int]:
        """Return checksums of counters and positions: cheap, and different soon after any divergence."""
        clients, first = self._clients(), self._sessions_checked
        looked_at = list(islice(clients, first, first + SESSIONS_CHECKED))
        ends = self.links.ends.values()
        return {
            "links": _sum((end.peer, end.incarnation, end.sent, end.received) for end in ends),
            "sessions": _sum((client, self.front.position(client)) for client in looked_at),
            "queues": _sum(self._queue_position(client) for client in looked_at),
            "counters": _sum((self.starts, len(clients), *self._counters())),
        }

    @abstractmethod
    def _serve_or_not(self) -> None:
        """Serve or refuse clients, depending on this broker's history."""

    @abstractmethod
    def _clients(self) -> Collection[str]:
        """Return the clients whose sessions are here."""

    @abstractmethod
    def _queue_position(self, client: str) -> tuple[int, ...]:
        """Return the position of a client's queue."""

    @abstractmethod
    def _counters(self) -> tuple[int, ...]:
        """Return counters that track changes in this site's other parts."""

    # --- settings, and a process that begins to drive this machine ---

    @property
    @abstractmethod
    def figures(self) -> Figures: ...

    @abstractmethod
    def _configure(self, settings: MachineSettings) -> None:
        """Apply new settings."""

    @abstractmethod
    def _lose_links(self) -> None:
        """Drop all connections of the former process."""

    def _on_setting(self, item: SettingsChanged | RulesChanged | AccessRevoked | Started) -> None:
        match item:
            case SettingsChanged(settings):
                self._configure(settings)
            case RulesChanged(rules):
                self.front.set_access(rules)
            case AccessRevoked(owners, connections, why, by_operator):
                self.front.revoke(owners, connections, why, by_operator)
            case Started(settings, start):
                self.check_start(settings)
                self._begin(start)
                self._configure(settings)
                self.front.restart()
                self._serve_or_not()
                self._lose_links()
                self.figures.reset()

    def check_start(self, settings: MachineSettings) -> None:
        """Raise InputError if this state is that of another broker or protocol."""
        if (settings.id, settings.protocol) != (self.id, self.settings.protocol):
            raise InputError(
                f"this state is that of broker {self.id!r} with {self.settings.protocol}: it cannot become "
                f"{settings.id!r} with {settings.protocol}"
            )

    @property
    def endpoint(self) -> Endpoint:
        """Return the MQTT front, which every machine driven by a daemon has."""
        front: object = self.front
        assert isinstance(front, Endpoint)
        return front

    def publish(self, topic: str, marks: bytes, body: bytes) -> None:
        """Publish a will (see mqtt.endpoint.Keeper)."""
        self.front.inputs.append(CommandGiven(PublishThat(topic, marks, body)))


def _sum(values: Iterable[object]) -> int:
    return crc32(msgspec.msgpack.encode(list(values)))
