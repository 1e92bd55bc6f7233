"""The border at a link: which messages a peer may send and receive.

Everything that comes over a link passes `admit` before anything acts on it, and everything that the broker
sends passes `release`. A message is forwarded, reduced to its permitted part, or refused. A refused message
is dropped and counted by peer and reason, and nothing else happens. An honest peer that relays a forged
message loses only that message.

Rules are part of the settings, hence of the journal: a replay refuses the same messages. The counts are not.

Between brokers of one organisation (members) every plausible message may pass: a peer speaks for brokers
behind it, about sessions that are not held here, and forgets nobody. A peer of another organisation is a
guest: only the clients that its rules list move over the link, no share group spans it, and no broker on
this side waits for its answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from roamcast.broker.directory import Holdings, HoldingsAsked, HoldingsMissed
from roamcast.broker.draining import Emptied
from roamcast.broker.links.arriving import is_plausible
from roamcast.broker.links.crossing import NUMBER_MAX, Crossing
from roamcast.broker.links.guard import Guard, Refused
from roamcast.broker.links.reach import (
    AskToJoin,
    BeginJoin,
    Join,
    JoinEnded,
    JoinsBegun,
    MayJoin,
    Reach,
    Reaches,
)
from roamcast.broker.links.rules import PeerRules, Translation
from roamcast.broker.news import NEWS_BYTES_MAX, News
from roamcast.broker.reunion import Claim, ClaimIt, Claims, ClaimsHeard, ReunionOver, Rival
from roamcast.broker.seeking import WhereIs
from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mqtt.server.sessions import PROVISIONAL
from roamcast.protocol.messages import (
    About,
    AttachRequest,
    Entry,
    Grant,
    HolderUnknown,
    InPlaceOf,
    Locate,
    Located,
    Relayed,
    Settled,
    Update,
    client_of,
)
from roamcast.protocol.notification import Burst, Fleeting, Message
from roamcast.protocol.session import Session
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore
    from roamcast.broker.retained import Retain

BROKERS_MAX = 10_000
"""Limit of brokers behind one peer."""
ATTACHED_S = 10.0
"""Seconds at this broker after which no message about a client is under way from another broker any more."""
SESSIONS_GONE_MAX = 1_000
"""Departed sessions that still count against their peer's limit."""
BROKER_PUBLISHER = "$broker/"
"""What a broker publishes itself has this before its id as the publisher."""
RESERVED = (BROKER_PUBLISHER, "$share/")
"""Beginnings of names that no client may have: those of brokers as publishers, of groups as subscribers."""
BROKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
OF_PERMISSION = (BeginJoin, AskToJoin, MayJoin, JoinEnded, JoinsBegun)
OF_MEMBERS = (
    Claims, ClaimIt, Rival, ReunionOver, ClaimsHeard, Emptied, News, Holdings, HoldingsAsked, HoldingsMissed,
)  # fmt: skip


