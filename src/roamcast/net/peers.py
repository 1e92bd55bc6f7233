"""Connections to peers: a listener, and a dialer for every peer of the configuration.

The handler, pure code behind a journal, makes all decisions about links. This module has only sockets, the
authentication of their other ends, and retries. Brokers may dial each other: of two connections the one
dialed by the lower id survives, unless the peer has been restarted since the other was made. A peer that is
discovered at a new address is dialed there. While the direct connection is cut, a connection may be carried
by a third broker (`net/detours.py`); the direct one is tried again and again, and takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from roamcast.broker.links.end import LinkError
from roamcast.broker.links.links import Offer
from roamcast.config.addresses import is_loopback, join_endpoint, split_endpoint
from roamcast.config.sections import Detour, Link, Peer
from roamcast.config.sections import Relay as RelaySection
from roamcast.errors import cannot_listen
from roamcast.net.address_book import AddressBook
from roamcast.net.clients import Budget
from roamcast.net.complaints import Complaints
from roamcast.net.detours import Detours
from roamcast.net.doorway import Doorway
from roamcast.net.handshake import (
    NONCE_BYTES,
    REASONS,
    Agreed,
    Ended,
    Handshake,
    HandshakeHello,
    LinkRefusal,
    Own,
    line,
)
from roamcast.net.peer_connection import PeerConnection
from roamcast.net.peer_list import PeerList
from roamcast.net.relay import Relay
from roamcast.net.strangers import Stranger, Strangers
from roamcast.net.tls import LinkContexts
from roamcast.net.unix_sockets import bound, path_of
from roamcast.protocol.codec import VERSION_MAX, VERSION_MIN

log = logging.getLogger("roamcast.peers")

STRANGERS_MAX = 64
"""Maximum number of connections that are not authenticated yet."""
STRANGERS_PER_HOST_MAX = 32
"""Maximum number of these from one host; past it the host's oldest one is closed for a new one, which may
be a peer."""
REFUSED_FACTOR = 4
"""After a refusal the longest pause is multiplied by this: somebody has to change something first."""
STABLE_S = 1.0
"""Seconds after which a connection counts as a success, so that pauses restart at the shortest."""
LATE_S = 0.5
"""Seconds after which data must have been sent after the rival connected; data that arrives later than this
proves that the process is alive."""
SILENT_HEARTBEATS = 2.0
"""Heartbeats of silence after which a connection is replaced by a detour, if there is one."""
ALIVE_SHARE = 0.6
"""Share of the link's timeout within which a connection must show that it is alive."""


class LinkHandler(Protocol):
    """Interface of the daemon for its links."""

    def offer(self, peer: str) -> Offer:
        """Return the offer for the peer. No connection to the peer is up at this time."""

    def doubt(self, peer: str, offer: Offer) -> str:
        """Return why the peer's history is refused, given its offer; "" if it is accepted."""

    def refusal(self, peer: str, offer: Offer) -> str:
        """Return another reason to refuse the link; "" if there is none."""

    def runs_twice(self, peer: str) -> str:
        """Return the refusal for a process with the id of a peer that is connected and alive."""

    def on_refused(self, peer: str, why: str, is_fence: bool) -> None:
        """Note that one of the two ends refused the link because of the offers.

        `is_fence`: the peer refuses this broker's history.
        """

    def on_link_up(self, peer: str, offer: Offer, version: int) -> None:
        """Start the link: both ends have accepted this version of the link protocol, and `write` works from
        now on.

        LinkError closes the connection.
        """

    def on_frames(self, peer: str, frames: bytes) -> None:
        """Handle whole frames. LinkError closes the connection."""

    def on_link_down(self, peer: str) -> None: ...

    def taken(self, peer: str) -> int:
        """Return the number of messages received over the link."""

    def on_writable(self, peer: str) -> None:
        """Continue writing: the connection takes more after `is_writable` was false."""

    def heartbeat(self, peer: str) -> bytes:
        """Return a frame that shows that this broker is alive."""


class LinkStatus(msgspec.Struct, frozen=True):
    """State of a link, for people and metrics."""

    peer: str
    is_up: bool
    address: str = ""
    why: str = ""
    """Why the link, or the direct connection, is down."""
    over: str = ""
    """The broker that carries the link, if the direct connection is cut."""


