"""Which brokers may hold a client's session, so that no search waits for a broker that is down.

A broker that seeks a session without knowing its holder asks all others, and waits for all answers. A broker
that is down gives none. So every broker remembers for each client which other brokers may hold its session.
If the link to a peer is down, and nobody behind it may hold the session, the answer is no, at once.

That answer is never wrong. A session is made only after everyone was asked, or more than half of all brokers
while none of the others may hold it; and every broker that was asked remembers which broker asked. A former
holder remembers where the session arrived. Only a report of the broker itself removes such an entry: each
broker reports to all which sessions arrived, departed or ended (`Holdings`), in batches after a short delay.
Brokers that join tell each other all they hold (`reunion.Claims`).

A broker numbers its reports, and includes the last number when it asks for a session or gets one. So a
report from before that, which arrives later, removes nothing.

Only the larger part of a partitioned network makes sessions without asking the rest, or both parts could. In
the smaller part a client whose session is not found is served from a stand-in session. So is a client whose
session at the missing broker ends with its connection: nothing of that session would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Message
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

TELL_AFTER_S = 0.5
"""Seconds during which changes are collected into one message."""
CHANGES_PER_MESSAGE = 1000
CHANGES_KEPT_MAX = 10_000
"""Changes kept for a peer whose link is down; beyond that it gets everything anew."""
CLIENTS_MAX = 1_000_000
"""Clients remembered. Beyond that, all brokers that may hold a session are asked, however long it takes."""
LAST = 1 << 62
"""Higher than all numbers."""
LOCAL = "\0"
"""Prefix of stand-in sessions, which no other broker knows."""


class HoldingsDue(NamedTuple):
    """Token of a timer: changes are to be reported."""

    since: float


Holder = tuple[str, int]
"""A broker that may hold a session, and the number of its last report before that."""


class Holdings(Message, frozen=True, tag="?Holdings"):
    """Report about sessions at `broker`. Passed on along the tree."""

    broker: str
    number: int
    changes: tuple[tuple[str, tuple[Holder, ...]], ...]
    """Client to the brokers that may hold its session, as far as `broker` knows: `broker` itself, others, or
    none."""
    brief: tuple[str, ...] = ()
    """Clients among them whose sessions end with their connections."""
    is_anew: bool = False
    """True if earlier reports about `broker` are void."""
    is_all: bool = False
    """True for the last part of a complete report."""
    cause: ClassVar[Cause] = "handoff"
    is_optional: ClassVar[bool] = True
    first_version: ClassVar[int] = 2


class HoldingsMissed(Message, frozen=True, tag="?HoldingsMissed"):
    """The receiver's knowledge of these brokers is outdated until they report again."""

    brokers: tuple[str, ...]
    cause: ClassVar[Cause] = "handoff"
    is_optional: ClassVar[bool] = True
    first_version: ClassVar[int] = 2


class HoldingsAsked(Message, frozen=True, tag="?HoldingsAsked"):
    """Asks for reports: the sender's state was written by an earlier version, without a directory."""

    broker: str
    cause: ClassVar[Cause] = "handoff"
    is_optional: ClassVar[bool] = True
    first_version: ClassVar[int] = 2


