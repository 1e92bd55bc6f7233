"""Detours: while the direct connection to a peer is cut, both ends meet at a third broker, which carries the
link.

The conversation with the peer is the one of a direct connection: the same handshake, sealed records or TLS
from end to end, frames with the same numbers. Only its bytes travel in frames between this broker and the
relay (`net/relay.py`). A pair of connected sockets joins the two: the inner end belongs to an ordinary peer
connection, the outer end to the connection with the relay.

Both ends dial the relays of their own configuration, so each decides who may carry its links.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol, cast

from roamcast.broker.links.end import LinkError
from roamcast.config.addresses import split_endpoint
from roamcast.config.sections import Detour, Link
from roamcast.net.complaints import Complaints
from roamcast.net.handshake import NONCE_BYTES, REASONS, Ended, Handshake, HandshakeHello, LinkRefusal, Own
from roamcast.net.peer_connection import Owner, PeerConnection
from roamcast.net.peer_list import read_secrets
from roamcast.net.relay import DATA, LIFE, MET, hop_frame, hop_frames
from roamcast.net.tls import LinkContexts

log = logging.getLogger("roamcast.detours")

LOOKS = 4
"""Number of checks per heartbeat whether a detour is needed."""
REFUSED_FACTOR = 4


class DetourHost(Owner, Protocol):
    """The owner of the links: `Peers`."""

    own: Own
    link: Link
    contexts: LinkContexts | None

    def needs_detour(self, peer: str) -> bool:
        """Return true if there is no connection to the peer, or only silent ones."""

    def secrets_of(self, id: str) -> tuple[str, ...]:
        """Return the secrets of the broker with this id."""

    def met(self, connection: PeerConnection) -> None:
        """Take over the connection to a peer, so that its handshake can begin."""


class Detours:
    """Runs one task for each pair of a peer and a relay."""

    def __init__(self, host: DetourHost) -> None:
        self._host = host
        self._tasks: dict[tuple[str, str], tuple[Detour, asyncio.Task[None]]] = {}
        self._complaints = Complaints()

    def configure(self, detours: Iterable[Detour], peers: Iterable[str]) -> None:
        """Start, or continue with another configuration; raise InputError if a secret cannot be read."""
        wanted = {}
        listed = list(peers)
        for number, detour in enumerate(detours):
            own = read_secrets(detour.secret_files, f"detour.{number}")
            for peer in listed:
                if peer != detour.id and ("*" in detour.peers or peer in detour.peers):
                    wanted[peer, detour.id] = detour, own
        for key, (detour, task) in list(self._tasks.items()):
            if key not in wanted or wanted[key][0] != detour:
                task.cancel()
                del self._tasks[key]
        for key, (detour, own) in wanted.items():
            if key not in self._tasks:
                self._tasks[key] = detour, asyncio.create_task(self._keep(key[0], detour, own))

    def allows(self, peer: str, relay: str) -> bool:
        return (peer, relay) in self._tasks

    async def stop(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = {}

    async def _keep(self, peer: str, detour: Detour, own: tuple[str, ...]) -> None:
        """Repeat forever: while the direct connection is cut, wait at the relay until the peer arrives
        there, too."""
        host, failures = self._host, 0
        addresses = (detour.address, *detour.addresses)
        while True:
            while not host.needs_detour(peer):
                await asyncio.sleep(host.link.heartbeat_s / LOOKS)
            hop = Hop(host, detour, peer, own)
            try:
                await hop.ask(addresses[failures % len(addresses)])
                failures = 0
                is_refused = await self._meet(hop)
                pause_s = host.link.reconnect_min_s
                if is_refused:
                    pause_s = host.link.reconnect_max_s * REFUSED_FACTOR
            except (OSError, TimeoutError, LinkRefusal, Ended) as error:
                why = str(error) or "no answer"
                if self._complaints.is_due(f"{peer} {detour.id}", why):
                    log.warning("no detour to %s over %s: %s", peer, detour.id, why)
                longest_s = host.link.reconnect_max_s
                pause_s = min(longest_s, host.link.reconnect_min_s * 2.0**failures)
                if isinstance(error, LinkRefusal):
                    pause_s = longest_s * REFUSED_FACTOR
                failures = min(failures + 1, 30)
            finally:
                hop.close("the detour is no longer needed")
            await asyncio.sleep(pause_s)

    async def _meet(self, hop: Hop) -> bool:
        """Wait for the peer, then for the end of the connection with it; return whether the link was
        refused."""
        host = self._host
        while not hop.is_met and not hop.ended.is_set() and host.needs_detour(hop.peer):
            with suppress(TimeoutError):
                async with asyncio.timeout(host.link.heartbeat_s / LOOKS):
                    await hop.news.wait()
        if not hop.is_met or hop.ended.is_set():
            return False
        connection = await hop.connection_to_peer()
        host.met(connection)
        await connection.ended.wait()
        return connection.is_refused


class Hop(asyncio.Protocol):
    """The connection to a relay, and the outer end of the pair of sockets: it copies between the two.

    Implements `peer_connection.Owner` for the connection to the relay.
    """

    def __init__(self, host: DetourHost, detour: Detour, peer: str, own_secrets: tuple[str, ...]) -> None:
        self.peer = peer
        self.is_met = False
        self.news = asyncio.Event()
        """Set when the peer is at the relay, and at the end."""
        self._host = host
        self._detour = detour
        self._secrets = own_secrets
        self._relay = PeerConnection(self, is_dialer=True, expected=detour.id)
        self._is_dialed = False
        self._inner: socket.socket | None = None
        self._outer: asyncio.Transport | None = None
        self.ended = self._relay.ended

    async def ask(self, address: str) -> None:
        """Dial the relay and ask for the peer; raise OSError, TimeoutError, LinkRefusal or Ended if that
        fails."""
        loop, link, contexts = asyncio.get_running_loop(), self._host.link, self._host.contexts
        endpoint, relay = split_endpoint(address), self._relay
        async with asyncio.timeout(link.timeout_s):
            self._inner, outer = socket.socketpair()
            for one in (self._inner, outer):
                one.setblocking(False)
            await loop.connect_accepted_socket(lambda: self, outer)
            context = contexts.client if contexts else None
            await loop.create_connection(lambda: relay, *endpoint, ssl=context)
            self._is_dialed = True
            shake = Handshake(
                relay, self._host.own, secrets.token_bytes(NONCE_BYTES), self._detour.id,
                self._is_certified if contexts else None, self.peer,
            )  # fmt: skip
            await shake.ask(self)
        relay.peer = shake.peer
        relay.begin(link.heartbeat_s, link.timeout_s)
        relay.flush()

    def _is_certified(self, id: str) -> bool:
        return self._relay.is_certified(id, self._detour.certificate_sha256)

    # --- whom to believe (see handshake.Prover) ---

    def secrets(self, peer: HandshakeHello) -> tuple[str, ...]:
        valid = self._secrets or self._host.secrets_of(peer.id)
        if not (valid or self._host.contexts):
            raise LinkRefusal(REASONS["secret"], "secret")
        return valid

    def admits(self, peer: HandshakeHello) -> bool:
        return True

    # --- the peer ---

    async def connection_to_peer(self) -> PeerConnection:
        """Create an ordinary peer connection; the end with the lower id counts as the dialer."""
        loop, contexts, inner = asyncio.get_running_loop(), self._host.contexts, self._inner
        assert inner is not None
        is_dialer = self._host.own.id < self.peer
        connection = PeerConnection(self._host, is_dialer, self.peer)
        connection.over = self._detour.id
        connection.contexts_digest = contexts.digest if contexts else b""
        async with asyncio.timeout(self._host.link.timeout_s):
            if contexts is not None and is_dialer:
                await loop.create_unix_connection(
                    lambda: connection, sock=inner, ssl=contexts.client, server_hostname=self.peer
                )
            else:
                await loop.connect_accepted_socket(
                    lambda: connection, inner, ssl=contexts.server if contexts else None
                )
        self._inner = None
        return connection

    def close(self, why: str) -> None:
        if self._inner is not None:
            self._inner.close()
            self._inner = None
        if self._outer is not None:
            self._outer.close()
        if self._is_dialed:
            self._relay.close(why)
        self.news.set()

    # --- from the relay (see peer_connection.Owner) ---

    def arrived(self, connection: PeerConnection, frames: bytes) -> None:
        for kind, data in hop_frames(frames):
            if kind == MET:
                self.is_met = True
                self.news.set()
            elif kind == DATA:
                if not self.is_met or self._outer is None:
                    raise LinkError(f"{self._detour.id} sent bytes that are not a valid message")
                self._outer.write(data)

    def heartbeat(self, connection: PeerConnection) -> bytes:
        return hop_frame(LIFE)

    def writable(self, connection: PeerConnection) -> None:
        if self._outer is not None:
            self._outer.resume_reading()

    def lost(self, connection: PeerConnection) -> None:
        self.close(connection.why)

    # --- from the peer's connection, through the pair of sockets ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._outer = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._relay.write(hop_frame(DATA, data))
        if not self._relay.is_writable and self._outer is not None:
            self._outer.pause_reading()

    def pause_writing(self) -> None:
        self._relay.pause_reading()

    def resume_writing(self) -> None:
        self._relay.is_held = False
        self._relay.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._outer = None
        self.close("the connection that it carried has ended")
