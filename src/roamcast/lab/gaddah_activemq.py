"""Gaddah's system over real brokers: JMS with proxies, here ActiveMQ with our proxies. Claim R25.

The thesis's testbed has six JMS brokers with a proxy beside each (4.3). Here the brokers are ActiveMQ
processes, joined over a hub; the proxies are those of `roamcast proxy`, and clients use its library:

- durable: ActiveMQ's own durable subscriptions at every site, without proxies (made at all sites before the
  start, as in the simulated testbed);
- reactive: the proxy at the old site stores, and the new site fetches from it; duplicates are not removed,
  as in the thesis;
- pro-active: proxies of all other sites store as well (RND: every site is a neighbour), and duplicates are
  removed by their identity.

Times are a tenth of those in table 4.1, so that a run takes a minute: connected 6 s, disconnected 1.2 s,
between brokers 0.3 s. Each subscriber wants a fifth of a hundred selector values. No buffer is limited to 1
MB, because ActiveMQ's durable store has no such limit: losses are caused by moves, not by full buffers.
Clients announce that they leave, where the thesis detects it by pings. So the order of the three protocols
can be compared with tables 5.1, 5.3 and 5.4; throughput (5.2) follows the publishing rate, which is fixed
here.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import msgspec

from roamcast.bench.foreign_brokers import ForeignNetwork, foreign_network, missing
from roamcast.bench.processes import HOST, free_port
from roamcast.lab.caporuscio_runs import proxy_config
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.gaddah import DURABLE, PRINTED, PROACTIVE, REACTIVE, RND, size_of
from roamcast.lab.gaddah_testbed import simulate
from roamcast.lab.rows import Row, distinct, mean_of, sums_of, where
from roamcast.lab.sweep import Job, Sweep
from roamcast.proxy.adapter import Adapter, ForeignMessage
from roamcast.proxy.client import Options, RoamingClient
from roamcast.proxy.config import Proactive
from roamcast.proxy.driver import ProxyServer
from roamcast.simulator.movement import plan
from roamcast.simulator.topology import from_edges

R25 = claim("R25")


APPROACHES = (DURABLE, REACTIVE, PROACTIVE)
CONNECT_S, DISCONNECT_S, HANDOFF_S = 6.0, 1.2, 0.3
PAUSE_S = 0.02
BODY_BYTES = 2_000
VALUES = 100
SETTLE_S = 3.0
FAR_MIN = 1.5
"""Minimum factor by which reactive is slower than each of the others."""
SERVED_MIN = 0.8
"""Minimum share of pro-active's handoffs served by a copy; in the others clients are faster than their
copies.
"""


@dataclass(frozen=True)
class RealJob(Job):
    approach: str
    subscribers: int
    brokers: int
    window_s: float
    number: int

    @property
    def repetition(self) -> int:
        return self.number


@dataclass(frozen=True)
class Together(Job):
    """Runs at the same time over the same brokers, so that the machine's load affects all of them alike."""

    jobs: tuple[RealJob, ...]


def groups(quick: bool) -> list[Together]:
    brokers, populations, window_s, numbers = (3, (10,), 20.0, 1) if quick else (6, (10, 30), 60.0, 3)
    return [
        Together(tuple(RealJob(approach, subscribers, brokers, window_s, number) for approach in APPROACHES))
        for subscribers in populations
        for number in range(1, numbers + 1)
    ]


# --- a run ---


def measure(together: Together) -> Row:
    """Make all runs and return their rows; each time with new brokers, because a run leaves state in them."""
    sites = ["hub", *"abcdefg"[: together.jobs[0].brokers - 1]]
    with (
        TemporaryDirectory(prefix="roamcast-gaddah-") as folder,
        foreign_network("activemq", Path(folder) / "brokers", sites) as network,
    ):

        async def all_of_them() -> list[Row]:
            return await asyncio.gather(
                *(_measure(job, network, Path(folder, job.approach)) for job in together.jobs)
            )

        return {"rows": asyncio.run(all_of_them())}


async def _measure(job: RealJob, network: ForeignNetwork, folder: Path) -> Row:
    folder.mkdir()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        addresses = await _start_proxies(job, network, folder, stack)
        clients = [
            (_DurableClient if job.approach == DURABLE else _ProxyClient)(job, network, addresses, number)
            for number in range(job.subscribers)
        ]
        for client in clients:
            stack.push_async_callback(client.end)
            await client.begin()
        publisher = network.adapter("hub")
        await publisher.open()
        stack.push_async_callback(publisher.close)
        await asyncio.sleep(SETTLE_S)
        published: list[int] = []
        publishing = loop.create_task(_publish(publisher, job, published))
        began = loop.time()
        await asyncio.gather(*(client.travel(began) for client in clients))
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
        took_s = loop.time() - began
        await asyncio.sleep(SETTLE_S)
        return _count(job, clients, published, took_s)