class Peers:
    """The connections of one broker to its peers."""

    def __init__(
        self,
        id: str,
        terms: Mapping[str, str],
        link: Link,
        peers: Iterable[Peer],
        handler: LinkHandler,
        contexts: LinkContexts | None = None,
        versions: tuple[int, int] = (VERSION_MIN, VERSION_MAX),
        detours: Iterable[Detour] = (),
        relay: RelaySection | None = None,
        within: Path | None = None,
    ) -> None:
        """`terms` is what the brokers of a network must agree on, in words for the log.

        `versions` are the lowest and the highest supported version of the link protocol. `within` is the unix
        socket to listen on for the other workers of the site.
        """
        self.id = id
        self.own = Own(id, secrets.token_bytes(16), dict(terms), versions)
        self.link = link
        listed = list(peers)
        self._list = PeerList(link, listed)
        self._book = AddressBook(listed)
        self._handler = handler
        self.contexts = contexts
        self._strangers = Strangers(lambda: STRANGERS_MAX, lambda host: STRANGERS_PER_HOST_MAX)
        self._doorway = Doorway(
            self._strangers, self._admit, lambda: self.link.timeout_s, self._complain_about_stranger
        )
        self._entering: dict[asyncio.Task[None] | None, Stranger] = {}
        """Handshakes with brokers that are not authenticated yet."""
        self._dialers: dict[str, asyncio.Task[None]] = {}
        self._hurry: dict[str, asyncio.Event] = {}
        """Set to end a dialer's pause."""
        self._shaking: set[asyncio.Task[None]] = set()
        """Handshakes in progress with dialed brokers."""
        self._connections: set[PeerConnection] = set()
        self._slots: dict[str, PeerConnection] = {}
        """The connection to each peer: up, or about to be."""
        self._whys: dict[str, str] = {}
        self._down_since: dict[str, float] = {}
        self._complaints = Complaints()
        self._detour_list = list(detours)
        self._detours = Detours(self)
        self.relay = Relay(relay or RelaySection())
        self._within = within
        self._within_server: asyncio.Server | None = None

    # --- from start to end ---

    async def start(self) -> None:
        if self.link.port is not None:
            try:
                await self._doorway.open(self.link.address, self.link.port)
            except OSError as error:
                where = f"link.address = {join_endpoint(self.link.address, self.link.port)}"
                raise cannot_listen(where, error) from None
        if self._within is not None:
            try:
                server = await asyncio.get_running_loop().create_unix_server(
                    self._receive_within, sock=bound(self._within)
                )
            except OSError as error:
                raise cannot_listen(str(self._within), error) from None
            self._within_server = server
        self._dial_all()
        self._detours.configure(self._detour_list, self._list.listed)

    @property
    def port(self) -> int:
        """The port of the listener; 0 if there is none."""
        return self._doorway.ports[0] if self._doorway.is_open else 0

    def reload(
        self,
        link: Link,
        peers: Iterable[Peer],
        contexts: LinkContexts | None = None,
        detours: Iterable[Detour] = (),
        relay: RelaySection | None = None,
    ) -> None:
        """Apply another configuration, also to present links: a link that would no longer be accepted ends.

        The listener stays. InputError changes nothing.
        """
        listed = list(peers)
        peer_list = PeerList(link, listed)
        self.relay.reload(relay or RelaySection())
        self._detours.configure(detours, peer_list.listed)
        self._list = peer_list
        self.link, self.contexts = link, contexts
        for peer in self._book.configure(listed):
            self._follow(peer)
        for peer in [peer for peer in self._dialers if peer not in self._book]:
            self._dialers.pop(peer).cancel()
        for connection in list(self._connections):
            if connection.state == "up":
                self._review(connection)
        self._dial_all()

    def _review(self, connection: PeerConnection) -> bool:
        """Close a connection that would no longer be accepted."""
        objection = self._objection(connection)
        if objection:
            connection.close(objection)
            return False
        connection.limit(self._budget(connection.peer_id))
        return True

    def _objection(self, connection: PeerConnection) -> str:
        peer, contexts = connection.peer_id, self._contexts_of(connection)
        if not self._list.admits(peer):
            return f"{peer} is not in the list of peers any more"
        if connection.over and not self._detours.allows(peer, connection.over):
            return f"{connection.over} may not carry the link to {peer} any more"
        if connection.secret not in (self._list.secrets(peer) or ("",)):
            return f"the secret that {peer} proved itself with is not valid any more"
        if connection.contexts_digest != (contexts.digest if contexts else b""):
            return "certificates, authorities or revocation lists have changed"
        if contexts and not connection.is_certified(peer, self._list.entry(peer).certificate_sha256):
            return f"the certificate of {peer} is no longer listed in certificate_sha256"
        return ""

    def _budget(self, peer: str) -> Budget | None:
        entry = self._list.entry(peer)
        if entry.messages_per_s is None and entry.bytes_per_s is None:
            return None
        before, at_once = self._handler.taken(peer), int(entry.messages_per_s or 0) + 1

        def taken() -> int:
            return self._handler.taken(peer) - before

        return Budget(taken, entry.messages_per_s, at_once, entry.bytes_per_s)

    def _dial_all(self) -> None:
        for peer in self._book.peers:
            self._dial_soon(peer)

    def _dial_soon(self, peer: str, first_pause_s: float = 0.0) -> None:
        if peer not in self._dialers:
            self._hurry[peer] = asyncio.Event()
            self._dialers[peer] = asyncio.create_task(self._dial(peer, first_pause_s))
        self._hurry[peer].set()

    async def stop(self) -> None:
        tasks = [*self._dialers.values(), *self._shaking]
        for task in tasks:
            task.cancel()
        if self._within_server is not None:
            self._within_server.close()
        for connection in list(self._connections):
            connection.close("this broker stops")
        self.relay.stop()
        await self._detours.stop()
        await asyncio.gather(self._doorway.closed(), *tasks, return_exceptions=True)
        self._dialers = {}

    # --- peers that are found (see discovery.Finder) ---

    def found(self, peer: str, address: str) -> None:
        """Note the discovered address of a peer. The announcement was signed with the secret."""
        if self._book.find(peer, address):
            self._follow(peer)
        if peer not in self._slots:
            # An attempt in progress may go to the old address, or may have begun during an outage.
            if peer in self._dialers:
                self._dialers.pop(peer).cancel()
            # Both ends hear of each other; the lower id dials first, so that the two attempts do not collide.
            self._dial_soon(peer, self.link.reconnect_min_s if self.id > peer else 0.0)

    def lose(self, peer: str) -> bool:
        if peer in self._slots:
            return False
        self._book.lose(peer)
        if peer not in self._book and peer in self._dialers:
            self._dialers.pop(peer).cancel()
        return True

    def leave(self, host: str) -> None:
        for connection in list(self._connections):
            if connection.local_host == host:
                connection.close(f"this broker no longer has the address {host}")
        self._dial_all()

    def _follow(self, peer: str) -> None:
        """Close the connection to the old address of a peer: its loss would only be noticed after a while."""
        address, connection = self._book.addresses(peer)[0], self._slots.get(peer)
        if connection is None or connection.over or address == connection.dialed:
            return
        if connection.dialed or connection.host != split_endpoint(address)[0]:
            connection.close(f"the address of the peer is now {address}")

    # --- what the daemon asks for ---

    def write(self, peer: str, data: bytes) -> None:
        """Write frames for the peer; do nothing if the connection has just been lost."""
        connection = self._slots.get(peer)
        if connection is not None and connection.state == "up":
            connection.write(data)

    def is_writable(self, peer: str) -> bool:
        connection = self._slots.get(peer)
        return connection is not None and connection.state == "up" and connection.is_writable

    def pause_reading(self, peer: str) -> None:
        connection = self._slots.get(peer)
        if connection is not None:
            connection.pause_reading()

    def resume_reading(self, peer: str) -> None:
        connection = self._slots.get(peer)
        if connection is not None:
            connection.is_held = False
            connection.resume_reading()

    def dial_again(self, peer: str) -> None:
        """End the pause before the next attempt: its reason is gone."""
        if peer in self._dialers:
            self._hurry[peer].set()

    def close(self, peer: str, why: str) -> None:
        """Close the link. A configured peer is dialed again after a long pause."""
        connection = self._slots.get(peer)
        if connection is not None:
            connection.is_refused = True
            connection.close(why)

    def statuses(self, others: Iterable[str] = ()) -> list[LinkStatus]:
        """Return the status of every peer that is configured or connected, and of these."""
        statuses = []
        known = [*self._list.listed, *self._book.peers, *self._slots, *others]
        for peer in sorted(dict.fromkeys(known)):
            connection = self._slots.get(peer)
            is_up = connection is not None and connection.state == "up"
            address = connection.address if connection is not None else ""
            if not address and peer in self._book:
                address = self._book.addresses(peer)[0]
            over = connection.over if connection is not None and is_up else ""
            why = "" if is_up and not over else self._whys.get(peer, "")
            statuses.append(LinkStatus(peer, is_up, address, why, over))
        return statuses

    # --- detours (see detours.DetourHost) ---

    def needs_detour(self, peer: str) -> bool:
        connection = self._slots.get(peer)
        if connection is not None:
            # The silence of a carried connection ends that connection; a detour does not replace it.
            return not connection.over and connection.is_silent(SILENT_HEARTBEATS * self.link.heartbeat_s)
        now_s = asyncio.get_running_loop().time()
        return now_s - self._down_since.setdefault(peer, now_s) >= self.link.reconnect_min_s

    def secrets_of(self, id: str) -> tuple[str, ...]:
        return self._list.secrets(id)

    def met(self, connection: PeerConnection) -> None:
        self._start(self._shake(connection))

    # --- listening ---

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._shaking.add(task)
        task.add_done_callback(self._started)

    def _started(self, task: asyncio.Task[None]) -> None:
        """Report an exception of a finished handshake: errors of the handler must not be swallowed."""
        self._shaking.discard(task)
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a handshake failed", "exception": task.exception(), "task": task}
            )

    async def _admit(self, accepted: socket.socket, stranger: Stranger) -> None:
        """Handle a new connection that has sent its first byte."""
        task = asyncio.current_task()
        self._entering[task] = stranger
        try:
            await self._receive(accepted, stranger)
        finally:
            self._entering.pop(task, None)
            self._strangers.settle(stranger)

    async def _receive(self, accepted: socket.socket, stranger: Stranger) -> None:
        if not (self._list.has_secrets or self.contexts or is_loopback(stranger.host)):
            accepted.close()
            why = "without a secret or TLS, links are for this machine alone"
            self._complain_about_stranger(stranger, why)
            return
        connection = PeerConnection(self, is_dialer=False)
        connection.contexts_digest = self.contexts.digest if self.contexts else b""
        context = self.contexts.server if self.contexts else None
        if await self._doorway.hand_over(accepted, stranger, connection, context) is not None:
            await self._shake(connection)

    def _receive_within(self) -> PeerConnection:
        """Handle a connection of another worker of the site."""
        connection = PeerConnection(self, is_dialer=False)
        connection.is_within = True
        connection.on_made = lambda: self._start(self._shake(connection))
        return connection

    def _contexts_of(self, connection: PeerConnection) -> LinkContexts | None:
        return None if connection.is_within else self.contexts

    def _complain_about_stranger(self, stranger: Stranger, why: str) -> None:
        self._complain(stranger.host, f"a stranger at {stranger.address}", why, logging.WARNING)

    # --- dialing ---

    async def _dial(self, peer: str, first_pause_s: float) -> None:
        """Connect and reconnect to the peer, forever."""
        failures = 0
        hurry = self._hurry[peer]
        await asyncio.sleep(first_pause_s)
        while True:
            hurry.clear()
            addresses = self._book.addresses(peer)
            connection = self._slots.get(peer)
            if connection is None or connection.over:
                connection = await self._connect(peer, addresses[failures % len(addresses)])
            if connection is not None:
                await connection.ended.wait()
                if connection.up_s >= STABLE_S:
                    failures = 0
            if connection is not None and connection.is_refused:
                pause_s = self.link.reconnect_max_s * REFUSED_FACTOR
            else:
                pause_s = min(self.link.reconnect_max_s, self.link.reconnect_min_s * 2.0**failures)
                failures = min(failures + 1, 30)
            # Not `wait_for`, which takes a cancellation for the event if both come at once.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s * random.uniform(0.5, 1.0)):
                    await hurry.wait()

    async def _connect(self, peer: str, address: str) -> PeerConnection | None:
        path, loop = path_of(address), asyncio.get_running_loop()
        connection = PeerConnection(self, is_dialer=True, expected=peer)
        connection.dialed, connection.is_within = address, bool(path)
        contexts = self._contexts_of(connection)
        connection.contexts_digest = contexts.digest if contexts else b""
        context = contexts.client if contexts else None
        try:
            async with asyncio.timeout(self.link.timeout_s):
                if path:
                    await loop.create_unix_connection(lambda: connection, path)
                else:
                    host, port = split_endpoint(address)
                    await loop.create_connection(lambda: connection, host, port, ssl=context)
        except (OSError, TimeoutError) as error:
            why = getattr(error, "reason", "") or getattr(error, "strerror", "") or str(error) or "no answer"
            is_broken_off = isinstance(error, ConnectionResetError | ConnectionAbortedError)
            if context is not None and (is_broken_off or "WRONG_VERSION" in str(why)):
                name = type(error).__name__
                why = f"the peer does not speak TLS ({name}); set link.tls to the same value at both ends"
            self._whys[peer] = f"{address} cannot be reached: {why}"
            self._complain(peer, peer, self._whys[peer], logging.INFO)
            return None
        self._start(self._shake(connection))
        return connection

    # --- what connections call ---

    def arrived(self, connection: PeerConnection, frames: bytes) -> None:
        self._handler.on_frames(connection.peer_id, frames)

    def heartbeat(self, connection: PeerConnection) -> bytes:
        return self._handler.heartbeat(connection.peer_id)

    def writable(self, connection: PeerConnection) -> None:
        self._handler.on_writable(connection.peer_id)

    def lost(self, connection: PeerConnection) -> None:
        peer = connection.peer_id
        self._release(connection)
        if not connection.over:
            self._whys[peer] = connection.why
        self._down_since[peer] = asyncio.get_running_loop().time()
        is_serious = connection.is_refused or connection.is_suspect
        level = logging.WARNING if is_serious else logging.INFO
        log.log(level, "the link to %s is down: %s", peer, connection.why)
        self._handler.on_link_down(peer)

    def _release(self, connection: PeerConnection) -> None:
        self._connections.discard(connection)
        for peer in [peer for peer, one in self._slots.items() if one is connection]:
            del self._slots[peer]

    # --- the handshake ---

    async def _shake(self, connection: PeerConnection) -> None:
        self._connections.add(connection)
        handshake = Handshake(
            connection,
            self.own,
            secrets.token_bytes(NONCE_BYTES),
            connection.expected,
            self._certified_by(connection) if self._contexts_of(connection) else None,
        )
        try:
            async with asyncio.timeout(self.link.timeout_s):
                agreed = await handshake.run(_HandshakeHost(self, connection, self._handler))
        except LinkRefusal as refused:
            self._refused(connection, handshake, refused)
        except TimeoutError:
            connection.close(f"no handshake within {self.link.timeout_s:g} s")
            self._failed(connection, handshake)
        except Ended:
            if (
                connection.is_dialer
                and handshake.peer is None
                and self.contexts is None
                and not connection.is_within
            ):
                connection.why += "; if its links use TLS, set link.tls = true here, too"
            self._failed(connection, handshake)
        except BaseException:
            connection.close("the handshake was broken off")
            raise
        else:
            connection.secret = handshake.secret
            if agreed is None:
                connection.peer = handshake.peer
                self._connections.discard(connection)
                self.relay.take(connection, self.link.heartbeat_s, self.link.timeout_s)
                return
            # The configuration may have changed since the peer proved who it is.
            if self._review(connection):
                self._up(connection, agreed)
        finally:
            if connection.state == "closed":
                self._release(connection)

    def _certified_by(self, connection: PeerConnection) -> Callable[[str], bool]:
        return lambda id: connection.is_certified(id, self._list.entry(id).certificate_sha256)

    def _up(self, connection: PeerConnection, agreed: Agreed) -> None:
        peer = agreed.peer
        connection.begin(self.link.heartbeat_s, self.link.timeout_s)
        if connection.over:
            log.warning(
                "the link to %s is up (carried by %s: %s)", peer, connection.over, self._whys.get(peer)
            )
        else:
            self._whys.pop(peer, None)
            log.info("the link to %s is up (%s)", peer, connection.address)
        self._complaints.forget(peer)
        self._down_since.pop(peer, None)
        try:
            self._handler.on_link_up(peer, agreed.offer, agreed.version)
        except LinkError as error:
            self.close(peer, str(error))
        connection.flush()

    def _refused(self, connection: PeerConnection, handshake: Handshake, refused: LinkRefusal) -> None:
        connection.is_refused = refused.reason != "duplicate"
        connection.close(f"it refuses: {refused}" if refused.is_told else str(refused))
        if connection.is_refused:
            self._failed(connection, handshake)
        peer = handshake.peer if handshake.is_authenticated else None
        if refused.reason in ("link", "history") and peer is not None:
            is_fence = refused.reason == "history" and refused.is_told
            self._handler.on_refused(peer.id, str(refused), is_fence)

    def _failed(self, connection: PeerConnection, handshake: Handshake | None = None) -> None:
        """Log why there is no link over this connection; repeated reasons are suppressed."""
        claimed = handshake.peer.id if handshake is not None and handshake.peer is not None else ""
        proved = claimed if handshake is not None and handshake.is_authenticated else connection.expected
        if proved and not connection.over:
            self._whys[proved] = connection.why
        who = proved or (f"who calls itself {line(claimed)}" if claimed else "a stranger")
        level = logging.WARNING if connection.is_refused or not proved else logging.INFO
        self._complain(proved or connection.host, f"{who} at {connection.address}", connection.why, level)

    def _complain(self, about: str, who: str, why: str, level: int) -> None:
        if self._complaints.is_due(about, why):
            log.log(level, "no link with %s: %s", who, why)

    def is_guest(self, peer: str) -> bool:
        """Return whether the peer may speak for some clients only, as a peer of another organisation does."""
        return self._list.entry(peer).is_guest

    def admits(self, peer: HandshakeHello) -> bool:
        return self.relay.admits(peer.id, peer.meets) if peer.meets else self._list.admits(peer.id)

    def secrets(self, connection: PeerConnection, peer: HandshakeHello) -> tuple[str, ...]:
        valid = (self.relay.secrets if peer.meets else ()) or self._list.secrets(peer.id)
        if not (valid or self._contexts_of(connection) or connection.is_local):
            raise LinkRefusal(REASONS["secret"], "secret")
        return valid

    def terms(self, peer: str) -> dict[str, str]:
        is_guest = self._list.entry(peer).is_guest
        return {"clients that may move over the link": "listed ones" if is_guest else "all"}

    async def claim(self, connection: PeerConnection, peer: HandshakeHello) -> bool:
        """Return whether this connection becomes the peer's only one, and close the other one in that case.

        LinkRefusal if the other one belongs to another live process, because the broker then runs twice.
        """
        while (other := self._slots.get(peer.id)) is not None and self._are_rivals(other, peer):
            if await other.is_alive(LATE_S, self.link.timeout_s * ALIVE_SHARE):
                raise LinkRefusal(self._handler.runs_twice(peer.id), "history")
            if self._slots.get(peer.id) is other:
                break
        if other is not None and other.state != "closed" and other.peer is not None:
            is_same_life = other.peer.boot == peer.boot
            if is_same_life and self._rank(connection, peer.id) > self._rank(other, peer.id):
                return False
            other.close("another connection takes its place")
        connection.peer = peer
        stranger = self._entering.pop(asyncio.current_task(), None)
        if stranger is not None:
            self._strangers.settle(stranger)
        self._slots[peer.id] = connection
        return True

    def _rank(self, connection: PeerConnection, peer: str) -> tuple[bool, str, bool]:
        """Rank of a connection. Of two to one peer the lower rank survives, and at equal rank the later
        one. Preferred are: one that is not silent, the direct one, the one that the lower id dialed."""
        is_silent = connection.is_silent(SILENT_HEARTBEATS * self.link.heartbeat_s)
        return is_silent, connection.over, connection.is_dialer != (self.id < peer)

    def _are_rivals(self, other: PeerConnection, peer: HandshakeHello) -> bool:
        """Return true if the present connection belongs to another process with the same id."""
        return other.state == "up" and other.peer is not None and other.peer.boot != peer.boot


class _HandshakeHost:
    """Decides for one handshake: `Peers` about connections, the handler about links."""

    def __init__(self, peers: Peers, connection: PeerConnection, handler: LinkHandler) -> None:
        self._peers = peers
        self._connection = connection
        self.offer = handler.offer
        self.doubt = handler.doubt
        self.refusal = handler.refusal
        self.admits = peers.admits
        self.terms = peers.terms

    def secrets(self, peer: HandshakeHello) -> tuple[str, ...]:
        return self._peers.secrets(self._connection, peer)

    async def claim(self, peer: HandshakeHello) -> bool:
        return await self._peers.claim(self._connection, peer)
