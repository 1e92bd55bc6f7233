"""The PROXY protocol, version 2: a load balancer first sends the address of the client.

The header precedes everything else, including TLS. So exactly the header is read before the connection is
given to the event loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable

from roamcast.errors import InputError

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
START_BYTES = 16
REST_BYTES_MAX = 2048
ADDRESSES = {0x10: (socket.AF_INET, 4), 0x20: (socket.AF_INET6, 16)}
"""Size of the addresses in the header, by family."""
STREAM = 0x01

Address = tuple[str, int]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class HeaderRefused(Exception):
    """Raised if there is no usable header."""


def read_networks(texts: Iterable[str], key: str) -> list[Network]:
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise InputError(f'{key}: {text!r} is no address or network such as "10.0.0.0/8"') from None
    return found


def rest_length(start: bytes) -> int:
    """Return how many bytes follow the first 16 of a header."""
    if not start.startswith(SIGNATURE):
        if start.startswith(b"PROXY "):
            raise HeaderRefused("a header of version 1: set the load balancer to version 2")
        raise HeaderRefused("no header of the PROXY protocol: is this listener reached directly?")
    if start[12] >> 4 != 2 or start[12] & 0x0F > 1:
        raise HeaderRefused(f"a header of version {start[12] >> 4}, or with an unknown command")
    length = int.from_bytes(start[14:16], "big")
    if length > REST_BYTES_MAX:
        raise HeaderRefused(f"a header with more than {REST_BYTES_MAX} bytes")
    return length


def source_in(start: bytes, rest: bytes) -> Address | None:
    """Return the address of the client; None for a connection of the load balancer itself."""
    if start[12] & 0x0F == 0:
        return None  # LOCAL: a health check.
    known = ADDRESSES.get(start[13] & 0xF0)
    if known is None or start[13] & 0x0F != STREAM:
        raise HeaderRefused("a header for a protocol other than TCP over IPv4 or IPv6")
    family, size = known
    if len(rest) < 2 * size + 4:
        raise HeaderRefused("a header that is too short for its addresses")
    port = int.from_bytes(rest[2 * size : 2 * size + 2], "big")
    return socket.inet_ntop(family, rest[:size]), port


class ProxyHeaders:
    """Reads the header of each connection from trusted load balancers."""

    def __init__(self, trusted: Iterable[str], key: str) -> None:
        self._trusted = read_networks(trusted, key)

    def is_trusted(self, host: str) -> bool:
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in network for network in self._trusted)

    async def source_of(self, connection: socket.socket, host: str) -> Address | None:
        """Return the address of the client; None for a connection of the load balancer itself."""
        if not self.is_trusted(host):
            raise HeaderRefused("not in trusted_proxies")
        try:
            start = await _read(connection, START_BYTES)
            rest = await _read(connection, rest_length(start))
        except OSError as error:
            raise HeaderRefused(str(error)) from None
        return source_in(start, rest)


async def _read(connection: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes, and none of what follows."""
    data = b""
    while len(data) < size:
        part = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        if not part:
            raise HeaderRefused("the connection ended within its header")
        data += part
    return data
