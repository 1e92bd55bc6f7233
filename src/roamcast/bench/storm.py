"""`roamcast bench storm`: thousands of clients leave one broker and appear at another within a second.

Two broker processes are joined by a link. All clients are in a third process (storm_clients). They leave in
one of two ways: each closes its connection and connects to the other broker (a train enters a station), or an
operator drains the first broker, which sends all of them away. Meanwhile messages are published to clients,
and two other clients exchange pings over the link. Afterwards every client gets one more message. No message
may be lost, repeated or reordered.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from roamcast.bench.attack.honest import HonestPair
from roamcast.bench.broker import at_rank, machine
from roamcast.bench.broker_network import BrokerNetwork
from roamcast.bench.mqtt_load import LoadConnection
from roamcast.bench.processes import HOST, BenchFailed, Process, roamcast_command
from roamcast.bench.report import Report, silent
from roamcast.bench.storm_clients import serve, topic_of, write_number
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reasons import Reason
from roamcast.storage.journal import Sync

CLIENTS = 10_000
PER_S_MIN = 5_000.0
PING_MS_MAX = 100.0
PATIENCE_S = 120.0
PER_TICK = 10
"""Number of messages to clients with each ping."""
TICK_S = 0.02
WINDOW = 200
"""Maximum number of unacknowledged messages to clients."""
STRANGERS = 20_000
"""Limit of connections per address: all clients of the benchmark come from one address; in the field each has
its own.
"""

WAYS = ("move", "drain")


def run(
    *,
    clients: int = CLIENTS,
    seconds: float = 1.0,
    ways: Sequence[str] = WAYS,
    protocol: str = "multi_hop_handoff",
    sync: Sync = "group",
    seed: int = 1,
    settings: Sequence[str] = (),
    progress: Report = silent,
) -> dict[str, Any]:
    cases = []
    progress(0, len(ways))
    for number, way in enumerate(ways, start=1):
        with tempfile.TemporaryDirectory(prefix="roamcast-storm-") as name:
            storm = Storm(Path(name), clients, protocol, sync, seed, settings)
            try:
                asyncio.run(storm.network.start())
                cases.append(judged(storm.run(way, seconds)))
            finally:
                asyncio.run(storm.network.stop())
        progress(number, len(ways))
    return {
        "machine": machine(pinned=False),
        "settings": f"MQTT 5, QoS 2, {clients} clients, 2 brokers and 1 link over loopback, {protocol},"
        f" journal sync = {sync}, no event log; clients and pings in 2 further processes on the same cores",
        "asked": f"{PER_S_MIN:.0f} handoffs per second, pings below {PING_MS_MAX:.0f} ms at p99,"
        " nothing lost, repeated or reordered",
        "holds": all(case["holds"] for case in cases),
        "cases": cases,
    }


def judged(case: dict[str, Any]) -> dict[str, Any]:
    """Add whether the targets are met."""
    case["why"] = [
        why
        for why, is_well in {
            f"fewer than {PER_S_MIN:.0f} handoffs per second": case["handoffs_per_s"] >= PER_S_MIN,
            f"pings took more than {PING_MS_MAX:.0f} ms at p99": case["ping_p99_ms"] < PING_MS_MAX,
            "a ping was lost": not case["pings_lost"],
            **{f"{what}: {count}": False for what, count in case["faults"].items() if count},
        }.items()
        if not is_well
    ]
    case["is_exact"] = not any(case["faults"].values()) and not case["pings_lost"]
    case["holds"] = not case["why"]
    return case


class Storm:
    """Two brokers, the process of the clients, and the publisher."""

    def __init__(
        self, folder: Path, clients: int, protocol: str, sync: Sync, seed: int, settings: Sequence[str]
    ) -> None:
        self._clients = clients
        self.network = BrokerNetwork(
            folder,
            [(1, 0)],
            [
                f"journal.sync={sync}", "log.level=warning", f"mobility.protocol={protocol}",
                f"quotas.connecting_max={STRANGERS}",
                *settings,
            ],
            is_relayed=False,
        )  # fmt: skip
        self._folder = folder
        self._rng = random.Random(seed)
        self._owed = [0] * clients
        self._published = self._acknowledged = 0

    def run(self, way: str, seconds: float) -> dict[str, Any]:
        old, new = self.network.brokers
        with self._riders() as riders:
            ask(riders, "settle", old.port)
            publisher = LoadConnection(new.port, "announcer", 5)
            # Draining sends every client away, so the pings stay at the broker that goes on.
            pings = HonestPair(new.port if way == "drain" else old.port, new.port, with_password=False)
            pings.run(0.5, lambda: None)
            memory = [Memory(broker) for broker in (old, new)]
            spent_s = [broker.cpu_s() for broker in (old, new)]
            pings.forget()

            def on_tick() -> None:
                self._publish(publisher, self._rng.sample(range(self._clients), min(PER_TICK, self._clients)))
                for one in memory:
                    one.look()

            if way == "drain":
                riders.send(("await_storm", (new.port, PATIENCE_S)))
                drain = self._drain(new)
            else:
                riders.send(("storm", (new.port, seconds, PATIENCE_S)))
            while not riders.poll():
                pings.run(TICK_S, on_tick)
            result = answer(riders)
            spent_s = [broker.cpu_s() - before for broker, before in zip((old, new), spent_s, strict=True)]
            if way == "drain" and drain.wait(PATIENCE_S):
                raise BenchFailed(f"`broker drain` ended with exit code {drain.returncode}")
            pings.drain(PATIENCE_S)
            for at in range(0, self._clients, WINDOW):
                self._publish(publisher, range(at, min(at + WINDOW, self._clients)), waits=True)
            faults = ask(riders, "finish", self._owed, PATIENCE_S)
            riders.send(("stop", ()))
            felt = pings.summary()
            publisher.close()
            pings.close()
        took_s = result["took_s"]
        return {
            "way": way,
            "clients": self._clients,
            "seconds": result["seconds"],
            "handoffs_per_s": self._clients / result["seconds"],
            "p50_ms": 1_000 * statistics.median(took_s),
            "p99_ms": 1_000 * at_rank(took_s, 0.99),
            "worst_ms": 1_000 * max(took_s),
            "connected_again": result["returns"],
            "old_us_per_handoff": 1e6 * spent_s[0] / self._clients,
            "new_us_per_handoff": 1e6 * spent_s[1] / self._clients,
            "load_us_per_handoff": 1e6 * result["load_core_s"] / self._clients,
            "old_memory_mb_before": memory[0].before / 1e6,
            "old_memory_mb_peak": memory[0].peak / 1e6,
            "new_memory_mb_before": memory[1].before / 1e6,
            "new_memory_mb_peak": memory[1].peak / 1e6,
            "pings": felt["pings"],
            "ping_p50_ms": felt["ping_p50_ms"],
            "ping_p99_ms": felt["ping_p99_ms"],
            "ping_worst_ms": felt["ping_worst_ms"],
            "pings_lost": felt["lost"] + felt["unanswered"],
            "own_late_ms": felt["own_late_ms"],
            "published": self._published,
            "faults": faults,
        }

    @contextmanager
    def _riders(self) -> Iterator[Connection]:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs, self._clients), daemon=True)
        process.start()
        theirs.close()
        try:
            yield ours
        finally:
            ours.close()
            process.join(5)
            process.kill()
            process.join()

    def _drain(self, new: Process) -> subprocess.Popen[bytes]:
        command = roamcast_command(
            "broker", "drain", "--data", str(self.network.data(0)), "--to", "b1",
            "--reference", f"{HOST}:{new.port}", "--timeout", f"{PATIENCE_S:.0f}",
        )  # fmt: skip
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def _publish(self, publisher: LoadConnection, clients: Sequence[int], *, waits: bool = False) -> None:
        """Publish the next message for each of these clients, unless too many are unacknowledged."""
        self._take_acknowledgements(publisher, waits)
        if self._published - self._acknowledged > WINDOW:
            return
        for client in clients:
            self._owed[client] += 1
            self._published += 1
            publisher.send_all(
                packets.Publish(
                    topic_of(client), write_number(self._owed[client]), 2,
                    packet_id=self._published % 65_535 + 1,
                )
            )  # fmt: skip

    def _take_acknowledgements(self, publisher: LoadConnection, waits: bool) -> None:
        publisher.socket.settimeout(PATIENCE_S if waits else 0.0)
        try:
            while self._acknowledged < self._published:
                answer = publisher.receive_packet()
                if isinstance(answer, packets.Pubrec) and answer.reason < Reason.UNSPECIFIED_ERROR:
                    publisher.send_all(packets.Pubrel(answer.packet_id))
                elif isinstance(answer, packets.Pubcomp):
                    self._acknowledged += 1
                else:
                    raise BenchFailed(f"{answer} arrived where an acknowledgement was expected")
        except BlockingIOError:
            return
        finally:
            publisher.socket.settimeout(PATIENCE_S)


class Memory:
    """Resident memory of a broker: at the start, and at its peak."""

    def __init__(self, broker: Process) -> None:
        self._broker = broker
        self.before = self.peak = broker.resident_bytes()

    def look(self) -> None:
        self.peak = max(self.peak, self._broker.resident_bytes())


def ask(riders: Connection, name: str, *arguments: Any) -> Any:
    riders.send((name, arguments))
    return answer(riders)


def answer(riders: Connection) -> Any:
    if not riders.poll(2 * PATIENCE_S):
        raise BenchFailed("the process of the clients does not answer")
    try:
        found = riders.recv()
    except EOFError:
        raise BenchFailed("the process of the clients has ended") from None
    if isinstance(found, BenchFailed):
        raise found
    return found