class Border:
    __state__ = State(
        "border",
        saved=("_broker", "_reach", "_rules", "_is_mqtt", "_retained", "_sessions"),
        derived=(
            "refused",
            "replies",
            "_guards",
            "_crossing",
            "_checks",
            "_retained_of",
            "_sessions_of",
            "_understood",
        ),
    )

    def __init__(self, broker: BrokerCore, reach: Reach) -> None:
        self._broker = broker
        self._reach = reach
        self._rules: Mapping[str, PeerRules] | None = None
        """None: there is no border, and every peer is trusted (in simulators of one organisation)."""
        self._is_mqtt = True
        self._retained: dict[str, str] = {}
        """Topics whose retained message came over a link: topic to peer."""
        self._sessions: dict[str, str] = {}
        """Clients whose sessions came over a link: client to peer."""
        self._restore()

    def _restore(self) -> None:
        self.refused: dict[str, Counter[str]] = {}
        """Refused messages since the process began, by peer and reason."""
        self.replies: list[InPlaceOf] = []
        """Answers given on behalf of peers that are not asked."""
        self._retained_of = Counter(self._retained.values())
        self._sessions_of = Counter(self._sessions.values())
        """Number of sessions from each peer; some of them may have departed since."""
        self._guards: dict[str, Guard] = {}
        self._understood: dict[type[Message], None] = {}
        """Types of messages that the broker is known to handle."""
        self._crossing = Crossing(self._is_mqtt)
        self._checks: dict[type[Message], Callable[[str, str, Guard, Any], Message]] = {
            AttachRequest: self._check_request,
            Locate: self._check_locate,
            WhereIs: self._check_where_is,
            News: self._check_news,
            Holdings: self._check_holdings,
            HoldingsMissed: self._check_missed,
            HoldingsAsked: self._check_asked,
            Claims: self._check_claims,
            Rival: self._check_rival,
            Update: self._check_update,
            Settled: self._check_settled,
        }

    def configure(self, rules: Mapping[str, PeerRules] | None, is_mqtt: bool) -> list[tuple[str, Update]]:
        """Apply new rules. The subscriptions issued at peers may change with them."""
        before = {peer: self._guard(peer) for peer in self._broker.peers} if self._rules is not None else {}
        self._rules, self._is_mqtt = rules, is_mqtt
        self._crossing = Crossing(is_mqtt)
        self._guards = {}
        changes = []
        for peer, old in before.items():
            new = self._guard(peer) if rules is not None else old
            if new.rules != old.rules:
                update = self._difference(peer, old, new)
                if update.is_news:
                    changes.append((peer, update))
        return changes

    def _difference(self, peer: str, old: Guard, new: Guard) -> Update:
        subscribe, unsubscribe = [], []
        for filter, subscriber in self._broker.router.forwarded(peer):
            was, now = old.incoming.wanted(filter), new.incoming.wanted(filter)
            if was != now:
                subscribe += [(now, subscriber)] if now is not None else []
                unsubscribe += [(was, subscriber)] if was is not None else []
        return Update(tuple(subscribe), tuple(unsubscribe))

    @property
    def is_on(self) -> bool:
        return self._rules is not None

    @property
    def guest_peers(self) -> list[str]:
        """Listed peers of other organisations."""
        return [peer for peer, rules in (self._rules or {}).items() if peer and rules.is_guest]

    def reserves(self, client: str) -> bool:
        """True if a client of this side may not have this name: it is a broker's, a group's or that of a
        guest's own client."""
        guest, slash, _ = client.partition("/")
        if not slash or not self._broker.is_guest(guest):
            return client.startswith(RESERVED)
        return guest not in self.guest_peers or not self._guard(guest).clients.allow(client)

    def take_replies(self) -> list[InPlaceOf]:
        replies, self.replies = self.replies, []
        return replies

    def _guard(self, peer: str) -> Guard:
        guard = self._guards.get(peer)
        if guard is None:
            assert self._rules is not None
            rules = self._rules.get(peer) or self._rules.get("") or PeerRules()
            guard = self._guards[peer] = Guard(peer, rules)
        return guard

    def _refuse(self, peer: str, reason: str, count: int = 1) -> None:
        self.refused.setdefault(peer, Counter())[reason] += count

    # --- incoming messages ---

    def admit(self, peer: str, message: Message) -> Message | None:
        """Return the message, or the permitted part of it; None if nothing may pass."""
        if self._rules is None:
            return message
        guard = self._guards.get(peer) or self._guard(peer)
        try:
            if type(message) is Burst or type(message) is Fleeting:
                is_joined = self._broker.router.has_peer(peer)
                if is_joined and guard.is_plain and self._is_ordinary(guard, message):
                    return message  # Nearly always: nothing needs a closer check.
                return self._burst(peer, guard, message)
            return self._other(peer, guard, message)
        except Refused as refused:
            # The bodies are counted, not what the peer says is their number.
            self._refuse(peer, refused.reason, len(message.bodies) or 1 if isinstance(message, Burst) else 1)
            return None

    def _burst(self, peer: str, guard: Guard, burst: Burst) -> Burst:
        """Check a notification on its way to its subscribers."""
        if "data" not in guard.rules.may or not self._broker.router.has_peer(peer):
            raise Refused("area")
        burst = self._crossing.translated(guard, burst)
        if not burst.publisher:
            raise Refused("form")
        # A client of the other side may have the id of one of this side: there they have different names.
        publisher = guard.clients.named(burst.publisher)
        session = self._broker.sessions.get(publisher)
        if session is not None and type(burst) is Burst:
            self._check_number(session, burst)
        elif publisher.startswith(BROKER_PUBLISHER):
            self._check_broker_publisher(peer, publisher)
        attachment = self._broker.attachments.get(publisher)
        is_fleeting = type(burst) is Fleeting
        if is_fleeting and attachment is not None and self._broker.now - attachment.at > ATTACHED_S:
            raise Refused("publisher")
        return burst if publisher == burst.publisher else msgspec.structs.replace(burst, publisher=publisher)

    def _is_ordinary(self, guard: Guard, burst: Burst) -> bool:
        """True if known facts show that a member's notification passes all checks of `_burst`."""
        publisher, verdicts = burst.publisher, guard.incoming.verdicts
        return (
            not burst.varied
            and verdicts.get(burst.attributes) is not None
            and burst.marks in self._crossing.marks
            and self._crossing.marks[burst.marks]
            and burst.count == len(burst.bodies) > 0
            and 0 <= burst.number < NUMBER_MAX
            and (burst.number > 0 or (type(burst) is Fleeting and publisher not in self._broker.attachments))
            and 0 <= burst.incarnation < NUMBER_MAX
            and -1e15 < burst.published_at < 1e15
            and publisher not in self._broker.sessions
            and publisher != ""
            and not publisher.startswith(BROKER_PUBLISHER)
        )

    def _check_number(self, session: Session, burst: Burst) -> None:
        """Check that a client's notifications get their numbers only at the broker of its session."""
        if burst.incarnation < session.incarnation:
            return
        if burst.incarnation == session.incarnation:
            if burst.last > session.published:
                raise Refused("publisher")
        elif not self._broker.reunion.is_under_way(session.client) and not session.client.startswith(
            PROVISIONAL
        ):
            # Only stand-ins are at several brokers at once.
            raise Refused("publisher")

    def _check_broker_publisher(self, peer: str, publisher: str) -> None:
        """Check what brokers publish themselves: their wills come from where they are."""
        if self._broker.hop_of(publisher.removeprefix(BROKER_PUBLISHER)) != peer:
            raise Refused("publisher")

    # --- incoming messages other than notifications ---

    def _other(self, peer: str, guard: Guard, message: Message) -> Message:
        if message.area == "overlay" or not self._broker.router.has_peer(peer):
            raise Refused("area")
        if isinstance(message, Relayed):
            if self._broker.hop_of(message.source) != peer:
                raise Refused("source")
            inner = message.message
            if isinstance(inner, Relayed | Burst) or inner.area in ("overlay", "subscriptions"):
                raise Refused("form")
            is_here = message.destination == self._broker.id
            checked = self._inner(peer, message.source, guard, inner, is_here)
            if not is_here and self._broker.next_hop(message.destination) == self._broker.id:
                self._check_return(peer, guard, message, checked)
            return message if checked is inner else Relayed(message.source, message.destination, checked)
        return self._inner(peer, peer, guard, message, is_here=True)

    def _inner(self, peer: str, origin: str, guard: Guard, message: Message, is_here: bool) -> Message:
        if type(message) is About:
            if isinstance(message.message, About | Relayed | Burst) or message.message.area == "overlay":
                raise Refused("form")
            self._check_client(guard, message.whereabouts.client)
            checked = self._inner(peer, origin, guard, message.message, is_here)
            return message if checked is message.message else About(message.whereabouts, checked)
        shape = _shape_of(type(message))
        if message.area not in guard.rules.may or (guard.is_guest and _is_among_members(message)):
            raise Refused("area")
        if type(message) not in self._understood:
            if not self._broker.understands(message):
                # All brokers have one protocol: no other broker would understand the message either.
                raise Refused("form")
            self._understood[type(message)] = None
        if shape.needs_client or (shape.has_client and not guard.clients.allow_everyone):
            client = client_of(message)
            if client and not guard.clients.allow_everyone:
                self._check_client(guard, client)
            elif not client and shape.needs_client:
                raise Refused("form")
        if shape.carrying:
            message = self._crossing.with_bursts(guard, message, shape.carrying)
        if message.area == "groups" and _parsed(message.filter).own:  # type: ignore[attr-defined]
            raise Refused("form")
        subscriptions = message.subscriptions if shape.has_subscriptions else None  # type: ignore[attr-defined]
        if isinstance(subscriptions, dict):
            for text in subscriptions:
                _parsed(text)
        if message.area == "data":
            return self._retain(peer, guard, message)  # type: ignore[arg-type]
        check = self._checks.get(type(message))
        if check is not None:
            message = check(peer, origin, guard, message)
        if not is_here:
            return message
        update = message.update if shape.has_update else None  # type: ignore[attr-defined]
        if isinstance(update, Update) and (update.is_news or update.settle):
            checked = self._check_update(peer, origin, guard, update)
            if checked is not update:
                message = msgspec.structs.replace(message, update=checked)
        session = message.session if shape.has_session else None  # type: ignore[attr-defined]
        if isinstance(session, Session):
            self._check_session(peer, guard, session)
            owed = self._crossing.carried(guard, session.owed)
            if owed is not session.owed:
                session = msgspec.structs.replace(session, owed=owed)
                message = msgspec.structs.replace(message, session=session)
        if not self._broker.expects(origin, message):
            raise Refused("form")
        return message

    def _check_return(self, peer: str, guard: Guard, relayed: Relayed, message: Message) -> None:
        """Check a message whose destination cannot be reached: its content may be kept here."""
        if not self._broker.returns.is_gone(relayed.destination):
            raise Refused("form")
        told = message.message if type(message) is About else message
        if type(told) is Grant:
            if not self._broker.expects(relayed.source, told):
                raise Refused("form")
            self._check_session(peer, guard, told.session)

    def _check_client(self, guard: Guard, client: str) -> None:
        if not guard.clients.allow(client):
            raise Refused("client")

    def _retain(self, peer: str, guard: Guard, message: Retain) -> Message:
        topic = guard.incoming.topic(message.topic)
        if topic is None:
            raise Refused("topic")
        if self._broker.hop_of(message.broker) != peer or not -1e15 < message.time < 1e15:
            raise Refused("source")
        if not self._crossing.are_marks(message.marks) or not 0 <= message.count < NUMBER_MAX:
            raise Refused("form")
        before = self._retained.get(topic)
        if before != peer and self._retained_of[peer] >= guard.rules.retained_max:
            raise Refused("quota")
        if before is not None:
            self._retained_of[before] -= 1
        if message.body is None:
            self._retained.pop(topic, None)
        else:
            self._retained[topic] = peer
            self._retained_of[peer] += 1
        publisher = guard.clients.named(message.publisher)
        if topic == message.topic and publisher == message.publisher:
            return message
        return msgspec.structs.replace(message, topic=topic, publisher=publisher)

    # --- sessions ---

    def _check_request(self, peer: str, origin: str, guard: Guard, request: AttachRequest) -> Message:
        """Check a request for a session: it comes from where the asking broker is; only former holders send
        it on from elsewhere."""
        if not request.detours:
            if self._broker.hop_of(request.broker) != peer:
                raise Refused("source")
            self._check_owner(peer, request)
        return request

    def _check_owner(self, peer: str, request: AttachRequest) -> None:
        """Check that a user whose name is that of a site authenticated at that site."""
        site, slash, _ = request.owner.partition("/")
        if slash and self._broker.is_reachable(site) and self._broker.hop_of(site) != peer:
            raise Refused("owner")

    def _check_locate(self, peer: str, origin: str, guard: Guard, message: Locate) -> Message:
        request = message.request
        if self._broker.hop_of(request.broker) != peer:
            raise Refused("source")
        self._check_owner(peer, request)
        if not guard.clients.allow(request.client):
            # A broker that asks everyone waits for every answer.
            located = Located(request.client, request.broker, request.connection, message.round, found=False)
            self._broker.send(peer, located)
            raise Refused("client")
        return message

    def _check_where_is(self, peer: str, origin: str, guard: Guard, message: WhereIs) -> Message:
        if self._broker.hop_of(message.asker) != peer:
            raise Refused("source")
        return message

    def _check_news(self, peer: str, origin: str, guard: Guard, message: News) -> Message:
        self._check_speaker(peer, message.origin)
        if len(message.body) > NEWS_BYTES_MAX:
            raise Refused("quota")
        return message

    def _check_holdings(self, peer: str, origin: str, guard: Guard, message: Holdings) -> Message:
        self._check_speaker(peer, message.broker)
        return message

    def _check_missed(self, peer: str, origin: str, guard: Guard, message: HoldingsMissed) -> Message:
        for one in message.brokers:
            self._check_speaker(peer, one)
        return message

    def _check_asked(self, peer: str, origin: str, guard: Guard, message: HoldingsAsked) -> Message:
        self._check_speaker(peer, message.broker)
        return message

    def _check_speaker(self, peer: str, broker: str) -> None:
        """Check that the speaker is a broker of this organisation behind the peer."""
        if self._broker.hop_of(broker) != peer or self._broker.is_guest(broker):
            raise Refused("source")

    def _check_claims(self, peer: str, origin: str, guard: Guard, message: Claims) -> Message:
        if self._broker.hop_of(message.broker) != peer:
            raise Refused("source")
        for claim in message.claims:
            _check_claim(claim)
        return message

    def _check_rival(self, peer: str, origin: str, guard: Guard, message: Rival) -> Message:
        _check_claim(message.claim)
        return message

    def _check_session(self, peer: str, guard: Guard, session: Session) -> None:
        """Check an arriving session: only its holder can send it, and that is not this broker."""
        here = self._broker.clients.here.get(session.client)
        if session.client in self._broker.sessions or session.last_broker in ("", self._broker.id):
            raise Refused("holder")
        if here is not None and here.request is not None and here.request.owner != session.owner:
            raise Refused("owner")
        if not (is_plausible(session) and self._broker.can_unpack(session)):
            raise Refused("form")
        sessions_max, held = guard.rules.sessions_max, len(self._broker.sessions)
        if self._sessions_of[peer] >= sessions_max or len(self._sessions) > 2 * held + SESSIONS_GONE_MAX:
            self._forget_gone()
        if self._sessions_of[peer] >= sessions_max:
            raise Refused("quota")
        before = self._sessions.get(session.client)
        if before is not None:
            self._sessions_of[before] -= 1
        self._sessions[session.client] = peer
        self._sessions_of[peer] += 1

    def _forget_gone(self) -> None:
        """Forget the origin of departed sessions; many at once, because that takes time."""
        sessions = self._broker.sessions
        self._sessions = {client: hop for client, hop in self._sessions.items() if client in sessions}
        self._sessions_of = Counter(self._sessions.values())

    # --- subscriptions ---

    def _check_settled(self, peer: str, origin: str, guard: Guard, message: Settled) -> Message:
        if not 0 <= message.number < NUMBER_MAX:
            raise Refused("form")
        return message

    def _check_update(self, peer: str, origin: str, guard: Guard, update: Update) -> Message:
        """Check subscriptions of the peer and the brokers behind it; those beyond the limit are left out.

        Notifications that the peer may not get are held back when they are sent, so changed rules act at
        once.
        """
        if not 0 <= update.settle < NUMBER_MAX:
            raise Refused("form")
        held = self._broker.router.collected(peer)
        if _is_small(update) and guard.is_open_outwards:
            # Nearly always: one subscription changes.
            has_room = not update.subscribe or len(held) < guard.rules.subscriptions_max
            if has_room and (not update.unsubscribe or held.get(update.unsubscribe[0], 0) > 0):
                return update
        advertised = self._broker.router.advertised(peer)
        changed: Counter[Entry] = Counter()
        subscribe: list[Entry] = []
        for entry in self._entries(guard, update.subscribe):
            if len(held) + len(subscribe) < guard.rules.subscriptions_max:
                subscribe.append(entry)
                changed[entry] += 1
            else:
                self._refuse(peer, "quota")
        unsubscribe = []
        for entry in self._entries(guard, update.unsubscribe):
            if held.get(entry, 0) + changed[entry] > 0:
                changed[entry] -= 1
                unsubscribe.append(entry)
        advertise = self._advertised(guard, update.advertise)
        advertise = advertise[: max(0, guard.rules.subscriptions_max - len(advertised))]
        offered = Counter(advertise)
        unadvertise = []
        for filter in self._advertised(guard, update.unadvertise):
            if advertised.get(filter, 0) + offered[filter] > 0:
                offered[filter] -= 1
                unadvertise.append(filter)
        whereabouts = tuple(one for one in update.whereabouts if guard.clients.allow(one.client))
        checked = msgspec.structs.replace(
            update,
            subscribe=tuple(subscribe),
            unsubscribe=tuple(unsubscribe),
            advertise=tuple(advertise),
            unadvertise=tuple(unadvertise),
            whereabouts=whereabouts,
        )
        return update if checked == update else checked

    def _advertised(self, guard: Guard, filters: Iterable[Filter]) -> list[Filter]:
        """Translate a peer's advertisements to this side; none where advertisements are not used."""
        if not self._broker.router.uses_advertisements:
            return []
        return [here for one in filters if (here := guard.outgoing.offered(one)) is not None]

    def _entries(self, guard: Guard, entries: Iterable[Entry]) -> list[Entry]:
        """Translate a peer's subscriptions to this side."""
        if guard.is_open_outwards:
            return list(entries)
        translated: list[Entry] = []
        for filter, subscriber in entries:
            here = guard.outgoing.offered(filter)
            if here is not None:
                translated.append((here, guard.clients.named(subscriber)))
        return translated

    # --- the overlay ---

    def admit_overlay(self, peer: str, message: Message) -> Message | None:
        """Check messages about the overlay, which are handled ahead of all others."""
        if self._rules is None:
            return message
        try:
            return self._overlay(peer, self._guard(peer), message)
        except Refused as refused:
            self._refuse(peer, refused.reason)
            return None

    def _overlay(self, peer: str, guard: Guard, message: Message) -> Message:
        if guard.is_guest and isinstance(message, OF_PERMISSION):
            raise Refused("area")
        named: tuple[str, ...] = ()
        if isinstance(message, Join):
            named = message.brokers
        elif isinstance(message, Reaches):
            named = message.added
            message = self._without_forgotten(peer, guard, message)
        elif isinstance(message, AskToJoin | JoinEnded | JoinsBegun):
            self._check_asker(peer, message.broker)
        if len(named) + self._reach.count_behind(peer) > BROKERS_MAX:
            raise Refused("quota")
        if not all(BROKER_ID.fullmatch(one) for one in named):
            raise Refused("form")
        return message

    def _check_asker(self, peer: str, broker: str) -> None:
        # A tree that has just joined may ask before its members are known here.
        if self._reach.hop_of(broker) not in (peer, None) or broker == self._broker.id:
            raise Refused("source")

    def _without_forgotten(self, peer: str, guard: Guard, message: Reaches) -> Reaches:
        """Leave out brokers that the peer may not forget: those neither behind it nor cut off."""
        if not message.forgotten:
            return message
        may = "forget" in guard.rules.may
        cut_off = self._reach.cut_off
        allowed = tuple(
            one
            for one in message.forgotten
            if may and one != peer and (one in cut_off or self._reach.hop_of(one) == peer)
        )
        if len(allowed) < len(message.forgotten):
            self._refuse(peer, "forget", len(message.forgotten) - len(allowed))
        return msgspec.structs.replace(message, forgotten=allowed)

    # --- outgoing messages ---

    def looks_at(self, peer: str) -> bool:
        """True if messages to a peer have to pass `release`."""
        return self._rules is not None and not (self._guards.get(peer) or self._guard(peer)).is_open_outwards

    def release(self, peer: str, message: Message) -> Message | None:
        """Return the message as the peer may receive it; None if it may not. Sessions that it asked for
        always pass."""
        guard = self._guard(peer)
        if isinstance(message, Burst):
            return self._crossing.released(guard, message)
        if message.area == "data":
            return self._retain_released(guard, message)  # type: ignore[arg-type]
        if isinstance(message, Update):
            return self._update_released(peer, guard, message)
        inner = message.message if isinstance(message, Relayed) else message
        if isinstance(inner, About):
            inner = inner.message
        if guard.is_guest and _is_among_members(inner):
            return None
        if isinstance(inner, Locate) and not guard.clients.allow(inner.request.client):
            asked = inner.request
            key = (asked.client, asked.broker, asked.connection, inner.round)
            self.replies.append(InPlaceOf(peer, Located(*key, found=False)))
            return None
        if isinstance(inner, AttachRequest) and not guard.clients.allow(inner.client):
            unknown = HolderUnknown(inner.client, inner.connection)
            source = message.destination if isinstance(message, Relayed) else peer
            self.replies.append(InPlaceOf(peer, Relayed(source, inner.broker, unknown)))
            return None
        if isinstance(inner, WhereIs) and not guard.clients.allow(inner.client):
            return None
        return message

    def _retain_released(self, guard: Guard, message: Retain) -> Message | None:
        topic = guard.outgoing.topic(message.topic)
        if topic is None or topic == message.topic:
            return message if topic is not None else None
        return msgspec.structs.replace(message, topic=topic)

    def _update_released(self, peer: str, guard: Guard, update: Update) -> Message | None:
        """Keep only subscriptions to what the peer may send; a guest is not waited for."""
        released = msgspec.structs.replace(
            update,
            subscribe=tuple(_stripped(guard.incoming, update.subscribe)),
            unsubscribe=tuple(_stripped(guard.incoming, update.unsubscribe)),
            advertise=tuple(one for one in update.advertise if not guard.rules.prefix),
            unadvertise=tuple(one for one in update.unadvertise if not guard.rules.prefix),
            whereabouts=tuple(one for one in update.whereabouts if guard.clients.allow(one.client)),
            settle=0 if guard.is_guest else update.settle,
            flush=False if guard.is_guest else update.flush,
        )
        if guard.is_guest and update.settle:
            self.replies.append(InPlaceOf(peer, Settled(update.settle, update.cause)))
        return released if released.is_news or released.settle else None


