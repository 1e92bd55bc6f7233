"""Who may hold which client's session, so that nobody waits for a broker that is down.

Whoever looks for a session and does not know its holder asks everyone, and waits for all answers. A broker
that is down gives none. So every broker remembers for each client which other brokers may hold its session.
If the link to a peer is down, and nobody behind it may hold the session, the answer is no, at once.

That answer is never wrong. A session is made only after everyone was asked, or more than half of all brokers
while none of the others may hold it; and whoever was asked remembers who asked. A former holder remembers
where the session arrived. What is remembered of a broker is removed only by the word of that broker: each
tells everyone which sessions came to it, went on or ended (`Holdings`), a moment later and many at once.
Brokers that join tell each other all they hold (`reunion.Claims`).

A broker numbers what it tells, and says how far it has come when it asks for a session or gets one. So what
it told before that, and comes later, removes nothing.

Only the larger part of a network makes sessions without asking the rest: of two parts, both could. In the
smaller part a client whose session is nowhere else is served from a session that stands in for it. So is a
client whose session at the missing broker ends with its connection: nothing of it is lost.
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
"""Changes of half a second are told in one message."""
CHANGES_PER_MESSAGE = 1000
CHANGES_KEPT_MAX = 10_000
"""Changes that are kept for a peer whose link is down; if there are more, it is told everything anew."""
CLIENTS_MAX = 1_000_000
"""Clients that are remembered. Brokers that hold others are asked, however long it takes."""
LAST = 1 << 62
"""Above all numbers."""
LOCAL = "\0"
"""Clients of which no other broker knows begin with this: sessions that stand in for others."""


class HoldingsDue(NamedTuple):
    """The token of a timer: changes are to be told."""

    since: float


Holder = tuple[str, int]
"""A broker that may hold a session, and the number of the last that it had told before."""


class Holdings(Message, frozen=True, tag="?Holdings"):
    """What has become of sessions at `broker`. Passed on along the tree."""

    broker: str
    number: int
    changes: tuple[tuple[str, tuple[Holder, ...]], ...]
    """Client, and who may hold its session as far as `broker` knows: `broker` itself, others, or nobody."""
    brief: tuple[str, ...] = ()
    """The clients among them whose sessions end with their connections."""
    is_anew: bool = False
    """Whether nothing counts that was told of `broker` before."""
    is_all: bool = False
    """Whether this was the last part of all that it holds."""
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
    """This broker does not know what others hold: an earlier version, which kept no directory, wrote its
    state."""

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
        """How often this broker has told others of its own sessions."""
        self._holders: dict[str, tuple[Holder, ...]] = {}
        """Client to the other brokers that may hold its session."""
        self._heard: dict[str, int] = {}
        """The number of the last that each broker told."""
        self._brief: dict[str, str] = {}
        """Client to the broker where its session ends with its connection."""
        self._unknown: dict[str, None] = {}
        """Brokers of which it is not known what they hold."""
        self._kept: dict[str, int] = {}
        """Changes that were sent to a peer since its link is down; more than are kept: none are sent."""
        self._changed: dict[str, None] = {}
        """Clients of which something is to be told."""
        self._is_timed = False

    @property
    def _is_on(self) -> bool:
        """True where clients may be served without their sessions; the plain clients of the lab wait."""
        return self._broker.front is not None

    def begin_unknowing(self) -> None:
        """An earlier version wrote the broker's state: nothing is known, and no link is up yet."""
        self._unknown = {one: None for one in self._broker.own_members if one != self._broker.id}
        self._broker.links_down = dict.fromkeys(self._broker.peers)

    # --- what becomes of sessions ---

    def changed(self, client: str) -> None:
        """The client's session came here or ended here, or this broker asks for it or asked in vain."""
        if not self._is_on or not self._broker.peers or client.startswith(LOCAL):
            return
        self._changed[client] = None
        if not self._is_timed:
            self._is_timed = True
            self._broker.set_timer(self._broker.now + TELL_AFTER_S, HoldingsDue(self._broker.now))

    def went(self, client: str, destination: str, told: int) -> None:
        """The session has arrived at another broker."""
        self._add(client, destination, told)
        self.changed(client)

    def asked(self, client: str, broker: str, told: int) -> None:
        """Another broker asks everyone for the session, and may make it."""
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
        """The broker does not hold the session, by what it told under this number."""
        known = self._holders.get(client, ())
        left = tuple(one for one in known if one[0] != broker or one[1] >= told)
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

    # --- telling ---

    def tell(self) -> None:
        """Tell everyone of the changes since the last time."""
        self._is_timed = False
        changed, self._changed = self._changed, {}
        broker = self._broker
        known = broker.clients.here
        # Of a client whose session is looked for, something is told when that has ended.
        settled = [
            client
            for client in changed
            if not ((here := known.get(client)) and here.request is not None) and not client.startswith(LOCAL)
        ]
        for message in self._parts(broker.id, settled):
            self._pass_on("", message)

    def _parts(self, of: str, clients: list[str], is_all: bool = False) -> Iterator[Holdings]:
        """What this broker knows of the sessions of these clients at a broker, itself or another one."""
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
        """Who may hold a session. One that has left counts as held here until it has arrived."""
        is_here = client in self._broker.sessions
        here = self._broker.clients.here.get(client) if not is_here else None
        if is_here or (here is not None and here.departed is not None):
            return ((self._broker.id, self.told),)
        return self._holders.get(client, ())

    def _pass_on(self, sender: str, message: Holdings | HoldingsMissed | HoldingsAsked) -> None:
        broker = self._broker
        for peer in broker.peers:
            if peer != sender and not broker.is_guest(peer) and self._keeps_for(peer, message):
                broker.send(peer, message)

    def _keeps_for(self, peer: str, message: Holdings | HoldingsMissed | HoldingsAsked) -> bool:
        """Whether the message is sent now; to a peer whose link is down not more than it is worth."""
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

    # --- hearing ---

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
                    self.changed(client)  # It has gone on from here, which the speaker did not know.
                self._add(client, holder, told)
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
        """These brokers have come within reach, and will tell what they hold (`claimed`, `claimed_all`)."""
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

    # --- answering for those who cannot ---

    def left_out(self, client: str, peer: str) -> tuple[str, ...]:
        """The brokers behind a peer, if they cannot be asked now and none of them needs to be."""
        if peer not in self._broker.links_down or not self._is_on:
            return ()
        broker = self._broker
        behind = [one for one in broker.members if broker.hop_of(one) == peer]
        known = self.may_hold(client)
        is_known = not any(broker.is_guest(one) or one in self._unknown or one in known for one in behind)
        return tuple(behind) if is_known else ()

    def may_hold(self, client: str) -> tuple[str, ...]:
        """The other brokers that may hold a session which outlasts its client's connection."""
        brief = self._brief.get(client)
        return tuple(one for one, _ in self._holders.get(client, ()) if one != brief)

    def holders_of(self, client: str) -> tuple[str, ...]:
        """The other brokers that may hold a client's session."""
        return tuple(broker for broker, _ in self._holders.get(client, ()))

    def is_brief(self, client: str, brokers: Iterable[str]) -> bool:
        """Whether one of these brokers may hold a session that ends with its client's connection."""
        return self._brief.get(client, "") in tuple(brokers)

    def may_make_without(self, brokers: Iterable[str]) -> bool:
        """Whether a session may be made without asking these: the other brokers are more than half."""
        members, missing = self._broker.own_members, dict.fromkeys(brokers)
        asked = len(members) - len(missing)
        return 2 * asked > len(members) or (2 * asked == len(members) and min(members) not in missing)
