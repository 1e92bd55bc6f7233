"""Operator functions: metrics and health over HTTP, $SYS, and the control channel's commands."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from roamcast import __version__
from roamcast.broker.inputs import (
    AccessRevoked,
    BrokerForgotten,
    DrainOrdered,
    SessionSought,
    StatusAnnounced,
)
from roamcast.broker.news import News
from roamcast.broker.seeking import IsHere
from roamcast.config.addresses import join_endpoint
from roamcast.config.schema import shown_table
from roamcast.config.sections import Config
from roamcast.daemon.api import Api
from roamcast.daemon.census import detail_of, subscriptions_of
from roamcast.daemon.control import Answers, ControlServer
from roamcast.daemon.engine import Engine
from roamcast.daemon.figures import BrokerFigures
from roamcast.daemon.gate import Gate
from roamcast.daemon.health import announcements, fail_stops_of, health, health_page, history_of, tree_of
from roamcast.daemon.http import Answer, HttpServer, Problem, Request, Stream
from roamcast.daemon.linking import Linking
from roamcast.daemon.reports import Ask
from roamcast.daemon.siblings import Siblings, merged, site_health, site_status
from roamcast.daemon.trees import Trees
from roamcast.daemon.watching import SessionMoved, Watching
from roamcast.daemon.workers import serves
from roamcast.errors import InputError
from roamcast.mqtt.server.sessions import PROVISIONAL
from roamcast.net.admission import Admitted
from roamcast.net.buffered import Buffered
from roamcast.net.strangers import Strangers
from roamcast.storage.kept_out import KeptOut

if TYPE_CHECKING:
    from roamcast.daemon.event_log import EventLog
    from roamcast.daemon.metrics import Metrics
    from roamcast.daemon.replicating import Replicating

log = logging.getLogger("roamcast")

WHERE_S = 5.0
ASK_AGAIN_S = 0.5
DRAIN_POLL_S = 0.2
DRAIN_AGAIN_S = 2.0
CLIENTS_PER_ANSWER = 5_000


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
    siblings: Siblings | None

    @property
    def connections(self) -> int: ...
    @property
    def handed_over(self) -> int: ...
    @property
    def site_of_worker(self) -> str: ...
    @property
    def is_listening(self) -> bool: ...
    @property
    def failed_logins(self) -> int: ...
    @property
    def refused(self) -> Mapping[str, int]: ...
    def client_bytes(self) -> tuple[int, int]: ...
    async def log_in(self, user: str, password: str, address: str) -> Admitted:
        """Check a user's password; ConnectionRefused if it is wrong."""

    def login_objection(self, admitted: Admitted) -> str:
        """Return why a login is no longer valid; "" if it is valid."""


