"""What the MQTT side keeps for clients, whether they are connected or away: the broker's `Front` (see
broker/front.py).

The state of a client travels as the capsule of its session. Nothing here decides about routing or mobility.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from roamcast.errors import InputError
from roamcast.filters.filter import Attributes, Filter, Value
from roamcast.filters.selector import parse
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.reading import Limits
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.server.access import Access, ClientAccess, Identity
from roamcast.mqtt.server.asleep import Sessions
from roamcast.mqtt.server.attributes import contents_of
from roamcast.mqtt.server.connection import UNLIMITED, MqttConnection
from roamcast.mqtt.server.delivering import may_be_repeated
from roamcast.mqtt.server.holdings import OwnerHoldings
from roamcast.mqtt.server.marks import RETAIN, SHARED, TOPIC
from roamcast.mqtt.server.outgoing import Encoder
from roamcast.mqtt.server.publishing import PropertyReader, described
from roamcast.mqtt.server.sessions import NEVER, PROVISIONAL, MqttSession, Recall, Subscription
from roamcast.mqtt.server.settings import EndpointSettings
from roamcast.mqtt.server.timers import Timers
from roamcast.mqtt.server.traffic import Note, Traffic
from roamcast.mqtt.server.welcoming import session_expiry_of, will_bytes
from roamcast.protocol.effects import Input, SessionOver, SessionsMerged
from roamcast.protocol.notification import Burst
from roamcast.state import State

EXPIRY_WHERE_FULL_S = 60
"""Expiry of a session sent ahead of its client to a broker that has too many sessions."""
ENTRIES_PER_SUBSCRIPTION = 2
"""Limit of topic filters in a packet, per subscription that a client may have."""
NOT_YOURS = (
    "the session of this client id is another user's; a user roams only between brokers with the same "
    "access.realm that list each other in access.realm_brokers"
)
OLD_COPY = "your session has changed since it was copied to this broker, and is here now: connect again"
SEQUENCE_MAX = 1 << 62
GOES_OVER_S = 5
"""Minimum expiry of a stand-in session, so that its content can be merged into the real session."""
UNUSED_S = 30
"""Expiry of a new session whose client left before the session was made."""


class Keeper(Protocol):
    """Functions that the endpoint needs of its site."""

    def publish(self, topic: str, marks: bytes, body: bytes) -> None:
        """Publish a will."""

    def retain(self, topic: str, marks: bytes, body: bytes, client: str) -> None:
        """Retain a publish of a client ("" for a will) under the topic; an empty one deletes."""

    def recall(self, client: str, subscriptions: Sequence[Subscription]) -> None:
        """Send the retained messages that new subscriptions want."""

    def end_recall(self, client: str, subscription: Subscription) -> None:
        """End the recall for a subscription that was withdrawn."""

    def take_recalls(self, client: str) -> list[Recall]:
        """Return the remaining recalls of a client whose session departs or ends."""

    def resume_recalls(self, client: str, recalls: Sequence[Recall]) -> None:
        """Resume the recalls of an arrived session."""

    def join(self, client: str, subscription: Subscription, asks: bool = False) -> None:
        """Report a member of a shared subscription: it joined, arrived here, connected, or disconnected.

        If it asks, `group_settled` is the answer."""

    def leave(self, client: str, subscription: Subscription) -> None: ...

    def give_back(self, client: str, subscription: Subscription, burst: Burst) -> None:
        """Return a notification of a shared subscription from an ending session, for another member."""

    def left_out(self, client: str, burst: Burst, reason: str) -> None:
        """Report that a client did not get a queued notification, and will not."""

    def unanswered(self, client: str) -> list[str]:
        """Return the brokers that may hold the client's session and have not answered."""

    def with_zones(self, filter: Filter) -> Filter:
        """Return the filter with zone names replaced by zones; InputError for an unknown zone."""

    def refusal_of_filter(self, filter: Filter, client: str) -> str:
        """Return why the client cannot subscribe to a filter on its own state; "" if it can."""

    def refusal_of_move(self, values: dict[str, Value]) -> str:
        """Return why a client cannot be at that location; "" if it can."""

    def tells_place(self, topic: str) -> bool:
        """True if publishes to this topic may report their publisher's location."""

    def next_of(self, client: str, said: str) -> bytes | None:
        """Return the steering message for a client that reports these signals, if it should go to another
        broker."""


