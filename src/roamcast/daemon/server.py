"""The broker daemon: listeners in front, links behind, one site between them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import ssl
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

from roamcast.daemon.addresses import is_loopback
from roamcast.daemon.admission import Admission
from roamcast.daemon.clients import Budget, ClientConnection, Refused
from roamcast.daemon.engine import Engine
from roamcast.daemon.journal import Journal
from roamcast.daemon.linking import Linking
from roamcast.daemon.sections import Config, Listener
from roamcast.daemon.settings import site_settings
from roamcast.daemon.tls import ServerContext, listener_context
from roamcast.daemon.websocket import WebSocketConnection
from roamcast.errors import InputError
from roamcast.mqtt.access import Identity
from roamcast.mqtt.packets import Connect
from roamcast.mqtt.reasons import Reason
from roamcast.site.inputs import Full, Ruled, SiteInput, Started
from roamcast.site.site import Site

log = logging.getLogger("roamcast")

SWEEP_S = 1.0


class Server:
    """Implements `Door` for connections and `Output` for the engine."""

    def __init__(
        self, config: Config, site: Site, journal: Journal | None, reread: Callable[[], Config]
    ) -> None:
        self.config = config
        self._reread = reread
        self.site = site
        self.engine = Engine(site, journal, self)
        self.connect_packet_max = min(config.mqtt.packet_bytes_max, 256 << 10)
        self.output_bytes_max = config.quotas.output_bytes_max
        self.ports: list[int] = []
        self._clients: dict[int, ClientConnection] = {}
        self._coming: set[int] = set()
        """Connections that have not said yet who they are."""
        self._addresses: Counter[str] = Counter()
        self._opened = 0
        self._servers: list[asyncio.Server] = []
        self._admission = Admission(config)
        self.linking = Linking(config, site, self.engine.push)
        self._contexts: dict[int, ServerContext] = {}
        """TLS of the listeners that have it, by their number."""
        self._stopping = asyncio.Event()

    # --- running ---

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self.engine.push(Started(site_settings(self.config)))
        self.engine.push(Ruled(self.config.access_rules))
        self.engine.turn()
        await self.linking.peers.start()
        for number, listener in enumerate(self.config.listeners):
            await self._listen(number, listener)
        sweep = loop.create_task(self._sweep())
        log.info("broker %s listens on %s", self.config.id, ", ".join(map(str, self.ports)))
        try:
            await self._stopping.wait()
        finally:
            sweep.cancel()
            await self._stop()

    async def _listen(self, number: int, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        if listener.is_secure:
            self._contexts[number] = ServerContext(_tls_of(number, listener))
        context = self._contexts[number].context if listener.is_secure else None
        try:
            server = await loop.create_server(
                lambda: self._new_connection(number),
                listener.address,
                listener.port,
                backlog=1024,
                ssl=context,
                ssl_handshake_timeout=self.config.mqtt.connect_timeout_s if context else None,
            )
        except OSError as error:
            where = f"{listener.address}:{listener.port}"
            raise InputError(f"listener {where}: cannot listen ({error.strerror or error})") from None
        self._servers.append(server)
        self.ports += [socket.getsockname()[1] for socket in server.sockets]

    def _new_connection(self, number: int) -> asyncio.Protocol:
        listener = self.config.listeners[number]
        client = ClientConnection(self, listener)
        return WebSocketConnection(client, listener) if listener.is_websocket else client

    def _reload(self) -> None:
        """Read users, access rules, certificates and peers again; what else is new needs a restart."""
        try:
            config = self._reread()
            listeners = config.listeners
            if [_place(one) for one in listeners] != [_place(one) for one in self.config.listeners]:
                raise InputError("other listeners need a restart")
            for number, context in self._contexts.items():
                context.reload(_tls_of(number, listeners[number]))
            self._admission.reconfigure(config)
            self.linking.reload(config)
        except InputError as error:
            log.error("the configuration stays as it was: %s", error)
            return
        self.config = msgspec.structs.replace(
            self.config, listeners=listeners, access=config.access, link=config.link, peers=config.peers
        )
        self.engine.push(Ruled(config.access_rules))
        log.info("users, access rules, certificates and peers have been read again")

    async def _stop(self) -> None:
        self._admission.close()
        for server in self._servers:
            server.close()
        await self.linking.peers.stop()
        for client in list(self._clients.values()):
            client.finish()
        self.engine.stop()
        log.info("broker %s has stopped", self.config.id)

    async def _sweep(self) -> None:
        """Close connections that have been silent for too long."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            limit = self.config.quotas.buffered_bytes_max
            if self.site.queued_bytes > limit:
                log.warning("more than %d bytes are queued: the longest queues give up their oldest", limit)
                self.engine.push(Full(limit * 9 // 10))
            for client in list(self._clients.values()):
                if client.is_silent(now, self.config.mqtt.connect_timeout_s):
                    log.info("%s: nothing heard for %.0f s", client.address, now - client.last_heard_s)
                    client.finish()

    # --- connections (see clients.Door) ---

    def push(self, item: SiteInput) -> None:
        self.engine.push(item)

    def opened(self, client: ClientConnection) -> int:
        quotas = self.config.quotas
        host = client.host
        limit = quotas.connections_per_address_max
        if len(self._clients) >= quotas.connections_max:
            raise Refused(Reason.SERVER_BUSY, f"there are {quotas.connections_max} connections already")
        if limit is not None and self._addresses[host] >= limit and not is_loopback(host):
            raise Refused(Reason.SERVER_BUSY, f"there are {limit} connections from {host} already")
        if len(self._coming) >= quotas.connecting_max:
            raise Refused(Reason.SERVER_BUSY, f"{quotas.connecting_max} connections are coming in already")
        self._opened += 1
        self._addresses[host] += 1
        id = (self.site.starts << 32) + self._opened
        self._clients[id] = client
        self._coming.add(id)
        return id

    def came_in(self, id: int) -> Budget | None:
        self._coming.discard(id)
        quotas, connections = self.config.quotas, self.site.endpoint.connections
        if quotas.publish_per_s is None and quotas.publish_bytes_per_s is None:
            return None

        def published() -> int:
            connection = connections.get(id)
            return connection.published if connection is not None else 0

        return Budget(published, quotas.publish_per_s, quotas.publish_burst, quotas.publish_bytes_per_s)

    def lost(self, client: ClientConnection) -> None:
        del self._clients[client.id]
        self._coming.discard(client.id)
        self._addresses[client.host] -= 1
        if not self._addresses[client.host]:
            del self._addresses[client.host]

    async def admit(self, client: ClientConnection, connect: Connect) -> Identity:
        client_id = connect.client_id
        if not client_id:
            if connect.version == 4 and not connect.clean_start:
                raise Refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, "a lasting session needs a client id")
            client_id = f"auto-{secrets.token_hex(12)}"
        return await self._admission.identify(
            client.listener, connect, client_id, client.host, client.certificate
        )

    # --- effects (see engine.Output) ---

    def write(self, connection: int, data: bytes) -> None:
        client = self._clients.get(connection)
        if client is not None:
            client.write(data)

    def close(self, connection: int) -> None:
        client = self._clients.get(connection)
        if client is not None:
            client.finish()

    def write_link(self, peer: str) -> None:
        self.linking.write(peer)

    def close_link(self, peer: str, why: str) -> None:
        self.linking.peers.close(peer, why)


def _place(listener: Listener) -> tuple[str, int, str]:
    return listener.address, listener.port, listener.kind


def _tls_of(number: int, listener: Listener) -> Callable[[], ssl.SSLContext]:
    return partial(listener_context, listener, f"listener.{number}")
