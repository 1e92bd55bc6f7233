"""Definition of an attack, and tools that attacks share.

An attack is a function and a row of the table at the end of its file. The function runs in its own process
until its time is over; it counts its actions and the broker's answers.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, cast

from roamcast.bench.packet_socket import PacketSocket
from roamcast.bench.processes import HOST
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet

PATIENCE_S = 5.0
USERS = ("honest", "visitor", "attacker")
PASSWORD = b"a password of many"
Door = Literal["tcp", "tls", "ws", "http", "link"]


@dataclass(frozen=True)
class Target:
    """A broker under attack: its ports, and how long the attack lasts."""

    ports: dict[Door, int]
    seconds: float
    seed: int = 1
    other: str = ""
    """The id of a second broker, if the attack needs one."""
    user: str = ""
    """User name of the attacker, if clients need a password."""
    counts: Counter[str] = field(default_factory=Counter)
    """Actions of the attack, and answers of the broker."""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.started_s > self.seconds

    @property
    def rng(self) -> random.Random:
        return random.Random(self.seed)

    def turns(self) -> Iterator[int]:
        """Count from 1 until the time is over."""
        return takewhile(lambda number: not self.is_over, itertools.count(1))

    def count_answer(self, answer: packets.Connack | None, welcome: str = "connected") -> bool:
        """Count whether a client was welcome or refused; return whether it was welcome."""
        is_welcome = answer is not None and not answer.reason
        self.counts[welcome if is_welcome else "refused"] += 1
        return is_welcome


@dataclass(frozen=True)
class Attack:
    """One row of the table of attacks."""

    name: str
    what: str
    """Description in one line: the load and its bounds."""
    run: Callable[[Target], None]
    prepare: Callable[[Target], None] | None = None
    """Prepares the attack, before the measurement."""
    settings: tuple[str, ...] = ()
    """Configuration keys for this attack, where the defaults would take too long to reach."""
    quotas: tuple[str, ...] = ()
    """Byte quotas that the attack may fill; memory is judged against them."""
    door: Door = "tcp"
    """Listener for new honest clients during the attack."""
    needs_peer: bool = False
    """True if a second broker is linked to the first."""
    is_peer_late: bool = False
    """True if the second broker joins while the attack runs."""
    needs_users: bool = False
    """True if clients need a password."""
    files_max: int | None = None
    """The broker's hard limit of open files; None keeps the present one."""


class Hostile(PacketSocket):
    """A client that can send anything. It blocks, with a time limit."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        """`receive_bytes` sets the size of the kernel's receive buffer: a small one fills up soon."""
        super().__init__(socket.socket())
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect((HOST, port))

    def connect(self, client_id: str, **more: object) -> packets.Connack | None:
        """Send CONNECT; return the answer, or None if the broker closed the connection."""
        self.send_all(packets.Connect(self.version, client_id, **more))  # type: ignore[arg-type]
        answer = self.receive_or_end()
        return answer if isinstance(answer, packets.Connack) else None

    def wait_for(self, kind: type[Packet]) -> Packet | None:
        """Return the next packet of this kind; discard others."""
        while (packet := self.receive_or_end()) is not None and not isinstance(packet, kind):
            pass
        return packet

    def subscribe(self, filter: str, qos: int = 1) -> None:
        self.send_all(packets.Subscribe(1, (packets.SubscriptionEntry(filter, qos),)))
        self.wait_for(packets.Suback)

    def swallow(self, seconds: float) -> int:
        """Read and discard everything that arrives within this time; return the number of bytes."""
        self._read, end, size = b"", time.monotonic() + seconds, 0
        while (left_s := end - time.monotonic()) > 0:
            self.socket.settimeout(left_s)
            try:
                data = self.socket.recv(1 << 18)
            except TimeoutError:
                break
            if not data:
                break
            size += len(data)
        self.socket.settimeout(PATIENCE_S)
        return size


def connected(target: Target, client_id: str, **more: object) -> Hostile | None:
    """Yield an accepted client, or None if it was refused, which is counted."""
    try:
        client = Hostile(target.ports["tcp"])
        if target.user:
            more |= {"username": target.user, "password": PASSWORD}
        answer = client.connect(client_id, **more)
    except OSError:
        answer = None
    return client if target.count_answer(answer) else None


@contextlib.contextmanager
def failures_counted(target: Target) -> Iterator[None]:
    """Count a connection that the broker closed or kept waiting, and continue."""
    try:
        yield
    except TimeoutError:
        target.counts["timed out"] += 1
    except OSError as error:
        target.counts["out of files" if error.errno == errno.EMFILE else "closed by the broker"] += 1


class Crowd:
    """Many connections that send almost nothing, reopened when the broker closes them."""

    def __init__(self, target: Target, door: Door, size: int) -> None:
        self._target = target
        self._address = (HOST, target.ports[door])
        self._size = size
        self._selector = selectors.DefaultSelector()
        self.first_bytes = b""
        """First bytes that each connection sends."""
        self.sockets: dict[socket.socket, int] = {}
        """Open connections, and how many bytes each has sent."""

    def keep(self, trickle: bytes = b"", every_s: float = 0.2) -> None:
        """Until the time is over, keep all connections open, and sometimes send the next byte of `trickle` on
        each.
        """
        target, next_s = self._target, 0.0
        while not target.is_over:
            self._open_some()
            if trickle and time.monotonic() >= next_s:
                next_s = time.monotonic() + every_s
                self._trickle(trickle)
            for key, events in self._selector.select(0.02):
                one = cast(socket.socket, key.fileobj)
                if events & selectors.EVENT_WRITE:
                    self._selector.modify(one, selectors.EVENT_READ)
                    self._say_first(one)
                elif events & selectors.EVENT_READ:
                    self._read(one)
        for one in list(self.sockets):
            self._forget(one)

    def _open_some(self) -> None:
        for _ in range(min(50, self._size - len(self.sockets))):
            one = socket.socket()
            one.setblocking(False)
            try:
                one.connect(self._address)
            except BlockingIOError:
                pass
            except OSError:
                one.close()
                self._target.counts["not opened"] += 1
                return
            self.sockets[one] = 0
            self._selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE)
            self._target.counts["opened"] += 1

    def _say_first(self, one: socket.socket) -> None:
        try:
            one.send(self.first_bytes)
        except OSError:
            self._ended(one)

    def _trickle(self, data: bytes) -> None:
        for one, sent in list(self.sockets.items()):
            try:
                if sent < len(data) - 1:  # The last byte never comes.
                    one.send(data[sent : sent + 1])
                    self.sockets[one] = sent + 1
            except BlockingIOError:
                pass
            except OSError:
                self._ended(one)

    def _read(self, one: socket.socket) -> None:
        try:
            if one.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._ended(one)

    def _ended(self, one: socket.socket) -> None:
        self._target.counts["closed by the broker"] += 1
        self._forget(one)

    def _forget(self, one: socket.socket) -> None:
        if self.sockets.pop(one, None) is not None:
            self._selector.unregister(one)
            one.close()


def trusting_context() -> ssl.SSLContext:
    """Return a TLS context that accepts any certificate: the broker under attack created its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
