"""The MQTT side of a broker: connections and sessions here, connected to the core by its inputs and
effects.

Bytes in, bytes out. The endpoint is the broker's `Front` (see broker/front.py): its state of a
client travels as the capsule of the client's session. It makes no decisions about routing or
mobility.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, Protocol

import msgspec

from roamcast.errors import InputError
from roamcast.filters.filter import Attributes, Filter, Value
from roamcast.filters.selector import parse
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.errors import PacketError, protocol_error
from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reading import Limits
from roamcast.mqtt.codec.reasons import IN_CONNACK, IN_SERVER_DISCONNECT, Reason
from roamcast.mqtt.codec.topics import decode_topic
from roamcast.mqtt.codec.user_properties import DESTINATION
from roamcast.mqtt.codec.writing import connack, write
from roamcast.mqtt.server.access import Access, AccessRules, ClientAccess, Identity
from roamcast.mqtt.server.asleep import Sessions
from roamcast.mqtt.server.attributes import contents_of
from roamcast.mqtt.server.connection import DENIED, UNLIMITED, MqttConnection, Refusal, Refusals
from roamcast.mqtt.server.delivering import PUBREL, deliver, may_be_repeated
from roamcast.mqtt.server.holdings import OwnerHoldings
from roamcast.mqtt.server.marks import QOS, RETAIN, SHARED, TOPIC
from roamcast.mqtt.server.moves import CONTROL, MOVE_TOPIC, read_move
from roamcast.mqtt.server.outgoing import Encoder
from roamcast.mqtt.server.publishing import Described, PropertyReader, described
from roamcast.mqtt.server.sessions import NEVER, PROVISIONAL, MqttSession, Recall, Subscription, client_of
from roamcast.mqtt.server.steering import NEXT_TOPIC, SIGNAL_TOPIC, Steering
from roamcast.mqtt.server.subscribing import Subscribing
from roamcast.mqtt.server.timers import Timers
from roamcast.mqtt.server.traffic import Note, Traffic
from roamcast.mqtt.server.welcoming import (
    acceptance,
    check_topic_size,
    check_will,
    session_expiry_of,
    will_bytes,
)
from roamcast.protocol.effects import (
    Attached,
    Detached,
    Effects,
    Input,
    SessionOver,
    SessionsMerged,
    Submitted,
)
from roamcast.protocol.messages import (
    NOT_THE_OWNER,
    READ_IN_VAIN,
    Deliver,
    Hello,
    Leave,
    Move,
    SubscriptionSettled,
    Welcome,
)
from roamcast.protocol.notification import Burst, encode_attributes
from roamcast.state import State

EXPIRY_WHERE_FULL_S = 60
"""Expiry of a session sent ahead of its client to a broker that has too many sessions."""
STAND_IN_AFTER_S = 1.0
"""Wait for brokers that cannot be asked and should not hold the client's session, before a stand-in serves
it."""
PUBCOMP = b"\x70\x02"
ENTRIES_PER_SUBSCRIPTION = 2
"""Limit of topic filters in a packet, per subscription that a client may have."""
TOPICS_KEPT_MAX = 4096
TOPIC_BYTES_KEPT_MAX = 512
"""Longer topics are not cached."""


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


class EndpointSettings(msgspec.Struct, frozen=True):
    packet_max: int = 1 << 20
    small_packet_max: int = 16 << 10
    """Size limit of packets other than PUBLISH, SUBSCRIBE and UNSUBSCRIBE."""
    receive_maximum: int = 1024
    """QoS 2 publishes that a client may have unreleased."""
    topic_alias_maximum: int = 64
    window: int = 4096
    """Maximum of unacknowledged QoS 1 and 2 messages sent to one client."""
    session_expiry_max_s: int = 7 * 24 * 3600
    session_expiry_v3_s: int = 7 * 24 * 3600
    """Session expiry of MQTT 3.1.1 clients, which cannot request one."""
    keep_alive_max_s: int = 0
    """Longest keep-alive that a client may request; 0: any."""
    settle_timeout_s: float = 5.0
    """Longest time in seconds that SUBACK waits until every broker knows the subscription."""
    locate_timeout_s: float = 10.0
    """Longest time in seconds that CONNACK waits for the session."""
    subscriptions_max: int = 1000
    """Subscriptions of one client."""
    waiting_bytes_max: int = 1 << 20
    """Bytes that a client may send before its session has arrived."""
    subscriptions_bytes_max: int = 32 << 20
    """Memory of the subscriptions of one client."""
    all_subscriptions_bytes_max: int = 2 << 30
    """Memory of all clients' subscriptions; at most half of it for one user."""
    wills_bytes_max: int = 64 << 20
    """Memory of all wills."""
    sessions_max: int = 100_000
    sessions_per_user_max: int = 10_000
    """Sessions of one user; anonymous clients do not count as one user."""
    site: str = ""
    """Qualifies users that authenticate here (see protocol.owners)."""
    qos_max: int = 2
    topic_bytes_max: int = 4096
    topic_levels_max: int = 128
    user_properties_max: int = 64
    """User properties of one packet."""
    shared: bool = True
    serves_unreachable: bool = False
    """True to serve clients whose sessions cannot be sought from stand-in sessions."""
    retain: bool = True
    network: str = ""
    """Name of the network, for clients that request it."""
    steering: Steering = Steering()


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


