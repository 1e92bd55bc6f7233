"""`roamcast bench replicas`: the cost of a follower, and the effect of a failover on clients.

Every figure of the cost is the median of short runs that alternate between a broker alone and a leader with
an in-sync follower, both on this machine: leader, follower, etcd and the load share its cores. The CPU time
of each process per message (`…_us`) predicts the result if each process has its own machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

from roamcast.bench.broker import at_rank, machine
from roamcast.bench.broker_cases import TOPIC, echoes, fan_out
from roamcast.bench.contestants import roamcast
from roamcast.bench.field_shapes import ONE, paced
from roamcast.bench.ledger import Ledger
from roamcast.bench.mqtt_load import Figure, LoadConnection
from roamcast.bench.processes import HOST, BenchFailed, Process, free_port, roamcast_command, wait_until
from roamcast.bench.replicated_sites import LEASE_S, EtcdProcess
from roamcast.bench.report import Report, silent
from roamcast.bench.roaming_session import RoamingSession
from roamcast.config.sections import Replication
from roamcast.net.etcd import Etcd, EtcdFailed
from roamcast.replication.messages import SiteView

SYNCS = ("process", "group")
WINDOW = 30_000
SETTING = f"mqtt.inflight_max={2 * WINDOW}"
"""With fewer messages in flight to a subscriber, its acknowledgements would wait for round trips."""
CASES = {
    "1 to 1, pipelined, QoS 1": (fan_out(1, 1), 0.7),
    f"1 to 1, pipelined, QoS 1, {WINDOW:,} in flight": (fan_out(1, 1, WINDOW), 0.7),
    "50 clients, one in flight, QoS 1": (echoes(1), 0.6),
}
"""By case: how to measure it, and the minimum share of the broker's own throughput for a site with a
follower.
"""
IN_SYNC_S = 60.0
PUBLISH_PER_S = 50
BEFORE_S, AFTER_S = 4.0, 6.0
ARRIVE_S = 60.0
RETRY_S = 0.02
READ_BYTES = 1 << 16
BLOCK_BYTES = 4096


class Pair:
    """A site with one follower."""

    def __init__(self, folder: Path, sync: str) -> None:
        folder.mkdir(parents=True)
        self.etcd = EtcdProcess(folder)
        self.replicas: dict[str, Process] = {}
        self.folder = folder
        self._look = Etcd(Replication(etcd=(self.etcd.url,)), "roamcast", "bench", 1.0).look
        for name in ("r0", "r1"):
            port = free_port()
            command = roamcast_command(
                "broker", "--id", "bench", "--listen", f"{HOST}:{port}", "--data", str(folder / name)
            )
            for setting in (
                f"journal.sync={sync}", "log.level=warning", SETTING, f"replication.name={name}",
                "replication.port=0", f"replication.reference={HOST}:{port}",
                f"replication.lease_s={LEASE_S}", f"replication.etcd={self.etcd.url}",
            ):  # fmt: skip
                command += ["--set", setting]
            self.replicas[name] = Process(name, command, port, folder / f"{name}.log")

    def start(self) -> None:
        self.etcd.start()
        self.etcd.wait_listening()
        for replica in self.replicas.values():
            replica.start()
        self.wait_in_sync()

    def view(self) -> SiteView:
        try:
            return self._look()
        except EtcdFailed:
            return SiteView()

    def wait_in_sync(self) -> None:
        def is_so() -> bool:
            view = self.view()
            return bool(view.leader) and len(view.in_sync) == len(self.replicas)

        if not wait_until(is_so, IN_SYNC_S):
            raise BenchFailed(f"the follower is not in sync after {IN_SYNC_S:.0f} s: {self.view()}")

    @property
    def leader(self) -> Process:
        return self.replicas[self.view().leader]

    @property
    def follower(self) -> Process:
        leader = self.view().leader
        return next(one for name, one in self.replicas.items() if name != leader)

    def stop(self) -> None:
        for replica in self.replicas.values():
            replica.kill()
        self.etcd.kill()


def run(*, seconds: float = 1.0, rounds: int = 5, progress: Report = silent) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    total = len(SYNCS) * (len(CASES) + 1) + 1
    with tempfile.TemporaryDirectory(prefix="roamcast-replicas-") as name:
        folder = Path(name)
        for sync in SYNCS:
            with ExitStack() as stack:
                alone = roamcast(sync, SETTING).start(folder / f"alone-{sync}", frozenset())
                stack.callback(alone.stop)
                pair = Pair(folder / f"pair-{sync}", sync)
                stack.callback(pair.stop)
                pair.start()
                for case, (load, target) in CASES.items():
                    progress(len(rows), total)
                    rows.append(_throughput(case, sync, target, load, alone, pair, seconds, rounds))
                progress(len(rows), total)
                rows.append(_latency(sync, alone, pair, seconds, rounds, folder))
        progress(len(rows), total)
        pair = Pair(folder / "failover", "group")
        try:
            pair.start()
            failover = asyncio.run(Failover(pair).run())
        finally:
            pair.stop()
    return {
        "machine": machine(pinned=False),
        "rounds": rounds,
        "seconds": seconds,
        "cases": rows,
        "failover": failover,
    }


def _throughput(
    case: str,
    sync: str,
    target: float,
    load: Callable[[Process, float], Figure],
    alone: Process,
    pair: Pair,
    seconds: float,
    rounds: int,
) -> dict[str, Any]:
    found: dict[str, list[Figure]] = {"alone": [], "with": []}
    follower_cores: list[float] = []
    follower_us: list[float] = []
    for turn in range(rounds):
        for which in ("alone", "with") if turn % 2 else ("with", "alone"):
            follower = pair.follower
            before_s, began_s = follower.cpu_s(), time.perf_counter()
            found[which].append(load(alone if which == "alone" else pair.leader, seconds))
            if which == "with":
                spent_s = follower.cpu_s() - before_s
                follower_cores.append(spent_s / (time.perf_counter() - began_s))
                follower_us.append(1e6 * spent_s / found[which][-1].messages)
    own, other = (median(one.messages_per_s for one in found[which]) for which in ("with", "alone"))
    cpu, other_cpu = (median(one.messages_per_core_s for one in found[which]) for which in ("with", "alone"))
    return {
        "case": case,
        "sync": sync,
        "alone": round(other),
        "with_follower": round(own),
        "ratio": round(own / other, 2),
        "target": target,
        "holds": own / other >= target and median(follower_cores) <= 1.0,
        "ratio_per_core_s": round(cpu / other_cpu, 2),
        "follower_cores": round(median(follower_cores), 2),
        "alone_us": round(1e6 / other_cpu, 2),
        "leader_us": round(1e6 / cpu, 2),
        "follower_us": round(median(follower_us), 2),
        "load_us": round(median(1e6 * one.load_cpu_s / one.messages for one in found["with"]), 2),
    }


def _latency(
    sync: str, alone: Process, pair: Pair, seconds: float, rounds: int, folder: Path
) -> dict[str, Any]:
    found: dict[str, list[float]] = {"alone": [], "with": [], "trip": [], "sync": []}
    for turn in range(rounds):
        for which in ("alone", "with") if turn % 2 else ("with", "alone"):
            took_s = paced(ONE, 1, alone if which == "alone" else pair.leader, seconds).latencies_s
            found[which].append(1_000 * at_rank(took_s, 0.5))
        found["trip"].append(_trip_ms(alone, seconds / 2))
        found["sync"].append(_sync_ms(folder / "block", seconds / 2) if sync == "group" else 0.0)
    own, other, trip, synced = (median(found[which]) for which in ("with", "alone", "trip", "sync"))
    return {
        "case": f"latency at {ONE.per_s:.0f}/s, QoS 1, p50 in ms",
        "sync": sync,
        "alone": round(other, 2),
        "with_follower": round(own, 2),
        "added": round(own - other, 3),
        "target": round(trip + synced, 3),
        "holds": own - other <= trip + synced,
        "round_trip": round(trip, 3),
        "one_sync": round(synced, 3),
    }


def _trip_ms(broker: Process, seconds: float) -> float:
    """Return the median time of a round trip: a ping, at the same rate as the messages."""
    connection = LoadConnection(broker.port, "bench-pinger")
    try:
        return _paced_ms(connection.ping, seconds)
    finally:
        connection.close()


def _sync_ms(path: Path, seconds: float) -> float:
    """Return the median time of writing and syncing a block, at the same rate as the messages."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(file, bytes(BLOCK_BYTES), 0)
        os.fsync(file)
        return _paced_ms(lambda: os.pwritev(file, (bytes(BLOCK_BYTES),), 0, os.RWF_DSYNC), seconds)
    finally:
        os.close(file)