def _lift_1(fields: dict[str, Any]) -> None:
    fields["sessions"] = Sessions(fields["sessions"])


class SessionFront:
    outside: ClassVar[frozenset[str]] = frozenset({TOPIC})

    __state__ = State(
        "mqtt-endpoint",
        2,
        saved=(
            "access", "keeper", "settings", "packet_max", "small_max", "limits", "received_max",
            "waiting_max", "alias_max", "qos_max", "retains", "inputs", "touched", "closes",
            "timers", "encoder", "connections", "sessions", "_elsewhere", "_refuses", "_attaching",
            "_present", "_idle", "_wills", "_subscribing", "_properties",
        ),
        unhashed=("now",),
        derived=(
            "_attributes", "_unpacked", "_wills_bytes", "ahead", "auths", "holdings", "packets_max",
            "packets_per_turn", "traffic", "unfinished", "unread",
        ),
        lifts={1: _lift_1},
    )  # fmt: skip
    __slots__ = __state__.names

    def __init__(self, keeper: Keeper) -> None:
        self.access = Access()
        self.keeper = keeper
        self.configure(EndpointSettings())
        self.now = 0.0
        self.inputs: list[Input] = []
        """Inputs for the core that were not taken yet."""
        self.touched: dict[int, MqttConnection] = {}
        """Connections that may have something to write."""
        self.closes: dict[int, None] = {}
        """Connections to be closed when everything has been written."""
        self.timers = Timers()
        self.encoder = Encoder()
        self.connections: dict[int, MqttConnection] = {}
        self.sessions = Sessions()
        self._elsewhere: str | None = None
        """Broker that clients are referred to while none is served here; "" if unknown."""
        self._refuses = ""
        """Reason for refusing all clients now."""
        self._attaching: dict[str, MqttConnection] = {}
        self._present: dict[str, bool] = {}
        """Whether the session that has just arrived existed before."""
        self._idle: dict[str, None] = {}
        """Absent clients whose sessions are empty; the one absent longest comes first."""
        self._wills: dict[str, packets.Will] = {}
        """Wills of clients that are away, until their delay is over."""
        self._properties = PropertyReader()
        self._restore()

    def _restore(self) -> None:
        self.packets_per_turn = 0
        """Limit of packets taken of all clients in one turn; 0: no limit, as for input from the journal."""
        self.packets_max = UNLIMITED
        self.unread: dict[int, None] = {}
        self.auths: list[tuple[int, packets.Auth]] = []
        """Packets of clients that re-authenticate, for the authenticator."""
        self.traffic = Traffic()
        self._attributes: dict[bytes, tuple[str, bytes]] = {}
        self._unpacked: tuple[bytes, MqttSession, list[Recall]] | None = None
        """The last unpacked capsule and its content: usually its session arrives next."""
        self.ahead: dict[int, None] = {
            one.connection: None for one in self.sessions.awake() if one.copied_from and one.connection
        }
        self.holdings = OwnerHoldings(self.sessions.held())
        wills = [*self._wills.values(), *(one.connect.will for one in self.connections.values())]
        self._wills_bytes = sum(map(will_bytes, wills))
        """Memory of all wills, of connected and absent clients."""
        for connection in (*self.connections.values(), *self._attaching.values()):
            connection.access = self.access.of(connection.identity)

    def configure(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.packet_max = settings.packet_max
        self.small_max = min(settings.small_packet_max, settings.packet_max)
        entries_max = ENTRIES_PER_SUBSCRIPTION * settings.subscriptions_max
        self.limits = Limits(settings.user_properties_max, entries_max)
        self.received_max = settings.receive_maximum
        self.waiting_max = settings.waiting_bytes_max
        self.alias_max = settings.topic_alias_maximum
        self.qos_max = settings.qos_max
        self.retains = settings.retain

    # --- the connections of clients ---

    def _begin(self, connection: MqttConnection, session: MqttSession) -> None:
        """Answer CONNECT with a session that is here, or with a copy of it."""
        raise NotImplementedError

    def _end(
        self,
        connection: MqttConnection,
        reason: Reason,
        text: str = "",
        reference: str | None = None,
        with_will: bool = True,
    ) -> None:
        """Close a connection from this side, with the reason where the client can understand it."""
        raise NotImplementedError

    def _connection_of(self, client: str) -> MqttConnection | None:
        session = self.sessions.get(client)
        return self.connections.get(session.connection) if session is not None else None

    # --- sessions that come and go ---

    def left_out(self, client: str, burst: Burst, reason: str) -> None:
        self.keeper.left_out(client, burst, reason)

    def contents(self, burst: Burst) -> Sequence[Attributes]:
        return contents_of(self.encoder.topic_of(burst.attributes), burst.marks[1:], burst.bodies)

    def pack(self, client: str) -> bytes:
        session = self.sessions[client]
        will, at = self._take_will(session)
        if will is not None and at <= self.now:
            self._publish_will(session, will)
            will = None
        self._remove(session)
        recalls = self.keeper.take_recalls(client)
        # A session unknown to its client is new wherever it arrives.
        return session.pack(will, at, recalls) if self._present.pop(client, True) else b""

    def copy(self, client: str) -> bytes:
        session = self.sessions.get(client)
        if session is None or client in self._wills or not self._present.get(client, True):
            return b""
        return session.pack() if session.may_be_copied else b""

    def serve_ahead(self, client: str, capsule: bytes, bursts: Sequence[Burst]) -> bool:
        connection = self._attaching.get(client)
        if connection is None or client in self.sessions or PROVISIONAL + client in self.sessions:
            return False
        if not capsule or not self.can_unpack(client, capsule):
            return False  # The capsule is another broker's claim, and may be wrong.
        session, _ = self._take_unpacked(client, capsule, connection.identity.owner)
        expiry_s, will = session_expiry_of(connection.connect, self.settings), connection.connect.will
        if session.is_over(self.now) or (will is not None and min(will.delay, expiry_s)):
            return False
        has = connection.has
        is_current = has is not None and bool(session.told) and has.connection == session.told
        if session.has_qos_2 and not is_current:
            return False
        if not all(
            may_be_repeated(self.contents, connection, session, burst, is_current) for burst in bursts
        ):
            return False
        self.sessions[client] = session
        self._count(session, +1)
        if len(self.sessions) > self.settings.sessions_max or self._has_too_many(session.owner):
            self._remove(session)  # Room is checked when the session arrives.
            return False
        session.copied_from, session.again_to = capsule, SEQUENCE_MAX
        self._present[client] = True
        self.ahead[connection.id] = None
        self.touched[connection.id] = connection
        self._begin(connection, session)
        return True

    def lasts_s(self, client: str) -> int:
        return self.sessions[client].expiry_s

    def keep_for(self, client: str, seconds: int) -> None:
        session = self.sessions.get(client)
        if session is not None and not session.connection:
            session.expiry_s, session.since = max(session.expiry_s, seconds), self.now

    def give_up(self, client: str) -> None:
        session = self.sessions.get(client)
        if session is not None and session.copied_from:
            will, _ = self._take_will(session)
            if will is not None:
                self._publish_will(session, will)
            self._remove(session)
            self._present.pop(client, None)

    def can_unpack(self, client: str, capsule: bytes) -> bool:
        """True if a capsule can be unpacked: it may come from an untrusted broker."""
        try:
            if capsule:
                self._unpacked = capsule, *MqttSession.unpack(client, capsule)
        except (InputError, PacketError, ValueError, IndexError, KeyError, TypeError):
            return False
        return True

    def _take_unpacked(self, client: str, capsule: bytes, owner: str) -> tuple[MqttSession, list[Recall]]:
        unpacked, self._unpacked = self._unpacked, None
        if unpacked is None or unpacked[0] is not capsule or unpacked[1].client != client:
            return MqttSession.unpack(client, capsule, owner)
        unpacked[1].owner = owner
        return unpacked[1:]

    def arrived(self, client: str, capsule: bytes, owner: str, reads_on: bool = False) -> bool:
        self._present[client] = bool(capsule)
        recalls: list[Recall] = []
        if capsule:
            session, recalls = self._take_unpacked(client, capsule, owner)
        else:
            session = MqttSession(client, owner=owner)
        if session.identity is not None and session.identity.owner != owner:
            session.identity = None  # The capsule is another broker's word; the owner was checked.
        former = self.sessions.get(client)
        if former is not None:
            self._remove(former)
        in_vain = None
        if former is not None and former.copied_from:
            self.ahead.pop(former.connection, None)
            in_vain = self.connections.get(former.connection)
            if capsule and reads_on and former.is_copied_from(capsule):
                # The client reads on: its copy was of this session.
                session, in_vain, former.copied_from = former, None, b""
            elif capsule and (former.connection or 0.0 < session.since <= former.since):
                # Otherwise the client has been at the holder since it left the copy, and said more there.
                session.expiry_s, session.since = former.expiry_s, former.since
        self.sessions[client] = session
        self._count(session, +1)
        self.keeper.resume_recalls(client, recalls)
        if session.will is not None:
            # A client that returns cancels the will; the end of the session publishes it.
            self._keep_will(client, session.will)
            session.will = None
            session.will_timer = self.timers.set(session.will_at, ("will", client))
        self._join_groups(session)
        is_coming = client in self._attaching or (session.connection != 0)
        session.since = self.now if is_coming else session.since or self.now
        stand_in = self.sessions.get(PROVISIONAL + client)
        if stand_in is not None and stand_in.owner == owner:
            # The client was or is connected here, so its session has not been without it for longer.
            session.since = self.now if stand_in.connection else max(session.since, stand_in.since)
        if not is_coming:
            if not capsule:
                # The client left before this. When it returns, it must not have to wait as long again.
                session.expiry_s = max(UNUSED_S, stand_in.expiry_s if stand_in is not None else 0)
            is_full = len(self.sessions) > self.settings.sessions_max
            if is_full and not self._make_room():
                # The client announced its move here: the session may exceed the limit for a while.
                session.expiry_s = min(session.expiry_s, EXPIRY_WHERE_FULL_S)
            self._begin_expiry(session)
            if self._has_too_many(owner):
                # The session was sent here while its client is absent: another broker's quota does not count
                # here.
                self.traffic.notes.append(Note("ended", 0, client, f"too many sessions of {owner}"))
                self.inputs.append(SessionOver(client))
            if session.is_idle:
                self._idle[client] = None
        if stand_in is not None:
            self._reunite(client, session, stand_in)
            if not (is_coming and self._attaching[client].connect.clean_start):
                self._present[client] = True  # The client has seen the session, by way of its stand-in.
        if in_vain is not None:
            # The client read an outdated copy. It reconnects, and its session is here then.
            in_vain.session, session.connection = session, in_vain.id
            self._end(in_vain, Reason.ADMINISTRATIVE_ACTION, OLD_COPY)
        return stand_in is not None and stand_in.owner == session.owner

    def ended(self, client: str) -> None:
        session = self.sessions.get(client)
        if session is None:
            return
        will, _ = self._take_will(session)
        self._present.pop(client, None)
        self.keeper.take_recalls(client)
        if will is not None:
            self._publish_will(session, will)
        self._remove(session)
        for subscription in session.subscriptions.values():
            if subscription.group:
                self.keeper.leave(client, subscription)

    def outlasts_connection(self, client: str) -> bool:
        session = self.sessions.awake_one(client)
        return session is None or bool(session.expiry_s)  # A session that ends with it is never put to sleep.

    def is_connected(self, client: str) -> bool:
        session = self.sessions.get(client)
        return session is not None and session.connection != 0

    def _begin_expiry(self, session: MqttSession) -> None:
        """Start the timer that ends the session this many seconds after its connection."""
        if not session.expiry_s:
            self.inputs.append(SessionOver(session.client))
        elif session.expiry_s != NEVER:
            session.timer = self.timers.set(session.since + session.expiry_s, ("expiry", session.client))

    def _make_room(self) -> bool:
        """End the empty session whose client has been absent for longest."""
        idle = next(iter(self._idle), None)
        if idle is not None:
            del self._idle[idle]
            self.inputs.append(SessionOver(idle))
        return idle is not None

    # --- stand-ins ---

    def _reunite(self, client: str, session: MqttSession, stand_in: MqttSession) -> None:
        """Merge the stand-in into the session that has arrived; the client reconnects.

        If another user had the client id meanwhile, the stand-in ends without merging.
        """
        name = stand_in.client
        if stand_in.owner != session.owner:
            self._end_stand_in(client)
            return
        for subscription in stand_in.subscriptions.values():
            if subscription.name not in session.subscriptions:
                self.subscribe(session, subscription)
        self.keeper.resume_recalls(client, self.keeper.take_recalls(name))
        # The stand-in must outlive its connection until merged. If the session has moved on already, it waits
        # here for as long as its client allowed, and no longer.
        stand_in.expiry_s = max(stand_in.expiry_s, GOES_OVER_S)
        for connection in (self._attaching.get(name), self._connection_of(name)):
            if connection is not None:
                self._end(connection, Reason.ADMINISTRATIVE_ACTION, "your session is back: connect again")
        self._pop_will(client)
        will = self._pop_will(name)
        if will is not None:
            self._keep_will(client, will)
            session.will_at = stand_in.will_at
            session.will_timer = self.timers.set(session.will_at, ("will", client))
        self.inputs.append(SessionsMerged(name, client))

    def stand_in_of(self, client: str) -> str | None:
        stand_in = self.sessions.get(PROVISIONAL + client)
        return stand_in.owner if stand_in is not None else None

    def _end_stand_in(self, client: str) -> None:
        """End the stand-in: the session turned out to be another user's."""
        name = PROVISIONAL + client
        if name not in self.sessions:
            return
        for connection in (self._attaching.get(name), self._connection_of(name)):
            if connection is not None:
                self._end(connection, Reason.NOT_AUTHORIZED, NOT_YOURS, with_will=False)
        self._pop_will(name)
        self.inputs.append(SessionOver(name))

    # --- what sessions hold ---

    def subscribe(self, session: MqttSession, subscription: Subscription) -> None:
        before = session.subscriptions_bytes
        session.subscribe(subscription)
        self.holdings.count_subscriptions(session.owner, session.subscriptions_bytes - before)

    def unsubscribe(self, session: MqttSession, name: str) -> Subscription | None:
        """Remove and return a subscription."""
        before = session.subscriptions_bytes
        subscription = session.unsubscribe(name)
        self.holdings.count_subscriptions(session.owner, session.subscriptions_bytes - before)
        return subscription

    def _count(self, session: MqttSession, change: int) -> None:
        self.holdings.count_session(session.owner, session.subscriptions_bytes, change)

    def _remove(self, session: MqttSession) -> None:
        del self.sessions[session.client]
        self._idle.pop(session.client, None)
        self._count(session, -1)

    def _has_too_many(self, owner: str) -> bool:
        settings = self.settings
        return self.holdings.has_too_many_sessions(
            owner, settings.sessions_per_user_max, settings.sessions_max
        )

    # --- shared subscriptions ---

    def _join_groups(self, session: MqttSession) -> None:
        """Report the location and connection state of the session's client to its groups."""
        for subscription in session.subscriptions.values():
            if subscription.group:
                self.keeper.join(session.client, subscription)
                if not self._may_hold(session, subscription):
                    # A member that may not receive notifications would withhold them from the rest of the
                    # group.
                    self.keeper.leave(session.client, subscription)

    def join_all_groups(self) -> None:
        for session in self.sessions.awake():
            self._join_groups(session)

    def takes_part(self, client: str, group: str, filter: str) -> bool:
        session = self.sessions.get(client)
        return session is not None and any(
            (one.group, one.filter) == (group, filter) and self._may_hold(session, one)
            for one in session.subscriptions.values()
        )

    def left_over(self, client: str, burst: Burst) -> None:
        session = self.sessions.get(client)
        if session is None or not burst.marks[0] & SHARED:
            return
        for part in burst.uniform():
            for position, attributes in enumerate(self.contents(part)):
                one = part.part(position, position + 1)
                subscription = session.gives_back(one, attributes)
                if subscription is not None:
                    self.keeper.give_back(client, subscription, one)

    def _access_of(self, session: MqttSession) -> ClientAccess:
        """Return the access rules for the client of a session, even in its absence."""
        connection = self._attaching.get(session.client) or self.connections.get(session.connection)
        if connection is not None:
            return connection.access
        identity = session.identity or Identity(session.client)
        return self.access.of(identity.seen_from(self.settings.site))

    def _may_hold(self, session: MqttSession, subscription: Subscription) -> bool:
        access = self._access_of(session)
        return access.receives_all or access.may_subscribe(parse(subscription.filter))

    # --- wills ---

    def _take_will(self, session: MqttSession) -> tuple[packets.Will | None, float]:
        """Take the will of the client's current or last connection, with its time."""
        connection = self.connections.get(session.connection)
        if connection is not None:
            return self._will_of(connection, session)
        return self._pop_will(session.client), session.will_at

    def _keep_will(self, client: str, will: packets.Will) -> None:
        self._pop_will(client)
        self._wills[client] = will
        self._wills_bytes += will_bytes(will)

    def _pop_will(self, client: str) -> packets.Will | None:
        will = self._wills.pop(client, None)
        self._wills_bytes -= will_bytes(will)
        return will

    def _will_of(self, connection: MqttConnection, session: MqttSession) -> tuple[packets.Will | None, float]:
        """Return the will of a connection that ends now, and when it is to be published."""
        will = connection.connect.will
        last_words = connection.last_words() if will is not None else None
        if will is None or (last_words is not None and last_words.reason == Reason.NORMAL_DISCONNECTION):
            return None, 0.0
        return will, self.now + min(will.delay, session.expiry_s)

    def _publish_will(self, session: MqttSession, will: packets.Will) -> None:
        """Publish a will as the current rules allow, at the broker of the session."""
        if not may_publish(self._access_of(session), will):
            self.traffic.denied["will"] += 1
            self.traffic.notes.append(Note("denied", 0, session.client, f"its will to {will.topic}"))
            return
        marks = _marks_of(will)
        self.keeper.publish(will.topic, marks, will.payload)
        if will.retain:
            self.keeper.retain(will.topic, marks, will.payload, "")


def may_publish(access: ClientAccess, will: packets.Will) -> bool:
    (attributes,) = contents_of(will.topic, _marks_of(will)[1:], (will.payload,))
    return access.may_publish(will.topic, attributes)


def _marks_of(will: packets.Will) -> bytes:
    found = described(will.properties)
    return bytes((will.qos | found.flags | (RETAIN if will.retain else 0),)) + found.block
