"""Names by which clients may address this machine, over HTTP and WebSocket.

A web page can let its own name resolve to an address of this machine or network, and then read answers from
there as if they came from its own server (DNS rebinding). Its requests carry the page's host name, so they
can be refused.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from roamcast.config.addresses import is_loopback

ANY = "*"


def host_objection(given: str, address: str, allowed: Sequence[str], key: str) -> str:
    """Return why a request with this Host is refused; "" if it is accepted.

    `address` is the listener's address; `allowed` is the list in the configuration under `key`.
    """
    name = _name_of(given)
    if ANY in allowed or name in (_name_of(one) for one in allowed):
        return ""
    if is_loopback(name) or name == address.strip("[]").lower():
        return ""
    if not is_loopback(address) and name == socket.gethostname().lower():
        return ""
    if _is_every_address(address) and _is_address(name):
        # Nobody else can make an IP address resolve to this machine.
        return ""
    return f"the host {given.strip()[:100]!r} is not allowed; {key} lists names for this machine"


def _name_of(host: str) -> str:
    """Return the host without its port, in lower case."""
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
