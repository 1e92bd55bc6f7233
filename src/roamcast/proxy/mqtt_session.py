"""One MQTT client of the endpoint: packets on one side, its resident handler on the other."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from roamcast.client import ClientError, PublishError
from roamcast.errors import InputError
from roamcast.mqtt.errors import protocol_error
from roamcast.mqtt.packet_ids import following
from roamcast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionEntry,
    Unsuback,
    Unsubscribe,
)
from roamcast.mqtt.reasons import Reason
from roamcast.mqtt.topics import matches, split_shared
from roamcast.mqtt.writing import write
from roamcast.proxy import messages, steps
from roamcast.proxy.adapter import ForeignMessage

if TYPE_CHECKING:
    from roamcast.proxy.endpoint import MqttEndpoint

PACKET_MAX = 1 << 20
PUBLISHES_MAX = 1000
"""Publishes of one client on their way to the broker; then its connection is not read."""
UNSENT_BYTES_MAX = 1 << 20
"""A client that does not read gets nothing more than this; the rest stays in its buffer."""
UNSENT_PAUSE_S = 0.05
SHORT_LEASE_S = 60.0
"""Of a session that ends with its connection, if the proxy ends first."""
ATTACH = 1

REASONS: dict[messages.Code, Reason] = {
    "identity": Reason.NOT_AUTHORIZED,
    "quota": Reason.QUOTA_EXCEEDED,
}


class Session:
    """From CONNECT to the end of the connection."""

    def __init__(self, endpoint: MqttEndpoint, connect: Connect, writer: asyncio.StreamWriter) -> None:
        self.client = connect.client_id or f"auto-{secrets.token_hex(8)}"
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is to be closed from this side."""
        self.is_moved = False
        """Whether the client is somewhere else now."""
        self._endpoint, self._connect, self._writer = endpoint, connect, writer
        self._server = endpoint.server
        self._connection = self._server.new_connection()
        self._expiry_s = self._session_expiry(connect.session_expiry)
        self._requests = ATTACH
        self._answers: dict[int, asyncio.Future[messages.Message | steps.Local]] = {}
        self._filters: dict[str, int] = {}
        self._waiting: deque[tuple[int, ForeignMessage]] = deque()
        self._in_flight: dict[int, int] = {}
        """Numbers of messages by packet id."""
        self._packet_id = 0
        self._settled: dict[int, None] = {}
        """Numbers that the client has, behind one that it has not acknowledged."""
        self._taken = -1
        """The number up to which the client has everything; below 0: nothing was for it yet."""
        self._told = -1
        self._is_welcome = False
        self._is_telling = False
        self._publishes: set[asyncio.Task[None]] = set()
        self._received: dict[int, None] = {}
        """Packet ids of QoS 2 publishes that are not yet released."""

    @property
    def is_over(self) -> bool:
        return self.over.done()

    def _session_expiry(self, asked_s: int | None) -> float:
        longest_s = self._endpoint.settings.session_s
        if self._connect.version == 4:
            return 0.0 if self._connect.clean_start else longest_s
        return min(float(asked_s or 0), longest_s)

    # --- the session ---

    async def begin(self) -> Reason | None:
        """Attach; why not, if that cannot be."""
        server, connect = self._server, self._connect
        user = (connect.username or "") if server.config.access.users else ""
        server.locals[self._connection] = self._on_local
        answer = asyncio.get_running_loop().create_future()
        self._answers[ATTACH] = answer
        attach = steps.Attach(
            ATTACH, self.client, user, secrets.token_hex(16), connect.clean_start,
            self._expiry_s or SHORT_LEASE_S,
        )  # fmt: skip
        server.step([steps.Joined(self._connection, "endpoint", user)])
        server.step([steps.Got(self._connection, attach)])
        attached = await answer
        if not isinstance(attached, steps.Attached):
            code = attached.code if isinstance(attached, messages.Refused) else "busy"
            return REASONS.get(code, Reason.SERVER_UNAVAILABLE)
        self._filters = {filter: int(note or 0) for filter, note in attached.filters.items()}
        settings = self._endpoint.settings
        is_capped = self._expiry_s != float(connect.session_expiry or 0)
        self._write(
            Connack(
                session_present=attached.is_present,
                session_expiry=int(self._expiry_s) if is_capped else None,
                receive_maximum=min(PUBLISHES_MAX, settings.receive_max),
                maximum_packet_size=PACKET_MAX,
                assigned_client_id=None if connect.client_id else self.client,
                shared_subscription_available=False,
                subscription_identifiers_available=False,
            )
        )
        self._is_welcome = True
        self._pump()
        return None

    def end(self) -> None:
        """The connection is over; the session stays for as long as was agreed."""
        server = self._server
        if server.locals.pop(self._connection, None) is None:
            return
        self._tell()
        server.step([steps.Got(self._connection, steps.Detach(self._expiry_s))])
        server.step([steps.Left(self._connection)])
        for answer in self._answers.values():
            answer.cancel()
        if not self.over.done():
            self.over.set_result(None)

    def disconnect(self, reason: Reason) -> None:
        """Tell a client of MQTT 5 why; with 3.1.1 the connection just ends."""
        if self._connect.version == 5:
            self._write(Disconnect(reason))
        if not self.over.done():
            self.over.set_result(None)

    def _on_local(self, message: messages.Message | steps.Local) -> None:
        match message:
            case messages.Batch(first=first, messages=batch):
                if self._taken < 0:
                    self._taken = self._told = first - 1
                self._waiting.extend(enumerate(batch, first))
                self._pump()
            case messages.Refused(request=request) if request == ATTACH and ATTACH not in self._answers:
                self.is_moved = True
                self.disconnect(Reason.SESSION_TAKEN_OVER)
            case steps.Attached() | steps.Done() | messages.Refused():
                request = message.request
                answer = self._answers.pop(request, None)
                if answer is not None and not answer.done():
                    answer.set_result(message)

    # --- what goes to the client ---

    def _pump(self) -> None:
        if not self._is_welcome:
            return
        window = min(self._connect.receive_maximum, self._endpoint.settings.receive_max)
        while self._waiting and len(self._in_flight) < window and not self.is_over:
            if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                asyncio.get_running_loop().call_later(UNSENT_PAUSE_S, self._pump)
                return
            number, message = self._waiting.popleft()
            qos = self._qos_of(message.topic)
            packet_id = self._next_packet_id() if qos else 0
            properties = PublishProperties(user_properties=tuple(message.headers.items()))
            packet = Publish(message.topic, message.body, qos, False, False, packet_id, properties)
            if not self._write_publish(packet) or not qos:
                self._settle(number)
            else:
                self._in_flight[packet_id] = number

    def _qos_of(self, topic: str) -> int:
        """The best that the client has asked for; 1 where a subscription has ended meanwhile."""
        found = [qos for filter, qos in self._filters.items() if matches(filter, topic)]
        return max(found, default=1)

    def _next_packet_id(self) -> int:
        while True:
            self._packet_id = following(self._packet_id) if self._packet_id else 1
            if self._packet_id not in self._in_flight:
                return self._packet_id

    def _write_publish(self, packet: Publish) -> bool:
        """Whether the client can have it at all: MQTT asks to leave out what is too large for it."""
        most = self._connect.maximum_packet_size
        try:
            data = write(packet, self._connect.version)
        except InputError:
            return False
        if most is not None and len(data) > most:
            return False
        self._writer.write(data)
        return True

    def _settle(self, number: int) -> None:
        self._settled[number] = None
        while self._taken + 1 in self._settled:
            self._taken += 1
            del self._settled[self._taken]
        if not self._is_telling:
            # Once for all acknowledgements of one read.
            self._is_telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        if self._taken > self._told:
            self._told = self._taken
            self._server.step([steps.Got(self._connection, messages.Taken(ATTACH, self._taken))])

    def _write(self, packet: Packet) -> None:
        if not self._writer.is_closing():
            self._writer.write(write(packet, self._connect.version))

    # --- what comes from the client ---

    async def take(self, packet: Packet) -> bool:
        """Whether the client has taken its leave."""
        match packet:
            case Publish():
                await self._on_publish(packet)
            case Puback(packet_id=packet_id):
                number = self._in_flight.pop(packet_id, None)
                if number is not None:
                    self._settle(number)
                    self._pump()
            case Pubrel(packet_id=packet_id):
                self._received.pop(packet_id, None)
                self._write(Pubcomp(packet_id))
            case Subscribe():
                await self._on_subscribe(packet)
            case Unsubscribe(packet_id=packet_id, filters=filters):
                for filter in filters:
                    self._filters.pop(filter, None)
                await self._change({}, filters)
                self._write(Unsuback(packet_id, (Reason.SUCCESS,) * len(filters)))
            case Pingreq():
                self._write(Pingresp())
            case Disconnect(reason=reason, session_expiry=expiry):
                if expiry is not None:
                    self._expiry_s = self._session_expiry(expiry)
                return reason is not Reason.DISCONNECT_WITH_WILL_MESSAGE
            case _:
                raise protocol_error(f"a {type(packet).__name__} is not expected")
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            # A client that is gone may have sent acknowledgements first: those that are here count.
            with suppress(OSError):
                await self._writer.drain()
        return False

    async def _on_publish(self, packet: Publish) -> None:
        if not packet.topic or (packet.properties is not None and packet.properties.topic_alias):
            raise protocol_error("topic aliases are not taken here")
        if packet.qos == 2 and packet.packet_id in self._received:
            self._write(Pubrec(packet.packet_id))
            return
        if packet.qos == 2:
            self._received[packet.packet_id] = None
        task = asyncio.get_running_loop().create_task(self._pass_on(packet))
        self._publishes.add(task)
        task.add_done_callback(self._publishes.discard)
        if len(self._publishes) >= PUBLISHES_MAX:
            await asyncio.wait(self._publishes, return_when=asyncio.FIRST_COMPLETED)

    async def _pass_on(self, packet: Publish) -> None:
        try:
            await self._endpoint.publish(self.client, packet)
            reason = Reason.SUCCESS
        except PublishError as error:
            reason = error.reason
        except ClientError:
            # Not acknowledged: the client publishes it again when it is back.
            self.disconnect(Reason.SERVER_UNAVAILABLE)
            return
        if packet.qos == 1:
            self._write(Puback(packet.packet_id, reason))
        elif packet.qos == 2:
            self._write(Pubrec(packet.packet_id, reason))

    async def _on_subscribe(self, packet: Subscribe) -> None:
        add = {}
        reasons = []
        for entry in packet.entries:
            reason = self._verdict(packet, entry)
            reasons.append(reason)
            if not reason.failed:
                add[entry.filter] = str(int(reason))
        # Known before the first message can come for them.
        before = dict(self._filters)
        self._filters |= {filter: int(qos) for filter, qos in add.items()}
        refused = await self._change(add, ()) if add else None
        if refused is not None:
            self._filters = before
            failure = REASONS.get(refused.code, Reason.UNSPECIFIED_ERROR)
            reasons = [reason if reason.failed else failure for reason in reasons]
        self._write(Suback(packet.packet_id, tuple(reasons)))

    def _verdict(self, packet: Subscribe, entry: SubscriptionEntry) -> Reason:
        if self._connect.version == 5 and split_shared(entry.filter) is not None:
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if packet.subscription_identifier is not None:
            return Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
        if entry.no_local:
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR
        return Reason(min(entry.qos, 1))

    async def _change(self, add: dict[str, str], remove: tuple[str, ...]) -> messages.Refused | None:
        self._requests += 1
        request = self._requests
        answer = self._answers[request] = asyncio.get_running_loop().create_future()
        self._server.step([steps.Got(self._connection, steps.Subscribe(request, add, remove))])
        found = await answer
        return found if isinstance(found, messages.Refused) else None
