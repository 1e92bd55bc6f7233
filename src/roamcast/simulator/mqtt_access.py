"""MQTT clients of a simulated network: the client machine that ships, over access links with delay.

Bytes keep their order and may be cut anywhere. Bytes in transit are lost when a client leaves silently. A
client that is refused, or whose connection the broker closes, tries again, unless its story has another
action first; a client whose broker has crashed waits until the broker is back. Actions and observations of
clients are recorded in a `Ledger`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.broker.inputs import (
    ClientConnected,
    ClientFrames,
    ConnectionLost,
    MachineEffects,
)
from roamcast.mqtt.client.client import Accepted, ClientSession, ClientSettings, ConnectRefused, Ended, Event
from roamcast.mqtt.client.outgoing import Acknowledged
from roamcast.mqtt.client.requests import Granted
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import PublishProperties, SubscriptionEntry
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.user_properties import WHERE
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity
from roamcast.mqtt.server.moves import MOVE_TOPIC, read_move, write_move
from roamcast.protocol.effects import AttachTo, Input, LeaveFor, MoveTo
from roamcast.simulator.links import Link
from roamcast.simulator.mqtt_ledger import ClientLedger, Connection, Ledger, Message, Sending
from roamcast.simulator.mqtt_story import (
    EXPIRY_DEFAULT_S,
    FOR_EVER_S,
    PLACE,
    Connect,
    Disconnect,
    MqttSettings,
    PublishMessage,
    SubscribeFilter,
    UnsubscribeFilter,
)

if TYPE_CHECKING:
    from roamcast.simulator.mqtt_network import MqttNetwork

PACKET_MAX = 1 << 20
WINDOW_DEFAULT = ClientSettings(client_id="").receive_maximum
RETRY_S = 0.5
RETRIES_MAX = 60
CUT_SHARE = 0.2
"""Probability that bytes are cut in two in transit."""
QOS_0_PUBLISH = 0x30
CONTROL_TOPIC = MOVE_TOPIC.decode()


@dataclass(slots=True, eq=False)
class Line:
    """One connection between a client and a broker."""

    client: MqttClient
    broker: str
    up: Link
    down: Link
    noted: Connection
    asked: dict[int, SubscribeFilter | UnsubscribeFilter] = field(default_factory=dict)
    """Unanswered requests by packet id."""
    begun: bytes = b""
    """The beginning of a packet whose rest is still in transit to the broker."""
    waiting_bytes: int = 0
    """Bytes that the client has sent and the broker has not received yet."""
    is_taken: bool = False
    """True if the broker has received the CONNECT."""
    is_open: bool = True
    """True while bytes of the client reach the broker."""
    is_heard: bool = True
    """True while bytes of the broker reach the client."""


class MqttClient:
    """A client's application: one process, which restarts without memory after a clean start."""

    def __init__(self, id: str, ledger: ClientLedger) -> None:
        self.id = id
        self.ledger = ledger
        self.settings = ClientSettings(
            client_id=id, clean=False, session_expiry_s=EXPIRY_DEFAULT_S, keep_alive_s=0
        )
        self.session: ClientSession | None = None
        self.line: Line | None = None
        self.broker = ""
        """The broker where the client is, or wants to be."""
        self.attempt = 0
        """Rises with every attach and leave of the story, so that older attempts are not retried."""
        self.retries = 0
        self.publishing: dict[int, Message] = {}
        """Unacknowledged publishes by token."""
        self.clears: list[Message] = []
        """Unsent QoS 0 publishes without a payload, since packets on the wire cannot be identified."""

    def sent(self, packet: packets.Publish, ledger: Ledger) -> Message | None:
        """Return the message of the PUBLISH with this packet id."""
        if packet.payload:
            return ledger.message_of(packet.payload)
        if packet.packet_id:
            assert self.session is not None
            return self.publishing[self.session.outgoing.token_of(packet.packet_id)]
        message = next(one for one in self.clears if one.topic == packet.topic)
        self.clears.remove(message)
        return message

    def begin(self) -> ClientSession:
        """Start a process without any memory."""
        for message in self.publishing.values():
            message.is_abandoned = message.is_abandoned or message.acknowledged_at is None
        self.publishing, self.clears = {}, []
        self.session = ClientSession(self.settings)
        return self.session


