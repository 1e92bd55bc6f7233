"""What a driver may ask of a site, whichever family of protocols it runs (see `making.make_site`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from roamcast.broker.figures import Figures
from roamcast.broker.history import History
from roamcast.broker.inputs import MachineEffects, MachineInput, Tree
from roamcast.broker.links.end import LinkEnd
from roamcast.broker.links.links import Offer
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.server.endpoint import Endpoint
from roamcast.protocol.effects import Input
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session


class AnyLinks(Protocol):
    """The ends of the connections to peers, and what their handshakes agree on."""

    @property
    def ends(self) -> Mapping[str, LinkEnd]: ...
    def offer(self, peer: str) -> Offer:
        """Return the links' part of the handshake offer; `AnyMachine.offer` adds the rest."""

    def refusal(self, peer: str, offer: Offer) -> str:
        """Return in one line why a connection with this peer must be refused; "" if it is accepted."""

    def begins_anew(self, peer: str, offer: Offer) -> bool:
        """True if `LinkUp` needs an incarnation."""


class AnyMachine(Protocol):
    """One broker with all its parts: inputs in, effects out."""

    @property
    def id(self) -> str: ...
    @property
    def settings(self) -> MachineSettings: ...
    @property
    def starts(self) -> int:
        """Number of times that a process has begun to drive this site."""

    @property
    def history(self) -> History: ...
    def check_start(self, settings: MachineSettings) -> None:
        """Raise InputError if this state cannot be started with these settings."""

    def offer(self, peer: str) -> Offer: ...
    def doubt(self, peer: str, offer: Offer, is_linked: bool = False) -> str:
        """Return why the peer's history is refused; "" if accepted."""

    def refusal(self, peer: str, offer: Offer) -> str:
        """Return another reason to refuse a connection with this peer; "" if none."""

    def begins_anew(self, peer: str, offer: Offer) -> bool:
        """True if `LinkUp` needs an incarnation."""

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def links(self) -> AnyLinks: ...
    @property
    def figures(self) -> Figures: ...
    @property
    def links_may_cycle(self) -> bool:
        """True if connections between brokers may form cycles: the site finds its own tree in them."""

    def reserves(self, client: str) -> bool:
        """True if brokers use this name for something else than a client here."""

    @property
    def promise(self) -> str:
        """One line about what clients can rely on."""

    @property
    def tree(self) -> Tree | None:
        """The tree that the election made; only for brokers that move."""

    @property
    def strategy(self) -> str:
        """The routing strategy, on which all brokers of a network must agree."""

    def step(self, now: float, inputs: Iterable[MachineInput | Input]) -> MachineEffects: ...
    def deadline(self) -> float | None: ...
    def journalled(self, over: Collection[str] = ()) -> None:
        """Note that everything this site has received is in the journal, so that peers may be told."""

    def awaits_acknowledgement(self, client: str) -> bool:
        """True if the client's next acknowledgement causes further work for the client."""

    # --- for observers and operators ---

    @property
    def queued_bytes(self) -> int: ...
    @property
    def taken_bytes(self) -> int:
        """Bytes ever added to queues; its increase since a time bounds the growth of the queues."""

    def in_flight_bytes(self) -> Mapping[str, int]:
        """Bytes sent to clients and not acknowledged."""

    @property
    def session_count(self) -> int:
        """Number of sessions held here."""

    @property
    def retained_count(self) -> int: ...
    @property
    def retained_refused(self) -> int:
        """Number of retained messages refused for lack of room."""

    def refused(self, peer: str) -> Mapping[str, int]:
        """Messages of a peer that were refused at the border since the process began, by reason."""

    def stored(self) -> Iterable[Burst]:
        """Notifications stored for clients here, including unacknowledged ones."""

    def queues(self) -> Iterable[tuple[str, DeliveryQueue]]:
        """The queues of this broker and whose they are; nothing where brokers move."""

    def session_of(self, client: str) -> Session | None:
        """Return a session that is held here."""

    def likely_next(self, session: Session) -> list[str]:
        """The brokers where the client of a session is expected next."""

    def may_hold(self, client: str) -> tuple[str, ...]:
        """The other brokers that may hold a client's session, if it outlasts connections."""

    def unmet(self) -> list[str]:
        """Configured peers that were never met, as long as no new sessions are made without them."""

    def members(self) -> Mapping[str, bool]:
        """Other known brokers of this organisation, and whether each is reachable."""

    def sessions_left(self) -> int:
        """While draining: number of sessions that are not safely elsewhere."""

    def check_forgetting(self, broker: str) -> None:
        """Raise InputError if `Forgotten` makes no sense for this broker."""

    def check_draining(self, destination: str) -> None:
        """Raise InputError if `Drained` could not hand the sessions to this broker."""
