"""MQTT connections of the daemon: sockets on one side, inputs of the site on the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol, cast

import msgspec

from roamcast.broker.inputs import ClientConnected, ClientFrames, ClientSlowed, ConnectionLost, MachineInput
from roamcast.config.addresses import join_endpoint
from roamcast.config.sections import Listener
from roamcast.mqtt.codec.errors import PacketError, protocol_error
from roamcast.mqtt.codec.packets import Auth, Connect
from roamcast.mqtt.codec.reading import CONNECT, Limits, cut, parse, parse_connect
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import refusal, write
from roamcast.mqtt.server.welcoming import keep_alive_of, refused
from roamcast.net.buffered import SHARED_BYTES_MIN, Buffered, joined
from roamcast.net.handshake import line
from roamcast.net.strangers import Stranger
from roamcast.net.tls import PeerCertificate

if TYPE_CHECKING:
    from roamcast.net.admission import Admitted

log = logging.getLogger("roamcast.clients")

KEEP_ALIVE_GRACE = 1.5
FULL_READ_BYTES = 200_000
"""After a larger read asyncio would read again at once, and other connections would wait."""
DISCARDED_BYTES_MAX = 4 << 20
HIGH_WATER_BYTES = 65_536
"""Bytes that may wait in a transport's buffer. Transports may copy them, with TLS and WebSocket."""
LINGER_S = 5.0
"""Seconds that the last bytes may take to reach the client, and the client may take to close."""


class Budget:
    """How much a client may send: notifications and bytes per second, and a burst after a pause."""

    def __init__(
        self, count: Callable[[], int], per_s: float | None, burst: int, bytes_per_s: float | None
    ) -> None:
        self._count = count
        """Notifications received so far."""
        self._counted = 0
        self._rates = (per_s or float("inf"), bytes_per_s or float("inf"))
        self._burst = (float(burst), bytes_per_s or float("inf"))
        self._left = list(self._burst)
        self._at_s = 0.0

    def spend(self, now_s: float, size: int) -> float:
        """Seconds to pause reading after receiving `size` bytes."""
        counted = self._count()
        spent, self._counted = (counted - self._counted, size), counted
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        pause_s = 0.0
        for i, rate in enumerate(self._rates):
            if rate != float("inf"):
                self._left[i] = min(self._burst[i], self._left[i] + elapsed_s * rate) - spent[i]
                pause_s = max(pause_s, -self._left[i] / rate)
        return pause_s


def _ignore(data: bytes) -> None:
    """Discard output: the connection is closed."""


