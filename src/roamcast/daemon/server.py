"""The broker daemon: listeners in front, links behind, one site between them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import (
    AccessRevoked,
    ConnectionLost,
    QueuesOverLimit,
    RulesChanged,
    SettingsChanged,
    Started,
    Tree,
)
from roamcast.broker.news import News
from roamcast.broker.seeking import IsHere
from roamcast.config.addresses import is_loopback
from roamcast.config.schema import differences, shown_table
from roamcast.config.sections import Config, Listener
from roamcast.daemon.clock import resume_clock, save_reading
from roamcast.daemon.engine import PACKETS_PER_TURN, Engine
from roamcast.daemon.failing import restarting
from roamcast.daemon.linking import Linking
from roamcast.daemon.operations import Operations
from roamcast.daemon.pressure import held_bytes
from roamcast.daemon.settings import read_model, site_settings
from roamcast.daemon.siblings import Siblings
from roamcast.daemon.trees import Trees
from roamcast.daemon.workers import Worker, handover_sockets, link_socket, siblings, site_id, tell_ready
from roamcast.errors import InputError, cannot_listen
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.packets import Auth, Connack, Connect, Disconnect
from roamcast.mqtt.codec.reading import Limits
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.sessions import client_of
from roamcast.mqtt.server.traffic import Note
from roamcast.net.admission import Admission, Admitted
from roamcast.net.buffered import Buffered
from roamcast.net.clients import (
    HIGH_WATER_BYTES,
    Budget,
    ClientConnection,
    ConnectionRefused,
    auth,
    protocol_of,
)
from roamcast.net.complaints import Complaints
from roamcast.net.doorway import Doorway, Entering
from roamcast.net.flapping import Flapping
from roamcast.net.handing_over import Handed, HandOver, client_id_of
from roamcast.net.logs import fields, set_level
from roamcast.net.open_files import room_for
from roamcast.net.proxy_protocol import HeaderRefused, ProxyHeaders
from roamcast.net.revocation import Revocations, place_of
from roamcast.net.strangers import SETTLED, Stranger, Strangers
from roamcast.net.tls import ServerContext, listener_context
from roamcast.storage.journal import Journal
from roamcast.storage.restarting import FailStop

if TYPE_CHECKING:
    from roamcast.daemon.event_log import EventLog
    from roamcast.daemon.replicating import Replicating

log = logging.getLogger("roamcast")

SWEEP_S = 1.0
START_BITS = 62
DENIED_AGAIN_S, DENIED_PAUSE_MAX_S = 10.0, 3600.0
"""A denial is logged once for each client and reason, then again after growing pauses."""
OWNERS_LOGGED_MAX = 20
SAVE_CLOCK_S = 60.0
"""Seconds between two saves of the broker's time, for the next start."""
FAREWELL_S = 2.0
"""Seconds that clients have to read their last bytes."""


