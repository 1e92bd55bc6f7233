"""One MQTT client of the endpoint: packets on one side, its resident handler on the other."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from roamcast.client import ClientError, PublishError
from roamcast.errors import InputError
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.errors import PacketError, protocol_error
from roamcast.mqtt.codec.packet_ids import following
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.topics import split_shared
from roamcast.mqtt.codec.writing import write
from roamcast.proxy import messages, steps
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.mqtt_notes import (
    Subscription,
    carried_of,
    is_wanted_by,
    properties_of,
    publisher_of,
    subscriptions_of,
)
from roamcast.storage.kept_out import Who

if TYPE_CHECKING:
    from roamcast.proxy.endpoint import MqttEndpoint

PACKET_MAX = 1 << 20
PUBLISHES_MAX = 1000
"""Number of forwarded, unacknowledged publishes of one client past which reading from it pauses."""
UNSENT_BYTES_MAX = 1 << 20
"""A client with more unsent bytes gets no further messages; these stay in its buffer."""
UNSENT_PAUSE_S = 0.05
SHORT_LEASE_S = 60.0
"""Lease of a session that ends with its connection, if the proxy ends first."""
ATTACH = 1
QOS_MAX = 1
NO_QOS_2 = (
    "QoS 1: while a session moves, two brokers deliver to it, and duplicates without an identity remain"
)

REASONS: dict[messages.Code, Reason] = {
    "identity": Reason.NOT_AUTHORIZED,
    "quota": Reason.QUOTA_EXCEEDED,
}


class Session:
    """One MQTT connection, from CONNECT to its end."""

    def __init__(
        self, endpoint: MqttEndpoint, connect: packets.Connect, writer: asyncio.StreamWriter
    ) -> None:
        self.client = connect.client_id or f"auto-{secrets.token_hex(8)}"
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set when this side wants to close the connection."""
        self.is_moved = False
        """True if the client is at another site now."""
        self._endpoint, self._connect, self._writer = endpoint, connect, writer
        self._server = endpoint.server
        self._connection = self._server.new_connection()
        self._expiry_s = self._session_expiry(connect.session_expiry)
        self._requests = ATTACH
        self._answers: dict[int, asyncio.Future[messages.Message | steps.Local]] = {}
        self._filters: dict[str, Subscription] = {}
        self._waiting: deque[tuple[int, ForeignMessage]] = deque()
        self._in_flight: dict[int, int] = {}
        """Message numbers by packet id."""
        self._packet_id = 0
        self._settled: dict[int, None] = {}
        """Numbers that the client acknowledged after one that it has not acknowledged."""
        self._taken = -1
        """Number up to which the client has acknowledged everything; below 0: no message was sent yet."""
        self._told = -1
        self._is_welcome = False
        self._is_telling = False
        self._publishes: set[asyncio.Task[None]] = set()
        self._passing: dict[int, tuple[str, bool]] = {}
        """QoS 2 publishes that are not released: see buffers.py."""

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
        """Attach; return why not if that fails."""
        server, connect = self._server, self._connect
        user = (connect.username or "") if server.config.access.users else ""
        server.locals[self._connection] = self._on_local
        server.callers[self._connection] = Who("client", self.client)
        server.step([steps.Joined(self._connection, "endpoint", user)])
        attach = steps.Attach(
            ATTACH, self.client, user, secrets.token_hex(16), connect.clean_start,
            self._expiry_s or SHORT_LEASE_S,
        )  # fmt: skip
        attached = await self._ask(attach)
        if not isinstance(attached, steps.Attached):
            code = attached.code if isinstance(attached, messages.MoveRefused) else "busy"
            return REASONS.get(code, Reason.SERVER_UNAVAILABLE)
        self._filters, self._passing = subscriptions_of(attached.filters), dict(attached.passing)
        settings = self._endpoint.settings
        is_capped = self._expiry_s != float(connect.session_expiry or 0)
        self._write(
            packets.Connack(
                session_present=attached.is_present,
                session_expiry=int(self._expiry_s) if is_capped else None,
                receive_maximum=min(PUBLISHES_MAX, settings.receive_max),
                maximum_packet_size=PACKET_MAX,
                assigned_client_id=None if connect.client_id else self.client,
            )
        )
        self._is_welcome = True
        self._pump()
        return None

    def end(self) -> None:
        """Handle the end of the connection; the session stays for the agreed time."""
        server = self._server
        if server.locals.pop(self._connection, None) is None:
            return
        self._tell()
        server.step([steps.Got(self._connection, steps.Detach(self._expiry_s))])
        server.step([steps.Left(self._connection)])
        server.callers.pop(self._connection, None)
        for answer in self._answers.values():
            answer.cancel()
        if not self.over.done():
            self.over.set_result(None)

    def disconnect(self, reason: Reason) -> None:
        """Tell a client of MQTT 5 the reason; with 3.1.1 only close the connection."""
        if self._connect.version == 5:
            self._write(packets.Disconnect(reason))
        if not self.over.done():
            self.over.set_result(None)

    def _on_local(self, message: messages.Message | steps.Local) -> None:
        match message:
            case messages.Batch(first=first, messages=batch):
                if self._taken < 0:
                    self._taken = self._told = first - 1
                self._waiting.extend(enumerate(batch, first))
                self._pump()
            case messages.MoveRefused(request=request) if request == ATTACH and ATTACH not in self._answers:
                self.is_moved = True
                self.disconnect(Reason.SESSION_TAKEN_OVER)
            case steps.Attached() | steps.Done() | messages.MoveRefused():
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
            packet = self._packet_of(message)
            if packet is None or not self._write_publish(packet) or not packet.qos:
                self._settle(number)
            else:
                self._in_flight[packet.packet_id] = number

    def _packet_of(self, message: ForeignMessage) -> packets.Publish | None:
        """Return the packet; None if the client does not want it: its own publish, or an expired one."""
        now, carried = time.time(), carried_of(message)
        found = [one for filter, one in self._filters.items() if is_wanted_by(filter, message.topic)]
        if publisher_of(message) == self.client and found:
            found = [one for one in found if not one.no_local]
            if not found:
                return None
        if carried.expires and carried.expires <= now:
            return None
        # The highest requested QoS; 1 if the subscription has ended meanwhile.
        qos = max((one.qos for one in found), default=1)
        is_published_so = carried.is_retained and any(one.retain_as_published for one in found)
        return packets.Publish(
            message.topic, message.body, qos, carried.is_recalled or is_published_so, False,
            self._next_packet_id() if qos else 0, properties_of(message, carried, found, now),
        )  # fmt: skip

    def _next_packet_id(self) -> int:
        while True:
            self._packet_id = following(self._packet_id) if self._packet_id else 1
            if self._packet_id not in self._in_flight:
                return self._packet_id

    def _write_publish(self, packet: packets.Publish) -> bool:
        """Write a PUBLISH; return False if it is too large for the client: MQTT requires to leave it out."""
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

    def _write(self, packet: packets.Packet) -> None:
        if not self._writer.is_closing():
            self._writer.write(write(packet, self._connect.version))

    # --- what comes from the client ---

    async def take(self, packet: packets.Packet) -> bool:
        """Process packets; return whether the client has sent DISCONNECT."""
        match packet:
            case packets.Publish():
                await self._on_publish(packet)
            case packets.Puback(packet_id=packet_id):
                number = self._in_flight.pop(packet_id, None)
                if number is not None:
                    self._settle(number)
                    self._pump()
            case packets.Pubrel(packet_id=packet_id):
                is_known = packet_id in self._passing
                if is_known:
                    self._note_passing(packet_id, "", True)
                reason = Reason.SUCCESS if is_known else Reason.PACKET_IDENTIFIER_NOT_FOUND
                self._write(packets.Pubcomp(packet_id, reason))
            case packets.Subscribe():
                await self._on_subscribe(packet)
            case packets.Unsubscribe(packet_id=packet_id, filters=filters):
                reasons = tuple(
                    Reason.SUCCESS if filter in self._filters else Reason.NO_SUBSCRIPTION_EXISTED
                    for filter in filters
                )
                for filter in filters:
                    self._filters.pop(filter, None)
                await self._change({}, filters)
                self._write(packets.Unsuback(packet_id, reasons))
            case packets.Pingreq():
                self._write(packets.Pingresp())
            case packets.Disconnect(reason=reason, session_expiry=expiry):
                if expiry is not None:
                    self._expiry_s = self._session_expiry(expiry)
                return reason is not Reason.DISCONNECT_WITH_WILL_MESSAGE
            case _:
                raise protocol_error(f"a {type(packet).__name__} is not expected")
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            # A disconnected client may have sent acknowledgements: those received count.
            with suppress(OSError):
                await self._writer.drain()
        return False

    async def _on_publish(self, packet: packets.Publish) -> None:
        if not packet.topic or (packet.properties is not None and packet.properties.topic_alias):
            raise protocol_error("topic aliases are not supported here")
        identity, is_passed = "", False
        if packet.qos == 2:
            identity, is_passed = self._passing.get(packet.packet_id, ("", False))
            if is_passed:
                self._write(packets.Pubrec(packet.packet_id))
                return
            if len(self._passing) >= PUBLISHES_MAX:
                raise PacketError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unreleased QoS 2 publishes")
        identity = identity or self._endpoint.new_identity(self.client)
        if packet.qos == 2:
            self._note_passing(packet.packet_id, identity, False)
        task = asyncio.get_running_loop().create_task(self._pass_on(packet, identity))
        self._publishes.add(task)
        task.add_done_callback(self._publishes.discard)
        if len(self._publishes) >= PUBLISHES_MAX:
            await asyncio.wait(self._publishes, return_when=asyncio.FIRST_COMPLETED)

    def _note_passing(self, packet_id: int, identity: str, is_passed: bool) -> None:
        """Journal the publish before it is forwarded, and before the client is answered."""
        self._passing[packet_id] = identity, is_passed
        if not identity:
            del self._passing[packet_id]
        if self._connection in self._server.locals:  # Otherwise the client is gone, and repeats the publish.
            self._server.step([steps.Got(self._connection, steps.Pass(packet_id, identity, is_passed))])

    async def _pass_on(self, packet: packets.Publish, identity: str) -> None:
        try:
            await self._endpoint.publish(packet, identity)
            reason = Reason.SUCCESS
        except PublishError as error:
            reason = error.reason
        except ClientError:
            # Not acknowledged: the client repeats the publish when it reconnects.
            self.disconnect(Reason.SERVER_UNAVAILABLE)
            return
        if packet.qos == 1:
            self._write(packets.Puback(packet.packet_id, reason))
        elif packet.qos == 2:
            self._note_passing(packet.packet_id, "" if reason.failed else identity, True)
            self._write(packets.Pubrec(packet.packet_id, reason))

    async def _on_subscribe(self, packet: packets.Subscribe) -> None:
        add = {
            entry.filter: Subscription.of(entry, min(entry.qos, QOS_MAX), packet.subscription_identifier)
            for entry in packet.entries
        }
        recall = [entry.filter for entry in packet.entries if self._brings_retained(entry)]
        # Registered before the first message for these filters can arrive.
        before = dict(self._filters)
        self._filters |= add
        refused = await self._change({filter: one.note for filter, one in add.items()}, ())
        if refused is not None:
            self._filters = before
            failure = REASONS.get(refused.code, Reason.UNSPECIFIED_ERROR)
            self._write(packets.Suback(packet.packet_id, (failure,) * len(packet.entries)))
            return
        for filter in recall:
            recalled = await self._endpoint.recall(filter)
            self._server.step([steps.Got(self._connection, steps.Recalled(recalled))])
        reasons = tuple(Reason(min(entry.qos, QOS_MAX)) for entry in packet.entries)
        is_less = any(entry.qos > QOS_MAX for entry in packet.entries)
        is_heard = self._connect.version == 5 and self._connect.request_problem_information
        told = packets.AcknowledgementProperties(reason_string=NO_QOS_2) if is_less and is_heard else None
        self._write(packets.Suback(packet.packet_id, reasons, told))

    def _brings_retained(self, entry: packets.SubscriptionEntry) -> bool:
        if split_shared(entry.filter) is not None:
            return False
        is_new = entry.filter not in self._filters
        return entry.retain_handling == 0 or (entry.retain_handling == 1 and is_new)

    async def _change(self, add: dict[str, str], remove: tuple[str, ...]) -> messages.MoveRefused | None:
        self._requests += 1
        answer = await self._ask(steps.Subscribe(self._requests, add, remove))
        return answer if isinstance(answer, messages.MoveRefused) else None

    async def _ask(self, message: steps.Attach | steps.Subscribe) -> messages.Message | steps.Local:
        self._answers[message.request] = asyncio.get_running_loop().create_future()
        answer = self._answers[message.request]
        self._server.step([steps.Got(self._connection, message)])  # The answer may come at once.
        return await answer