def _stripped(incoming: Translation, entries: Iterable[Entry]) -> Iterable[Entry]:
    """Translate this side's subscriptions to the names of the other side."""
    for filter, subscriber in entries:
        there = incoming.wanted(filter)
        if there is not None:
            yield there, subscriber


def _is_among_members(message: Message) -> bool:
    """True for messages that are exchanged only within one organisation."""
    return message.area == "groups" or isinstance(message, OF_MEMBERS)


class MessageShape(NamedTuple):
    """The fields of a message type that the border checks."""

    carrying: tuple[str, ...]
    """Fields that carry notifications."""
    has_client: bool
    """True if the message has a client field."""
    needs_client: bool
    """True if the client must be named."""
    has_update: bool
    has_session: bool
    has_subscriptions: bool
    """True if it may name filters by their texts."""


@cache
def _shape_of(kind: type[Message]) -> MessageShape:
    fields = kind.__struct_fields__
    carrying = tuple(name for name in ("burst", "bursts", "waiting") if name in fields)
    return MessageShape(
        carrying,
        has_client=any(hasattr(kind, name) for name in ("client", "subscriber", "session")),
        needs_client=hasattr(kind, "client"),
        has_update="update" in fields,
        has_session="session" in fields,
        has_subscriptions="subscriptions" in fields,
    )


def _parsed(text: str) -> Filter:
    """Return the filter that a message names by its text."""
    try:
        return parse(text)
    except InputError:
        raise Refused("form") from None


def _check_claim(claim: Claim) -> None:
    """Check that the counters of a claim leave room, because the session that stays continues above them."""
    if not (0 <= claim.number < NUMBER_MAX >> 1 and 0 <= claim.incarnation < NUMBER_MAX >> 1):
        raise Refused("form")


def _is_small(update: Update) -> bool:
    """True if an update changes at most one subscription of each kind, and nothing else."""
    others = update.advertise or update.unadvertise or update.whereabouts
    return not others and len(update.subscribe) < 2 and len(update.unsubscribe) < 2
