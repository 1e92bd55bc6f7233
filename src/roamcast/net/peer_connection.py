"""One connection between two brokers: bytes in, frames out, and signs of life."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from time import monotonic
from typing import Literal, Protocol, cast

from roamcast.broker.links.end import LinkError
from roamcast.broker.links.frames import FrameCutter
from roamcast.config.addresses import is_loopback, join_endpoint
from roamcast.errors import InputError
from roamcast.net.clients import Budget
from roamcast.net.handshake import STRANGER_BYTES_MAX, Ended, HandshakeHello
from roamcast.net.sealing import LinkKeys, Opener, Sealer
from roamcast.net.tls import has_fingerprint, is_broker

WRITE_BYTES_HIGH = 4 * 1024 * 1024
"""With more unsent bytes than this, writers should wait until most of them are sent."""
TURN_BYTES = 16 * 1024
"""Bytes that one turn takes from one peer at first; the frame that exceeds it is taken whole."""
TURN_BYTES_MIN, TURN_BYTES_MAX = 4 * 1024, 64 * 1024
"""Bounds of this number."""
TURN_S = 0.02
"""Target duration of a turn that leaves frames for the next one. The number of bytes is adapted to it: 64 KiB
are 1,200 requests for sessions, or a few bursts of notifications."""


def next_turn_bytes(turn_bytes: int, turn_s: float) -> int:
    """Return how many bytes to take next, after a turn of this duration with `turn_bytes`."""
    if turn_s > TURN_S:
        return max(TURN_BYTES_MIN, turn_bytes // 2)
    if turn_s < TURN_S / 3:
        return min(TURN_BYTES_MAX, turn_bytes * 2)
    return turn_bytes


class Owner(Protocol):
    """The owner of the connections: `Peers`."""

    def arrived(self, connection: PeerConnection, frames: bytes) -> None:
        """Handle frames. A LinkError closes the connection, and delays the next attempt."""

    def heartbeat(self, connection: PeerConnection) -> bytes: ...
    def writable(self, connection: PeerConnection) -> None: ...
    def lost(self, connection: PeerConnection) -> None: ...


class PeerConnection(asyncio.Protocol):
    """Connection to a peer. The handshake reads it frame by frame; afterwards its frames go to the owner."""

    def __init__(self, owner: Owner, is_dialer: bool, expected: str = "") -> None:
        self.is_dialer = is_dialer
        self.expected = expected
        """The id of the broker that was dialed."""
        self.peer: HandshakeHello | None = None
        """Id of the peer, once it is authenticated."""
        self.state: Literal["shaking", "up", "closed"] = "shaking"
        self.is_writable = True
        self.is_local = False
        self.is_within = False
        """True if it joins two workers of one site, over a unix socket without TLS."""
        self.on_made: Callable[[], None] | None = None
        self.host = ""
        self.address = ""
        self.dialed = ""
        """The address as it was given, if this end dialed."""
        self.over = ""
        """The broker that carries the connection, if the direct connection is cut."""
        self.local_host = ""
        """This machine's address of the connection."""
        self.why = "the peer closed the connection"
        """Why the connection ended."""
        self.is_refused = False
        """True if an immediate retry would fail in the same way."""
        self.is_suspect = False
        """True if somebody between the two brokers changed the data."""
        self.secret = ""
        """The secret that the peer has proved."""
        self.contexts_digest = b""
        """Digest of the certificates and authorities used for the connection."""
        self.up_s = 0.0
        """How long the connection was up, once it has ended."""
        self.ended = asyncio.Event()
        self.transport: asyncio.Transport
        self.owner = owner
        self._loop = asyncio.get_running_loop()
        self._cutter = FrameCutter(STRANGER_BYTES_MAX)
        self._sealer: Sealer | None = None
        self._opener: Opener | None = None
        self._budget: Budget | None = None
        self._reading_again: asyncio.TimerHandle | None = None
        """Set while the peer has sent more than its quotas allow."""
        self._going_on: asyncio.Handle | None = None
        """Set while frames wait for the next turn."""
        self._turn_bytes = TURN_BYTES
        self.is_held = False
        """True while this broker cannot take more from the peer."""
        self._news = asyncio.Event()
        self._up_since = 0.0
        self._last_received = 0.0
        self._last_tick = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        if self.is_within:
            self.address, self.is_local = "within the site", True
        else:
            self.host, port = (self.transport.get_extra_info("peername") or ("", 0))[:2]
            self.address = f"over {self.over}" if self.over else join_endpoint(self.host, port)
            self.is_local = is_loopback(self.host)
            self.local_host = str((self.transport.get_extra_info("sockname") or ("",))[0])
        self._last_received = self._loop.time()
        if self.on_made is not None:
            self.on_made()

    def data_received(self, data: bytes) -> None:
        self._last_received = now = self._loop.time()
        if self.state == "closed":
            return
        if self._budget is not None:
            self._spend(self._budget, now, len(data))
        if self._opener is None:
            self._cutter.feed(data)
        elif not self._open(self._opener, data):
            return
        if self.state == "up":
            self._pass_on()
            return
        self._news.set()
        if self._cutter.frame_bytes_max == STRANGER_BYTES_MAX < self._cutter.waiting_bytes // 4:
            self.close("it sent more than a stranger may")

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if self.state == "up":
            self.owner.writable(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.state != "closed" and error is not None:
            self.why = f"the connection broke: {error}"
        self._finish()

    # --- the handshake ---

    @property
    def frame_bytes_max(self) -> int:
        return self._cutter.frame_bytes_max

    @frame_bytes_max.setter
    def frame_bytes_max(self, value: int) -> None:
        self._cutter.frame_bytes_max = value

    async def read(self, size: int) -> bytes:
        return await self._read(lambda: self._cutter.take_bytes(size))

    async def read_frame(self) -> bytes:
        return await self._read(self._cutter.take_one)

    async def _read(self, take: Callable[[], bytes]) -> bytes:
        while True:
            if self.state == "closed":
                raise Ended(self.why)
            data = take()
            if data:
                return data
            self._news.clear()
            await self._news.wait()

    def is_certified(self, id: str, fingerprints: Collection[str] = ()) -> bool:
        """Return whether the peer showed a certificate for the broker with this id, and if configured one
        of these."""
        shown = self.transport.get_extra_info("ssl_object")
        if shown is None:
            return False
        return is_broker(shown.getpeercert(), id) and has_fingerprint(shown.getpeercert(True), fingerprints)

    def write(self, data: bytes) -> None:
        if self.state != "closed":
            self.transport.write(data if self._sealer is None else self._sealer.seal(data))

    def write_now(self, *parts: bytes | memoryview) -> None:
        """Write at once, because the caller is about to block for long.

        Transports of uvloop write only when a turn of the loop is over.
        """
        transport = self.transport
        if self.state == "closed" or transport.is_closing():
            return
        if self._sealer is not None:
            parts = (self._sealer.seal(b"".join(parts)),)
        sent = 0
        if not transport.get_write_buffer_size():
            # The transport reports errors of the connection.
            with suppress(OSError):
                sent = os.writev(transport.get_extra_info("socket").fileno(), parts)
        if sent < sum(map(len, parts)):
            transport.write(b"".join(parts)[sent:])

    def seal(self, keys: LinkKeys) -> None:
        """Seal everything sent from now on with these keys: both ends have proved the secret."""
        own, other = (keys.dialer, keys.listener) if self.is_dialer else (keys.listener, keys.dialer)
        self._sealer, self._opener = Sealer(own), Opener(other)
        self._open(self._opener, self._cutter.take_rest())

    def _open(self, opener: Opener, data: bytes) -> bool:
        try:
            self._cutter.feed(opener.open(data))
        except LinkError as error:
            self.is_suspect = True
            self.close(str(error))
        return not self.is_suspect

    # --- quotas ---

    def limit(self, budget: Budget | None) -> None:
        """Set how much the peer may send per second."""
        self._budget = budget

    def _spend(self, budget: Budget, now: float, size: int) -> None:
        pause_s = budget.spend(now, size)
        if pause_s > 0 and self._reading_again is None:
            self.transport.pause_reading()
            self._reading_again = self._loop.call_later(pause_s, self._read_again)

    def _read_again(self) -> None:
        self._reading_again = None
        self.resume_reading()

    def pause_reading(self) -> None:
        self.is_held = True
        if self.state == "up" and self.transport.is_reading():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, unless there is another reason to pause."""
        is_paused = self.is_held or self._reading_again is not None or self._going_on is not None
        if self.state == "up" and not is_paused and not self.transport.is_reading():
            self.transport.resume_reading()

    # --- the link ---

    @property
    def peer_id(self) -> str:
        assert self.peer is not None
        return self.peer.id

    @property
    def meets(self) -> str:
        """The broker that the peer wants to be connected with, if this broker is to carry the connection."""
        assert self.peer is not None
        return self.peer.meets

    def begin(self, heartbeat_s: float, timeout_s: float) -> None:
        """Pass frames to the owner from now on: the handshake is over."""
        self.state = "up"
        self._up_since = self._last_tick = self._loop.time()
        self._timer = self._loop.call_later(heartbeat_s, self._tick, heartbeat_s, timeout_s)

    def flush(self) -> None:
        """Pass on frames that arrived right after the handshake."""
        if self.state == "up":
            self._pass_on()

    def _pass_on(self) -> None:
        """Pass on frames for one turn: hundreds of sessions in one turn would make every client wait."""
        try:
            frames = self._cutter.take_all(self._turn_bytes)
            if frames:
                self.owner.arrived(self, frames)
            if self.state == "up" and self._going_on is None and self._cutter.has_frame:
                self._going_on = self._loop.call_soon(self._go_on, monotonic())
                if self.transport.is_reading():
                    self.transport.pause_reading()
        except (LinkError, InputError) as error:
            self.is_refused = True
            self.close(str(error))

    def _go_on(self, since_s: float) -> None:
        """Continue after the turn that took the earlier frames."""
        self._going_on = None
        self._turn_bytes = next_turn_bytes(self._turn_bytes, monotonic() - since_s)
        if self.state == "up":
            self._pass_on()
            self.resume_reading()

    def _tick(self, heartbeat_s: float, timeout_s: float) -> None:
        now = self._loop.time()
        if now - self._last_tick > 2 * heartbeat_s or not self.transport.is_reading():
            self._last_received = now  # This process caused the silence: it was suspended, or did not listen.
        self._last_tick = now
        silent_s = now - self._last_received
        if silent_s > timeout_s:
            self.close(f"no sign of life for {silent_s:.1f} s")
            return
        if self.is_writable:
            self.write(self.owner.heartbeat(self))
        self._timer = self._loop.call_later(heartbeat_s, self._tick, heartbeat_s, timeout_s)

    def is_silent(self, silent_s: float) -> bool:
        """Return whether the peer was silent for this long, while this end listened and was not suspended."""
        now = self._loop.time()
        is_awake = self.transport.is_reading() and now - self._last_tick <= silent_s
        return self.state == "up" and is_awake and now - self._last_received > silent_s

    async def is_alive(self, late_s: float, timeout_s: float) -> bool:
        """Return whether data arrives later than `late_s` from now; False if the connection ends."""
        since = self._loop.time() + late_s
        end = self._loop.time() + timeout_s
        while self.state == "up" and self._loop.time() < end:
            if self._last_received > since:
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(min(late_s, timeout_s) / 4):
                    await self.ended.wait()
        return False

    # --- the end ---

    def close(self, why: str) -> None:
        """Close. Written data is still sent as far as the peer takes it at once."""
        if self.state == "closed":
            return
        self.why = why
        if self.transport.get_write_buffer_size():
            # Otherwise a peer that does not read would keep the connection open.
            self._loop.call_later(1.0, self.transport.abort)
        self.transport.close()
        self._finish()

    def _finish(self) -> None:
        was_up, self.state = self.state == "up", "closed"
        if self.ended.is_set():
            return
        for timer in (self._timer, self._reading_again, self._going_on):
            if timer is not None:
                timer.cancel()
        self._news.set()
        self.ended.set()
        if was_up:
            self.up_s = self._loop.time() - self._up_since
            self.owner.lost(self)
