"""The honest clients during an attack: their load, and the effects on them.

A publisher sends a small QoS 1 message 50 times a second, whether or not the earlier ones have arrived, so
that a stall delays every message sent during it. A subscriber receives them. Both reconnect to their sessions
when the broker closes a connection. Meanwhile a new client connects a few times a second, and another one
requests /healthz.
"""

from __future__ import annotations

import http.client
import select
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from roamcast.bench.attack.base import PASSWORD, Door, trusting_context
from roamcast.bench.packet_socket import PacketSocket
from roamcast.bench.processes import HOST, BenchFailed
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet

EVERY_S = 0.02
PROBE_EVERY_S = 0.25
FIRST_PROBE_S = 1.0
"""Delay of the first new client, so that the attack is in progress."""
PROBE_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 15.0
TOPIC = "honest/pings"


class HonestClient(PacketSocket):
    """A connection with a lasting session that reconnects after a loss."""

    def __init__(self, port: int, client_id: str, with_password: bool) -> None:
        super().__init__(socket.socket())
        self._port = port
        self._connect = packets.Connect(
            5, client_id, clean_start=False, session_expiry=3600, keep_alive=60,
            username="honest" if with_password else None, password=PASSWORD if with_password else None,
        )  # fmt: skip
        self.open()

    def open(self) -> None:
        self.close()
        self._read = b""
        self.socket = socket.create_connection((HOST, self._port), CONNECT_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send_all(self._connect)
        answer = self.receive_or_end()
        if not isinstance(answer, packets.Connack) or answer.reason:
            raise BenchFailed(f"the broker answered the honest client's CONNECT with {answer}")


class HonestPair:
    """A publisher and a subscriber, and the fate of each message."""

    def __init__(self, publisher_port: int, subscriber_port: int, with_password: bool) -> None:
        self.publisher = HonestClient(publisher_port, "honest-publisher", with_password)
        self.subscriber = HonestClient(subscriber_port, "honest-subscriber", with_password)
        self.subscriber.send_all(packets.Subscribe(1, (packets.SubscriptionEntry(TOPIC, 1),)))
        if not isinstance(self.subscriber.receive_or_end(), packets.Suback):
            raise BenchFailed("the honest client's SUBSCRIBE was not acknowledged")
        self.sent = 0
        self.reconnects = 0
        self.late_s = 0.0
        """Longest delay of this process itself, caused by a busy machine."""
        self._sent_at: dict[int, float] = {}
        self._unacknowledged: dict[int, None] = {}
        self._latencies_s: dict[int, float] = {}
        self._measured_from = 0
        """Messages up to this number are excluded from latencies."""

    def run(self, seconds: float, on_tick: Callable[[], None]) -> None:
        """Send and receive for `seconds`; `on_tick` is called with each message sent."""
        next_s = time.monotonic()
        end = next_s + seconds
        while (now := time.monotonic()) < end:
            if now >= next_s:
                self._send()
                on_tick()
                next_s = max(next_s + EVERY_S, now)
            self._turn(max(0.0, next_s - time.monotonic()))

    def forget(self) -> None:
        """Start measuring now: earlier messages have arrived."""
        self.drain(PROBE_TIMEOUT_S)
        self.late_s = 0.0
        self._measured_from = self.sent

    def drain(self, seconds: float) -> None:
        """Wait for messages in transit."""
        end = time.monotonic() + seconds
        while len(self._latencies_s) < self.sent and time.monotonic() < end:
            self._turn(0.1)

    def _send(self) -> None:
        self.sent += 1
        self._sent_at[self.sent] = time.monotonic()
        self._unacknowledged[self.sent] = None
        try:
            self._publish(self.sent)
        except OSError:
            self._return()

    def _publish(self, number: int) -> None:
        body = number.to_bytes(8, "big")
        self.publisher.send_all(packets.Publish(TOPIC, body, 1, packet_id=number % 65_535 + 1))

    def _turn(self, timeout_s: float) -> None:
        began = time.monotonic()
        clients = {self.publisher.socket: self.publisher, self.subscriber.socket: self.subscriber}
        readable, _, _ = select.select(list(clients), [], [], timeout_s)
        if not readable:
            self.late_s = max(self.late_s, time.monotonic() - began - timeout_s)
        for one in readable:
            client = clients[one]
            try:
                is_open = client.take()
                while (packet := client.next_packet()) is not None:
                    self._take(packet)
            except OSError:
                is_open = False
            if not is_open:
                self._return()
                return

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, packets.Publish):
            number = int.from_bytes(packet.payload, "big")
            self._latencies_s.setdefault(number, time.monotonic() - self._sent_at[number])
            self.subscriber.send_all(packets.Puback(packet.packet_id))
        elif isinstance(packet, packets.Puback):
            number = next((one for one in self._unacknowledged if one % 65_535 + 1 == packet.packet_id), 0)
            self._unacknowledged.pop(number, None)

    def _return(self) -> None:
        """Reconnect after the broker closed a connection, and publish unacknowledged messages again."""
        self.reconnects += 1
        for client in (self.publisher, self.subscriber):
            client.close()
            with suppress(OSError, BenchFailed):
                client.open()
        with suppress(OSError):
            for number in self._unacknowledged:
                self._publish(number)

    @property
    def lost(self) -> int:
        """Return acknowledged messages that did not arrive."""
        return sum(
            number not in self._latencies_s and number not in self._unacknowledged
            for number in range(1, self.sent + 1)
        )

    def summary(self) -> dict[str, Any]:
        counted = [took_s for number, took_s in self._latencies_s.items() if number > self._measured_from]
        latencies_ms = sorted(1000 * one for one in counted) or [float("inf")]
        is_all_here = len(self._latencies_s) == self.sent
        return {
            "pings": self.sent - self._measured_from,
            "lost": self.lost,
            "unanswered": self.sent - len(self._latencies_s) - self.lost,
            "ping_p50_ms": statistics.median(latencies_ms),
            "ping_p99_ms": latencies_ms[int(0.99 * (len(latencies_ms) - 1))],
            "ping_worst_ms": latencies_ms[-1] if is_all_here else float("inf"),
            "own_late_ms": 1000 * self.late_s,
            "reconnects": self.reconnects,
        }

    def close(self) -> None:
        self.publisher.close()
        self.subscriber.close()