class MqttAccess:
    def __init__(
        self, network: MqttNetwork, ledger: Ledger, drains: Mapping[str, list[tuple[float, str]]]
    ) -> None:
        """`drains` holds when each broker is drained, and to which other one."""
        self.ledger = ledger
        self.clients: dict[str, MqttClient] = {}
        self._network = network
        self._settings = network.settings.mqtt or MqttSettings()
        self._drains = drains
        self._rng = network.rng_for("access")
        self._lines: dict[int, Line] = {}
        self._made = 0
        self._waiting: dict[str, str] = {}
        """Clients that wait for a broker that is down."""
        self._plain_qos_0_at = ""
        """The broker whose current step received only QoS 0 publishes."""

    # --- what applications do ---

    def act(self, client: str, item: Input) -> None:
        one = self._client(client)
        match item:
            case AttachTo():
                self._attach(one, item)
            case LeaveFor():
                self._leave(one, item)
            case PublishMessage():
                self._publish(one, item)
            case SubscribeFilter():
                self._subscribe(one, item)
            case UnsubscribeFilter(filter):
                self._session(one).unsubscribe(packets.Unsubscribe(0, (filter,)))
            case MoveTo(values):
                move = packets.Publish(CONTROL_TOPIC, write_move(dict(values)), 1)
                self._session(one).publish(move)
        self._flush(one)

    def _client(self, id: str) -> MqttClient:
        if id not in self.clients:
            self.clients[id] = MqttClient(id, self.ledger.client(id))
        return self.clients[id]

    def _session(self, client: MqttClient) -> ClientSession:
        return client.session or client.begin()

    def _publish(self, client: MqttClient, item: PublishMessage) -> None:
        session, now = self._session(client), self._network.now
        attributes: dict[str, Any] = {"topic": item.topic}
        properties = None
        if client.settings.version == 5:
            for name, value in item.properties:
                attributes[name] = int(value) if value.isdigit() else value
            if item.properties or item.expiry_s is not None:
                properties = PublishProperties(message_expiry=item.expiry_s, user_properties=item.properties)
        for _ in range(item.times):
            publish = packets.Publish(item.topic, b"", item.qos, item.retain, properties=properties)
            message = self.ledger.publish(client.id, publish, attributes, now)
            message.is_clear = item.is_clear
            client.clears += [message] if item.is_clear and not item.qos else []
            payload = b"" if item.is_clear else f"{message.key} ".encode().ljust(item.size, b".")
            token = session.new_token()
            client.publishing[token] = message
            self._on_events(client, session.publish_burst(token, publish, (payload,)))

    def _subscribe(self, client: MqttClient, item: SubscribeFilter) -> None:
        entry = SubscriptionEntry(
            item.filter, item.qos, item.no_local, item.retain_as_published, item.retain_handling
        )
        told = ((WHERE, item.where),) if item.where else ()
        packet = packets.Subscribe(0, (entry,), item.identifier, told)
        if client.settings.version == 4:
            packet = packets.Subscribe(0, (SubscriptionEntry(item.filter, item.qos),))
        self._session(client).subscribe(packet)

    # --- coming and going ---

    def _attach(self, client: MqttClient, item: AttachTo) -> None:
        self._break_off(client)
        client.attempt += 1
        client.retries = 0
        session = client.session
        if isinstance(item, Connect):
            client.settings = self._settings_of(client, item)
        if session is None or (isinstance(item, Connect) and item.clean):
            session = client.begin()
        session.settings = msgspec.structs.replace(
            client.settings, clean=session.settings.clean, version=session.version
        )
        if client.broker and client.broker != item.broker:
            client.ledger.moved_at.append(self._network.now)
        client.broker = item.broker
        self._open(client)

    def _settings_of(self, client: MqttClient, item: Connect) -> ClientSettings:
        old = client.settings
        is_new = client.session is None or item.clean
        return msgspec.structs.replace(
            old,
            version=item.version if item.version is not None and is_new else old.version,
            clean=item.clean,
            session_expiry_s=old.session_expiry_s if item.expiry_s is None else item.expiry_s,
            receive_maximum=old.receive_maximum if item.window is None else item.window,
            keep_alive_s=old.keep_alive_s if item.keep_alive_s is None else item.keep_alive_s,
            says_what_it_has=old.says_what_it_has if item.says is None else bool(item.says),
            will=item.will,
        )

    def _open(self, client: MqttClient) -> None:
        """Connect to the broker that the client has chosen, once it runs."""
        network = self._network
        if network.is_gone(client.broker):
            client.broker = next(id for id in network.topology.brokers if not network.is_gone(id))
        if network.is_down(client.broker):
            self._waiting[client.id] = client.broker
            return
        self._made += 1
        number, session = self._made, self._session(client)
        will = session.settings.will
        noted = Connection(
            number, client.broker, network.now, is_clean=False, expiry_s=self._expiry_of(session)
        )
        if will is not None:
            noted.will = self.ledger.will(client.id, will, number, network.now)
            noted.will_delay_s = will.delay
            told = msgspec.structs.replace(will, payload=f"{noted.will.key} ".encode())
            session.settings = msgspec.structs.replace(session.settings, will=told)
        noted.has_small_window = session.settings.receive_maximum < WINDOW_DEFAULT
        client.ledger.connections.append(noted)
        up, down = (
            Link(network.settings.access_delay, network.rng_for(client.id, str(number), way))
            for way in ("up", "down")
        )
        client.line = self._lines[number] = Line(client, client.broker, up, down, noted)
        session.begin(network.now)
        self._flush(client)

    def _expiry_of(self, session: ClientSession) -> float:
        settings = session.settings
        if session.version == 4:
            return 0.0 if settings.clean else FOR_EVER_S
        return float(settings.session_expiry_s)

    def _leave(self, client: MqttClient, item: LeaveFor) -> None:
        client.attempt += 1
        self._waiting.pop(client.id, None)
        line, session = client.line, client.session
        if line is None or session is None:
            return
        if not isinstance(item, Disconnect) or not session.is_connected:
            self._break_off(client)
            return
        if item.with_will and session.version == 5:
            reason = Reason.DISCONNECT_WITH_WILL_MESSAGE
            last = write(packets.Disconnect(reason, item.expiry_s), 5)
        elif session.version == 4:
            last = write(packets.Disconnect(), 4)
        else:
            session.leave(item.destination, item.expiry_s)
            last = b""
        if item.expiry_s is not None and session.version == 5 and line.noted.expiry_s:
            line.noted.expiry_s = float(item.expiry_s)
        line.noted.has_said_goodbye = not (item.with_will and session.version == 5)
        self._flush(client, last)
        self._end_line(line)
        session.cut()
        if item.destination:
            client.broker = item.destination

    def _break_off(self, client: MqttClient) -> None:
        """Let the client leave silently; the broker notices later."""
        self._waiting.pop(client.id, None)
        line = client.line
        if line is None:
            return
        line.is_open = False
        self._end_line(line)
        if client.session is not None:
            client.session.cut()
        delay = self._network.settings.notice_delay
        notice_s = delay.low_s + (delay.high_s - delay.low_s) * self._rng.random()
        self._network.push(self._network.now + notice_s, self._notice, line, None)

    def _notice(self, line: Line, _: None) -> None:
        line.noted.noticed_at = min(line.noted.noticed_at, self._network.now)
        if line.is_taken and line.noted.number in self._lines:
            self._network.step(line.broker, (ConnectionLost(line.noted.number),))

    def _end_line(self, line: Line) -> None:
        """End the client's side of the connection."""
        line.is_heard = False
        line.noted.left_at = min(line.noted.left_at, self._network.now)
        if line.client.line is line:
            line.client.line = None

    def broker_crashed(self, broker: str) -> None:
        for number, line in list(self._lines.items()):
            if line.broker != broker:
                continue
            del self._lines[number]
            line.is_open = False
            if line.is_heard:
                self._end_line(line)
                if line.client.session is not None:
                    line.client.session.cut()
                self._waiting[line.client.id] = broker

    def broker_started(self, broker: str) -> None:
        for client, wanted in list(self._waiting.items()):
            if wanted == broker:
                del self._waiting[client]
                self._open(self.clients[client])

    def _try_again(self, client: MqttClient, attempt: int) -> None:
        if client.attempt != attempt or client.line is not None or client.id in self._waiting:
            return
        # While a broker is down that may hold the session, clients are refused, however long that is.
        client.retries += self.ledger.is_calm(self._network.now, self._network.now)
        if client.retries > RETRIES_MAX:
            self.ledger.wrong("never served", f"{client.id} tried {RETRIES_MAX} times at {client.broker}")
            return
        self._open(client)

    # --- bytes to brokers ---

    def _flush(self, client: MqttClient, last: bytes = b"") -> None:
        """Write the pending output of the client machine."""
        line, session, now = client.line, client.session, self._network.now
        if line is None or session is None:
            return
        data = session.take_out(now) + last
        if data:
            self._note_sent(client, line, data)
            line.waiting_bytes += len(data)
            for part in self._parts(data):
                self._network.push(line.up.arrival_s(now, len(part)), self._arrive_up, line, part)
        deadline = session.deadline()
        if deadline is not None:
            self._network.push(max(deadline, now), self._on_time, line, None)

    def _parts(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self._rng.random() >= CUT_SHARE:
            return [data]
        place = self._rng.randrange(1, len(data))
        return [data[:place], data[place:]]

    def _on_time(self, line: Line, _: None) -> None:
        client = line.client
        if client.line is line and client.session is not None:
            self._on_events(client, client.session.on_time(self._network.now))
            self._flush(client)

    def _arrive_up(self, line: Line, data: bytes) -> None:
        if not line.is_open or line.noted.number not in self._lines:
            return
        number = line.noted.number
        if not line.is_taken:
            line.begun += data
            whole = cut(line.begun, 0, PACKET_MAX)
            if whole is None:
                return
            first, start, end = whole
            connect = parse(first, line.begun[start:end], line.client.settings.version)
            assert isinstance(connect, packets.Connect)
            line.is_taken, data, line.begun = True, line.begun[end:], b""
            line.waiting_bytes -= end
            connected = ClientConnected(number, connect, Identity(line.client.id))
            self._network.step(line.broker, (connected,))
        if data:
            is_welcome = line.noted.welcome_at <= self._network.now
            if is_welcome and not line.begun and _is_plain_qos_0(data):
                self._plain_qos_0_at = line.broker
            line.begun = _rest_of(line.begun + data)
            self._network.step(line.broker, (ClientFrames(number, data),))
            self._plain_qos_0_at = ""
            line.waiting_bytes -= len(data)
            is_last = line.noted.has_said_goodbye and not line.waiting_bytes
            line.noted.is_goodbye_heard = is_last and not self._network.is_down(line.broker)

    def _note_sent(self, client: MqttClient, line: Line, data: bytes) -> None:
        """Record packets that leave the client; it always writes whole packets."""
        now = self._network.now
        version = client.settings.version if client.session is None else client.session.version
        for first, start, end in _whole_packets(data):
            if first >> 4 not in (1, 3, 8, 10):
                continue
            packet = parse(first, data[start:end], version)
            match packet:
                case packets.Connect():
                    line.noted.is_clean = packet.clean_start
                case packets.Publish() if packet.topic == CONTROL_TOPIC:
                    if client.ledger.life is not None:
                        place = str(read_move(packet.payload)[PLACE])
                        client.ledger.life.places.append((now, place))
                case packets.Publish():
                    self._note_publish(client, line, packet)
                case packets.Subscribe():
                    line.asked[packet.packet_id] = asked = _asked_by(packet)
                    self.ledger.subscribe(client.id, asked, now)
                case packets.Unsubscribe(packet_id, (name,)):
                    line.asked[packet_id] = UnsubscribeFilter(name)
                    self.ledger.unsubscribe(client.id, name, now)

    def _note_publish(self, client: MqttClient, line: Line, packet: packets.Publish) -> None:
        message = client.sent(packet, self.ledger)
        if message is None:
            what = f"{client.id} published {packet.payload!r}, which its application did not request"
            self.ledger.wrong("client", what)
            return
        life = client.ledger.life
        sending = Sending(self._network.now, line.noted.number, line.broker, life.number if life else -1)
        message.sendings.append(sending)

    # --- bytes to clients ---

    def look(self, broker: str, effects: MachineEffects) -> None:
        """Check before a step is performed that nothing of QoS 0 is journalled."""
        if self._plain_qos_0_at == broker and effects.durable:
            self.ledger.wrong("journalled", f"{broker} journalled QoS 0: {effects.durable}")

    def take(self, broker: str, effects: MachineEffects) -> None:
        for number, parts in effects.writes.items():
            line = self._lines.get(number)
            if line is not None:
                for part in self._parts(b"".join(parts)):
                    self._push_down(line, part)
        for number in effects.closes:
            line = self._lines.pop(number, None)
            if line is not None:
                line.is_open = False
                line.noted.is_closed_by_broker = True
                line.noted.noticed_at = min(line.noted.noticed_at, self._network.now)
                self._push_down(line, b"")

    def _push_down(self, line: Line, data: bytes) -> None:
        at = line.down.arrival_s(self._network.now, len(data))
        self._network.push(at, self._arrive_down, line, data)

    def _arrive_down(self, line: Line, data: bytes) -> None:
        """Handle bytes from the broker; no bytes mean that it closed the connection."""
        client = line.client
        session = client.session
        if not line.is_heard or client.line is not line or session is None:
            return
        if data:
            self._on_events(client, session.receive(self._network.now, data))
            while len(session.incoming):
                self._on_publish(client, line, session.take())
            self._flush(client)
            return
        self._end_line(line)
        session.cut()
        again_at = self._network.now + RETRY_S * (1 + self._rng.random())
        self._network.push(again_at, self._try_again, client, client.attempt)

    def _on_events(self, client: MqttClient, events: list[Event]) -> None:
        for event in events:
            match event:
                case Accepted(connack):
                    self._on_accepted(client, connack)
                case ConnectRefused(reason, text):
                    self._on_refused(client, reason, text)
                case Ended(reason, text):
                    self._on_ended(client, reason, text)
                case Acknowledged(token, reason):
                    self._on_acknowledged(client, token, reason)
                case Granted():
                    self._on_granted(client, event)

    def _on_acknowledged(self, client: MqttClient, token: int, reason: Reason) -> None:
        message = client.publishing.pop(token, None)
        if message is None:
            return
        if reason == Reason.UNSPECIFIED_ERROR:
            message.is_abandoned = True  # Its session was gone: nobody knows what became of it.
        message.reason = reason
        message.acknowledged_at = self._network.now if message.qos else None

    def _on_granted(self, client: MqttClient, event: Granted) -> None:
        assert client.line is not None
        asked, now = client.line.asked.pop(event.packet_id), self._network.now
        if isinstance(asked, UnsubscribeFilter):
            self.ledger.unsubscribed(client.id, asked.filter, now)
            return
        (reason,) = event.reasons
        self.ledger.granted(client.id, asked, reason, now, self._settings.settle_timeout_s)

    def _on_accepted(self, client: MqttClient, connack: packets.Connack) -> None:
        assert client.line is not None
        assert client.session is not None
        client.retries = 0
        noted, now = client.line.noted, self._network.now
        # Sessions that stand in take QoS 1 at most, which MQTT 3.1.1 does not tell.
        is_unsaid = client.session.version < 5 and not (
            connack.session_present or self.ledger.is_calm(now, now)
        )
        noted.stands_in = connack.maximum_qos < 2 or is_unsaid
        client.ledger.welcomed(noted, connack.session_present, self.ledger, now)
        client.session.settings = msgspec.structs.replace(client.session.settings, clean=False)

    def _on_refused(self, client: MqttClient, reason: Reason, text: str) -> None:
        self.ledger.refused.append((self._network.now, client.id, client.broker, reason))
        if reason == Reason.NOT_AUTHORIZED and client.session is not None:
            # A rule denies its will.
            client.session.settings = msgspec.structs.replace(client.session.settings, will=None)
        self._go_on(client)

    def _go_on(self, client: MqttClient) -> None:
        """Move a client of a drained broker to the broker that it is referred to. This includes clients of
        MQTT 3.1.1: no packet refers them, so their users move them.
        """
        drained = [to for at, to in self._drains.get(client.broker, ()) if at <= self._network.now]
        client.broker = drained[-1] if drained else client.broker

    def _on_ended(self, client: MqttClient, reason: Reason, text: str) -> None:
        if reason == Reason.USE_ANOTHER_SERVER:
            self._go_on(client)
        elif reason == Reason.ADMINISTRATIVE_ACTION:
            client.ledger.session_is_back(self._network.now)
        elif client.ledger.life is not None and client.ledger.life.is_doubtful:
            pass  # It may have answered what another session sent under the same packet id.
        elif reason != Reason.SESSION_TAKEN_OVER:
            self.ledger.wrong("closed", f"{client.id} at {client.broker}: {reason.name} {text}")

    def _on_publish(self, client: MqttClient, line: Line, publish: packets.Publish) -> None:
        client.ledger.delivered(self.ledger, publish, line.noted.number, self._network.now)

    # --- for those who look on ---

    def is_attached(self, client: str) -> bool:
        one = self.clients.get(client)
        return one is not None and one.session is not None and one.session.is_connected

    def asked(self) -> Mapping[str, int]:
        return {}

    def wrongs(self) -> Iterator[tuple[str, str]]:
        yield from self.ledger.wrongs
        for client, broker in self._waiting.items():
            yield "in flight at the end", f"{client} waits for {broker}, which is down"


def _asked_by(packet: packets.Subscribe) -> SubscribeFilter:
    (entry,) = packet.entries
    return SubscribeFilter(
        entry.filter, entry.qos, entry.no_local, entry.retain_handling, packet.subscription_identifier,
        dict(packet.user_properties).get(WHERE, ""), entry.retain_as_published,
    )  # fmt: skip


def _whole_packets(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Return the first byte of each whole packet, and where its body begins and ends."""
    end = 0
    while end < len(data) and (whole := cut(data, end, PACKET_MAX)) is not None:
        yield whole
        end = whole[2]


def _rest_of(data: bytes) -> bytes:
    """Return the bytes after the last whole packet."""
    ends = [end for _, _, end in _whole_packets(data)]
    return data[ends[-1] :] if ends else data


def _is_plain_qos_0(data: bytes) -> bool:
    """Return whether these are whole packets, and all of them plain QoS 0 publishes."""
    return not _rest_of(data) and all(first == QOS_0_PUBLISH for first, _, _ in _whole_packets(data))
