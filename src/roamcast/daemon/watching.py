"""Watching the whole network from one broker: reports are made, sent and gathered while somebody looks.

A page or command that looks calls `look`, which starts a watch that expires by itself. During a watch this
broker sends `Watch` every few seconds to the brokers of the organisation, and each of them reports once a
second. Without a watch nothing is computed or sent.

Where brokers move there is no tree to pass reports on: such a broker shows itself and its links.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from roamcast import __version__
from roamcast.broker.inputs import NewsGiven
from roamcast.broker.news import NEWS_BYTES_MAX, News
from roamcast.config.sections import Config
from roamcast.daemon.census import Census, shown
from roamcast.daemon.figures import BrokerFigures
from roamcast.daemon.health import memory_bytes
from roamcast.daemon.network import Network
from roamcast.daemon.reports import (
    AlertRow,
    Ask,
    Body,
    BrokerRow,
    ClientRow,
    HandoffRow,
    LinkRow,
    Report,
    Told,
    Watch,
    decode_body,
    encode_body,
    percentiles,
)
from roamcast.errors import InputError
from roamcast.net.complaints import Complaints

log = logging.getLogger("roamcast.view")

REPORT_S = 0.5
"""Seconds between reports while an operator watches."""
INTEREST_S = 10.0
"""Seconds after which a watch ends unless it is renewed."""
RENEW_S = 3.0
"""Seconds between renewals of a watch."""
BEGIN_AGAIN_S = 5.0
"""Shortest time between two requests for all clients, after a report was lost."""
GATHER_S = 5.0
"""Time that the first questions wait for the first reports of all brokers. Later questions use the reports at
hand."""
ASK_S = 10.0
FOLLOW_S = 5.0
"""Time that a question follows a session that moves; a handoff shows in the reports within two of them."""
ANSWERED_AT_ONCE_MAX = 64
"""Concurrent questions of other brokers; further ones are refused."""
HANDOFFS_REPORTED_MAX = 1000
LINKS_REPORTED_MAX = 500
REASONS_REPORTED_MAX = 50

Orders = Callable[[str, Ask], Awaitable[dict[str, Any]]]
"""Answers the question of another broker, which came over this peer; raises InputError to refuse."""


class SessionMoved(InputError):
    """The session is not at the asked broker any more."""


class NoSession(InputError):
    """No broker reports a session of the client."""


class Watching:
    def __init__(self, figures: BrokerFigures, config: Callable[[], Config], orders: Orders) -> None:
        self._figures = figures
        self._config = config
        self._orders = orders
        self._engine = figures.engine
        self._site = figures.engine.site
        self.network = Network(self._site.id)
        self._census = Census(self._site)
        self._looks_until_s = 0.0
        """Time until which an operator watches from this broker."""
        self._gather_until_s = 0.0
        self._watchers: dict[str, tuple[int, float]] = {}
        """Brokers from which an operator watches: generation of the watch, and its end."""
        self._generation = 0
        self._began_again_s = 0.0
        self._announced_s = 0.0
        self.reports = 0
        """Reports made since the process began."""
        self._is_first = True
        self._before = _Before()
        self._task: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._reported = asyncio.Condition()
        self._asked = 0
        self._answers: dict[int, asyncio.Future[Told]] = {}
        self._complaints = Complaints()

    @property
    def is_watched(self) -> bool:
        now_s = time.monotonic()
        return now_s < self._looks_until_s or any(until > now_s for _, until in self._watchers.values())

    def members(self) -> Mapping[str, bool]:
        """The other brokers of this organisation, and whether each can be reached."""
        return self._site.members()

    def stop(self) -> None:
        for task in [*self._answering, *([self._task] if self._task is not None else [])]:
            task.cancel()

    # --- somebody looks ---

    def look(self) -> None:
        """Start or renew the watch of an operator at this broker."""
        now_s = time.monotonic()
        if now_s >= self._looks_until_s:
            self._generation = secrets.randbits(32)
            self._announced_s = 0.0
            self._gather_until_s = now_s + GATHER_S
            self.network.forget()
        self._looks_until_s = now_s + INTEREST_S
        if now_s - self._announced_s >= RENEW_S:
            self._announced_s = now_s
            self._send("", Watch(self._generation, INTEREST_S))
        if self._site.id not in self.network.brokers:
            self._is_first = True
        self._run()

    async def gathered(self) -> Network:
        """Return the network once every broker that can be reached has reported, or after GATHER_S."""
        self.look()
        try:
            left_s = max(0.0, self._gather_until_s - time.monotonic())
            async with asyncio.timeout(left_s), self._reported:
                await self._reported.wait_for(self._is_gathered)
        except TimeoutError:
            pass  # Brokers that are down, or of an older version, do not report.
        return self.network

    def _is_gathered(self) -> bool:
        brokers = self.network.brokers
        linked = {link.peer for link in self._figures.links() if link.is_up}
        wanted = [self._site.id]
        if linked and not self._site.links_may_cycle:
            wanted += [name for name, is_reached in self._site.members().items() if is_reached]
        return all(name in brokers and brokers[name].is_complete for name in wanted)

    def touch(self, client: str) -> None:
        """Mark a client of this broker as changed."""
        if self._task is not None:
            self._census.touch(client)

    # --- reporting ---

    def _run(self) -> None:
        if self._task is None:
            self._census.begin()
            self._is_first = True
            self._before = _Before()
            self._task = asyncio.get_running_loop().create_task(self._report_on())

    async def _report_on(self) -> None:
        """Report until nobody watches any more."""
        try:
            while self.is_watched:
                began_s = time.monotonic()
                self._report()
                async with self._reported:
                    self._reported.notify_all()
                await asyncio.sleep(max(0.0, began_s + REPORT_S - time.monotonic()))
        except Exception:
            log.exception("cannot gather figures for operators")
        finally:
            self._task = None
            self._watchers.clear()
            self._census.begin()
            self.network.forget()

    def _report(self) -> None:
        census = self._census
        if self._is_first:
            census.begin()
            self._before.reported = 0
        census.look()
        clients, gone, has_more = census.take()
        self.reports += 1
        report = Report(
            self.reports, self._own_figures(), self._links(), clients, gone, self._handoffs(), self._alerts(),
            self._is_first, has_more,
        )  # fmt: skip
        self._is_first = False
        now_s = time.monotonic()
        if any(until > now_s for _, until in self._watchers.values()):
            self._send("", report)
        if now_s < self._looks_until_s:
            self.network.take(self._site.id, report)

    def _own_figures(self) -> BrokerRow:
        figures, site, view = self._figures, self._site, self._config().view
        traffic, before = site.endpoint.traffic, self._before
        given_up: Counter[str] = Counter()
        for (reason, _), count in figures.dropped().items():
            if count:
                given_up[reason] += count
        received, delivered = sum(traffic.received), sum(traffic.sent)
        now_s, cpu_s, finished = time.monotonic(), time.process_time(), site.figures.finished_count
        passed_s = max(now_s - before.at_s, 0.001)
        is_first = before.at_s == 0.0
        rates = [
            0.0 if is_first else round((new - old) / passed_s, 1)
            for new, old in (
                (received, before.received),
                (delivered, before.delivered),
                (finished, before.finished),
            )
        ]
        cpu = 0.0 if is_first else round(min(1.0, (cpu_s - before.cpu_s) / passed_s), 4)
        before.at_s, before.cpu_s, before.received, before.delivered = now_s, cpu_s, received, delivered
        before.finished = finished
        followers = figures.followers()
        took = [one.seconds * 1000 for one in site.figures.finished if one.seconds is not None]
        return BrokerRow(
            version=__version__,
            uptime_s=round(figures.uptime_s, 1),
            latitude=view.latitude,
            longitude=view.longitude,
            connections=figures.connections(),
            sessions=site.session_count,
            attached=figures.attached(),
            queued=self._census.queued,
            queued_bytes=self._census.queued_bytes,
            memory_bytes=memory_bytes(),
            cpu=cpu,
            journal=self._engine.failure or "ok",
            received=received,
            delivered=delivered,
            repeated=traffic.repeated,
            given_up=dict(given_up.most_common(REASONS_REPORTED_MAX)),
            received_per_s=rates[0],
            delivered_per_s=rates[1],
            handoffs_per_s=rates[2],
            handoff_ms=percentiles(took),
            role="single" if followers is None else "leader",
            lag=max((one.lag for one in followers.values()), default=0) if followers is not None else 0,
            subscriptions=figures.subscriptions(),
            site=figures.site,
        )

    def _links(self) -> list[LinkRow]:
        links = self._figures.links()[:LINKS_REPORTED_MAX]
        return [LinkRow(one.peer, one.is_up, one.why, one.kept_bytes) for one in links]

    def _handoffs(self) -> list[HandoffRow]:
        """Return handoffs that finished since the last report; if there are too many, the last ones."""
        figures, before = self._site.figures, self._before
        new = figures.finished_count - before.reported
        before.reported = figures.finished_count
        count = min(new, len(figures.finished), HANDOFFS_REPORTED_MAX)
        rows = []
        for one in list(figures.finished)[len(figures.finished) - count :] if count else ():
            self._census.touch(one.client)
            took_ms = round((one.seconds or 0.0) * 1000, 3)
            rows.append(HandoffRow(shown(one.client), one.came_from, one.at, took_ms, one.moved))
        return rows

    def _alerts(self) -> list[AlertRow]:
        found: dict[str, tuple[str, str]] = {}
        if self._engine.failure:
            found["journal"] = "error", f"the journal cannot be written: {self._engine.failure}"
        refusal = self._site.history.refusal
        if refusal:
            found["history"] = "error", refusal
        kept_out = self._figures.kept_out.now()
        if kept_out:
            found["kept_out"] = "warning", f"{len(kept_out)} clients or peers are kept out after fail-stops"
        followers = (self._figures.followers() or {}).items()
        behind = sorted(name for name, one in followers if not (one.connected and one.in_sync))
        if behind:
            found["replica"] = "warning", f"replicas are disconnected or out of sync: {', '.join(behind)}"
        since = self._before.alerts
        self._before.alerts = {kind: since.get(kind, time.time()) for kind in found}
        return [
            AlertRow(level, kind, text, self._before.alerts[kind]) for kind, (level, text) in found.items()
        ]

    # --- news ---

    def _send(self, to: str, body: Body) -> None:
        if self._site.links_may_cycle or not self._site.links.ends:
            return
        data = encode_body(body)
        if len(data) > NEWS_BYTES_MAX and isinstance(body, Told):
            error = f"the answer of broker {self._site.id} is too long for the links; ask there"
            data = encode_body(Told(body.number, {}, error))
        if len(data) > NEWS_BYTES_MAX:
            if self._complaints.is_due("size", ""):
                log.warning("a report of %d bytes is too large for the links, and is not sent", len(data))
            return
        self._engine.push(NewsGiven(to, data))

    def heard(self, peer: str, news: News) -> None:
        """Receive a message of another broker that came over this peer."""
        try:
            body = decode_body(news.body)
        except InputError as error:
            if self._complaints.is_due(news.origin, "news"):
                log.info("%s sent %s", news.origin, error)
            return
        match body:
            case Watch():
                self._on_watch(news.origin, body)
            case Report():
                self._on_report(news.origin, body)
            case Told():
                future = self._answers.get(body.number)
                if future is not None and not future.done():
                    future.set_result(body)
            case Ask() if len(self._answering) < ANSWERED_AT_ONCE_MAX:
                task = asyncio.get_running_loop().create_task(self._answer(peer, news.origin, body))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)

    def _on_watch(self, origin: str, watch: Watch) -> None:
        known = self._watchers.get(origin)
        self._watchers[origin] = watch.generation, time.monotonic() + min(watch.seconds, 2 * INTEREST_S)
        if known is None or known[0] != watch.generation:
            self._is_first = True
        self._run()

    def _on_report(self, origin: str, report: Report) -> None:
        now_s = time.monotonic()
        if now_s >= self._looks_until_s:
            return
        if not self.network.take(origin, report) and now_s - self._began_again_s > BEGIN_AGAIN_S:
            self._began_again_s = now_s
            self._generation += 1
            self._send("", Watch(self._generation, INTEREST_S))
        task = asyncio.get_running_loop().create_task(self._notify())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _notify(self) -> None:
        async with self._reported:
            self._reported.notify_all()

    # --- questions to single brokers ---

    async def ask_holder(self, client: str, command: str) -> dict[str, Any]:
        """Ask the broker that has the session of a client, and follow the session if it moves meanwhile.

        Raises NoSession if no broker reports the session; otherwise as `ask`.
        """
        until_s = time.monotonic() + FOLLOW_S
        where = (await self.gathered()).clients.get(client)
        while where is not None:
            try:
                return await self.ask(where[0], command, client=client)
            except SessionMoved:
                where = await self._moved(client, where[0], until_s)
        raise NoSession(f"no broker that can be asked has a session of {client!r}")

    async def _moved(self, client: str, broker: str, until_s: float) -> tuple[str, ClientRow] | None:
        """Wait until a report says that the session is at another broker; None if none says so in time."""

        def is_elsewhere() -> bool:
            where = self.network.clients.get(client)
            return where is not None and where[0] != broker

        try:
            async with asyncio.timeout(max(0.0, until_s - time.monotonic())), self._reported:
                await self._reported.wait_for(is_elsewhere)
        except TimeoutError:
            return None
        return self.network.clients.get(client)

    async def ask(self, broker: str, command: str, **arguments: str) -> dict[str, Any]:
        """Ask a broker and return its answer; raise InputError if it refuses or does not answer."""
        self._asked += 1
        ask = Ask(self._asked, command, arguments)
        if broker == self._site.id:
            return await self._orders("", ask)
        if broker not in self._site.members():
            names = ", ".join(sorted([self._site.id, *self._site.members()]))
            raise InputError(f"there is no broker {broker} in the network; known are: {names}")
        self._answers[ask.number] = asyncio.get_running_loop().create_future()
        self._send(broker, ask)
        try:
            async with asyncio.timeout(ASK_S):
                told = await self._answers[ask.number]
        except TimeoutError:
            raise InputError(f"broker {broker} gave no answer within {ASK_S:g} s; is it up?") from None
        finally:
            del self._answers[ask.number]
        if told.error:
            raise SessionMoved(told.error) if told.has_moved else InputError(told.error)
        return told.values

    async def _answer(self, peer: str, origin: str, ask: Ask) -> None:
        try:
            told = Told(ask.number, await self._orders(peer, ask))
        except InputError as error:
            told = Told(ask.number, {}, str(error), isinstance(error, SessionMoved))
        self._send(origin, told)


class _Before:
    """Contents of the last report, for rates and changes."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.cpu_s = 0.0
        self.received = 0
        self.delivered = 0
        self.finished = 0
        self.reported = 0
        """Number of finished handoffs reported so far."""
        self.alerts: dict[str, float] = {}
        """When each present alert began."""
