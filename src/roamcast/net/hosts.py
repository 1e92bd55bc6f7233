"""By which names clients may call this machine, over HTTP and WebSocket.

A web page can have its own name resolve to an address of this machine or network, and then read what answers
there as if it were its own server (DNS rebinding). Its requests name the page's host: that gives them away.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from roamcast.config.addresses import is_loopback

ANY = "*"


def host_objection(given: str, address: str, allowed: Sequence[str], key: str) -> str:
    """Why a request with this Host is refused; "" if it is not.

    `address` is where the listener listens, `allowed` what `key` of the configuration lists.
    """
    name = _name_of(given)
    if ANY in allowed or name in (_name_of(one) for one in allowed):
        return ""
    if is_loopback(name) or name == address.strip("[]").lower():
        return ""
    if not is_loopback(address) and name == socket.gethostname().lower():
        return ""
    if _is_every_address(address) and _is_address(name):
        # An address is no name that somebody else could resolve.
        return ""
    return f"the host {given.strip()[:100]!r} is not allowed; {key} lists names for this machine"


def _name_of(host: str) -> str:
    """The host without its port, in small letters."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".") if name.count(":") <= 1 else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_every_address(address: str) -> bool:
    return _is_address(address) and ipaddress.ip_address(address).is_unspecified