class Server:
    """Implements `Door` for connections and `Output` for the engine."""

    def __init__(
        self,
        config: Config,
        site: AnyMachine,
        journal: Journal | None,
        reread: Callable[[], Config],
        fail_stop: FailStop,
        events: EventLog | None = None,
        replicating: Replicating | None = None,
        worker: Worker | None = None,
    ) -> None:
        self.config = config
        self._worker = worker
        is_first = worker is not None and worker.number == 1
        self.siblings = Siblings(lambda: siblings(self.config)) if is_first else None
        """The other workers, if this is the first of several."""
        self.replicating = replicating
        self._reread = reread
        self.site = site
        site.endpoint.packets_per_turn = PACKETS_PER_TURN
        self.events = events
        records = events.take if events is not None else None
        self.kept_out = fail_stop.kept_out
        self.engine = Engine(
            site, journal, self, records, config.link.unacknowledged_bytes_max,
            clock=resume_clock(site.endpoint.now, Path(config.data)),
            on_failure=restarting(fail_stop, site, journal),
            before_snapshot=events.sync if events is not None else None, gate=replicating,
            look_at_memory=self._look_at_memory,
        )  # fmt: skip
        if replicating is not None:
            replicating.engine = self.engine
        self.push, self.take = self.engine.push, self.engine.take
        self.connect_packet_max = min(config.mqtt.packet_bytes_max, 256 << 10)
        self.buffered = Buffered(self.engine.look_soon)
        self._is_much_held = False
        """True while each client may have less in flight because much is held."""
        self._is_over_limit = False
        """True if the memory limit was exceeded at the last check."""
        self.limits = Limits(config.mqtt.user_properties_max)
        self.keep_alive_max_s = config.mqtt.keep_alive_max_s
        self.ports: list[int] = []
        self._clients: dict[int, ClientConnection] = {}
        self.strangers = Strangers(self._room_for_strangers, self._strangers_per_address)
        self._doorways: list[Doorway] = []
        self._addresses: Counter[str] = Counter()
        self._connections_max = self._room()
        self._flapping = Flapping()
        self._handovers = handover_sockets(config, worker) if worker is not None else {}
        own = self._handovers.pop(config.id, None)
        self._hand_over = HandOver(own, self._take_handed) if own is not None else None
        """Hands connections over to other workers, and receives theirs."""
        self._complaints = Complaints()
        self._denials = Complaints(DENIED_AGAIN_S, DENIED_PAUSE_MAX_S)
        self._opened = 0
        self._proxies: dict[int, ProxyHeaders] = {}
        """Trusted proxies of listeners behind load balancers, by number of the listener."""
        self._admission = Admission(config)
        self.linking = Linking(
            config, site, self.engine.push, self.kept_out, self.engine.fail,
            link_socket(Path(config.data)) if is_first else None,
        )  # fmt: skip
        self._revocations = Revocations(config.listeners)
        self._contexts: dict[int, ServerContext] = {}
        """TLS contexts, by number of the listener."""
        self.linking.may_write = lambda: self.engine.is_promising
        self._started_s = time.monotonic()
        self._stopping = asyncio.Event()
        self.refused: Counter[str] = Counter()
        """Clients that were refused, by reason."""
        self._bytes = [0, 0]
        """Bytes received from and sent to closed connections."""
        self._gone: dict[int, tuple[str, str]] = {}
        """Address and reason of closed connections that the site has not been told about."""
        self._held: dict[int, ClientConnection] = {}
        """Connections paused while the journal is unavailable or memory is full."""
        self.trees = Trees(config.id)
        self._proving: dict[int, asyncio.Task[None]] = {}
        """Clients that re-authenticate."""
        self.operations = Operations(self)

    # --- running ---

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._log_history()
        self.engine.push(Started(site_settings(self.config), secrets.randbits(START_BITS) + 1))
        self.engine.push(RulesChanged(self.config.access_rules))
        owners = dict.fromkeys(owner for _, owner in self.site.endpoint.sessions.owners())
        self._revoke(self._admission.unknown(list(owners)), {})
        self.engine.turn()
        if self.replicating is not None:
            # The other replicas must have this start before anybody learns of it.
            await self.replicating.until_released()
        self._save_clock()
        try:
            await self.operations.start()
            await self.linking.start()
            for number, listener in enumerate(self.config.listeners):
                await self._listen(number, listener)
        except BaseException:
            self.engine.halt()  # The journal is about to close.
            raise
        sweeping = loop.create_task(self._sweep())
        log.info("mobility %s: %s", self.config.mobility.protocol, self.site.promise)
        self._complain_of_model()
        if self._hand_over is not None:
            self._hand_over.open()
        log.info("broker %s listens on %s", self.config.id, ", ".join(map(str, self.ports)) or "no port")
        if self._worker is not None:
            tell_ready()
        try:
            await self._stopping.wait()
        finally:
            sweeping.cancel()
            await self._stop()

    @property
    def is_listening(self) -> bool:
        return bool(self._doorways) and all(doorway.is_open for doorway in self._doorways)

    @property
    def failed_logins(self) -> int:
        return self._admission.failed_logins

    def client_bytes(self) -> tuple[int, int]:
        """Return the bytes received from clients, and the bytes sent to them."""
        here = self._clients.values()
        return (
            self._bytes[0] + sum(client.received_bytes for client in here),
            self._bytes[1] + sum(client.sent_bytes for client in here),
        )

    @property
    def connections(self) -> int:
        return len(self._clients)

    @property
    def site_of_worker(self) -> str:
        """Return the site of which this broker is a worker, if it is one."""
        return site_id(self.config, self._worker) if self._worker is not None else ""

    @property
    def handed_over(self) -> int:
        return self._hand_over.given if self._hand_over is not None else 0

    def _room(self) -> int:
        """Limit of connections: the configured one, or what the system allows."""
        wanted = self.config.quotas.connections_max
        room = room_for(wanted)
        if room < wanted:
            log.info(
                "quotas.connections_max = %d: the limit of open files (ulimit -n) allows only %d",
                wanted,
                room,
            )
        return room

    def _room_for_strangers(self) -> int:
        """Limit of connections before CONNECT: the part of the limit that admitted clients leave."""
        outside = sum([doorway.outside for doorway in self._doorways])
        admitted = len(self._clients) + outside - len(self.strangers)
        return min(self.config.quotas.connecting_max, self._connections_max - admitted)

    def _strangers_per_address(self, host: str) -> int | None:
        if is_loopback(host) or any(proxies.is_trusted(host) for proxies in self._proxies.values()):
            return None
        return self.config.quotas.connecting_per_address_max

    async def _listen(self, number: int, listener: Listener) -> None:
        if listener.is_secure:
            self._contexts[number] = ServerContext(_tls_of(number, listener))
        if listener.proxy_protocol:
            key = f"listener.{number}.trusted_proxies"
            self._proxies[number] = ProxyHeaders(listener.trusted_proxies, key)
        doorway = Doorway(
            self.strangers, partial(self._enter, number), lambda: self.config.mqtt.connect_timeout_s
        )
        self._doorways.append(doorway)
        try:
            await doorway.open(listener.address, listener.port, is_shared=self._worker is not None)
        except OSError as error:
            where = f"{listener.address}:{listener.port}"
            raise cannot_listen(f"listener {where}", error) from None
        self.ports += doorway.ports

    def _enter(self, number: int, one: socket.socket, stranger: Stranger) -> Entering:
        """Take over a connection to a listener after its first byte."""
        listener = self.config.listeners[number]
        if listener.kind != "tcp" or number in self._proxies:
            return self._enter_covered(number, one, stranger)
        is_handed_on = self._hand_on(number, one, stranger)
        return None if is_handed_on else ClientConnection(self, listener, stranger)

    async def _enter_covered(self, number: int, one: socket.socket, stranger: Stranger) -> None:
        """Take over a connection with TLS, WebSocket or the header of a load balancer around it."""
        listener, proxies, source = self.config.listeners[number], self._proxies.get(number), None
        if proxies is not None:
            try:
                source = await proxies.source_of(one, stranger.host)
            except HeaderRefused as refused:
                self.strangers.settle(stranger)
                one.close()
                if self._complaints.is_due(stranger.host, str(refused)):
                    log.warning("a connection from %s is refused: %s", stranger.host, refused)
                return
            if source is not None:
                self.strangers.rename(stranger, source[0])
        protocol = protocol_of(ClientConnection(self, listener, stranger, source), listener)
        context = self._contexts[number].context if number in self._contexts else None
        await self._doorways[number].hand_over(one, stranger, protocol, context)

    def _hand_on(self, number: int, one: socket.socket, stranger: Stranger) -> bool:
        """Pass a connection to the worker of this site that holds the client's session, if it is another
        one."""
        if self._hand_over is None or stranger.is_handed:
            return False
        client_id = client_id_of(one)
        if not client_id or client_id in self.site.endpoint.sessions:
            return False
        holder = next((id for id in self.site.may_hold(client_id) if id in self._handovers), None)
        about = Handed(number, stranger.host, stranger.address)
        if holder is None or not self._hand_over.give(self._handovers[holder], one, about):
            return False
        self.strangers.settle(stranger)
        return True

    def _take_handed(self, one: socket.socket, about: Handed) -> None:
        if about.listener < len(self._doorways):
            self._doorways[about.listener].receive(one, about.host, about.address, is_handed=True)
        else:
            one.close()

    def _reload(self) -> None:
        """Reload the settings that can change at runtime; log those that need a restart."""
        try:
            config = self._reread()
            listeners = config.listeners
            if list(map(_fixed, listeners)) != list(map(_fixed, self.config.listeners)):
                raise InputError("other listeners need a restart")
            if config.discovery != self.config.discovery:
                raise InputError("changing discovery needs a restart")
            for number, context in self._contexts.items():
                context.reload(_tls_of(number, listeners[number]))
            gone = self._admission.reconfigure(config)
            self.linking.reload(config)
            set_level(config.log)
            self._revocations.read(listeners)
        except InputError as error:
            log.error("the configuration stays as it was: %s", error)
            return
        self.config = msgspec.structs.replace(
            self.config, listeners=listeners, access=config.access, link=config.link, peers=config.peers,
            view=config.view, quotas=config.quotas, steering=config.steering,
            mobility=msgspec.structs.replace(
                self.config.mobility, unreachable=config.mobility.unreachable,
                locate_timeout_s=config.mobility.locate_timeout_s,
                meet_timeout_s=config.mobility.meet_timeout_s, unmet=config.mobility.unmet,
            ),
            log=msgspec.structs.replace(self.config.log, level=config.log.level),
        )  # fmt: skip
        waiting = sorted(differences(shown_table(self.config), shown_table(config)))
        if waiting:
            log.warning("restart to apply these changed settings: %s", ", ".join(waiting))
        self._connections_max = self._room()
        self.engine.pressure.bytes_max = config.link.unacknowledged_bytes_max
        self.engine.push(SettingsChanged(site_settings(self.config)))
        self._complain_of_model()
        self._is_much_held = False
        self.engine.push(RulesChanged(config.access_rules))
        self._revoke_all(gone)
        log.info(
            "users, access rules, certificates, peers, quotas, [view], log level, mobility.model and "
            "mobility.unreachable have been read again"
        )

    def _complain_of_model(self) -> None:
        _, why = read_model(self.config)
        if why:
            log.warning("mobility.model is not used, and the broker learns from moves alone: %s", why)

    def _revoke_all(self, gone: tuple[str, ...]) -> None:
        """End connections and sessions whose user, key or certificate changed."""
        objections: dict[int, str] = {}
        listeners = {place_of(one): one for one in self.config.listeners}
        for client in self._clients.values():
            listener = listeners.get(place_of(client.listener))
            if client.admitted is not None and listener is not None:
                why = self._admission.objection(client.admitted, listener)
                why = why or self._revocations.objection(listener, client.certificate_der)
                if why:
                    objections[client.id] = why
        self._revoke(self._admission.owners(gone), objections)

    def _revoke(self, owners: tuple[str, ...], objections: dict[int, str]) -> None:
        """End the sessions of owners, and connections, with the given reasons."""
        if owners or objections:
            # Flush first, so that clients that were accepted a moment ago are found.
            self.engine.turn()
        if owners:
            names = ", ".join(owners[:OWNERS_LOGGED_MAX])
            log.warning("ending connections and sessions of %d removed users: %s", len(owners), names)
            self.engine.push(AccessRevoked(owners, (), "its user was removed"))
        reasons: dict[str, list[int]] = {}
        for connection, why in objections.items():
            reasons.setdefault(why, []).append(connection)
        for why, connections in reasons.items():
            self.engine.push(AccessRevoked((), tuple(connections), why))

    async def _stop(self) -> None:
        self._admission.close()
        if self._hand_over is not None:
            self._hand_over.close()
        for doorway in self._doorways:
            doorway.close()
        self.engine.turn()
        for client in list(self._clients.values()):
            client.why = "the broker stops"
            client.finish(self._farewell(client, Reason.SERVER_SHUTTING_DOWN), lingers=False)
        end = time.monotonic() + FAREWELL_S
        while self._clients and time.monotonic() < end:
            await asyncio.sleep(0.01)  # Last packets are sent while the loop runs.
        self.engine.turn()
        self.operations.stop()
        await self.linking.stop()
        self.engine.stop()
        if self.replicating is not None:
            await self.replicating.resign()
        self._save_clock()
        log.info("broker %s has stopped", self.config.id)

    def _farewell(self, client: ClientConnection, reason: Reason) -> bytes:
        """Return the DISCONNECT packet for a client; MQTT 3.1.1 has none from the broker."""
        connection = self.site.endpoint.connections.get(client.id)
        if connection is None or connection.version != 5:
            return b""
        if connection.session is None:
            return write(Connack(reason=Reason.SERVER_UNAVAILABLE), 5)
        return write(Disconnect(reason=reason), 5)

    async def _sweep(self) -> None:
        """Close connections that have been silent for too long."""
        saved_at = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            if now - saved_at >= SAVE_CLOCK_S:
                saved_at = now
                self._save_clock()
            self.linking.report_refusals(now)
            if self.events is not None:
                self.events.flush()
            self.engine.look_at_memory()
            self._revoke((), self._expired())
            for client in list(self._clients.values()):
                if client.id not in self._held and client.is_silent(now):
                    client.why = f"no packet received for {now - client.last_heard_s:.0f} s"
                    # The site regards the connection as closed even if the client does not notice.
                    self.engine.push(ConnectionLost(client.id))
                    client.finish(self._farewell(client, Reason.KEEP_ALIVE_TIMEOUT))

    def _look_at_memory(self) -> int:
        """Keep the memory of queues and connections within its limit.

        From half of the limit on, each client has less in flight, since messages in flight cannot be dropped.
        Past the limit queues drop their oldest messages, and if that is not enough, clients that do not read
        are disconnected.

        Returns how many bytes may be added to queues before the next check. These bytes may be held twice,
        since output for a client that does not read also waits in its connection; so connections may grow by
        the same number.
        """
        limit, queued = self.config.quotas.buffered_bytes_max, self.site.queued_bytes
        held = queued + self.buffered.size_bytes
        if 2 * held > limit:
            held = held_bytes(self.site.stored(), queued, self.buffered)
        self._limit_in_flight(held, limit)
        if held > limit:
            self._warn_of_memory(limit)
            if self._is_over_limit:
                self._drop_non_readers(held - limit)
            self.engine.push(QueuesOverLimit(int(queued * 0.9 * limit / held)))
        self._is_over_limit = held > limit
        room = max(limit // 32, (limit - held) // 4)
        self.buffered.growth_bytes = self.buffered.size_bytes + room
        return room

    def _limit_in_flight(self, held: int, limit: int) -> None:
        """Reduce what each client may have in flight while much is held, until only half of that is held."""
        is_much = held > (limit // 4 if self._is_much_held else limit // 2)
        if is_much != self._is_much_held:
            self._is_much_held = is_much
            share = max(HIGH_WATER_BYTES, limit // (8 * max(1, len(self._clients))))
            limited = share if is_much else self.config.quotas.output_bytes_max
            self.engine.push(QueuesOverLimit(sys.maxsize, limited))

    def _drop_non_readers(self, excess: int) -> None:
        """Disconnect the clients with most unacknowledged bytes, so that their queues can be dropped, too."""
        in_flight, connections = self.site.in_flight_bytes(), self.site.endpoint.connections
        held = {
            id: max(client.waiting_bytes, in_flight.get(connections[id].client, 0))
            for id, client in self._clients.items()
            if id in connections
        }
        for id in sorted(held, key=lambda one: -held[one]):
            if excess <= 0 or not held[id]:
                return
            excess -= held[id]
            self._clients[id].drop("it does not read, and the buffers of all clients together are full")

    def _warn_of_memory(self, limit: int) -> None:
        why = f"more than {limit} bytes are queued: the longest queues give up their oldest"
        if self._complaints.is_due("memory", why):
            log.warning("%s", why)

    def _expired(self) -> dict[int, str]:
        """Connections whose token or service answer has expired."""
        now = time.time()
        return {
            client.id: "its credentials have expired"
            for client in self._clients.values()
            if client.admitted is not None and (client.admitted.expires_at or now) < now
        }

    def _save_clock(self) -> None:
        save_reading(Path(self.config.data), self.engine.clock.reading())

    # --- connections (see clients.Door) ---

    @property
    def output_bytes_max(self) -> int:
        """Limit of unsent bytes for one client: lower when all clients together have many."""
        quotas = self.config.quotas
        if 2 * self.buffered.size_bytes > quotas.buffered_bytes_max:
            return min(quotas.output_bytes_max, HIGH_WATER_BYTES)
        return quotas.output_bytes_max

    def opened(self, client: ClientConnection) -> int:
        host = client.host
        limit = self.config.quotas.connections_per_address_max
        if limit is not None and self._addresses[host] >= limit and not is_loopback(host):
            why = f"there are {limit} connections from {host} already"
            if self._complaints.is_due(host, why):
                log.warning("%s is refused: %s", client.address, why)
            raise ConnectionRefused(Reason.SERVER_BUSY, why)
        self._opened += 1
        self._addresses[host] += 1
        id = (self.site.starts << 32) + self._opened
        self._clients[id] = client
        return id

    def came_in(self, id: int) -> Budget | None:
        client = self._clients[id]
        self.strangers.settle(client.stranger)
        client.stranger = SETTLED
        quotas, connections = self.config.quotas, self.site.endpoint.connections
        if quotas.publish_per_s is None and quotas.publish_bytes_per_s is None:
            return None

        def published() -> int:
            connection = connections.get(id)
            return connection.published if connection is not None else 0

        return Budget(published, quotas.publish_per_s, quotas.publish_burst, quotas.publish_bytes_per_s)

    def lost(self, client: ClientConnection) -> None:
        del self._clients[client.id]
        self._bytes[0] += client.received_bytes
        self._bytes[1] += client.sent_bytes
        self.strangers.settle(client.stranger)
        self._held.pop(client.id, None)
        if client.is_admitted and not client.is_noted:
            self._gone[client.id] = client.address, client.why
        self._addresses[client.host] -= 1
        if not self._addresses[client.host]:
            del self._addresses[client.host]

    def count_refusal(self, reason: Reason) -> None:
        self.refused[reason.name.lower().replace("_", " ")] += 1

    def admits_at_once(self, connect: Connect) -> bool:
        return not (self._has_to_meet or self._admission.must_ask(connect))

    async def admit(self, client: ClientConnection, connect: Connect) -> Admitted:
        if not self.engine.is_promising:
            raise ConnectionRefused(Reason.SERVER_UNAVAILABLE, "the broker cannot write its journal now")
        await self._meet()
        client_id, longest = connect.client_id, self.config.mqtt.client_id_bytes_max
        if len(client_id.encode()) > longest:
            raise ConnectionRefused(
                Reason.CLIENT_IDENTIFIER_NOT_VALID, f"a client id of more than {longest} bytes"
            )
        if not client_id:
            if connect.version == 4 and not connect.clean_start:
                raise ConnectionRefused(
                    Reason.CLIENT_IDENTIFIER_NOT_VALID, "a lasting session needs a client id"
                )
            client_id = f"auto-{secrets.token_hex(12)}"
        self._check_client_id(client_id)
        admitted = await self._admission.identify(
            client.listener, connect, client_id, client.host, client.certificate, client.ask
        )
        will = connect.will
        if will is not None and will.qos and self.engine.pressure.is_extreme:
            raise ConnectionRefused(
                Reason.SERVER_BUSY, "the buffer of a peer is full: wills of QoS 1 or 2 are refused now"
            )
        refusal = self.kept_out.refusal("client", client_id)
        if refusal:
            raise ConnectionRefused(Reason.SERVER_UNAVAILABLE, refusal)
        self._check_load(client_id)
        self._check_flapping(client_id, connect)
        return admitted

    def _check_client_id(self, client_id: str) -> None:
        """Refuse a name that brokers use among each other for something else than this client."""
        if self.site.reserves(client_id):
            first = client_id.partition("/")[0]
            raise ConnectionRefused(
                Reason.CLIENT_IDENTIFIER_NOT_VALID,
                f"a client id that starts with {first}/: such names are used by brokers",
            )

    def _check_load(self, client_id: str) -> None:
        """Refer a client to another broker if this one is full, unless the client's session is here."""
        steering = self.config.steering
        if steering.clients_max is None or client_id in self.site.endpoint.sessions:
            return
        if len(self.site.endpoint.connections) >= steering.clients_max:
            address = self.site.settings.endpoint.steering.address_of(steering.overflow)
            raise ConnectionRefused(Reason.USE_ANOTHER_SERVER, "many clients are connected here", address)

    def _check_flapping(self, client_id: str, connect: Connect) -> None:
        """Refuse a client that moves between brokers more often than its quota allows."""
        per_minute = self.config.quotas.handoffs_per_client_per_minute_max
        moves = not connect.clean_start and client_id not in self.site.endpoint.sessions
        if per_minute is None or not moves or not self.site.links.ends:
            return
        pause_s = self._flapping.pause_s(client_id, per_minute, time.monotonic())
        if pause_s:
            if self._complaints.is_due(client_id, "flapping"):
                log.warning("%s is refused: it moved here %d times within a minute", client_id, per_minute)
            text = f"more than {per_minute} handoffs per minute; try again in {pause_s:.0f} s"
            raise ConnectionRefused(Reason.CONNECTION_RATE_EXCEEDED, text)

    @property
    def _has_to_meet(self) -> bool:
        """True while a peer may still confirm this broker's history, or refute it."""
        if self.linking.has_met.is_set() or self.site.links_may_cycle:
            return False
        history = self.site.history
        # etcd guarantees that a leader has the newest history. Its neighbours may be failing over, too.
        is_confirmed = self.replicating is not None and history.is_settled
        return bool(self.config.peers or history.known) and not is_confirmed

    async def _meet(self) -> None:
        """Wait for a peer that confirms this broker's history; ConnectionRefused if it needs one."""
        has_met, history, mobility = self.linking.has_met, self.site.history, self.config.mobility
        if self._has_to_meet:
            left_s = self._started_s + mobility.meet_timeout_s - time.monotonic()
            wait_s = left_s if history.is_settled else mobility.locate_timeout_s
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s)):
                    await has_met.wait()
        serves = mobility.unreachable == "serve" and not history.fences
        if history.refusal and not serves:
            raise ConnectionRefused(Reason.SERVER_UNAVAILABLE, history.refusal)

    def _log_history(self) -> None:
        why = self.site.history.refusal
        if why and self.site.history.fences:
            log.error("clients are refused: %s", why)

    # --- effects (see engine.Output) ---

    def write(self, writes: Mapping[int, list[bytes]]) -> None:
        clients = self._clients
        for connection, parts in writes.items():
            client = clients.get(connection)
            if client is not None:
                if len(parts) == 1:
                    client.sent_bytes += len(parts[0])
                    client.write(parts[0])
                else:
                    client.write_all(parts)

    def close(self, connection: int) -> None:
        client = self._clients.get(connection)
        if client is not None:
            client.finish()

    def hold(self, connection: int) -> None:
        client = self._clients.get(connection)
        if client is not None:
            self._held[connection] = client
            client.hold()

    def hold_back(self, connection: int) -> bool:
        client = self._clients.get(connection)
        return client is None or client.hold_back()

    def hold_link(self, peer: str) -> None:
        self.linking.peers.pause_reading(peer)

    def release(self) -> None:
        for peer in self.site.links.ends:
            self.linking.peers.resume_reading(peer)
        held, self._held = self._held, {}
        now = time.monotonic()
        for client in held.values():
            client.last_heard_s = now
            client.release()

    def note(self, note: Note) -> None:
        client = self._clients.get(note.connection)
        self.operations.watching.touch(note.client)
        if (name := client_of(note.client)) != note.client:
            note = note._replace(client=name)
        if note.kind == "refused":
            self.refused[note.reason.partition(":")[0]] += 1
        if note.kind == "denied":
            self._note_denied(note, client)
            return
        address, why = self._gone.pop(note.connection, ("", ""))
        if client is not None:
            address, why = client.address, client.why
            client.is_noted = note.kind != "connected"
        if log.isEnabledFor(logging.INFO):
            log.info(
                "client %s %s (%s): %s", note.client, note.kind, address, why or note.reason,
                extra=fields(
                    event=note.kind, client=note.client, address=address, reason=why or note.reason,
                    connection=note.connection,
                ),
            )  # fmt: skip

    def _note_denied(self, note: Note, client: ClientConnection | None) -> None:
        admitted = client.admitted if client is not None else None
        # Counted by user and host, since clients choose topics and client ids.
        owner = f"{admitted.identity.owner} {client.host}" if admitted and client else note.client
        if self._denials.is_due(owner, note.reason.partition(" ")[0]):
            address = client.address if client is not None else "away"
            user = admitted.identity.name if admitted is not None else ""
            log.warning(
                "client %s (%s, user %s) was denied: %s",
                note.client, address, user or "anonymous", note.reason,
                extra=fields(event="denied", client=note.client, address=address, reason=note.reason),
            )  # fmt: skip

    def answer(self, answer: IsHere) -> None:
        self.operations.answered(answer)

    def news(self, peer: str, news: News) -> None:
        self.operations.heard(peer, news)

    async def log_in(self, user: str, password: str, address: str) -> Admitted:
        return await self._admission.log_in(user, password, address)

    def login_objection(self, admitted: Admitted) -> str:
        return self._admission.objection(admitted, self.config.listeners[0])

    def prove_again(self, connection: int, packet: Auth) -> None:
        client = self._clients.get(connection)
        if client is None or client.answered(packet):
            return
        if packet.reason is not Reason.RE_AUTHENTICATE or connection in self._proving:
            self._revoke((), {connection: "an AUTH that was not requested"})
            return
        proving = asyncio.get_running_loop().create_task(self._prove_again(client, packet))
        self._proving[connection] = proving
        proving.add_done_callback(lambda _: self._proving.pop(connection, None))

    async def _prove_again(self, client: ClientConnection, packet: Auth) -> None:
        """Re-authenticate a client while its session continues; if that fails, close its connection."""
        assert client.admitted is not None
        identity, first = client.admitted.identity, packet.authentication_data or b""
        try:
            async with asyncio.timeout(self.config.mqtt.connect_timeout_s):
                again = await self._admission.prove_again(identity, first, client.host, client.ask)
        except (ConnectionRefused, PacketError, TimeoutError) as error:
            self._revoke((), {client.id: f"re-authentication failed: {error}"})
            return
        client.admitted = again
        client.write(auth(packet.authentication_method, again.answer, Reason.SUCCESS))

    def tree(self, tree: Tree) -> None:
        self.trees.take(tree)

    def write_link(self, peer: str) -> None:
        self.linking.write(peer)

    def close_link(self, peer: str, why: str) -> None:
        self.linking.peers.close(peer, why)


def _fixed(listener: Listener) -> tuple[object, ...]:
    """Settings of a listener that cannot change while it is open."""
    return (*place_of(listener), listener.proxy_protocol, listener.trusted_proxies)


def _tls_of(number: int, listener: Listener) -> Callable[[], ssl.SSLContext]:
    return partial(listener_context, listener, f"listener.{number}")