class Directory:
    __state__ = State(
        "directory",
        saved=(
            "_broker",
            "told",
            "_holders",
            "_heard",
            "_brief",
            "_unknown",
            "_kept",
            "_changed",
            "_is_timed",
        ),
    )

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self.told = 0
        """Number of reports that this broker has sent."""
        self._holders: dict[str, tuple[Holder, ...]] = {}
        """Client to the other brokers that may hold its session."""
        self._heard: dict[str, int] = {}
        """Broker to the number of its last report."""
        self._brief: dict[str, str] = {}
        """Client to the broker where its session ends with its connection."""
        self._unknown: dict[str, None] = {}
        """Brokers whose sessions are not known."""
        self._kept: dict[str, int] = {}
        """Number of changes kept for each peer whose link is down; beyond the limit, none are sent."""
        self._changed: dict[str, None] = {}
        """Clients with changes to report."""
        self._is_timed = False

    @property
    def _is_on(self) -> bool:
        """True where clients may be served without their sessions; the plain clients of the lab wait."""
        return self._broker.front is not None

    def begin_unknowing(self) -> None:
        """Begin without knowledge: an earlier version wrote the state, and no link is up yet."""
        self._unknown = {one: None for one in self._broker.own_members if one != self._broker.id}
        self._broker.links_down = dict.fromkeys(self._broker.peers)

    # --- changes of sessions ---

    def changed(self, client: str) -> None:
        """Note that the session came or ended here, or that this broker's search for it began or ended."""
        if not self._is_on or not self._broker.peers or client.startswith(LOCAL):
            return
        self._changed[client] = None
        if not self._is_timed:
            self._is_timed = True
            self._broker.set_timer(self._broker.now + TELL_AFTER_S, HoldingsDue(self._broker.now))

    def went(self, client: str, destination: str, told: int) -> None:
        """Note that the session has arrived at another broker."""
        self._add(client, destination, told)
        self.changed(client)

    def asked(self, client: str, broker: str, told: int) -> None:
        """Note that another broker asks everyone for the session, and may make it."""
        self._add(client, broker, told)

    def _add(self, client: str, broker: str, told: int) -> None:
        if not self._is_on or broker == self._broker.id:
            return
        known = self._holders.get(client, ())
        if not known and len(self._holders) >= CLIENTS_MAX:
            self._unknown[broker] = None
            return
        earlier = dict(known)
        if earlier.get(broker, -1) < told:
            earlier[broker] = told
            self._holders[client] = tuple(earlier.items())

    def _remove(self, client: str, broker: str, told: int = LAST) -> None:
        """Note that the broker does not hold the session, according to its report with this number."""
        known = self._holders.get(client)
        if known is None:
            return
        left = tuple([one for one in known if one[0] != broker or one[1] >= told])
        if left == known:
            return
        if self._brief.get(client) == broker:
            del self._brief[client]
        if left:
            self._holders[client] = left
        else:
            del self._holders[client]

    def _remove_all(self, brokers: Iterable[str], told: int = LAST) -> None:
        gone = dict.fromkeys(brokers)
        for client, known in list(self._holders.items()):
            for broker, _ in known:
                if broker in gone:
                    self._remove(client, broker, told)

    # --- reporting ---

    def tell(self) -> None:
        """Report the changes since the last time to all brokers."""
        self._is_timed = False
        changed, self._changed = self._changed, {}
        broker = self._broker
        known = broker.clients.here
        # Clients whose session is being sought are reported when the search has ended.
        settled = [
            client
            for client in changed
            if not ((here := known.awake_one(client)) and here.request is not None)
            and not client.startswith(LOCAL)
        ]
        for message in self._parts(broker.id, settled):
            self._pass_on("", message)

    def _parts(self, of: str, clients: list[str], is_all: bool = False) -> Iterator[Holdings]:
        """Return report parts about these clients' sessions at a broker, this one or another."""
        front, is_own = self._broker.front, of == self._broker.id
        assert front is not None
        starts = range(0, max(len(clients), is_all), CHANGES_PER_MESSAGE)
        for start in starts:
            part = clients[start : start + CHANGES_PER_MESSAGE]
            if is_own:
                self.told += 1
                number = self.told
                changes = tuple((one, self._where(one)) for one in part)
                brief = tuple(
                    one for one in part if one in self._broker.sessions and not front.outlasts_connection(one)
                )
            else:
                number = self._heard.get(of, 0)
                changes = tuple((one, ((of, number),)) for one in part)
                brief = tuple(one for one in part if self._brief.get(one) == of)
            yield Holdings(of, number, changes, brief, is_all and start == 0, is_all and start == starts[-1])

    def _where(self, client: str) -> tuple[Holder, ...]:
        """Return which brokers may hold a session. A departed session counts as here until its arrival."""
        here = self._broker.clients.here.awake_one(client)
        if client in self._broker.sessions or (here is not None and here.departed is not None):
            return ((self._broker.id, self.told),)
        return self._holders.get(client, ())

    def _pass_on(self, sender: str, message: Holdings | HoldingsMissed | HoldingsAsked) -> None:
        broker = self._broker
        for peer in broker.peers:
            if peer != sender and not broker.is_guest(peer) and self._keeps_for(peer, message):
                broker.send(peer, message)

    def _keeps_for(self, peer: str, message: Holdings | HoldingsMissed | HoldingsAsked) -> bool:
        """Decide whether the message is sent now; for a peer whose link is down, only a limited number is
        kept."""
        if peer not in self._broker.links_down or not isinstance(message, Holdings):
            return True
        kept = self._kept.get(peer, 0)
        if kept > CHANGES_KEPT_MAX:
            return False
        self._kept[peer] = kept + len(message.changes)
        if self._kept[peer] > CHANGES_KEPT_MAX:
            self._broker.send(peer, HoldingsMissed(tuple(self._this_side_of(peer))))
            return False
        return True

    def _this_side_of(self, peer: str) -> list[str]:
        return [one for one in self._broker.own_members if self._broker.hop_of(one) != peer]

    def link_changed(self, peer: str, is_up: bool) -> None:
        if not is_up or self._broker.is_guest(peer) or not self._is_on:
            return
        if self._kept.pop(peer, 0) > CHANGES_KEPT_MAX:
            for one in self._this_side_of(peer):
                for message in self._all_of(one):
                    self._broker.send(peer, message)
        if self._unknown:
            self._broker.send(peer, HoldingsAsked(self._broker.id))

    def _all_of(self, broker: str) -> Iterator[Holdings]:
        if broker == self._broker.id:
            clients = [one for one in self._broker.sessions if not one.startswith(LOCAL)]
        elif broker in self._unknown:
            return iter(())
        else:
            clients = [client for client, known in self._holders.items() if broker in dict(known)]
        return self._parts(broker, clients, is_all=True)

    # --- receiving reports ---

    def on_holdings(self, sender: str, message: Holdings) -> None:
        self._pass_on(sender, message)
        speaker, own = message.broker, self._broker.id
        if not self._is_on or speaker == own:
            return
        self._heard[speaker] = max(self._heard.get(speaker, 0), message.number)
        if message.is_anew:
            self._remove_all((speaker,), message.number)
        for client, holders in message.changes:
            self._remove(client, speaker, message.number)
            for holder, told in holders:
                if holder == own and client not in self._broker.sessions:
                    # The session has moved on from here, which the reporting broker did not know.
                    self.changed(client)
                self._add(client, holder, told)
            if (speaker, message.number) in holders:
                self._broker.locator.fetch_for_stand_in(client)
        for client in message.brief:
            if (speaker, message.number) in self._holders.get(client, ()):
                self._brief[client] = speaker
        if message.is_all:
            self._unknown.pop(speaker, None)

    def on_missed(self, sender: str, message: HoldingsMissed) -> None:
        self._pass_on(sender, message)
        if self._is_on:
            self._unknown |= {one: None for one in message.brokers if one != self._broker.id}

    def on_asked(self, sender: str, message: HoldingsAsked) -> None:
        self._pass_on(sender, message)
        for part in self._all_of(self._broker.id) if self._is_on else ():
            self._pass_on("", part)

    def joined(self, brokers: Iterable[str]) -> None:
        """Note brokers that have come within reach and will report their sessions (`claimed`,
        `claimed_all`)."""
        if self._is_on:
            self._unknown |= dict.fromkeys(brokers)

    def claimed(self, client: str, broker: str) -> None:
        self._add(client, broker, 0)

    def claimed_all(self, broker: str) -> None:
        self._unknown.pop(broker, None)

    def lost(self, brokers: Iterable[str]) -> None:
        """Remove brokers that are gone for good, and all they held."""
        gone = dict.fromkeys(brokers)
        for one in gone:
            self._unknown.pop(one, None)
            self._heard.pop(one, None)
        self._remove_all(gone)
        peers = dict.fromkeys(self._broker.peers)
        self._kept = {peer: count for peer, count in self._kept.items() if peer in peers}

    # --- answering for brokers that are down ---

    def left_out(self, client: str, peer: str) -> tuple[str, ...]:
        """Return the brokers behind a peer that cannot be asked now and need not be; empty otherwise.

        If one of these does hold the session, `Locator` has to ask all brokers a second time.
        """
        if peer not in self._broker.links_down or not self._is_on:
            return ()
        broker = self._broker
        behind = [one for one in broker.members if broker.hop_of(one) == peer]
        known = self.may_hold(client)
        is_known = not any(broker.is_guest(one) or one in self._unknown or one in known for one in behind)
        return tuple(behind) if is_known else ()

    def may_hold(self, client: str) -> tuple[str, ...]:
        """Return the other brokers that may hold a session which outlasts its client's connection."""
        known = self._holders.get(client)
        if known is None:
            return ()
        brief = self._brief.get(client)
        return tuple([one for one, _ in known if one != brief])

    def holder_of(self, client: str) -> str:
        """Return the only other broker that may hold the session, if it can be asked now; "" otherwise."""
        holders, broker = self.may_hold(client), self._broker
        if len(holders) != 1 or broker.is_guest(holders[0]):
            return ""
        hop = broker.hop_of(holders[0])
        return holders[0] if hop is not None and hop not in broker.links_down else ""

    def holders_of(self, client: str) -> tuple[str, ...]:
        """Return the other brokers that may hold a client's session."""
        return tuple(broker for broker, _ in self._holders.get(client, ()))

    def is_brief(self, client: str, brokers: Iterable[str]) -> bool:
        """True if one of these brokers may hold a session that ends with its client's connection."""
        return self._brief.get(client, "") in tuple(brokers)

    def may_make_without(self, brokers: Iterable[str]) -> bool:
        """True if a session may be made without asking these: the other brokers are more than half."""
        members, missing = self._broker.own_members, dict.fromkeys(brokers)
        asked = len(members) - len(missing)
        return 2 * asked > len(members) or (2 * asked == len(members) and min(members) not in missing)
