"""Merging sessions after two trees have joined: of two sessions of one client, one ends.

The session that was begun later stays. The other one ends as if its client had requested that: its
notifications are dropped, and if the client is attached there, its connection is closed; when the client
connects again, it gets the session that stays.

Every broker tells those that have come within reach which sessions it holds (`Claims`),
and a broker with an older session of the same client ends it; a broker with a newer one
answers (`Rival`). Claims follow a session on its way, like every question about it. Until
a broker has heard all claims of a tree that joined, it does not let a session go to a
broker of that tree: otherwise two sessions of one client could meet there. For the same
reason it remembers the claims: a session may arrive that had left another broker before
they were heard there. When all brokers of its own tree have heard them (`ClaimsHeard`),
no such session is on its way any more.

Some protocols keep things under a client's name at brokers where its session is not. So the session that
stays is not given to another broker before the other one has ended and its remaining notifications have been
fetched (`ReunionOver`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import msgspec

from roamcast.broker.session import ClientHere, Holding, Search
from roamcast.protocol.messages import AttachRequest, Cause, HolderUnknown, Message
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

CLAIMS_PER_MESSAGE = 1000

RANGE_BITS = 32
"""Each reunion moves the session that stays into a higher range of 2 ** 32 attach numbers."""


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A session that `broker` holds."""

    client: str
    broker: str
    begun: tuple[float, str]
    """When and where the session began: of two, the later one stays."""
    number: int
    incarnation: int


class Claims(Message, frozen=True):
    """Sessions that `broker` holds, for the brokers `to` that have just come within its reach."""

    broker: str
    to: tuple[str, ...]
    claims: tuple[Claim, ...]
    is_last: bool
    cause: ClassVar[Cause] = "handoff"


class ClaimIt(Message, frozen=True):
    """Asks the new holder to claim a session that was on its way when these brokers came within reach."""

    client: str
    to: tuple[str, ...]
    cause: ClassVar[Cause] = "handoff"


class Rival(Message, frozen=True):
    """A claim for one broker; it follows the session of the same client to where it went."""

    claim: Claim
    cause: ClassVar[Cause] = "handoff"


class ReunionOver(Message, frozen=True):
    """The older session of this client has ended, with nothing left: the other session may move."""

    client: str
    cause: ClassVar[Cause] = "handoff"


class ClaimsHeard(Message, frozen=True):
    """The sender has heard all claims of these brokers."""

    brokers: tuple[str, ...]
    cause: ClassVar[Cause] = "handoff"


class Joining(msgspec.Struct):
    """Brokers that have come within reach, and which of their claims are still missing."""

    __state__ = State("reunion-joining")

    brokers: dict[str, None]
    unheard: dict[str, None]
    own: dict[str, dict[str, None]]
    """Brokers of the own tree that lack claims, each with the brokers whose claims it lacks."""
    claims: dict[str, list[Claim]] = {}
    """Received claims, by client."""

    def is_due(self) -> bool:
        return bool(self.unheard or self.own)