async def _start_proxies(
    job: RealJob, network: ForeignNetwork, folder: Path, stack: AsyncExitStack
) -> dict[str, str]:
    """Start a proxy beside each broker; all others are its neighbours (RND)."""
    if job.approach == DURABLE:
        return {}
    ports = {site: free_port() for site in network.ports}
    for site in ports:
        plain = proxy_config(network, folder, site, ports)
        proactive = Proactive(enabled=job.approach == PROACTIVE, sites=plain.sites)
        server = ProxyServer(msgspec.structs.replace(plain, proactive=proactive))
        await server.start()
        stack.push_async_callback(server.stop)
    return {site: f"{HOST}:{port}" for site, port in ports.items()}


def topic_of(job: RealJob) -> str:
    return f"building-{job.approach}-{job.number}"


async def _publish(publisher: Adapter, job: RealJob, published: list[int]) -> None:
    """Publish as fast as the broker accepts, with pauses; return each message's selector value by
    its number.
    """
    rng = random.Random(job.number)
    while True:
        value = rng.randrange(VALUES)
        number = len(published)
        body = b"%d " % number
        message = ForeignMessage(topic_of(job), body.ljust(BODY_BYTES), {"value": f"{value:02}"})
        published.append(value)
        # Cut off in the middle it would be neither published nor not.
        await asyncio.shield(asyncio.ensure_future(publisher.publish(message)))
        await asyncio.sleep(PAUSE_S)


