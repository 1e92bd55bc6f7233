"""What operators see and do: metrics and health over HTTP, $SYS, and the control channel's commands."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from roamcast import __version__
from roamcast.broker.inputs import BrokerForgotten, DrainOrdered, SessionSought, StatusAnnounced
from roamcast.broker.seeking import IsHere
from roamcast.config.sections import Config
from roamcast.daemon.control import Answers, ControlServer
from roamcast.daemon.engine import Engine
from roamcast.daemon.figures import BrokerFigures
from roamcast.daemon.following import metrics_of
from roamcast.daemon.http import Answer, HttpServer, Page
from roamcast.daemon.linking import Linking
from roamcast.daemon.metrics import Metrics, announcements, fail_stops_of, health, history_of, tree_of
from roamcast.daemon.replicating import Replicating
from roamcast.daemon.trees import Trees
from roamcast.errors import InputError
from roamcast.net.buffered import Buffered
from roamcast.net.strangers import Strangers
from roamcast.storage.kept_out import KeptOut

if TYPE_CHECKING:
    from roamcast.daemon.event_log import EventLog

log = logging.getLogger("roamcast")

WHERE_S = 5.0
ASK_AGAIN_S = 0.5
DRAIN_POLL_S = 0.2
DRAIN_AGAIN_S = 2.0


class Running(Protocol):
    """What operations need of the server."""

    config: Config
    engine: Engine
    linking: Linking
    events: EventLog | None
    trees: Trees
    kept_out: KeptOut
    strangers: Strangers
    buffered: Buffered
    replicating: Replicating | None

    @property
    def connections(self) -> int: ...
    @property
    def is_listening(self) -> bool: ...
    @property
    def failed_logins(self) -> int: ...


class Operations:
    def __init__(self, server: Running) -> None:
        self._server = server
        self._config = server.config
        self._engine = server.engine
        self._figures = BrokerFigures(
            server.engine, server.linking.peers.statuses, server.trees, server.kept_out, server.events
        )
        self._figures.connections = lambda: server.connections
        self._figures.strangers, self._figures.buffered = server.strangers, server.buffered
        self._figures.is_listening = lambda: server.is_listening
        self._figures.failed_logins = lambda: server.failed_logins
        self._http: HttpServer | None = None
        self._control = ControlServer(
            Path(server.config.data),
            {
                "status": self._status,
                "where": self._where,
                "drain": self._drain,
                "forget": self._forget,
                "readmit": self._readmit,
                "accept-history": self._accept_history,
                "promote": self._promote,
                "add-replica": self._add_replica,
                "remove-replica": self._remove_replica,
            },
        )
        self._announcing: asyncio.Task[None] | None = None
        self._asked = 0
        self._answers: dict[int, asyncio.Future[IsHere]] = {}

    async def start(self) -> None:
        metrics = self._config.metrics
        if metrics.enabled:
            pages = {"/metrics": self._metrics_page(), "/healthz": lambda: health(self._figures)}
            self._http = HttpServer(metrics, pages)
            port = await self._http.start()
            log.info("metrics on http://%s:%d/metrics", metrics.address, port)
        await self._control.start()
        if self._config.mqtt.sys_interval_s:
            self._announcing = asyncio.get_running_loop().create_task(self._announce())

    def _metrics_page(self) -> Page:
        page, replicating = Metrics(self._figures).page, self._server.replicating
        if replicating is None:
            return page

        def page_of_leader() -> Answer:
            answer = page()
            return answer._replace(body=answer.body + metrics_of(replicating).encode())

        return page_of_leader

    def stop(self) -> None:
        if self._announcing is not None:
            self._announcing.cancel()
        if self._http is not None:
            self._http.close()
        self._control.close()

    async def _announce(self) -> None:
        while True:
            for topic, value in announcements(self._figures).items():
                self._engine.push(StatusAnnounced(topic, value.encode()))
            await asyncio.sleep(self._config.mqtt.sys_interval_s)

    # --- commands ---

    async def _status(self, request: dict[str, Any]) -> Answers:
        figures, replicating = self._figures, self._server.replicating
        yield {
            "broker": self._config.id,
            "version": __version__,
            "uptime_s": round(figures.uptime_s, 3),
            "connections": figures.connections(),
            "sessions": self._engine.site.session_count,
            "queued": sum(figures.queues().notifications),
            "journal": self._engine.failure or "ok",
            "history": history_of(self._engine.site, self._server.linking.refused),
            "links": [msgspec.structs.asdict(link) for link in figures.links()],
            **fail_stops_of(figures),
            **tree_of(figures),
            **({"replication": replicating.status()} if replicating is not None else {}),
            "done": True,
        }

    def _replica_command(self, request: dict[str, Any]) -> tuple[Replicating, str]:
        replicating = self._server.replicating
        if replicating is None:
            raise InputError("this broker is not replicated; see [replication] in its configuration")
        return replicating, _text(request, "replica")

    async def _promote(self, request: dict[str, Any]) -> Answers:
        replicating, name = self._replica_command(request)
        why = replicating.replica.step_down(name)
        if why:
            raise InputError(why)
        log.warning("replica %s takes over, as the operator wishes", name)
        yield {"promoted": name, "done": True}

    async def _add_replica(self, request: dict[str, Any]) -> Answers:
        replicating, name = self._replica_command(request)
        replicating.replica.unbar(name)
        yield {"added": name, "done": True}

    async def _remove_replica(self, request: dict[str, Any]) -> Answers:
        replicating, name = self._replica_command(request)
        if name == replicating.replica.name:
            raise InputError(f"{name} leads: 'roamcast broker promote' another replica first")
        replicating.replica.bar(name)
        replicating.drop(name)
        log.warning("replica %s is removed, as the operator wishes", name)
        yield {"removed": name, "done": True}

    def answered(self, answer: IsHere) -> None:
        future = self._answers.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)

    async def _where(self, request: dict[str, Any]) -> Answers:
        client = _text(request, "client")
        deadline = time.monotonic() + WHERE_S
        while time.monotonic() < deadline:
            # A session that is on its way may be missed by a question; the next one finds it.
            self._asked += 1
            number = self._asked
            self._answers[number] = asyncio.get_running_loop().create_future()
            self._engine.push(SessionSought(client, number))
            try:
                async with asyncio.timeout(ASK_AGAIN_S):
                    answer = await self._answers[number]
                yield {**msgspec.structs.asdict(answer), "found": True, "done": True}
                return
            except TimeoutError:
                continue
            finally:
                del self._answers[number]
        down = {link.peer: link.why for link in self._figures.links() if not link.is_up}
        yield {"client": client, "found": False, "links_down": down, "done": True}

    async def _forget(self, request: dict[str, Any]) -> Answers:
        broker = _text(request, "broker")
        if broker == self._config.id:
            raise InputError(f"{broker} is this broker itself")
        self._engine.site.check_forgetting(broker)
        if any(link.peer == broker and link.is_up for link in self._figures.links()):
            raise InputError(f"{broker} is connected: stop it first, what is forgotten must never come back")
        self._engine.push(BrokerForgotten(broker))
        log.warning("broker %s is forgotten: what it held is given up", broker)
        is_configured = any(peer.id == broker for peer in self._server.config.peers)
        yield {"forgotten": broker, "configured": is_configured, "done": True}

    async def _accept_history(self, request: dict[str, Any]) -> Answers:
        broker = _text(request, "broker")
        accepted = self._server.linking.accept(broker)
        self._engine.push(accepted)
        self._engine.turn()
        if not self._engine.is_promising:
            raise InputError("the journal cannot be written now; try again")
        log.warning("the history of %s is accepted as it is now, as the operator wishes", broker)
        if broker != self._config.id:
            self._server.linking.peers.dial_again(broker)
        yield {"accepted": broker, "begins_anew": accepted.begins_anew, "done": True}

    async def _readmit(self, request: dict[str, Any]) -> Answers:
        name, kept_out = _text(request, "name"), self._server.kept_out
        found = kept_out.readmit(name)
        if not found:
            names = ", ".join(map(str, kept_out.now())) or "nobody"
            raise InputError(f"{name} is not kept out; kept out now: {names}")
        for who in found:
            log.warning("%s is let in again, as the operator wishes", who)
            if who.kind == "peer":
                self._server.linking.peers.dial_again(who.name)
        yield {"readmitted": [who._asdict() for who in found], "done": True}

    async def _drain(self, request: dict[str, Any]) -> Answers:
        up = [link.peer for link in self._figures.links() if link.is_up]
        destination = str(request.get("to") or "") or next(iter(up), "")
        if not destination:
            raise InputError("no link is up: there is no broker that could take the sessions")
        self._engine.site.check_draining(destination)
        drained = DrainOrdered(destination, str(request.get("reference") or ""))
        log.warning("draining: all sessions go to %s; no client is served until the next start", destination)
        again_at = 0.0
        while True:
            left = self._engine.site.sessions_left()
            yield {"to": destination, "sessions": left, "done": not left and again_at > 0}
            if not left and again_at:
                log.info("drained: no session is here any more")
                return
            if time.monotonic() >= again_at:
                # Sessions that were on their way here when it began have come since.
                self._engine.push(drained)
                again_at = time.monotonic() + DRAIN_AGAIN_S
            await asyncio.sleep(DRAIN_POLL_S)


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise InputError(f"the request has no {name}")
    return value
