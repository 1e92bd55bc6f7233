"""Discovery of brokers on the local network: they announce themselves by multicast, and are dialed when
heard.

`announcement` has the format and its verification; this module has the socket and the clock. If the interface
changes its address while the broker runs, the broker listens there, announces it at once, and closes
connections of the old address.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import logging
import random
import socket
import struct
import time
from typing import Protocol, cast

from roamcast.config.addresses import join_endpoint
from roamcast.config.sections import Config, Discovery
from roamcast.errors import InputError
from roamcast.net.announcement import Announcement, Sightings, Unbelieved, sign
from roamcast.net.complaints import Complaints

log = logging.getLogger("roamcast.discovery")

SIOCGIFADDR = 0x8915
IP_MULTICAST_ALL = 49
DATAGRAMS_PER_S_MAX = 2000
"""Further datagrams stay unread: examining all would keep the broker from its work."""
ANSWER_S_MIN = 0.2
"""Least time between two announcements when newcomers are answered."""


class Finder(Protocol):
    """Connects to discovered brokers: `Peers`."""

    def found(self, peer: str, address: str) -> None: ...
    def lose(self, peer: str) -> bool:
        """Forget a silent broker; return False if it is still connected."""

    def leave(self, host: str) -> None:
        """Close connections of an address that this machine no longer has."""


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface, given by name or address; raise OSError if there is none."""
    try:
        return str(ipaddress.IPv4Address(interface))
    except ValueError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        asked = struct.pack("256s", interface.encode()[:15])
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, asked)
    return socket.inet_ntoa(answer[20:24])


def open_socket(settings: Discovery, address: str) -> socket.socket:
    """Return a socket that receives and sends in the group on this interface alone."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        # All brokers of a machine listen on the same port, and each receives every datagram.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        group, here = socket.inet_aton(settings.group), socket.inet_aton(address)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + here)
        opened.bind((settings.group, settings.port))
    except OSError:
        opened.close()
        raise
    return opened


class LocalDiscovery(asyncio.DatagramProtocol):
    """Announces one broker, and tells `Finder` of others."""

    def __init__(self, config: Config, port: int, finder: Finder) -> None:
        """`port` is where the broker listens for peers."""
        self._finder = finder
        self._port = port
        self._started_ns = time.time_ns()
        self._number = 0
        self._announced_at = 0.0
        self._transport: asyncio.DatagramTransport | None = None
        self._task: asyncio.Task[None] | None = None
        self._here = ""
        """The address of the interface, while the socket is open."""
        self._second = 0
        self._datagrams = 0
        """Datagrams received in this second."""
        self._complaints = Complaints()
        self._id = config.id
        self._settings = config.discovery
        self._host = config.link.address
        self.secret = config.link.secret
        self._sightings = Sightings(config.id, config.network, config.discovery)

    async def start(self) -> None:
        """Start; raise InputError if there is no such interface. The interface may have no address yet, or
        lose it later."""
        try:
            await self._open(address_of(self._settings.interface))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                self._complain("", f"{self._settings.interface} has no address yet")
                self._begin()
                return
            raise InputError(
                f"discovery.interface = {self._settings.interface}: multicast cannot be used there "
                f"({error.strerror or error})"
            ) from None
        self._begin()

    def _begin(self) -> None:
        log.info(
            "looking for brokers on %s (%s:%d)", self._settings.interface, self._settings.group,
            self._settings.port,
        )  # fmt: skip
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._close()

    def known(self) -> list[str]:
        """Brokers heard of recently."""
        return sorted(self._sightings.brokers)

    # --- the interface ---

    async def _open(self, address: str) -> None:
        opened = open_socket(self._settings, address)
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=opened)
        self._here = address

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._transport, self._here = None, ""

    async def _follow_interface(self) -> None:
        """React to a changed or missing address of the interface."""
        try:
            address = address_of(self._settings.interface)
        except OSError as error:
            address = ""
            self._complain("", f"{self._settings.interface} has no address now ({error.strerror or error})")
        if address == self._here:
            return
        before = self._here
        self._close()
        if address:
            try:
                await self._open(address)
            except OSError as error:
                self._complain("", f"{address} cannot be used: {error.strerror or error}")
                return
            log.info("the address of this broker is now %s", address)
        if before:
            self._finder.leave(before)

    # --- speaking ---

    async def _run(self) -> None:
        while True:
            await self._follow_interface()
            self._announce()
            for broker in self._sightings.silent(time.monotonic()):
                if self._finder.lose(broker):
                    del self._sightings.brokers[broker]
            await asyncio.sleep(self._settings.interval_s * random.uniform(0.8, 1.0))

    def _announce(self) -> None:
        if self._transport is None:
            return
        self._number += 1
        self._announced_at = time.monotonic()
        said = Announcement(
            self._sightings.network, self._id, self._address(), self._started_ns, self._number, time.time()
        )
        self._transport.sendto(sign(said, self.secret), (self._settings.group, self._settings.port))

    def _address(self) -> str:
        """The address at which peers can dial this broker."""
        try:
            is_any = ipaddress.ip_address(self._host).is_unspecified
        except ValueError:
            is_any = False
        return join_endpoint(self._here if is_any else self._host, self._port)

    # --- hearing ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str | int, ...]) -> None:
        now = time.monotonic()
        if int(now) != self._second:
            self._second, self._datagrams = int(now), 0
        self._datagrams += 1
        if self._datagrams > DATAGRAMS_PER_S_MAX:
            return
        try:
            found = self._sightings.take(now, time.time(), data, self.secret)
        except Unbelieved as error:
            self._complain(str(address[0]), f"an announcement from {address[0]} is not believed: {error}")
            return
        if found is None:
            return
        log.info("discovered broker %s at %s", found.id, found.address)
        self._finder.found(found.id, found.address)
        if now - self._announced_at > ANSWER_S_MIN:
            self._announce()

    def error_received(self, error: Exception) -> None:
        self._complain("", f"{self._settings.interface}: {getattr(error, 'strerror', None) or error}")

    def _complain(self, about: str, text: str) -> None:
        if self._complaints.is_due(about, text):
            log.warning("%s", text)
