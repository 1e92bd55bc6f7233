"""What a follower serves: it refers clients and load balancers to the leader, and shows operators its
state."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn

from roamcast import __version__
from roamcast.broker.inputs import MachineInput
from roamcast.config.sections import Config
from roamcast.daemon.control import Answers, ControlServer
from roamcast.daemon.http import Answer, HttpServer, Request, as_json
from roamcast.daemon.replicating import Replicating, metrics_of
from roamcast.errors import cannot_listen
from roamcast.mqtt.codec.packets import Connect
from roamcast.mqtt.codec.reading import Limits
from roamcast.mqtt.codec.reasons import Reason
from roamcast.net.admission import Admitted
from roamcast.net.buffered import Buffered
from roamcast.net.clients import HIGH_WATER_BYTES, Budget, ClientConnection, ConnectionRefused, protocol_of
from roamcast.net.doorway import Doorway
from roamcast.net.strangers import Stranger, Strangers
from roamcast.net.tls import ServerContext, listener_context

log = logging.getLogger("roamcast")

STRANGERS_MAX = 256
LEADERS_COMMANDS = (
    "where", "drain", "forget", "readmit", "accept-history", "promote", "add-replica", "remove-replica",
)  # fmt: skip


async def follow(replicating: Replicating) -> bool:
    """Follow until this replica is promoted; return False if the process is told to stop before that."""
    config, loop = replicating.config, asyncio.get_running_loop()
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    refusal = Refusal(config, replicating)
    await replicating.start()
    await refusal.start()
    log.info(
        "replica %s of broker %s follows, and listens on %s for clients of the leader",
        config.replication.name, config.id, ", ".join(map(str, refusal.ports)),
    )  # fmt: skip
    waits = [loop.create_task(replicating.until_promoted()), loop.create_task(stopping.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    await refusal.stop()
    is_stopping = stopping.is_set()
    for wait in waits:
        wait.cancel()
    if is_stopping:
        await replicating.resign()
        log.info("replica %s of broker %s has stopped", config.replication.name, config.id)
    return not is_stopping


class Refusal:
    """Implements `clients.Door`: refuses every client and tells it where the leader is."""

    def __init__(self, config: Config, replicating: Replicating) -> None:
        self.connect_packet_max = min(config.mqtt.packet_bytes_max, 256 << 10)
        self.limits = Limits(config.mqtt.user_properties_max)
        self.keep_alive_max_s = config.mqtt.keep_alive_max_s
        self.buffered = Buffered()
        self.output_bytes_max = HIGH_WATER_BYTES
        self._config = config
        self._replicating = replicating
        self._strangers = Strangers(lambda: STRANGERS_MAX)
        self._doorways: list[Doorway] = []
        self._contexts: dict[int, ServerContext] = {}
        self._opened = 0
        self._http: HttpServer | None = None
        self._control = ControlServer(
            Path(config.data),
            {"status": self._status, **dict.fromkeys(LEADERS_COMMANDS, self._only_the_leader)},
        )

    async def start(self) -> None:
        for number, listener in enumerate(self._config.listeners):
            if listener.is_secure:
                self._contexts[number] = ServerContext(
                    partial(listener_context, listener, f"listener.{number}")
                )
            doorway = Doorway(
                self._strangers, partial(self._enter, number), lambda: self._config.mqtt.connect_timeout_s
            )
            self._doorways.append(doorway)
            try:
                await doorway.open(listener.address, listener.port)
            except OSError as error:
                where = f"{listener.address}:{listener.port}"
                raise cannot_listen(f"listener {where}", error) from None
        metrics = self._config.metrics
        if metrics.enabled:
            self._http = HttpServer(metrics, self._serve, lambda: 0)
            await self._http.start()
        await self._control.start()

    async def stop(self) -> None:
        for doorway in self._doorways:
            await doorway.closed()
        if self._http is not None:
            self._http.close()
        self._control.close()

    async def _enter(self, number: int, one: socket.socket, stranger: Stranger) -> None:
        listener = self._config.listeners[number]
        protocol = protocol_of(ClientConnection(self, listener, stranger), listener)
        context = self._contexts[number].context if number in self._contexts else None
        await self._doorways[number].hand_over(one, stranger, protocol, context)

    @property
    def ports(self) -> list[int]:
        return [port for doorway in self._doorways for port in doorway.ports]

    # --- connections (see clients.Door) ---

    def opened(self, client: ClientConnection) -> int:
        self._opened += 1
        return self._opened

    def admits_at_once(self, connect: Connect) -> bool:
        return True

    async def admit(self, client: ClientConnection, connect: Connect) -> Admitted:
        leader = self._replicating.replica.view
        if leader.leader:
            raise ConnectionRefused(
                Reason.USE_ANOTHER_SERVER, f"replica {leader.leader} leads", leader.reference
            )
        raise ConnectionRefused(Reason.SERVER_UNAVAILABLE, "this broker has no leader now")

    def lost(self, client: ClientConnection) -> None:
        self._strangers.settle(client.stranger)

    def push(self, item: MachineInput) -> NoReturn:
        raise AssertionError("a follower accepts no clients")

    def take(self, item: MachineInput, now_s: float) -> NoReturn:
        self.push(item)

    def count_refusal(self, reason: Reason) -> None:
        """Do nothing: a follower refuses every client."""

    def came_in(self, id: int) -> Budget | None:
        return None

    # --- operators ---

    async def _status(self, request: dict[str, Any]) -> Answers:
        replicating = self._replicating
        site = replicating.site
        yield {
            "broker": self._config.id,
            "version": __version__,
            "sessions": site.session_count if site is not None else 0,
            "replication": replicating.status(),
            "done": True,
        }

    async def _only_the_leader(self, request: dict[str, Any]) -> Answers:
        leader = self._replicating.replica.view.leader or "nobody now"
        yield {"error": f"this replica follows; ask the leader, which is {leader}", "done": True}

    async def _serve(self, request: Request) -> Answer:
        if request.path == "/metrics":
            return Answer(HTTPStatus.OK, "text/plain; version=0.0.4", metrics_of(self._replicating).encode())
        # Load balancers look for the leader, so a follower reports unhealthy.
        told = {"status": "follower", "broker": self._config.id, "replication": self._replicating.status()}
        return as_json(told, HTTPStatus.SERVICE_UNAVAILABLE)