class ConnectionRefused(Exception):
    """A client is refused."""

    def __init__(self, reason: Reason, text: str, reference: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.reference = reference
        """Address of a broker that accepts the client; "" if unknown."""


def without_secrets(connect: Connect, answer: bytes = b"") -> Connect:
    """Return a copy of an accepted CONNECT that may be journalled: without secrets, and with the answer of
    the CONNACK for a client that authenticates step by step."""
    return msgspec.structs.replace(connect, password=None, authentication_data=answer or None)


def auth(method: str | None, data: bytes, reason: Reason = Reason.CONTINUE_AUTHENTICATION) -> bytes:
    return write(Auth(reason, method, data), 5)


def answer_in(packet: Auth, method: str | None) -> bytes:
    """Return the client's answer to a challenge; raise PacketError if the packet is none."""
    if packet.reason is not Reason.CONTINUE_AUTHENTICATION or packet.authentication_method != method:
        raise protocol_error("an AUTH must use the method of the CONNECT")
    return packet.authentication_data or b""


class Door(Protocol):
    """Interface of the server for its connections."""

    connect_packet_max: int
    limits: Limits
    keep_alive_max_s: int
    buffered: Buffered

    @property
    def output_bytes_max(self) -> int:
        """Unsent bytes allowed for one client."""

    def push(self, item: MachineInput) -> None: ...
    def take(self, item: ClientFrames, now_s: float) -> None:
        """Take bytes that a client sent, with their time."""

    def opened(self, client: ClientConnection) -> int:
        """Return a number for the connection; raise ConnectionRefused if there are too many."""

    def lost(self, client: ClientConnection) -> None: ...
    def came_in(self, id: int) -> Budget | None:
        """Note that a connection was admitted; return how fast it may send, None for no limit."""

    def count_refusal(self, reason: Reason) -> None:
        """Note that a client was refused before it was admitted."""

    def admits_at_once(self, connect: Connect) -> bool:
        """True if `admit` waits for nothing: where many clients come, a task for each costs much."""

    async def admit(self, client: ClientConnection, connect: Connect) -> Admitted:
        """Authenticate a client; raise ConnectionRefused if it is refused."""


class ClientConnection(asyncio.Protocol):
    """One client connection, from its first byte to its end."""

    __slots__ = (
        "_admission", "_asked", "_backlog", "_backlog_bytes", "_budget", "_discarded", "_door", "_first",
        "_has_unread", "_is_clogged", "_is_finished", "_is_held", "_is_paused", "_is_slow", "_linger",
        "_method",
        "_pauses", "_push", "_source", "_take", "address", "admitted", "host", "id", "is_noted",
        "keep_alive_s", "last_heard_s", "listener", "received_bytes",
        "sent_bytes", "stranger", "transport", "why", "write",
    )  # fmt: skip

    def __init__(
        self, door: Door, listener: Listener, stranger: Stranger, source: tuple[str, int] | None = None
    ) -> None:
        self._door = door
        self._source = source
        """Address of the client behind a load balancer."""
        self.stranger = stranger
        """Entry in the count of connections without CONNECT; `SETTLED` once this one is admitted."""
        self._push = door.push
        self._take = door.take
        self.listener = listener
        self.address = self.host = ""
        self.id = 0
        self.transport: asyncio.Transport | None = None
        self.write: Callable[[bytes], None] = _ignore
        """The transport's `write` while the connection is open."""
        self.keep_alive_s = 0.0
        self.last_heard_s = 0.0
        self.received_bytes = self.sent_bytes = 0
        self.is_noted = False
        """True once the end of the connection was logged."""
        self.why = ""
        """Why this side closed the connection, if it did."""
        self._first: bytes | None = b""
        """Bytes that arrived before the CONNECT was complete; None once it has been accepted."""
        self._admission: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[bytes] | None = None
        """Future of the client's next AUTH packet, while expected."""
        self._method: str | None = None
        """Authentication method of a client that authenticates step by step."""
        self.admitted: Admitted | None = None
        """Proof of the client's identity, once it is admitted."""
        self._budget: Budget | None = None
        self._is_finished = False
        """True once the last bytes were written: further input is discarded."""
        self._linger: asyncio.TimerHandle | None = None
        """Ends a connection whose client does not close it after the last bytes."""
        self._discarded = 0
        """Number of discarded bytes."""
        self._backlog: deque[bytes] | None = None
        """Output held back while the transport's buffer is full; created on demand."""
        self._backlog_bytes = 0
        self._is_paused = False
        """True while the transport's buffer is full."""
        self._is_slow = False
        """True while so many bytes wait that no QoS 0 messages are added."""
        self._is_clogged = False
        """True while reading is paused because the client does not read its answers."""
        self._has_unread = False
        """True if the site has packets of this client to process then."""
        self._is_held = False
        """True while the server pauses reading."""
        self._pauses = 0
        """Other reasons to pause reading."""

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Transports of some event loops are not of asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)
        self.write = self.transport.write
        self.transport.set_write_buffer_limits(high=min(HIGH_WATER_BYTES, self._door.output_bytes_max))
        self.last_heard_s = monotonic()
        self.host, self.address = self.stranger.host, self.stranger.address
        if self._source is not None:
            self.host, self.address = self._source[0], join_endpoint(*self._source)
        self.stranger.leave = self.drop
        try:
            self.id = self._door.opened(self)
        except ConnectionRefused:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_finished:
            self._discard(len(data))
        elif self._first is None:
            self.last_heard_s = now_s = monotonic()
            size = len(data)
            self.received_bytes += size
            self._take(ClientFrames(self.id, data), now_s)
            if self._budget is not None:
                self._spend(self._budget, size)
            if size > FULL_READ_BYTES:
                self.hold_back()
        elif self.id:
            self._first += data
            if self._admission is None:
                self._read_connect()
            elif self._asked is not None:
                self._read_auth()
            elif self._pauses == 0:
                self._pause()  # Read no more until the client is authenticated.

    def connection_lost(self, error: Exception | None) -> None:
        self.write = _ignore
        self._forget_backlog()
        if self._linger is not None:
            self._linger.cancel()
        if self._admission is not None:
            self._admission.cancel()
        if self._first is None:
            self._push(ConnectionLost(self.id))
        if self.id:
            self._door.lost(self)

    def pause_writing(self) -> None:
        self._is_paused = True
        if not self._is_finished:
            self.write = self._keep
            self._look_how_slow()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._is_finished or self.transport is None:
            return
        while self._backlog and not self._is_paused:
            self.transport.write(self._next_of_backlog(self._backlog))
        if not self._is_paused:
            self.write = self.transport.write
        waiting = self.waiting_bytes
        if self._is_clogged and waiting <= self._door.output_bytes_max:
            self._is_clogged = False
            self._read_on()
            if self._has_unread:
                self._has_unread = False
                self._push(ClientFrames(self.id, b""))
        if self._is_slow and waiting <= self._door.output_bytes_max // 2:
            self._is_slow = False
            self._push(ClientSlowed(self.id, is_slow=False))

    # --- reading, or not for now ---

    def _spend(self, budget: Budget, size: int) -> None:
        """Pause reading from a client that sends faster than its limit."""
        pause_s = budget.spend(monotonic(), size)
        if pause_s > 0:
            self._pause()
            asyncio.get_running_loop().call_later(pause_s, self._read_on)

    def hold_back(self) -> bool:
        """Stop reading until the next turn is over; return whether that turn may process the input read so
        far."""
        self._pause()
        asyncio.get_running_loop().call_soon(self._read_on)
        self._has_unread = self._is_clogged
        return not self._is_clogged

    def hold(self) -> None:
        """Read nothing until `release`."""
        self._is_held = True
        self._read_or_not()

    def release(self) -> None:
        self._is_held = False
        self._read_or_not()

    def _pause(self) -> None:
        self._pauses += 1
        self._read_or_not()

    def _read_on(self) -> None:
        self._pauses -= 1
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self.transport is None or self.transport.is_closing() or self._is_finished:
            return
        if self._is_held or self._pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # --- coming in ---

    @property
    def certificate(self) -> PeerCertificate | None:
        """The certificate of the client that TLS has verified, if any."""
        return self.transport.get_extra_info("peercert") if self.transport is not None else None

    @property
    def certificate_der(self) -> bytes | None:
        """The certificate in DER form."""
        found = self.transport.get_extra_info("ssl_object") if self.transport is not None else None
        return cast("bytes | None", found.getpeercert(binary_form=True)) if found is not None else None

    def is_silent(self, now_s: float) -> bool:
        """True if an admitted client is overdue with its next packet."""
        limit_s = self.keep_alive_s * KEEP_ALIVE_GRACE
        return bool(limit_s) and now_s - self.last_heard_s > limit_s and not self._is_finished

    def _read_connect(self) -> None:
        first = self._first or b""
        try:
            whole = cut(first, 0, self._door.connect_packet_max)
            if first and first[0] >> 4 != CONNECT:
                raise protocol_error("the first packet is not a CONNECT")
            if whole is None:
                return
            if whole[0] & 0x0F:
                raise PacketError(Reason.MALFORMED_PACKET, "reserved flags of the CONNECT are set")
            connect = parse_connect(first[whole[1] : whole[2]], self._door.limits)
        except PacketError as error:
            log.info("%s: %s", self.address, error)
            self.finish(refusal(error))
            return
        self._first = first[whole[2] :]
        self.stranger.is_asking = True
        admission = self._admit(connect)
        if not self._door.admits_at_once(connect):
            self._admission = asyncio.get_running_loop().create_task(admission)
            return
        try:
            admission.send(None)
        except StopIteration:
            return
        raise AssertionError("an admission waits although it should not")

    async def _admit(self, connect: Connect) -> None:
        self._method = connect.authentication_method
        try:
            admitted = await self._door.admit(self, connect)
        except PacketError as error:
            log.info("%s: %s", self.address, error)
            self.finish(refused(connect, error.reason, str(error)))
            return
        except ConnectionRefused as error:
            self._door.count_refusal(error.reason)
            log.info("client %s refused (%s): %s", line(connect.client_id), self.address, error)
            self.finish(refused(connect, error.reason, str(error), error.reference))
            return
        finally:
            self._admission = None
            self.stranger.is_asking = False
            if self._pauses:
                self._read_on()
        self.admitted = admitted
        rest, self._first = self._first, None
        self._budget = self._door.came_in(self.id)
        self.keep_alive_s = keep_alive_of(connect, self._door.keep_alive_max_s)
        self.last_heard_s = monotonic()
        written = without_secrets(connect, admitted.answer)
        self._push(ClientConnected(self.id, written, admitted.identity))
        if rest:
            self._push(ClientFrames(self.id, rest))

    async def ask(self, challenge: bytes) -> bytes:
        """Send a challenge to a client that authenticates step by step; return its answer."""
        assert self._asked is None
        asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked = asked
        if self.transport is not None:
            self.transport.write(auth(self._method, challenge))
        self.stranger.is_asking = False  # The client has to answer within a time limit.
        if not self.is_admitted:
            if self._pauses:
                self._read_on()
            self._read_auth()
        try:
            return await asked
        finally:
            self._asked = None
            self.stranger.is_asking = True

    def _read_auth(self) -> None:
        """Look for the expected AUTH packet in the bytes after the CONNECT."""
        first, asked = self._first or b"", self._asked
        if asked is None or asked.done():
            return
        try:
            whole = cut(first, 0, self._door.connect_packet_max)
            if whole is None:
                return
            self._first = first[whole[2] :]
            packet = parse(whole[0], first[whole[1] : whole[2]], 5)
            if not isinstance(packet, Auth):
                raise protocol_error("an AUTH is expected here")
            asked.set_result(answer_in(packet, self._method))
        except PacketError as error:
            asked.set_exception(error)

    def answered(self, packet: Auth) -> bool:
        """Take an AUTH of an admitted client; return False if none is expected."""
        if self._asked is None or self._asked.done():
            return False
        try:
            self._asked.set_result(answer_in(packet, self._method))
        except PacketError as error:
            self._asked.set_exception(error)
        return True

    @property
    def is_admitted(self) -> bool:
        return self._first is None

    # --- going out ---

    def write_all(self, parts: list[bytes]) -> None:
        """Write two or more parts in order, and copy only small ones."""
        size = sum(map(len, parts))
        self.sent_bytes += size
        if size < SHARED_BYTES_MIN or max(map(len, parts)) < SHARED_BYTES_MIN:
            self.write(b"".join(parts))
            return
        for part in joined(parts):
            self.write(part)

    def _keep(self, data: bytes) -> None:
        """Keep output here while the transport's buffer is full, since this list copies nothing."""
        if self._backlog is None:
            self._backlog = deque()
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        self._door.buffered.add(data)
        self._look_how_slow()

    def _next_of_backlog(self, backlog: deque[bytes]) -> bytes:
        data = backlog.popleft()
        self._backlog_bytes -= len(data)
        self._door.buffered.remove(data)
        return data

    def _forget_backlog(self) -> None:
        while self._backlog:
            self._next_of_backlog(self._backlog)

    @property
    def waiting_bytes(self) -> int:
        """Unsent bytes in this object's own backlog."""
        in_transport = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return self._backlog_bytes + in_transport

    def _look_how_slow(self) -> None:
        """Send no QoS 0 to a client with much unsent output; at twice that, stop reading from it."""
        if self._is_clogged:
            return
        waiting, most = self.waiting_bytes, self._door.output_bytes_max
        if waiting > most and not self._is_slow and self._first is None:
            self._is_slow = True
            self._push(ClientSlowed(self.id, is_slow=True))
        if waiting > 2 * most:
            self._is_clogged = True
            self._pause()

    def finish(self, data: bytes = b"", lingers: bool = True) -> None:
        """Write the last bytes and close.

        Closing at once, while the client still sends, would make this machine's kernel discard the last
        bytes. So the client gets some time to close first.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self._is_finished:
            return
        self._is_finished = True
        self.write = _ignore
        # uvloop does not report that a transport was closed during its creation because its listener stops.
        with suppress(RuntimeError):
            while self._backlog:
                transport.write(self._next_of_backlog(self._backlog))
            if data:
                transport.write(data)
            if lingers and transport.can_write_eof():
                transport.write_eof()
                transport.resume_reading()
            else:
                transport.close()
        # A client that never reads the last bytes is disconnected after a while.
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def drop(self, why: str) -> None:
        """Close without sending anything."""
        self.why, self._is_finished, self.write = why, True, _ignore
        self._forget_backlog()
        if self.transport is not None:
            self.transport.abort()

    def _discard(self, size: int) -> None:
        """Discard input after the end. A client that continues to send is not waiting for the last bytes."""
        self._discarded += size
        if self._discarded > DISCARDED_BYTES_MAX and self.transport is not None:
            self.transport.abort()


def protocol_of(client: ClientConnection, listener: Listener) -> asyncio.Protocol:
    """Return the protocol for a connection to this listener: the client's, or a WebSocket around it."""
    if not listener.is_websocket:
        return client
    from roamcast.net.websocket import WebSocketConnection  # The library is loaded only where it is used.

    return WebSocketConnection(client, listener)