class Endpoint:
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
        self._subscribing = Subscribing(self)
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
        self.unfinished: Mapping[int, object] = self._subscribing.unfinished
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

    # --- the broker's front ---

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
        if not all(may_be_repeated(self, connection, session, burst, is_current) for burst in bursts):
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

    def is_connected(self, client: str) -> bool:
        session = self.sessions.get(client)
        return session is not None and session.connection != 0

    def _join_groups(self, session: MqttSession) -> None:
        """Report the location and connection state of the session's client to its groups."""
        for subscription in session.subscriptions.values():
            if subscription.group:
                self.keeper.join(session.client, subscription)
                if not self._may_hold(session, subscription):
                    # A member that may not receive notifications would withhold them from the rest of the
                    # group.
                    self.keeper.leave(session.client, subscription)

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

    def join_all_groups(self) -> None:
        for session in self.sessions.awake():
            self._join_groups(session)

    def group_settled(self, client: str, group: tuple[str, str]) -> None:
        session = self.sessions.get(client)
        if session is not None:
            self._subscribing.on_group_settled(session.connection, group)

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

    def outlasts_connection(self, client: str) -> bool:
        session = self.sessions.awake_one(client)
        return session is None or bool(session.expiry_s)  # A session that ends with it is never put to sleep.

    def not_located(self, client: str) -> None:
        connection = self._attaching.get(client)
        if connection is not None:
            # The link usually returns in a moment, and then the client gets its own session.
            self.timers.set(self.now + STAND_IN_AFTER_S, ("stand in", connection.id))

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

    # --- connecting ---

    def set_access(self, rules: AccessRules) -> None:
        """Apply new rules, also to clients that are connected, absent, or in a group."""
        before = {session.client: self._groups_of(session) for session in self.sessions.awake()}
        self.access = Access(rules)
        for connection in list(self.connections.values()):
            connection.access = self.access.of(connection.identity)
            connection.topics.clear()
            connection.guarded.clear()
            if connection.session is not None:
                connection.session.forget_plans()
            if not connection.access.may_connect:
                self._deny("connect", connection, "the rules do not allow this client id any more")
        for client, held in before.items():
            session = self.sessions[client]
            now = self._groups_of(session)
            if held != now:
                self._join_groups(session)

    def _groups_of(self, session: MqttSession) -> list[str]:
        """Return the shared subscriptions that deliver to the session."""
        groups = [one for one in session.subscriptions.values() if one.group]
        return [one.name for one in groups if self._may_hold(session, one)]

    def _deny(self, action: str, connection: MqttConnection, text: str) -> None:
        """End a connection that the rules deny."""
        self.traffic.denied[action] += 1
        self._end(connection, Reason.NOT_AUTHORIZED, text)

    def revoke(
        self, owners: Collection[str], connections: Collection[int], why: str, by_operator: bool = False
    ) -> None:
        """End the sessions of these owners, and these connections: their rights have ended, or an operator
        decided so."""
        owners, connections = dict.fromkeys(owners), dict.fromkeys(connections)
        reason = Reason.ADMINISTRATIVE_ACTION if by_operator else Reason.NOT_AUTHORIZED
        for connection in list(self.connections.values()):
            if connection.identity.owner in owners:
                self._end(connection, Reason.NOT_AUTHORIZED, why, with_will=False)
            elif connection.id in connections:
                self._end(connection, reason, why)
        for client, owner in self.sessions.owners():
            if owner in owners:
                self._pop_will(client)
                self.inputs.append(SessionOver(client))

    def set_slow(self, id: int, is_slow: bool) -> None:
        connection = self.connections.get(id)
        if connection is not None:
            connection.is_slow = is_slow

    def is_slow(self, id: int) -> bool:
        connection = self.connections.get(id)
        return connection is not None and connection.is_slow

    def connected(self, id: int, connect: packets.Connect, identity: Identity) -> None:
        """Handle a CONNECT after authentication. The client id is that of the identity."""
        client = identity.client
        connection = MqttConnection(id, connect, identity, self.access.of(identity), self.qos_max)
        self.connections[id] = connection
        self._wills_bytes += will_bytes(connect.will)
        if not connection.access.may_connect:
            self._deny("connect", connection, "the rules do not allow this client id")
            return
        for other in self._others_of(client):
            if other is not None and other.identity.owner != identity.owner:
                self._end(connection, Reason.NOT_AUTHORIZED, NOT_YOURS)
                return
            if other is not None:
                self._end(other, Reason.SESSION_TAKEN_OVER)
        try:
            check_will(connect, self.settings, self._wills_bytes)
            if connect.maximum_packet_size is not None:
                connection.check_takes(acceptance(connection, False, self.settings))
        except PacketError as error:
            self._end(connection, error.reason, str(error))
            return
        if connect.will is not None and not _may_publish(connection.access, connect.will):
            self._deny("will", connection, f"its will to {connect.will.topic} may not be published")
            return
        self._attaching[client] = connection
        if self._elsewhere is not None:
            self._send_elsewhere(connection)
            return
        if self._refuses:
            self._end(connection, Reason.SERVER_UNAVAILABLE, self._refuses)
            return
        window = min(connect.receive_maximum, self.settings.window)
        hello = Hello(
            client,
            fresh=not connect.client_id,
            clean=connect.clean_start,
            window=window,
            owner=identity.owner,
            received=connection.received,
        )
        self.inputs.append(Attached(client, id, hello))
        self.timers.set(self.now + self.settings.locate_timeout_s, ("locate", id))

    def _others_of(self, client: str) -> list[MqttConnection | None]:
        """Return other connections of this client here."""
        found: list[MqttConnection | None] = []
        for name in (client, PROVISIONAL + client):
            if name in self._attaching or name in self.sessions:
                found += self._attaching.get(name), self._connection_of(name)
        return found

    def _connection_of(self, client: str) -> MqttConnection | None:
        session = self.sessions.get(client)
        return self.connections.get(session.connection) if session is not None else None

    def _on_welcome(self, connection: MqttConnection, message: Welcome) -> None:
        client = connection.client
        session, is_new = self.sessions[client], not self._present.get(client, True)
        session.again_to, connection.request = message.copied, message.accepted
        if connection.session is session:
            self._present.pop(client, None)
            return  # A copy has served the client.
        self._attaching.pop(client, None)
        self._pop_will(client)
        self._idle.pop(client, None)
        has_too_many = is_new and self._has_too_many(session.owner)
        is_full = is_new and len(self.sessions) > self.settings.sessions_max
        if has_too_many or (is_full and not self._make_room()):
            whose = "of this user" if has_too_many else "here"
            self._end(connection, Reason.QUOTA_EXCEEDED, f"there are too many sessions {whose}")
            self.inputs.append(SessionOver(client))
            return
        self._begin(connection, session)

    def _begin(self, connection: MqttConnection, session: MqttSession) -> None:
        """Answer CONNECT with a session that is here, or with a copy of it."""
        client, owner = connection.client, connection.identity.owner
        self._attaching.pop(client, None)
        session.identity = connection.identity
        if session.owner != owner:
            self._count(session, -1)
            session.owner = owner
            self._count(session, +1)
        session.connection, session.timer, session.since = connection.id, 0, self.now
        session.forget_plans()
        self._join_groups(session)
        session.expiry_s = session_expiry_of(connection.connect, self.settings)
        connection.session = session
        # If no CONNACK announced a stand-in, its client would take it for the real session.
        present = self._present.pop(client, True) and not (connection.is_provisional and session.is_unused)
        session.told = self._name_of(connection)
        answer = acceptance(connection, present, self.settings, session.told)
        is_own = answer.assigned_client_id or answer.authentication_method or answer.user_properties
        written = write if is_own else connack
        connection.out.append(written(answer, connection.version))
        self.traffic.welcomed += 1
        self.note(connection, "connected", "with its session" if present else "with a new session")

    def _name_of(self, connection: MqttConnection) -> str:
        """Return the unique name of the connection, for clients that report what they have received."""
        if connection.has is None or connection.is_provisional:
            return ""
        return f"{connection.id:x}-{int(self.now * 1_000_000):x}"

    def _make_room(self) -> bool:
        """End the empty session whose client has been absent for longest."""
        idle = next(iter(self._idle), None)
        if idle is not None:
            del self._idle[idle]
            self.inputs.append(SessionOver(idle))
        return idle is not None

    def _on_not_located(self, connection: MqttConnection) -> None:
        """Handle the timeout of a broker that may hold the session."""
        if self.settings.serves_unreachable and not connection.is_provisional:
            self._serve(connection)
        else:
            self.traffic.unavailable += 1
            self._end(connection, Reason.SERVER_UNAVAILABLE, self._unanswered(connection))

    def _unanswered(self, connection: MqttConnection) -> str:
        names = ", ".join(self.keeper.unanswered(connection.client)) or "another broker"
        return f"the session may be at {names} or behind, and there was no answer from there"

    def _serve(self, connection: MqttConnection) -> None:
        """Serve the client from a stand-in, new or existing: its session cannot be found now."""
        client, id = connection.client, connection.id
        name = PROVISIONAL + client
        self._attaching.pop(client, None)
        self.inputs.append(Detached(client, id))
        connection.client, connection.is_provisional = name, True
        connection.qos_max = min(connection.qos_max, 1)
        self._attaching[name] = connection
        window = min(connection.connect.receive_maximum, self.settings.window)
        hello = Hello(name, fresh=name not in self.sessions, window=window, owner=connection.identity.owner)
        self.inputs.append(Attached(name, id, hello))
        self.timers.set(self.now + self.settings.locate_timeout_s, ("locate", id))

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

    # --- reading ---

    def read(self, id: int, data: bytes) -> bytes | None:
        """Take bytes of a connection; returns the whole packets that must be journalled.

        None if there are none. Empty input continues with a packet that was begun.
        """
        connection = self.connections.get(id)
        if connection is None:
            return None
        connection.is_durable = False
        self.touched[id] = connection
        if self.unfinished and id in self.unfinished:
            connection.put_off(self, data)
            self._subscribing.go_on(connection)
            if connection.waiting and id not in self.unfinished:
                self._read_waiting(connection)
            return b""
        try:
            whole = connection.read(self, data)
        except PacketError as error:
            self._end(connection, error.reason, str(error))
            return connection.taken
        return whole if connection.is_durable else None

    def attributes_of(self, connection: MqttConnection, topic: bytes) -> bytes | None:
        name, attributes = self._named(topic)
        if topic.startswith(CONTROL):
            return None
        decision = connection.access.publish(name)
        if not (decision.needs_content or decision.allowed):
            self.note(connection, "denied", f"publish to {name}")
            return None
        if decision.needs_content or self.keeper.tells_place(name):
            connection.guarded[topic] = None
        return attributes

    def _named(self, topic: bytes) -> tuple[str, bytes]:
        """Return the checked name of a topic, and the attributes of publishes under it."""
        known = self._attributes.get(topic)
        if known is None:
            name = decode_topic(topic)
            self.check_size(name)
            known = (name, encode_attributes({TOPIC: name}))
            if len(topic) <= TOPIC_BYTES_KEPT_MAX:
                if len(self._attributes) >= TOPICS_KEPT_MAX:
                    self._attributes.clear()
                self._attributes[topic] = known
        return known

    def on_control(self, connection: MqttConnection, topic: bytes, payloads: list[bytes]) -> Refusals:
        if topic == SIGNAL_TOPIC:
            return [self._steer(connection, payload) for payload in payloads]
        if topic != MOVE_TOPIC:
            self.traffic.denied["publish"] += len(payloads)
            return [DENIED] * len(payloads)
        return [self._move(connection, payload) for payload in payloads]

    def _move(self, connection: MqttConnection, payload: bytes) -> Refusal | None:
        """Handle a client's report of its location or other state."""
        try:
            values = read_move(payload)
        except InputError as error:
            return Refusal(Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(error))
        # Refused moves, too: the core records them.
        connection.is_durable = True
        connection.request += 1
        connection.asked += 1
        self.inputs.append(Submitted(connection.client, connection.id, Move(connection.request, values)))
        refusal = self.keeper.refusal_of_move(values)
        return Refusal(Reason.IMPLEMENTATION_SPECIFIC_ERROR, refusal) if refusal else None

    def _steer(self, connection: MqttConnection, payload: bytes) -> Refusal | None:
        """Handle a client's signals. The answer is QoS 0, so nothing is stored."""
        try:
            said = payload.decode()
        except UnicodeDecodeError:
            return Refusal(Reason.PAYLOAD_FORMAT_INVALID, "a signal: valid is UTF-8")
        session = connection.session
        if session is not None and NEXT_TOPIC in session.subscriptions:
            answer = self.keeper.next_of(connection.client, said)
            if answer is not None:
                self._write(connection, packets.Publish(NEXT_TOPIC, answer))
        return None

    def check_size(self, topic: str, reason: Reason = Reason.TOPIC_NAME_INVALID) -> None:
        check_topic_size(topic, self.settings, reason)

    def permitted(
        self, connection: MqttConnection, topic: bytes, bodies: list[bytes], marks: bytes
    ) -> list[bytes]:
        name = self._named(topic)[0]
        contents = contents_of(name, marks[1:], bodies)
        permitted = [
            body
            for body, attributes in zip(bodies, contents, strict=True)
            if connection.access.may_publish(name, attributes)
        ]
        if len(permitted) < len(bodies):
            self.traffic.denied["publish"] += len(bodies) - len(permitted)
            self.note(connection, "denied", f"publish to {name}, because of its content")
        if permitted and self.keeper.tells_place(name):
            connection.is_durable = True  # With QoS 0, too: the client's location must survive a crash.
        return permitted

    def described(self, block: bytes) -> Described:
        return self._properties.read(block, self.settings.user_properties_max)

    def on_retain(self, connection: MqttConnection, topic: bytes, marks: bytes, body: bytes) -> None:
        self.keeper.retain(self._named(topic)[0], marks, body, client_of(connection.client))

    def on_packet(self, connection: MqttConnection, packet: Packet) -> None:
        session = connection.session
        assert session is not None
        match packet:
            case packets.Pingreq():
                connection.out.append(b"\xd0\x00")
            case packets.Puback():
                connection.acknowledged(self, session.in_flight.acknowledge(packet.packet_id, 1))
            case packets.Pubcomp():
                connection.acknowledged(self, session.in_flight.complete(packet.packet_id))
            case packets.Pubrec():
                self._on_pubrec(connection, session, packet)
            case packets.Pubrel():
                known = packet.packet_id in session.received
                session.received.pop(packet.packet_id, None)
                self._answer(connection, packets.Pubcomp(packet.packet_id), PUBCOMP, known)
            case packets.Subscribe():
                self._subscribing.on_subscribe(connection, packet)
            case packets.Unsubscribe():
                self._subscribing.on_unsubscribe(connection, packet)
            case packets.Disconnect():
                self._on_disconnect(connection, session, packet)
            case packets.Auth():
                if packet.authentication_method != connection.connect.authentication_method:
                    raise protocol_error("an AUTH must name the method of the CONNECT")
                self.auths.append((connection.id, packet))
            case _:
                raise protocol_error(f"a {type(packet).__name__.upper()} is not expected here")

    def _on_pubrec(self, connection: MqttConnection, session: MqttSession, packet: packets.Pubrec) -> None:
        if packet.reason >= Reason.UNSPECIFIED_ERROR:
            connection.acknowledged(self, session.in_flight.acknowledge(packet.packet_id, 2))
        else:
            known = session.in_flight.release(packet.packet_id)
            self._answer(connection, packets.Pubrel(packet.packet_id), PUBREL, known)

    def _answer(self, connection: MqttConnection, packet: Packet, start: bytes, known: bool) -> None:
        """Send PUBREL or PUBCOMP; in MQTT 5 with a reason if the packet id was unknown."""
        if known or connection.version == 4:
            connection.out.append(start + packet.packet_id.to_bytes(2, "big"))  # type: ignore[union-attr]
        else:
            unknown = Reason.PACKET_IDENTIFIER_NOT_FOUND
            self._write(connection, msgspec.structs.replace(packet, reason=unknown))

    def _write(self, connection: MqttConnection, packet: Packet) -> None:
        connection.out.append(write(packet, connection.version))

    # --- maintenance ---

    def send_away(self, reference: str, count_max: int) -> bool:
        """Close `count_max` connections, and refuse new ones: use another broker. True if any is left."""
        self._elsewhere = reference
        for connection in list(islice(self.connections.values(), count_max)):
            self._send_elsewhere(connection)
        return bool(self.connections)

    def _send_elsewhere(self, connection: MqttConnection) -> None:
        self._end(connection, Reason.USE_ANOTHER_SERVER, "maintenance", self._elsewhere or None)

    def serve_again(self) -> None:
        self._elsewhere = None

    def refuse_all(self, why: str) -> None:
        """Close all connections and refuse new ones, for this reason; "" serves again."""
        self._refuses = why
        for connection in list(self.connections.values()) if why else ():
            reason = Reason.SERVER_BUSY if connection.session is not None else Reason.SERVER_UNAVAILABLE
            self._end(connection, reason, why)

    # --- ending a connection ---

    def _on_disconnect(
        self, connection: MqttConnection, session: MqttSession, packet: packets.Disconnect
    ) -> None:
        if packet.session_expiry is not None:
            if packet.session_expiry and not session.expiry_s:
                raise protocol_error("a session that ends with its connection cannot get an expiry now")
            session.expiry_s = min(packet.session_expiry, self.settings.session_expiry_max_s)
        destination = dict(packet.user_properties).get(DESTINATION, "")
        if destination and not connection.is_provisional:  # A stand-in stays: the session comes to it.
            self.inputs.append(Submitted(connection.client, connection.id, Leave(destination)))
        self.note(connection, "disconnected", f"it goes to {destination}" if destination else "by the client")
        self._drop(connection, with_will=packet.reason != Reason.NORMAL_DISCONNECTION)

    def closed(self, id: int) -> None:
        """Handle a connection that ended without DISCONNECT."""
        connection = self.connections.get(id)
        if connection is not None and not self._take_last_words(connection):
            self.note(connection, "disconnected", "connection lost")
            self._drop(connection, with_will=True)

    def _take_last_words(self, connection: MqttConnection) -> bool:
        """Carry out the DISCONNECT that waits for the session, if the client has said one."""
        session, last_words = connection.session, connection.last_words() if connection.waiting else None
        if session is None or last_words is None:
            return False
        connection.waiting.clear()
        try:
            self._on_disconnect(connection, session, last_words)
        except PacketError as error:
            self._end(connection, error.reason, str(error))
        return True

    def note(self, connection: MqttConnection, kind: str, reason: str) -> None:
        self.traffic.notes.append(Note(kind, connection.id, connection.client, reason))

    def _end(
        self,
        connection: MqttConnection,
        reason: Reason,
        text: str = "",
        reference: str | None = None,
        with_will: bool = True,
    ) -> None:
        """Close a connection from this side, with the reason where the client can understand it."""
        if with_will and self._take_last_words(connection):
            return  # The client has left already.
        told = text if connection.connect.request_problem_information and text else None
        kind: type[packets.Connack | packets.Disconnect] = packets.Disconnect
        if connection.session is None:
            # A CONNACK cannot name a takeover by another connection of the same client.
            reason = reason if reason in IN_CONNACK else Reason.SERVER_BUSY
            kind = packets.Connack
        elif reason not in IN_SERVER_DISCONNECT:
            # The reason for a second CONNECT, which is never allowed.
            reason = Reason.PROTOCOL_ERROR
        if kind is packets.Connack or connection.version == 5:
            size_max = connection.connect.maximum_packet_size or UNLIMITED
            # The complete answer, or one without text, if the client accepts either.
            for answer in (_ending(kind, reason, told, reference, connection.version),
                           _ending(kind, reason, None, None, connection.version)):  # fmt: skip
                if len(answer) <= size_max:
                    connection.out.append(answer)
                    break
        why = reason.name.lower().replace("_", " ")
        ended = "disconnected" if connection.session is not None else "refused"
        self.note(connection, ended, f"{why}: {text}" if text else why)
        self._drop(connection, with_will)

    def _drop(self, connection: MqttConnection, with_will: bool) -> None:
        id, client, session = connection.id, connection.client, connection.session
        connection.is_open = False
        self.touched[id] = connection
        del self.connections[id]
        self.ahead.pop(id, None)
        self._wills_bytes -= will_bytes(connection.connect.will)
        self.closes[id] = None
        self._subscribing.forget(id)
        if self._attaching.get(client) is connection:
            del self._attaching[client]
        self.inputs.append(Detached(client, id))
        if session is None or session.connection != id:
            return
        connection.session = None
        if self.sessions.get(client) is not session:
            return  # The session, with its will, has moved to another broker or ended.
        will, at = self._will_of(connection, session) if with_will else (None, 0.0)
        session.connection, session.since = 0, self.now
        self.sessions.left(session)
        if session.is_idle:
            self._idle[client] = None
        self._join_groups(session)
        session.in_flight.rewind()
        session.forget_deliveries()
        self._begin_expiry(session)
        if will is not None and at <= self.now:
            self._publish_will(session, will)
        elif will is not None:
            self._keep_will(client, will)
            session.will_at = at
            session.will_timer = self.timers.set(at, ("will", client))

    def _begin_expiry(self, session: MqttSession) -> None:
        """Start the timer that ends the session this many seconds after its connection."""
        if not session.expiry_s:
            self.inputs.append(SessionOver(session.client))
        elif session.expiry_s != NEVER:
            session.timer = self.timers.set(session.since + session.expiry_s, ("expiry", session.client))

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
        if not _may_publish(self._access_of(session), will):
            self.traffic.denied["will"] += 1
            self.traffic.notes.append(Note("denied", 0, session.client, f"its will to {will.topic}"))
            return
        marks = _marks_of(will)
        self.keeper.publish(will.topic, marks, will.payload)
        if will.retain:
            self.keeper.retain(will.topic, marks, will.payload, "")

    # --- time ---

    def on_deadline(self) -> None:
        for number, key in self.timers.due(self.now):
            match key:
                case ("locate" | "stand in" as wait, id):
                    connection = self.connections.get(id)
                    if connection is None or (connection.session is not None and id not in self.ahead):
                        continue
                    if wait == "locate" and id in self.ahead:
                        self._end(connection, Reason.ADMINISTRATIVE_ACTION, self._unanswered(connection))
                    elif wait == "locate":
                        self._on_not_located(connection)
                    elif not connection.is_provisional and id not in self.ahead:
                        self._serve(connection)
                case ("suback", id, request):
                    self._subscribing.give_up(id, request)
                case ("expiry", client):
                    session = self.sessions.get(client)
                    if session is not None and session.timer == number and not session.connection:
                        self.inputs.append(SessionOver(client))
                case ("will", client):
                    session = self.sessions.get(client)
                    if session is not None and session.will_timer == number:
                        will = self._pop_will(client)
                        if will is not None:
                            self._publish_will(session, will)

    # --- effects of the core ---

    def perform(self, effects: Effects) -> None:
        """Apply effects to the connections; output is collected at the end of the turn."""
        to_clients, effects.to_clients = effects.to_clients, []
        closes, effects.client_closes = effects.client_closes, []
        welcomed = []
        for _, id, message in to_clients:
            connection = self.connections.get(id)
            if connection is None:
                continue
            self.touched[id] = connection
            if type(message) is Deliver:
                if connection.session is not None:
                    left_out = deliver(self, connection, message)
                    if left_out:
                        self.traffic.left_out[message.burst.marks[0] & QOS] += left_out
            elif type(message) is Welcome:
                # The session may have been called away in the same step.
                if connection.client in self.sessions:
                    self._on_welcome(connection, message)
                    welcomed.append(connection)
            elif type(message) is SubscriptionSettled:
                self._subscribing.on_settled(id, message.request)
        for client, id, why in closes:
            if why == NOT_THE_OWNER:
                self._end_stand_in(client)
            connection = self.connections.get(id)
            if connection is not None:
                # Packets of this turn came too late: no answer may say otherwise.
                connection.take_back_answers()
                if why == NOT_THE_OWNER:
                    self._end(connection, Reason.NOT_AUTHORIZED, NOT_YOURS)
                elif why == READ_IN_VAIN:
                    self._end(connection, Reason.ADMINISTRATIVE_ACTION, OLD_COPY)
                else:
                    self._end(connection, Reason.SESSION_TAKEN_OVER)
        for connection in welcomed:
            if connection.is_open and connection.waiting:
                self._read_waiting(connection)

    def _read_waiting(self, connection: MqttConnection) -> None:
        try:
            connection.read_waiting(self)
        except PacketError as error:
            self._end(connection, error.reason, str(error))


@lru_cache(maxsize=64)
def _ending(
    kind: type[packets.Connack | packets.Disconnect],
    reason: Reason,
    told: str | None,
    reference: str | None,
    version: packets.Version,
) -> bytes:
    """Return the last packet to a client; cached, because a drained broker sends it to thousands."""
    return write(kind(reason=reason, reason_string=told, server_reference=reference), version)


def _may_publish(access: ClientAccess, will: packets.Will) -> bool:
    (attributes,) = contents_of(will.topic, _marks_of(will)[1:], (will.payload,))
    return access.may_publish(will.topic, attributes)


def _marks_of(will: packets.Will) -> bytes:
    found = described(will.properties)
    return bytes((will.qos | found.flags | (RETAIN if will.retain else 0),)) + found.block
