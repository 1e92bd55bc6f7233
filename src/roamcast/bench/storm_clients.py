"""The clients of `bench storm`, in a process of their own: thousands of sockets on one poller.

Each client has a lasting session and one QoS 2 subscription. The messages of one client are numbered from 1,
so a client knows at once if one is missing, comes twice or comes too early.
"""

from __future__ import annotations

import errno
import gc
import resource
import select
import socket
import struct
import time
from collections import Counter, deque
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from roamcast.bench.processes import HOST, BenchFailed
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reading import cut
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

EXPIRY_S = 3600
PACKET_MAX = 1 << 16
READ_BYTES = 1 << 16
CONNACK, PUBLISH, PUBREL, SUBACK, DISCONNECT = 2, 3, 6, 9, 14
PUBREC_START, PUBCOMP_START = b"\x50\x02", b"\x70\x02"
NUMBER_BYTES = 8
CONNECTING_MAX = 200
"""Clients that connect at the same time before the storm."""
RESET = struct.pack("ii", 1, 0)
"""Closes a connection at once and leaves no port behind."""


def topic_of(number: int) -> str:
    return f"storm/{number}"


def write_number(number: int) -> bytes:
    return b"%0*d" % (NUMBER_BYTES, number)


class StormClient:
    """One client: its broker, what it has received, and when it received CONNACK."""

    __slots__ = (
        "began_s", "connect", "is_subscribed", "number", "read", "received", "socket", "taken", "welcomed_s",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.connect = write(
            packets.Connect(5, f"rider-{number}", clean_start=False, session_expiry=EXPIRY_S), 5
        )
        self.socket: socket.socket | None = None
        self.read = b""
        self.began_s = self.welcomed_s = 0.0
        self.is_subscribed = False
        self.received = 0
        """Number of the last message."""
        self.taken: set[bytes] = set()
        """Packet ids of QoS 2 messages that were received and not released."""


class Riders:
    """All clients of one process."""

    def __init__(self, count: int) -> None:
        _allow_files(count)
        self.clients = [StormClient(number) for number in range(count)]
        self.port = 0
        """Port to which clients connect from now on."""
        self.welcomes = 0
        self.faults: Counter[str] = Counter()
        self.returns = 0
        """Number of refused or lost connections that were repeated."""
        self._core_s = 0.0
        """CPU seconds of this process when the storm began."""
        self._poll = select.epoll()
        self._by_file: dict[int, StormClient] = {}

    # --- what the benchmark asks for ---

    def settle(self, port: int) -> None:
        """Connect and subscribe all clients at one broker."""
        self.port = port
        waiting = deque(self.clients)
        while self.welcomes < len(self.clients) or not all(one.is_subscribed for one in self.clients):
            while waiting and len(self.clients) - len(waiting) - self.welcomes < CONNECTING_MAX:
                self.appear(waiting.popleft())
            self.turn(0.05)

    def storm(self, port: int, seconds: float, patience_s: float) -> dict[str, Any]:
        """Let all clients leave their broker and connect to another one, evenly within `seconds`."""
        self._begin_storm(port)
        clients, count, gone = self.clients, len(self.clients), 0
        began_s = time.perf_counter()
        while self.welcomes < count:
            now_s = time.perf_counter()
            due = min(count, int(count * (now_s - began_s) / seconds) + 1)
            for client in clients[gone : min(due, gone + 20)]:
                self.leave(client)
                self.appear(client)
                gone += 1
            if now_s - began_s > patience_s:
                raise BenchFailed(
                    f"{count - self.welcomes} clients were not accepted within {patience_s:.0f} s"
                )
            self.turn(0 if gone < due else 0.001 if gone < count else 0.05)
        return self._summary(began_s)

    def await_storm(self, port: int, patience_s: float) -> dict[str, Any]:
        """Wait until the broker has sent every client to the other one, and all are there."""
        self._begin_storm(port)
        end_s = time.perf_counter() + patience_s
        while self.welcomes < len(self.clients):
            self.turn(0.05)
            if time.perf_counter() > end_s:
                left = len(self.clients) - self.welcomes
                raise BenchFailed(f"{left} clients were not accepted within {patience_s:.0f} s")
        return self._summary(min(client.began_s for client in self.clients))

    def finish(self, owed: list[int], patience_s: float) -> dict[str, int]:
        """Wait for what every client is owed; return what went wrong."""
        end_s = time.perf_counter() + patience_s
        while any(client.received < count for client, count in zip(self.clients, owed, strict=True)):
            self.turn(0.05)
            if time.perf_counter() > end_s:
                break
        for client, count in zip(self.clients, owed, strict=True):
            self.faults["lost"] += max(0, count - client.received)
        return dict(self.faults)

    def _begin_storm(self, port: int) -> None:
        gc.collect()
        gc.freeze()
        self.port, self.welcomes, self._core_s = port, 0, time.process_time()
        for client in self.clients:
            client.began_s = client.welcomed_s = 0.0

    def _summary(self, began_s: float) -> dict[str, Any]:
        took_s = [client.welcomed_s - client.began_s for client in self.clients]
        return {
            "seconds": max(client.welcomed_s for client in self.clients) - began_s,
            "took_s": took_s,
            "returns": self.returns,
            "load_core_s": time.process_time() - self._core_s,
        }

    # --- connections ---

    def leave(self, client: StormClient) -> None:
        one, client.socket = client.socket, None
        if one is not None:
            self._by_file.pop(one.fileno(), None)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            one.close()

    def appear(self, client: StormClient) -> None:
        one = socket.socket()
        one.setblocking(False)
        client.socket, client.read = one, b""
        if not client.began_s:
            client.began_s = time.perf_counter()
        refused = one.connect_ex((HOST, self.port))
        if refused not in (0, errno.EINPROGRESS):
            raise BenchFailed(f"a client cannot connect: {errno.errorcode[refused]}")
        self._by_file[one.fileno()] = client
        try:
            one.send(client.connect)
        except (BlockingIOError, BrokenPipeError):
            self._poll.register(one, select.EPOLLOUT)
        else:
            self._poll.register(one, select.EPOLLIN)

    def turn(self, timeout_s: float) -> None:
        for file, events in self._poll.poll(timeout_s):
            client = self._by_file.get(file)
            if client is None or client.socket is None:
                continue
            try:
                if events & select.EPOLLOUT:
                    client.socket.send(client.connect)
                    self._poll.modify(file, select.EPOLLIN)
                    continue
                data = client.socket.recv(READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if data:
                self._take(client, client.read + data if client.read else data)
            else:
                self._return(client)

    def _return(self, client: StormClient) -> None:
        """Handle that the broker has closed the connection."""
        self.returns += 1
        self.leave(client)
        self.appear(client)

    # --- packets ---

    def _take(self, client: StormClient, data: bytes) -> None:
        at, out = 0, []
        while (whole := cut(data, at, PACKET_MAX)) is not None:
            first, start, at = whole
            match first >> 4:
                case 3:
                    out.append(PUBREC_START + self._received(client, data, start, at))
                case 6:
                    packet_id = data[start : start + 2]
                    client.taken.discard(packet_id)
                    out.append(PUBCOMP_START + packet_id)
                case 2:
                    out += self._welcomed(client, data[start], data[start + 1])
                case 9:
                    client.is_subscribed = True
                case 14:
                    if data[start] != Reason.USE_ANOTHER_SERVER:
                        self.faults[f"disconnected with {data[start]:#x}"] += 1
        client.read = data[at:]
        if out and client.socket is not None:
            with suppress(OSError):  # The connection is gone; the broker sends again what matters.
                client.socket.send(b"".join(out))

    def _welcomed(self, client: StormClient, flags: int, reason: int) -> list[bytes]:
        if reason:
            return []  # The broker closes the connection, and the client comes again.
        client.welcomed_s = time.perf_counter()
        self.welcomes += 1
        if client.is_subscribed:
            if not flags & 1:
                self.faults["sessions lost"] += 1
            return []
        entries = (packets.SubscriptionEntry(topic_of(client.number), 2),)
        return [write(packets.Subscribe(1, entries), 5)]

    def _received(self, client: StormClient, data: bytes, start: int, end: int) -> bytes:
        id_at = start + 2 + int.from_bytes(data[start : start + 2], "big")
        packet_id = data[id_at : id_at + 2]
        if packet_id not in client.taken:
            client.taken.add(packet_id)
            number = int(data[end - NUMBER_BYTES : end])
            if number <= client.received:
                self.faults["repeated"] += 1
            elif number > client.received + 1:
                self.faults["lost or early"] += number - client.received - 1
            client.received = max(client.received, number)
        return packet_id


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = count + 100
    if soft < need:
        if hard < need:
            raise BenchFailed(f"{count} clients need {need} open files, and {hard} are allowed (ulimit -n)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def serve(orders: Connection, count: int) -> None:
    """Run the process of the clients: execute one order after the other."""
    try:
        riders = Riders(count)
        while True:
            name, arguments = orders.recv()
            if name == "stop":
                return
            orders.send(getattr(riders, name)(*arguments))
    except BenchFailed as error:
        orders.send(error)
    except (EOFError, KeyboardInterrupt):
        return