def _paced_ms(do: Callable[[], object], seconds: float) -> float:
    took_s: list[float] = []
    until_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < until_s:
        do()
        took_s.append(time.perf_counter() - began_s)
        time.sleep(max(0.0, 1 / ONE.per_s - took_s[-1]))
    return 1_000 * median(took_s)


# --- failover ---


class Failover:
    """One client publishes steadily, another one listens, and the leader is killed and its disk wiped."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._ports = [one.port for one in pair.replicas.values()]
        self._ledger = Ledger({"publisher": {}, "subscriber": {TOPIC: 2}})
        self._published_s: list[float] = []
        self._arrived_s: list[float] = []
        self._writer: asyncio.StreamWriter | None = None
        self._publisher = RoamingSession("publisher", self._ledger, {f"{TOPIC}/none": 0})
        self._subscriber = RoamingSession(
            "subscriber", self._ledger, self._ledger.subscriptions["subscriber"]
        )

    async def run(self) -> dict[str, Any]:
        tasks = [asyncio.create_task(self._live(one)) for one in (self._publisher, self._subscriber)]
        try:
            while not (self._subscriber.is_subscribed and self._publisher.is_subscribed):
                await asyncio.sleep(RETRY_S)
            began_s = time.perf_counter()
            publishing = asyncio.create_task(self._publish())
            await asyncio.sleep(BEFORE_S)
            leader = self._pair.view().leader
            killed_s = time.perf_counter()
            self._pair.replicas[leader].kill()
            shutil.rmtree(self._pair.folder / leader)
            await asyncio.sleep(LEASE_S + AFTER_S)
            publishing.cancel()
            deadline_s = time.perf_counter() + ARRIVE_S
            while len(self._arrived_s) < len(self._published_s) and time.perf_counter() < deadline_s:
                await asyncio.sleep(RETRY_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        received = self._ledger.received["subscriber"]
        if received != list(self._ledger.published):
            raise BenchFailed(f"{len(self._published_s)} were published, and {len(received)} came")
        points = [
            [round(one - began_s, 4), round(other - one, 4)]
            for one, other in zip(self._published_s, self._arrived_s, strict=True)
        ]
        return {
            "lease_s": LEASE_S,
            "killed_at_s": round(killed_s - began_s, 3),
            "messages": len(points),
            "longest_delay_s": max(delay for _, delay in points),
            "delays": points,
        }

    async def _publish(self) -> None:
        while True:
            self._published_s.append(time.perf_counter())
            data = self._publisher.publish(TOPIC, 2)
            if data and self._writer is not None and not self._writer.is_closing():
                self._writer.write(data)
            await asyncio.sleep(1 / PUBLISH_PER_S)

    async def _live(self, session: RoamingSession) -> None:
        """Stay connected to the serving replica."""
        turn = 0
        while True:
            with suppress(OSError):
                await self._visit(session, self._ports[turn % len(self._ports)])
            session.is_welcome = False
            turn += 1
            await asyncio.sleep(RETRY_S)

    async def _visit(self, session: RoamingSession, port: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(session.connect())
            if session is self._publisher:
                self._writer = writer
            while data := await reader.read(READ_BYTES):
                answer = session.receive(data)
                count = len(self._ledger.received["subscriber"])
                self._arrived_s += [time.perf_counter()] * (count - len(self._arrived_s))
                if answer:
                    writer.write(answer)
                if session.refused is not None:
                    return
        finally:
            if session is self._publisher:
                self._writer = None
            writer.transport.abort()


def write_figure(failover: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    from roamcast.bench.broker_figure import ASKED, QUIET, STYLE

    points: Sequence[Sequence[float]] = failover["delays"]
    killed_s, lease_s = failover["killed_at_s"], failover["lease_s"]
    with mpl.rc_context(STYLE):
        figure = Canvas(figsize=(9, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.axvspan(killed_s, killed_s + lease_s, color=QUIET, alpha=0.15, linewidth=0)
        axes.axvline(killed_s, color=ASKED, linewidth=1.5)
        axes.plot(
            [at for at, _ in points], [delay for _, delay in points], ".", color="#1f6fb2", markersize=4
        )
        top = 1.25 * max(delay for _, delay in points)
        axes.set_ylim(-0.02 * top, top)
        axes.text(killed_s - 0.1, top, "leader killed,\nits disk wiped", ha="right", va="top", color=ASKED)
        axes.text(killed_s + lease_s - 0.1, top, f"its lease, {lease_s} s", ha="right", va="top")
        axes.set_xlabel("when a message was published, in seconds")
        axes.set_ylabel("until it arrived, in seconds")
        title = f"A failover: {failover['messages']} messages of QoS 2, each arrived once and in order"
        axes.set_title(title, loc="left", fontweight="bold")
        figure.savefig(path, dpi=150)
