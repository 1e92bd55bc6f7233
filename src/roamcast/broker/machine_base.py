"""What machines of both families do alike."""

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
"""After this many turns that were journalled the state is checked once more."""
SESSIONS_CHECKED = 256
"""Sessions that one check looks at; the next check goes on behind them, so that no turn takes long."""


class StateDiverged(InputError):
    """A replay came to another state than the broker that wrote the journal."""


class Answering(Protocol):
    answers: list[IsHere]


AFront = TypeVar("AFront", bound=ClientFront)


class MachineBase(ABC, Generic[AFront]):
    id: str
    settings: MachineSettings
    front: AFront
    links: AnyLinks
    seeking: Answering
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
        """How often a process has begun to drive this site."""
        self.history = History(settings.id)
        self._turns_unchecked = 0
        self._sessions_checked = 0
        """How many sessions were looked at since all of them were."""

    def _restore(self) -> None:
        self._out = MachineEffects()
        self._expected: StateChecked | None = None
        """What the journal says of the state at the end of the turn that is replayed."""

    def journalled(self, over: Collection[str] = ()) -> None:
        """Everything that this site has received is in the journal: its peers may be told.

        `over` are those for whom too much is kept; while there are any, the others are told nothing.
        """
        for peer, end in self.links.ends.items():
            if not over or (peer in over and len(over) == 1):
                end.acknowledge()

    def refused(self, peer: str) -> Mapping[str, int]:
        """Nothing is, where every broker is of one organisation."""
        return {}

    # --- the handshake: nothing of this changes anything ---

    def offer(self, peer: str) -> Offer:
        """What to tell a peer that connects."""
        return msgspec.structs.replace(self.links.offer(peer), history=self.history.told())

    def doubt(self, peer: str, offer: Offer, is_linked: bool = False) -> str:
        """Why the peer's history is refused; "" if it is not (see `History.doubt`)."""
        return self.history.doubt(peer, offer.history, is_linked)

    def refusal(self, peer: str, offer: Offer) -> str:
        """Why there must be no link for another reason, as one line; "" if there may be one."""
        if peer in self.history.fences:
            return ""  # The peer has no doubt any more. If the link does not fit, it is made anew.
        if self.history.fences:
            return f"{self.id} makes no link: {self.history.refusal}"
        return self.links.refusal(peer, offer)

    def begins_anew(self, peer: str, offer: Offer) -> bool:
        """Whether `LinkUp` needs an incarnation."""
        is_refused = peer in self.history.fences and bool(self.links.refusal(peer, offer))
        return is_refused or self.links.begins_anew(peer, offer)

    def _begin(self, start: int) -> None:
        self.starts += 1
        self.history.begin(start)

    def _check_state(self, durable: list[MachineInput | Input]) -> None:
        """A turn is over: compare the state with what the journal says of it, or say it now and then."""
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
        """Checksums of counters and positions: cheap, and wrong soon after anything else is."""
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
        """Take clients or refuse them, as what is known of this broker's history allows."""

    @abstractmethod
    def _clients(self) -> Collection[str]:
        """Those whose sessions are here."""

    @abstractmethod
    def _queue_position(self, client: str) -> tuple[int, ...]:
        """How far the queue of a client is."""

    @abstractmethod
    def _counters(self) -> tuple[int, ...]:
        """What counts the changes of this site's other parts."""

    # --- settings, and a process that begins to drive this machine ---

    @property
    @abstractmethod
    def figures(self) -> Figures: ...

    @abstractmethod
    def _configure(self, settings: MachineSettings) -> None:
        """Other settings from now on."""

    @abstractmethod
    def _lose_links(self) -> None:
        """No connection of before exists any more."""

    def _on_setting(self, item: SettingsChanged | RulesChanged | AccessRevoked | Started) -> None:
        match item:
            case SettingsChanged(settings):
                self._configure(settings)
            case RulesChanged(rules):
                self.front.set_access(rules)
            case AccessRevoked(owners, connections, why, by_operator):
                self.front.revoke(owners, connections, why, by_operator)
            case Started(settings, start):
                self._check_start(settings)
                self._begin(start)
                self._configure(settings)
                self.front.restart()
                self._serve_or_not()
                self._lose_links()
                self.figures.reset()

    def _check_start(self, settings: MachineSettings) -> None:
        """A state goes on only as what it was."""
        if (settings.id, settings.protocol) != (self.id, self.settings.protocol):
            raise InputError(
                f"this state is that of broker {self.id!r} with {self.settings.protocol}: it cannot become "
                f"{settings.id!r} with {settings.protocol}"
            )

    @property
    def endpoint(self) -> Endpoint:
        """The MQTT front, which every machine has that a daemon drives."""
        front: object = self.front
        assert isinstance(front, Endpoint)
        return front

    def publish(self, topic: str, marks: bytes, body: bytes) -> None:
        """A will (see mqtt.endpoint.Keeper)."""
        self.front.inputs.append(CommandGiven(PublishThat(topic, marks, body)))


def _sum(values: Iterable[object]) -> int:
    return crc32(msgspec.msgpack.encode(list(values)))