class Probes(threading.Thread):
    """A new client connects, and /healthz is asked, a few times a second."""

    def __init__(self, ports: dict[Door, int], door: Door, with_password: bool) -> None:
        super().__init__(daemon=True)
        self._ports, self._door, self._with_password = ports, door, with_password
        self._stopping = threading.Event()
        self._worst_s = {"connect": 0.0, "healthz": 0.0}
        self._failures: dict[str, list[str]] = {"connect": [], "healthz": []}

    def run(self) -> None:
        pause_s = FIRST_PROBE_S
        while not self._stopping.wait(pause_s):
            self._try("connect", self._connect)
            self._try("healthz", self._ask)
            pause_s = PROBE_EVERY_S

    def stop(self) -> None:
        self._stopping.set()
        self.join(2 * PROBE_TIMEOUT_S + 1)

    def _try(self, name: str, probe: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            probe()
        except (OSError, BenchFailed, http.client.HTTPException) as error:
            self._failures[name].append(str(error) or type(error).__name__)
        self._worst_s[name] = max(self._worst_s[name], time.monotonic() - began)

    def _connect(self) -> None:
        with socket.create_connection((HOST, self._ports[self._door]), PROBE_TIMEOUT_S) as plain:
            if self._door == "ws":
                plain.sendall(_UPGRADE)
                if b" 101 " not in plain.recv(4096):
                    raise BenchFailed("the WebSocket was refused")
                return
            visitor = PacketSocket(trusting_context().wrap_socket(plain) if self._door == "tls" else plain)
            login: dict[str, Any] = (
                {"username": "visitor", "password": PASSWORD} if self._with_password else {}
            )
            visitor.send_all(packets.Connect(5, "honest-visitor", **login))
            answer = visitor.receive_or_end()
            if not isinstance(answer, packets.Connack) or answer.reason:
                raise BenchFailed(f"a new client was refused with {answer or 'silence'}")
            visitor.send_all(packets.Disconnect())

    def _ask(self) -> None:
        asking = http.client.HTTPConnection(HOST, self._ports["http"], timeout=PROBE_TIMEOUT_S)
        try:
            asking.request("GET", "/healthz")
            status = asking.getresponse().status
        finally:
            asking.close()
        if status != 200:
            raise BenchFailed(f"/healthz said {status}")

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, failures in self._failures.items():
            found[f"{name}_worst_ms"] = 1000 * self._worst_s[name]
            found[f"{name}_failed"] = len(failures)
            if failures:
                found[f"{name}_failure"] = failures[0]
        return found


_UPGRADE = (
    f"GET /mqtt HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
).encode()
