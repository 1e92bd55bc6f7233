"""The PROXY protocol, version 2: a load balancer says first whose connection it passes on.

The header comes before everything else, TLS too. So connections are accepted here, the header is read to its
last byte and not further, and only then the connection is handed to the loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Iterable

from roamcast.errors import InputError
from roamcast.net.complaints import Complaints

log = logging.getLogger("roamcast.clients")

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
START_BYTES = 16
REST_BYTES_MAX = 2048
ADDRESSES = {0x10: (socket.AF_INET, 4), 0x20: (socket.AF_INET6, 16)}
"""The family in the header, and how long its addresses are."""
STREAM = 0x01
BACKLOG = 1024
WAITING_MAX = 256
"""Connections whose header has not come yet."""
ACCEPT_AGAIN_S = 0.1

Address = tuple[str, int]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
MakeProtocol = Callable[[Address | None], asyncio.Protocol]
"""Makes the protocol of a connection from this address; None: the address of the socket itself."""


class HeaderRefused(Exception):
    """What came is no header that can be used."""


def read_networks(texts: Iterable[str], key: str) -> list[Network]:
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise InputError(f'{key}: {text!r} is no address or network such as "10.0.0.0/8"') from None
    return found


def rest_length(start: bytes) -> int:
    """How many bytes follow the first 16 of a header."""
    if not start.startswith(SIGNATURE):
        if start.startswith(b"PROXY "):
            raise HeaderRefused("a header of version 1: set the load balancer to version 2")
        raise HeaderRefused("no header of the PROXY protocol: is this listener reached directly?")
    if start[12] >> 4 != 2 or start[12] & 0x0F > 1:
        raise HeaderRefused(f"a header of version {start[12] >> 4}, or with an unknown command")
    length = int.from_bytes(start[14:16], "big")
    if length > REST_BYTES_MAX:
        raise HeaderRefused(f"a header of more than {REST_BYTES_MAX} bytes")
    return length


def source_in(start: bytes, rest: bytes) -> Address | None:
    """The address of the client; None for a connection of the load balancer itself."""
    if start[12] & 0x0F == 0:
        return None  # LOCAL: a health check.
    known = ADDRESSES.get(start[13] & 0xF0)
    if known is None or start[13] & 0x0F != STREAM:
        raise HeaderRefused("a header for something else than TCP over IPv4 or IPv6")
    family, size = known
    if len(rest) < 2 * size + 4:
        raise HeaderRefused("a header that is too short for its addresses")
    port = int.from_bytes(rest[2 * size : 2 * size + 2], "big")
    return socket.inet_ntop(family, rest[:size]), port


class ProxyListener:
    """Accepts connections from load balancers; stands where an `asyncio.Server` stands otherwise."""

    def __init__(
        self,
        listening: socket.socket,
        trusted: list[Network],
        make: MakeProtocol,
        context: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        listening.setblocking(False)
        self.sockets = [listening]
        self._trusted = trusted
        self._make = make
        self._context = context
        self._timeout_s = timeout_s
        self._complaints = Complaints()
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        trusted: list[Network],
        make: MakeProtocol,
        context: ssl.SSLContext | None,
        timeout_s: float,
    ) -> ProxyListener:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        return cls(listening, trusted, make, context, timeout_s)

    def is_serving(self) -> bool:
        return not self._accepting.done()

    def close(self) -> None:
        self._accepting.cancel()
        for task in self._waiting:
            task.cancel()
        for one in self.sockets:
            one.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self.sockets[0])
            except OSError as error:
                log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(ACCEPT_AGAIN_S)  # There may be no descriptor left.
                continue
            host = str(peer[0])
            if not self._is_trusted(host):
                self._refuse(connection, host, "not in trusted_proxies")
            elif len(self._waiting) >= WAITING_MAX:
                self._refuse(connection, host, f"{WAITING_MAX} connections have not sent their header yet")
            else:
                task = loop.create_task(self._take(connection, host))
                self._waiting[task] = None
                task.add_done_callback(lambda done: self._waiting.pop(done, None))

    def _is_trusted(self, host: str) -> bool:
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in network for network in self._trusted)

    def _refuse(self, connection: socket.socket, host: str, why: str) -> None:
        connection.close()
        if self._complaints.is_due(host, why):
            log.warning("a connection from %s is refused: %s", host, why)

    async def _take(self, connection: socket.socket, host: str) -> None:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(self._timeout_s):
                start = await _read(connection, START_BYTES)
                rest = await _read(connection, rest_length(start))
            source = source_in(start, rest)
        except (HeaderRefused, OSError) as error:
            self._refuse(connection, host, str(error) or "its header did not come in time")
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(source),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout_s if self._context else None,
            )
        except (OSError, ssl.SSLError) as error:
            log.info("%s: the TLS handshake failed: %s", source[0] if source else host, error)


async def _read(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes, and none of what follows."""
    data = b""
    while len(data) < size:
        part = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        if not part:
            raise HeaderRefused("the connection ended within its header")
        data += part
    return data
