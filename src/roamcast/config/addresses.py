"""Addresses as users write them."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from roamcast.errors import InputError

ADDRESSES_KEPT_MAX = 4096
"""Addresses of clients for which the result is cached, because many reconnect often."""


@lru_cache(ADDRESSES_KEPT_MAX)
def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address; names other than localhost count as reachable
    from elsewhere.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def split_endpoint(text: str) -> tuple[str, int]:
    """Split HOST:PORT or [IPV6]:PORT into host and port."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InputError(f"{text!r}: an IPv6 address is written in brackets, [::1]:1883")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise InputError(f"{text!r}: valid is HOST:PORT with a port from 0 to 65535")
    return host, int(port)


def join_endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