class Reunion:
    __state__ = State("reunion", saved=("_broker", "_clients", "_joining", "_held_back"))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._clients = broker.clients
        self._joining: list[Joining] = []
        self._held_back: list[AttachRequest] = []

    @property
    def handlers(self) -> dict[type[Message], Callable[[str, Any], None]]:
        return {
            Claims: self.on_claims,
            ClaimIt: self.on_claim_it,
            Rival: self.on_rival,
            ClaimsHeard: self.on_claims_heard,
            ReunionOver: self.on_reunion_over,
        }

    def is_under_way(self, client: str) -> bool:
        """True if another session may exist of a client whose session this broker holds."""
        here = self._clients.here.get(client)
        return bool(self._joining) or (here is not None and bool(here.newer or here.older))

    def unfinished(self) -> dict[str, object]:
        return {
            "claims not heard": self._joining,
            "requests held back": self._held_back,
        }

    # --- claiming what is held here ---

    def begin(self, brokers: Iterable[str]) -> None:
        """Claim the sessions held here towards brokers that have come within reach with their own
        sessions."""
        to = tuple(brokers)
        self._broker.directory.joined(to)
        strangers = dict.fromkeys((self._broker.id, *to))
        for joining in self._joining:
            strangers |= joining.brokers
        own = {one: dict.fromkeys(to) for one in self._broker.own_members if one not in strangers}
        self._joining.append(Joining(dict.fromkeys(to), dict.fromkeys(to), own))
        held = [claim for client in self._broker.sessions if (claim := self._claim_of(client)) is not None]
        # For a session on its way, its new holder must hear of the reunion before any other broker claims.
        departed = [(here.client, here.departed) for here in self._clients.here.awake() if here.departed]
        for client, one in departed:
            self._broker.directory.changed(client)
            held.append(Claim(client, one.destination, one.begun, one.number, one.incarnation))
        parts = [
            tuple(held[start : start + CLAIMS_PER_MESSAGE])
            for start in range(0, max(1, len(held)), CLAIMS_PER_MESSAGE)
        ]
        for position, part in enumerate(parts):
            self._pass_on(Claims(self._broker.id, to, part, position == len(parts) - 1), "")
        for client, one in departed:
            self._broker.send(one.destination, ClaimIt(client, to))
        # Earlier answers say nothing about brokers that were not asked.
        self._broker.locator.ask_again()

    def _claim_of(self, client: str) -> Claim | None:
        """Return the claim to the session held here; if it is ending, to its successor."""
        broker, here = self._broker, self._clients.glance(client)
        session = here.session
        assert session is not None
        begun = session.begun
        if here.is_ending:
            if here.holding is Holding.REPLACED or here.attachment is None:
                return None
            begun = (broker.now, broker.id)
        return Claim(client, broker.id, begun, session.number, session.incarnation)

    def on_claim_it(self, sender: str, message: ClaimIt) -> None:
        broker, here = self._broker, self._clients.here.get(message.client)
        if here is not None and here.session is not None:
            claim = self._claim_of(here.client)
            if claim is not None:
                self._pass_on(Claims(broker.id, message.to, (claim,), is_last=False), "")
        elif here is not None and here.departed is not None:
            broker.send(here.departed.destination, message)

    def _pass_on(self, message: Claims, sender: str) -> None:
        others = [broker for broker in message.to if broker != self._broker.id]
        hops = dict.fromkeys(self._broker.next_hop(one) for one in others if self._broker.is_reachable(one))
        for peer in hops:
            if peer != sender:
                self._broker.send(peer, message)

    # --- receiving claims ---

    def on_claims(self, sender: str, message: Claims) -> None:
        self._pass_on(message, sender)
        if self._broker.id not in message.to:
            return
        for claim in message.claims:
            for holder in dict.fromkeys((claim.broker, message.broker)):
                self._broker.directory.claimed(claim.client, holder)
            self._remember(message.broker, claim)
            self._compare(claim)
        if message.is_last:
            self._broker.directory.claimed_all(message.broker)
            for joining in self._joining:
                if joining.unheard.pop(message.broker, "") is None and not joining.unheard:
                    self._tell_own(joining)
            self._go_on()

    def _remember(self, broker: str, claim: Claim) -> None:
        for joining in self._joining:
            if broker in joining.brokers:
                joining.claims.setdefault(claim.client, []).append(claim)

    def _tell_own(self, joining: Joining) -> None:
        for one in self._broker.own_members:
            if one not in joining.brokers and one != self._broker.id:
                self._broker.send(one, ClaimsHeard(tuple(joining.brokers)))

    def on_claims_heard(self, sender: str, message: ClaimsHeard) -> None:
        for joining in self._joining:
            if sender in joining.own:
                for broker in message.brokers:
                    joining.own[sender].pop(broker, None)
                if not joining.own[sender]:
                    del joining.own[sender]
        self._go_on()

    def session_came(self, here: ClientHere) -> None:
        """Apply claims that were received before the session arrived."""
        if not self._joining:
            return
        for claim in [claim for joining in self._joining for claim in joining.claims.get(here.client, ())]:
            if here.session is not None:
                self._compare(claim)

    def on_rival(self, sender: str, message: Rival) -> None:
        claim, broker = message.claim, self._broker
        here = self._clients.here.get(claim.client)
        session = here.session if here is not None else None
        is_gone = here is None or (session is None and here.departed is None)
        if is_gone:
            self.salvage(message)
        elif session is not None and session.begun == claim.begun:
            broker.send(claim.broker, ReunionOver(claim.client))
        else:
            self._compare(claim)

    def salvage(self, message: Rival) -> None:
        """Broadcast a claim for a session that has ended, is lost with its broker, or moved on too fast: that
        session may be at any broker."""
        broker, claim = self._broker, message.claim
        broker.directory.changed(claim.client)
        self._pass_on(Claims(broker.id, tuple(broker.own_members), (claim,), is_last=False), "")
        broker.send(claim.broker, ReunionOver(claim.client))

    def _compare(self, claim: Claim) -> None:
        broker, here = self._broker, self._clients.here.get(claim.client)
        if here is None:
            return
        session = here.session
        if session is None:
            if here.departed is not None:
                broker.send(here.departed.destination, Rival(claim))
            elif here.search is Search.ASKS_EVERYONE:
                # Brokers that denied holding the session may have been asked before it arrived there.
                broker.locator.ask_everyone(here)
            return
        own = self._claim_of(here.client)
        if own is None or own.begun < claim.begun:
            here.newer = {**(here.newer or {}), claim.broker: None}
            if own is not None:
                broker.endings.begin_replaced(here)
        elif own.begun > claim.begun:
            # Nothing of one session may be mistaken for the other's. Both may be told to continue with higher
            # numbers before one of them ends, so the start within the range depends on when and where the
            # session began.
            start = crc32(msgspec.msgpack.encode(own.begun)) >> 1
            session.number = ((max(session.number, claim.number) >> RANGE_BITS) + 1 << RANGE_BITS) + start
            session.incarnation = max(session.incarnation, claim.incarnation) + 1
            here.older = claim.broker
            broker.send(claim.broker, Rival(own))

    def session_over(self, here: ClientHere) -> None:
        """Report that a session has ended here, after everything left of it was fetched."""
        newer, here.newer = here.newer, None
        for broker in newer or ():
            self._broker.send(broker, ReunionOver(here.client))
        self._older_is_over(here)

    def _older_is_over(self, here: ClientHere) -> None:
        if here.older:
            here.older = ""
            self._go_on()

    def on_reunion_over(self, sender: str, message: ReunionOver) -> None:
        here = self._clients.here.get(message.client)
        if here is not None:
            self._older_is_over(here)

    def lost(self, brokers: Iterable[str]) -> None:
        """Stop waiting for claims of brokers that are gone for good."""
        gone = dict.fromkeys(brokers)
        for joining in self._joining:
            was_due = bool(joining.unheard)
            joining.unheard = {one: None for one in joining.unheard if one not in gone}
            if was_due and not joining.unheard:
                self._tell_own(joining)
            left = {one: [of for of in unheard if of not in gone] for one, unheard in joining.own.items()}
            joining.own = {one: dict.fromkeys(of) for one, of in left.items() if of and one not in gone}
        self._held_back = [one for one in self._held_back if one.broker not in gone]
        for here in self._clients.here.awake():
            if here.older in gone:
                here.older = ""
            elif here.older and here.session and (own := self._claim_of(here.client)):
                # The broker that was to answer may be gone: the other session may have moved there.
                self._broker.send(here.older, Rival(own))
        self._go_on()
        held = [(client, self._clients.glance(client).session) for client in self._broker.sessions]
        self.claim([client for client, one in held if one is not None and one.last_broker in gone])

    def claim(self, clients: Iterable[str]) -> None:
        """Announce sessions that came from a broker that is gone for good: brokers that asked meanwhile may
        have been told that none exists, and have made another."""
        claims = [claim for client in clients if (claim := self._claim_of(client)) is not None]
        for start in range(0, len(claims), CLAIMS_PER_MESSAGE):
            part = tuple(claims[start : start + CLAIMS_PER_MESSAGE])
            self._pass_on(Claims(self._broker.id, tuple(self._broker.own_members), part, is_last=False), "")

    # --- sessions that may not leave yet ---

    def holds_back(self, request: AttachRequest) -> bool:
        """Hold back a request if its session may not move to that broker yet; returns whether it was held."""
        here = self._clients.here.get(request.client)
        has_older = here is not None and bool(here.older)
        if has_older or any(request.broker in one.brokers and one.unheard for one in self._joining):
            self._held_back.append(request)
            return True
        return False

    def _go_on(self) -> None:
        """Have the brokers held back ask again: they may have received the other session meanwhile."""
        self._joining = [joining for joining in self._joining if joining.is_due()]
        held_back, self._held_back = self._held_back, []
        for request in held_back:
            if not self.holds_back(request):
                self._broker.send(request.broker, HolderUnknown(request.client, request.connection))