class Operations:
    def __init__(self, server: Running) -> None:
        self._server = server
        self._config = server.config
        self._engine = server.engine
        self._figures = BrokerFigures(
            server.engine, server.linking.peers, server.trees, server.kept_out, server.events
        )
        self._figures.connections = lambda: server.connections
        self._figures.handed_over = lambda: server.handed_over
        self._figures.site = server.site_of_worker
        self._figures.strangers, self._figures.buffered = server.strangers, server.buffered
        self._figures.is_listening = lambda: server.is_listening
        self._figures.failed_logins = lambda: server.failed_logins
        self._figures.pages = lambda: (self.http.streams, self.http.streams_dropped) if self.http else (0, 0)
        self._figures.refused = lambda: server.refused
        self._figures.client_bytes = server.client_bytes
        if server.replicating is not None:
            self._figures.followers = server.replicating.followers
        self.watching = Watching(self._figures, lambda: server.config, self._carry_out)
        self._figures.reports = lambda: self.watching.reports
        gate = Gate(lambda: server.config, server.log_in, server.login_objection)
        self._api = Api(lambda: server.config, self.watching, gate, self._act)
        self._background: set[asyncio.Task[None]] = set()
        self.http: HttpServer | None = None
        self._control = ControlServer(
            Path(server.config.data),
            {
                "status": self._status,
                "worker": self._of_worker,
                "metrics": self._metrics_of_worker,
                "where": self._where,
                "drain": self._drain,
                "forget": self._forget,
                "readmit": self._readmit,
                "accept-history": self._accept_history,
                "promote": self._promote,
                "add-replica": self._add_replica,
                "remove-replica": self._remove_replica,
                "network": self._network,
                "clients": self._clients,
                "subscriptions": self._subscriptions,
                "kick": self._kick_anywhere,
            },
        )
        self._announcing: asyncio.Task[None] | None = None
        self._asked = 0
        self._answers: dict[int, asyncio.Future[IsHere]] = {}

    async def start(self) -> None:
        metrics = self._config.metrics
        if metrics.enabled:
            self.http = HttpServer(metrics, self._serve, lambda: self._server.config.view.streams_max)
            port = await self.http.start()
            where = f"{self.http.scheme}://{join_endpoint(metrics.address, port)}"
            log.info("metrics on %s/metrics", where)
            if self._config.serves_view:
                log.info("live view on %s/", where)
        await self._control.start()
        if self._config.mqtt.sys_interval_s:
            self._announcing = asyncio.get_running_loop().create_task(self._announce())

    def stop(self) -> None:
        if self._announcing is not None:
            self._announcing.cancel()
        if self.http is not None:
            self.http.close()
        self._api.stop()
        self.watching.stop()
        for task in self._background:
            task.cancel()
        self._control.close()

    async def _serve(self, request: Request) -> Answer | Stream:
        if request.path in ("/metrics", "/healthz"):
            if request.method not in ("GET", "HEAD"):
                raise Problem(HTTPStatus.METHOD_NOT_ALLOWED)
            return await (self._metrics_page() if request.path == "/metrics" else self._health())
        if not self._config.serves_view:
            raise Problem(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz; view.enabled = true adds more")
        return await self._api.answer(request)

    async def _health(self) -> Answer:
        told, siblings = health(self._figures), self._server.siblings
        if siblings is not None:
            told = site_health(told, await siblings.ask(command="worker"))
        return health_page(told)

    async def _of_worker(self, request: dict[str, Any]) -> Answers:
        """Answer the first worker of a site."""
        left = self._engine.site.sessions_left()
        yield {"health": health(self._figures), "sessions_left": left, "done": True}

    async def _metrics_of_worker(self, request: dict[str, Any]) -> Answers:
        yield {"page": self._metrics.page().body.decode(), "done": True}

    async def _metrics_page(self) -> Answer:
        page, replicating = self._metrics.page(), self._server.replicating
        if self._server.siblings is not None:
            pages = {self._config.id: page.body.decode()}
            answers = await self._server.siblings.ask(command="metrics")
            pages |= {id: one["page"] for id, one in answers.items() if "error" not in one}
            return page._replace(body=merged(pages).encode())
        if replicating is None:
            return page
        from roamcast.daemon.replicating import metrics_of

        return page._replace(body=page.body + metrics_of(replicating).encode())

    @cached_property
    def _metrics(self) -> Metrics:
        # Prometheus's library takes 3 MB: it is loaded only where it is used.
        from roamcast.daemon.metrics import Metrics

        return Metrics(self._figures)

    async def _announce(self) -> None:
        while True:
            for topic, value in announcements(self._figures).items():
                self._engine.push(StatusAnnounced(topic, value.encode()))
            await asyncio.sleep(self._config.mqtt.sys_interval_s)

    # --- commands ---

    async def _status(self, request: dict[str, Any]) -> Answers:
        status, siblings = self._own_status(), self._server.siblings
        if siblings is not None:
            status = site_status(status, await siblings.ask(command="status"))
        yield {**status, "done": True}

    def _own_status(self) -> dict[str, Any]:
        figures, replicating = self._figures, self._server.replicating
        return {
            "broker": self._config.id,
            "version": __version__,
            "process": os.getpid(),
            "uptime_s": round(figures.uptime_s, 3),
            "connections": figures.connections(),
            "sessions": self._engine.site.session_count,
            "queued": sum(figures.queues().notifications),
            "journal": self._engine.failure or "ok",
            "history": history_of(self._engine.site, self._server.linking.refused),
            "unmet": self._engine.site.unmet(),
            "links": [msgspec.structs.asdict(link) for link in figures.links()],
            "carries": figures.relay.links,
            **fail_stops_of(figures),
            **tree_of(figures),
            **({"replication": replicating.status()} if replicating is not None else {}),
        }

    def _replica_command(self, request: dict[str, Any]) -> tuple[Replicating, str]:
        replicating = self._server.replicating
        if replicating is None:
            raise InputError("this broker is not replicated; see [replication] in its configuration")
        return replicating, _text(request, "replica")

    async def _promote(self, request: dict[str, Any]) -> Answers:
        replicating, name = self._replica_command(request)
        await replicating.step_down(name)
        log.warning("replica %s takes over by an operator's order", name)
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
        replicating.leading.drop(name)
        log.warning("replica %s is removed by an operator's order", name)
        yield {"removed": name, "done": True}

    def heard(self, peer: str, news: News) -> None:
        """Receive a message for operators from another broker."""
        self.watching.heard(peer, news)

    def answered(self, answer: IsHere) -> None:
        future = self._answers.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)

    async def _where(self, request: dict[str, Any]) -> Answers:
        client = _text(request, "client")
        deadline = time.monotonic() + WHERE_S
        while time.monotonic() < deadline:
            # A question may miss a session that is moving; the next question finds it.
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
        network = await self.watching.gathered()
        away = sorted(name for name in self.watching.members() if not network.is_up(name))
        yield {"client": client, "found": False, "links_down": down, "away": away, "done": True}

    async def _network(self, request: dict[str, Any]) -> Answers:
        network = await self.watching.gathered()
        yield {**network.told(self.watching.members()), "done": True}

    async def _clients(self, request: dict[str, Any]) -> Answers:
        """All sessions of the network, in parts."""
        network = await self.watching.gathered()
        names = sorted(network.clients)
        for first in range(0, len(names), CLIENTS_PER_ANSWER):
            part = map(network.client, names[first : first + CLIENTS_PER_ANSWER])
            yield {"clients": [one for one in part if one is not None], "done": False}
        silent = [name for name in self.watching.members() if not network.is_up(name)]
        yield {"clients": [], "silent": silent, "done": True}

    async def _subscriptions(self, request: dict[str, Any]) -> Answers:
        """Subscriptions of the network, broker by broker, in parts."""
        network = await self.watching.gathered()
        wanted = {name: str(request.get(name) or "") for name in ("search", "topic")}
        only, silent = str(request.get("broker") or ""), []
        for broker in [only] if only else sorted([self._config.id, *self.watching.members()]):
            if broker != self._config.id and not network.is_up(broker):
                silent.append(broker)
                continue
            after = ""
            while True:
                answer = await self.watching.ask(broker, "subscriptions", after=after, **wanted)
                yield {"subscriptions": answer["subscriptions"], "done": False}
                after = answer["next"]
                if not after:
                    break
        yield {"subscriptions": [], "silent": silent, "done": True}

    async def _kick_anywhere(self, request: dict[str, Any]) -> Answers:
        text = await self._act("kick", {"client": _text(request, "client"), "broker": "", "to": ""})
        yield {"client": request["client"], "text": text, "done": True}

    async def _forget(self, request: dict[str, Any]) -> Answers:
        broker = _text(request, "broker")
        if broker == self._config.id:
            raise InputError(f"{broker} is this broker itself")
        if serves(self._server.config, broker):
            raise InputError(f"{broker} is a worker of this site; start the site with fewer workers")
        self._engine.site.check_forgetting(broker)
        if any(link.peer == broker and link.is_up for link in self._figures.links()):
            raise InputError(f"{broker} is connected: stop it first, since its old disk must never return")
        self._engine.push(BrokerForgotten(broker))
        log.warning("broker %s is forgotten: its sessions and messages are given up", broker)
        is_configured = any(peer.id == broker for peer in self._server.config.peers)
        yield {"forgotten": broker, "configured": is_configured, "done": True}

    async def _accept_history(self, request: dict[str, Any]) -> Answers:
        broker, siblings = _text(request, "broker"), self._server.siblings
        try:
            accepted = self._server.linking.accept(broker)
        except InputError:
            answers = await siblings.ask(**request) if siblings is not None else {}
            by_worker = [one for one in answers.values() if "error" not in one]
            if not by_worker:
                raise
            yield by_worker[0]
            return
        self._engine.push(accepted)
        self._engine.turn()
        if not self._engine.is_promising:
            raise InputError("the journal cannot be written now; try again")
        log.warning("the history of %s is accepted as it is now, by an operator's order", broker)
        if broker != self._config.id:
            self._server.linking.peers.dial_again(broker)
        yield {"accepted": broker, "begins_anew": accepted.begins_anew, "done": True}

    async def _readmit(self, request: dict[str, Any]) -> Answers:
        name, kept_out, siblings = _text(request, "name"), self._server.kept_out, self._server.siblings
        found = kept_out.readmit(name)
        answers = await siblings.ask(**request) if siblings is not None else {}
        elsewhere = [who for one in answers.values() if "error" not in one for who in one["readmitted"]]
        if not found and not elsewhere:
            names = ", ".join(map(str, kept_out.now())) or "nobody"
            raise InputError(f"{name} is not kept out; kept out now: {names}")
        for who in found:
            log.warning("%s is readmitted by an operator's order", who)
            if who.kind == "peer":
                self._server.linking.peers.dial_again(who.name)
        yield {"readmitted": [*(who._asdict() for who in found), *elsewhere], "done": True}

    async def _drain(self, request: dict[str, Any]) -> Answers:
        destination = str(request.get("to") or "") or next(iter(self._takers()), "")
        if not destination:
            raise InputError("no link is up: there is no broker that could take the sessions")
        self._engine.site.check_draining(destination)
        drained = DrainOrdered(destination, str(request.get("reference") or ""))
        siblings = self._server.siblings
        if siblings is not None and destination in siblings:
            raise InputError(f"{destination} is a worker of this site, and a drain empties all workers")
        for id in siblings.folders() if siblings is not None else ():
            await self.watching.ask(id, "drain", to=destination, reference=drained.reference)
        log.warning("draining: moving all sessions to %s; refusing clients until the next start", destination)
        again_at = 0.0
        while True:
            left = self._engine.site.sessions_left()
            if siblings is not None:
                answers = await siblings.ask(command="worker")
                # A peer that does not answer may have sessions: wait for it.
                left += sum(one.get("sessions_left", 1) for one in answers.values())
            yield {"to": destination, "sessions": left, "done": not left and again_at > 0}
            if not left and again_at:
                log.info("drained: this broker holds no session any more")
                return
            if time.monotonic() >= again_at:
                # Sessions that were moving here when the drain began have arrived since.
                self._engine.push(drained)
                again_at = time.monotonic() + DRAIN_AGAIN_S
            await asyncio.sleep(DRAIN_POLL_S)

    # --- from the HTTP API and from other brokers ---

    async def _act(self, name: str, arguments: dict[str, str]) -> str:
        """Carry out an operator's action, here or at another broker."""
        broker = arguments["broker"]
        match name:
            case "kick":
                answer = await self.watching.ask_holder(arguments["client"], "kick")
            case "drain":
                answer = await self.watching.ask(broker or self._config.id, "drain", to=arguments["to"])
            case "forget":
                answer = await self._last(self._forget({"broker": broker}))
                answer["text"] = f"{broker} is forgotten at {self._config.id}; tell its other peers, too"
            case _:
                answer = await self.watching.ask(broker or self._config.id, name, to=arguments["to"])
        return str(answer["text"])

    async def _carry_out(self, peer: str, ask: Ask) -> dict[str, Any]:
        """Answer a question; the question came from another broker if `peer` is given."""
        arguments = ask.arguments
        match ask.command:
            case "client":
                found = detail_of(self._engine.site, arguments.get("client", ""))
                if found is None:
                    raise SessionMoved(f"the session is not at {self._config.id} any more")
                return found
            case "broker":
                tables = shown_table(self._server.config)
                if peer:
                    for secret in ("access", "view"):  # User names are known only to this broker.
                        tables.pop(secret)
                return {"status": self._own_status(), "configuration": tables}
            case "subscriptions":
                return subscriptions_of(self._engine.site, arguments)
            case "kick":
                return self._kick(arguments.get("client", ""), peer)
            case "drain":
                self._check_orders(peer)
                return self._begin_drain(arguments.get("to", ""), arguments.get("reference", ""))
            case "promote":
                self._check_orders(peer)
                done = await self._last(self._promote({"replica": arguments.get("to", "")}))
                return {"text": f"replica {done['promoted']} takes over {self._config.id}"}
        raise InputError(f"broker {self._config.id} does not know the command {ask.command}")

    def _check_orders(self, peer: str) -> None:
        rights = [one.may for one in self._server.config.peers if one.id == peer]
        if peer and not (rights and "operate" in rights[0]):
            raise InputError(
                f"broker {self._config.id} accepts no such orders from {peer}: give the order there, or "
                f'add "operate" to may of its [[peer]] {peer}'
            )

    def _kick(self, client: str, peer: str) -> dict[str, Any]:
        sessions = self._engine.site.endpoint.sessions
        session = sessions.get(client) or sessions.get(PROVISIONAL + client)
        if session is None:
            raise SessionMoved(f"the session of {client!r} is not at {self._config.id} any more")
        if not session.connection:
            raise InputError(f"{client!r} is not connected; its session is at {self._config.id}")
        why = "an operator disconnected it"
        log.warning("client %s is disconnected by an operator%s", client, f" behind {peer}" if peer else "")
        self._engine.push(AccessRevoked((), (session.connection,), why, by_operator=True))
        return {"text": f"{client} was disconnected from {self._config.id}; its session stays"}

    def _takers(self) -> list[str]:
        """List brokers that could take all sessions: peers with a link, without workers of this site."""
        siblings = self._server.siblings or ()
        return [link.peer for link in self._figures.links() if link.is_up and link.peer not in siblings]

    def _begin_drain(self, to: str, reference: str = "") -> dict[str, Any]:
        draining = self._drain({"to": to, "reference": reference})
        first = self._engine.site.session_count

        async def drain() -> None:
            async for _ in draining:
                pass

        up = self._takers()
        if to or up:
            self._engine.site.check_draining(to or up[0])
        else:
            raise InputError(f"no link of {self._config.id} is up: no broker could take the sessions")
        task = asyncio.get_running_loop().create_task(drain())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return {"text": f"{self._config.id} hands {first:,} sessions to {to or up[0]}"}

    async def _last(self, answers: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
        last: dict[str, Any] = {}
        async for answer in answers:
            last = answer
        return last


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise InputError(f"the request has no {name}")
    return value