class _Client(ABC):
    """A subscriber that moves between sites in a random walk over all of them."""

    def __init__(
        self, job: RealJob, network: ForeignNetwork, addresses: Mapping[str, str], number: int
    ) -> None:
        self.network, self.addresses = network, addresses
        self.id = f"{job.approach}-{number:03}"
        rng = random.Random(f"{job.number}/{number}")
        first = rng.randrange(VALUES // 10)
        self.tens = {first, (first + 1) % 10}
        likes = " OR ".join(f"value LIKE '{ten}_'" for ten in sorted(self.tens))
        self.filter = f"{topic_of(job)}?{likes}"
        sites = list(network.ports)
        topology = from_edges("sites", sites, pairwise(sites))
        self.visits = plan(
            "RND", topology, sites[number % len(sites)], job.window_s, rng, CONNECT_S, DISCONNECT_S, HANDOFF_S
        )
        self.had: Counter[int] = Counter()
        self.handoffs_s: list[float] = []
        self.copies = 0
        self._waits_since: float | None = None

    def wants(self, value: int) -> bool:
        return value // 10 in self.tens

    def receive(self, message: ForeignMessage) -> None:
        if self._waits_since is not None:
            self.handoffs_s.append(asyncio.get_running_loop().time() - self._waits_since)
            self._waits_since = None
        self.had[int(message.body.split()[0])] += 1

    async def travel(self, began: float) -> None:
        loop = asyncio.get_running_loop()
        before = self.visits[0].broker
        for index, visit in enumerate(self.visits):
            if index:
                await asyncio.sleep(max(0.0, began + visit.attach_s - loop.time()))
                if visit.broker != before:
                    self._waits_since = loop.time()
                await self.attach(visit.broker)
                before = visit.broker
            if visit.leave_s is not None:
                await asyncio.sleep(max(0.0, began + visit.leave_s - loop.time()))
                self._waits_since = None
                await self.leave()
                if index + 1 == len(self.visits):  # Everyone comes home.
                    await self.attach(visit.broker)

    async def begin(self) -> None:
        await self.attach(self.visits[0].broker)

    @abstractmethod
    async def attach(self, site: str) -> None: ...

    @abstractmethod
    async def leave(self) -> None: ...

    @abstractmethod
    async def end(self) -> None: ...


class _ProxyClient(_Client):
    """A reactive or pro-active client, depending on what its proxies do."""

    def __init__(
        self, job: RealJob, network: ForeignNetwork, addresses: Mapping[str, str], number: int
    ) -> None:
        super().__init__(job, network, addresses, number)
        is_ahead = job.approach == PROACTIVE
        options = Options(suspend="never", ahead=is_ahead, is_unique=is_ahead)
        self._client = RoamingClient(
            self.id, addresses, options, adapter=lambda welcome: network.adapter(welcome.site)
        )
        self._reader: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._reader = asyncio.get_running_loop().create_task(self._read())
        await self._client.subscribe(self.filter)
        await super().begin()

    async def _read(self) -> None:
        async for message in self._client:
            self.receive(message)

    async def attach(self, site: str) -> None:
        moved = await self._client.move_in(site)
        self.copies += moved.copies

    async def leave(self) -> None:
        await self._client.move_out()

    async def end(self) -> None:
        await self._client.close()
        if self._reader is not None:
            await self._reader


class _DurableClient(_Client):
    """A client with a durable ActiveMQ subscription at every broker."""

    _adapter: Adapter | None = None

    async def begin(self) -> None:
        for site in self.network.ports:
            await self.attach(site)
            await self.leave()
        await super().begin()

    async def attach(self, site: str) -> None:
        self._adapter = self.network.adapter(site)
        await self._adapter.open()
        await self._adapter.resume(self.id, (self.filter,), self.receive)

    async def leave(self) -> None:
        if self._adapter is not None:
            await self._adapter.suspend(self.id)
            await self._adapter.close()

    async def end(self) -> None:
        await self.leave()


def _count(job: RealJob, clients: Sequence[_Client], published: Sequence[int], took_s: float) -> Row:
    owed = [(one, number) for one in clients for number, value in enumerate(published) if one.wants(value)]
    lost = sum(not one.had[number] for one, number in owed)
    received = sum(one.had.total() for one in clients)
    new = sum(len(one.had) for one in clients)
    handoffs_s = [seconds for one in clients for seconds in one.handoffs_s]
    return {
        **asdict(job),
        "published_per_s": len(published) / took_s,
        "handoffs": len(handoffs_s),
        "handoff_mean_s": fmean(handoffs_s) if handoffs_s else None,
        "useful_per_s": new / took_s,
        "loss_percent": 100 * lost / len(owed) if owed else None,
        "duplicate_percent": 100 * (received - new) / received if received else None,
        "copies": sum(one.copies for one in clients),
    }


# --- the findings ---


def real(job: RealJob) -> Row:
    """Names the rows of runs in `KeptRuns`. Runs are made together, so calling this is an error."""
    raise RuntimeError(f"{job.name}: made together with others")


@checks("gaddah-activemq", "Gaddah on ActiveMQ: tables 5.1 to 5.4", R25)
def experiment(quick: bool, sweep: Sweep) -> Findings:
    reason = missing("activemq")
    asked = [together for together in groups(quick) if sweep.takes(together.jobs[0])]
    left = [one for one in asked if any(sweep.recall(real, job) is None for job in one.jobs)]
    if sweep.only_kept:
        sweep.absent += len(left)
    elif reason is None:
        for together in left:
            sweep.failures += sweep.run_here(measure, [together], partial(_keep, sweep, together))
    rows = [row for one in asked for job in one.jobs if (row := sweep.recall(real, job)) is not None]
    if not rows:
        return Findings([R25.open(reason or "no runs")])
    return Findings([judge(rows)], {"real": beside_simulated(rows, quick, sweep)})


def _keep(sweep: Sweep, together: Together, made: Row) -> None:
    for job, row in zip(together.jobs, made["rows"], strict=True):
        sweep.keep(real, job, row)


def beside_simulated(rows: Sequence[Row], quick: bool, sweep: Sweep) -> list[Row]:
    """Return the measurements on real brokers, those of the simulated testbed with ten subscribers, and the
    printed values.
    """
    few = [job for job in size_of(quick).jobs(RND, subscribers=10) if job.setting == "ours"]
    simulated = sweep.run(simulate, few)
    table: list[Row] = []
    for subscribers in distinct(rows, "subscribers"):
        for approach in APPROACHES:
            of_it = where(rows, approach=approach, subscribers=subscribers)
            like = where(simulated, protocol=approach) if subscribers == 10 else []
            row: Row = {"approach": approach, "brokers": of_it[0]["brokers"], "subscribers": subscribers}
            for y, by_movement in PRINTED.items():
                row[f"{y}, ActiveMQ"] = mean_of(of_it, y, 3)
                row[f"{y}, simulated"] = mean_of(like, y, 3)
                row[f"{y}, printed"] = by_movement[RND][approach].get(subscribers)
            table.append({**row, "published_per_s": mean_of(of_it, "published_per_s", 1),
                          "handoffs": sum(one["handoffs"] for one in of_it),
                          "served by a copy": sum(one["copies"] for one in of_it)})  # fmt: skip
    return table


def judge(rows: Sequence[Row]) -> Outcome:
    parts: dict[str, bool | None] = {}
    figures: dict[str, object] = {}
    for subscribers in distinct(rows, "subscribers"):
        found = {name: where(rows, approach=name, subscribers=subscribers) for name in APPROACHES}
        latency, loss, repeated = (
            {name: mean_of(of_it, y) or 0.0 for name, of_it in found.items()}
            for y in ("handoff_mean_s", "loss_percent", "duplicate_percent")
        )
        at = f"{subscribers} subscribers: "
        served = sums_of(found[PROACTIVE], ("copies", "handoffs"))
        share = served["copies"] / max(served["handoffs"], 1)
        others = max(latency[DURABLE], latency[PROACTIVE])
        parts |= {
            f"{at}reactive's handoff is not {FAR_MIN:g} times the others'": latency[REACTIVE]
            >= FAR_MIN * others,
            f"{at}durable does not repeat most": repeated[DURABLE]
            > max(repeated[REACTIVE], repeated[PROACTIVE]),
            f"{at}pro-active repeats": repeated[PROACTIVE] == 0,
            f"{at}reactive or pro-active loses": loss[REACTIVE] == loss[PROACTIVE] == 0,
            f"{at}copies serve {share:.0%} of the handoffs": share >= SERVED_MIN,
        }
        figures[f"{at}attach to first message, s"] = {name: round(one, 4) for name, one in latency.items()}
        figures[f"{at}lost, %"] = {name: round(one, 3) for name, one in loss.items()}
        figures[f"{at}duplicates, %"] = {name: round(one, 2) for name, one in repeated.items()}
        figures[f"{at}handoffs served by a copy"] = round(share, 3)
    return R25.judge(parts, figures)
