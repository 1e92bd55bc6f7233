"""The MQTT side of a broker: the connections of clients, connected to the core by its inputs and effects.

Bytes in, bytes out. What is kept for clients beyond a connection is in `session_front`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import islice

import msgspec

from roamcast.errors import InputError
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.errors import PacketError, protocol_error
from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reasons import IN_CONNACK, IN_SERVER_DISCONNECT, Reason
from roamcast.mqtt.codec.topics import decode_topic
from roamcast.mqtt.codec.user_properties import DESTINATION
from roamcast.mqtt.codec.writing import connack, write
from roamcast.mqtt.server.access import Access, AccessRules, Identity
from roamcast.mqtt.server.attributes import contents_of
from roamcast.mqtt.server.connection import DENIED, UNLIMITED, MqttConnection, Refusal, Refusals
from roamcast.mqtt.server.delivering import PUBREL, deliver
from roamcast.mqtt.server.marks import QOS, TOPIC
from roamcast.mqtt.server.moves import CONTROL, MOVE_TOPIC, read_move
from roamcast.mqtt.server.publishing import Described
from roamcast.mqtt.server.session_front import NOT_YOURS, OLD_COPY, Keeper, SessionFront, may_publish
from roamcast.mqtt.server.sessions import PROVISIONAL, MqttSession, client_of
from roamcast.mqtt.server.steering import NEXT_TOPIC, SIGNAL_TOPIC
from roamcast.mqtt.server.subscribing import Subscribing
from roamcast.mqtt.server.traffic import Note
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
    SessionOver,
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
from roamcast.protocol.notification import encode_attributes

STAND_IN_AFTER_S = 1.0
"""Wait for brokers that cannot be asked and should not hold the client's session, before a stand-in serves
it."""
PUBCOMP = b"\x70\x02"
TOPICS_KEPT_MAX = 4096
TOPIC_BYTES_KEPT_MAX = 512
"""Longer topics are not cached."""


class Endpoint(SessionFront):
    __slots__ = ()

    def __init__(self, keeper: Keeper) -> None:
        self._subscribing = Subscribing(self)
        super().__init__(keeper)

    def _restore(self) -> None:
        super()._restore()
        self.unfinished: Mapping[int, object] = self._subscribing.unfinished

    def group_settled(self, client: str, group: tuple[str, str]) -> None:
        session = self.sessions.get(client)
        if session is not None:
            self._subscribing.on_group_settled(session.connection, group)

    def not_located(self, client: str) -> None:
        connection = self._attaching.get(client)
        if connection is not None:
            # The link usually returns in a moment, and then the client gets its own session.
            self.timers.set(self.now + STAND_IN_AFTER_S, ("stand in", connection.id))

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
        if connect.will is not None and not may_publish(connection.access, connect.will):
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
