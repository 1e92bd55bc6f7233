"""`roamcast bench workers`: throughput of a site with more and more workers, each with the same share of a
core.

A machine with fewer cores than workers shows no gain by itself, and the load program needs CPU time, too. So
every worker may be limited to a share of a core (`cpu_shares`), small enough that all of them and the load
fit on the machine: then the workers bound the throughput, as on a machine with many cores. Besides messages
per second, the figures include messages per CPU second of all workers together.

Each pair of a publisher and a subscriber is either at one worker, or at two, so that everything crosses the
site's links; some loads have many clients that echo one message at a time.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from roamcast.bench.accounting import Cycle, EvenStream
from roamcast.bench.broker import machine
from roamcast.bench.broker_cases import PAYLOAD_BYTES, numbered
from roamcast.bench.chaos_workers import SiteProcess
from roamcast.bench.cpu_shares import CpuShares
from roamcast.bench.mqtt_load import Door, Figure, Flow, LoadConnection, flow_all, one_in_flight
from roamcast.bench.processes import HOST, free_port, roamcast_command
from roamcast.bench.report import Report, silent
from roamcast.bench.worker_doors import find_doors

ROUND = 2_000
PER_WRITE = 250
ECHOES_EACH = 24
"""Clients of each worker with one message in flight."""
KINDS = ("pairs", "pairs apart", "one in flight")


def run(
    *,
    workers: Sequence[int],
    share: float | None,
    seconds: float = 1.0,
    rounds: int = 3,
    progress: Report = silent,
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for done, count in enumerate(workers):
        progress(done, len(workers))
        rows += measure(count, share, seconds, rounds)
    progress(len(workers), len(workers))
    first = {(row["case"], row["qos"]): row for row in reversed(rows) if row["workers"] == workers[0]}
    for row in rows:
        # Where pairs are apart, one worker is compared with, too: there everything is together.
        base = first.get((row["case"], row["qos"])) or first["pairs", row["qos"]]
        row["times"] = row["messages_per_s"] / base["messages_per_s"]
        row["times_per_core_s"] = row["messages_per_core_s"] / base["messages_per_core_s"]
    return {
        "machine": machine(pinned=False),
        "settings": "MQTT 3.1.1, 64-byte payloads, journal sync = process, no event log",
        "share": share,
        "rounds": rounds,
        "seconds": seconds,
        "cases": rows,
    }


def measure(count: int, share: float | None, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Measure all cases with this number of workers."""
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name, ExitStack() as stack:
        site = start(Path(name), count)
        stack.callback(site.stop)
        doors: list[Door] = (
            list(find_doors(site.port, count, 2 * ECHOES_EACH).values())
            if count > 1
            else [lambda: socket.create_connection((HOST, site.port))]
        )
        if share is not None:
            shares = stack.enter_context(CpuShares())
            for process in site.workers() or [site.pid]:
                shares.limit(process, share)
        rows = []
        for case in KINDS if count > 1 else ("pairs", "one in flight"):
            for qos in (0, 1):
                figures = [_run(site, case, doors, qos, seconds) for _ in range(rounds)]
                rows.append(_row(case, qos, count, figures))
    return rows


def start(folder: Path, count: int) -> SiteProcess:
    port = free_port()
    command = roamcast_command(
        "broker", "--listen", f"{HOST}:{port}", "--data", str(folder / "data"), "--workers", str(count),
        "--set", "journal.sync=process", "--set", "log.level=info",
    )  # fmt: skip
    return SiteProcess("site", command, port, folder / "log").serve()


def _row(case: str, qos: int, count: int, figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        "case": case,
        "qos": qos,
        "workers": count,
        "messages_per_s": median(one.messages_per_s for one in figures),
        "messages_per_core_s": median(one.messages_per_core_s for one in figures),
        "cores": median(one.broker_cpu_s / one.seconds for one in figures),
    }


def _run(site: SiteProcess, case: str, doors: Sequence[Door], qos: int, seconds: float) -> Figure:
    if case == "one in flight":
        echoes = ECHOES_EACH * len(doors)
        cycles = [
            Cycle([b"bench/%03d" % client] * 20, [numbered(n, PAYLOAD_BYTES, client) for n in range(20)], qos)
            for client in range(echoes)
        ]
        topics = [f"bench/{client:03d}" for client in range(echoes)]
        return one_in_flight(site, cycles, topics, seconds, doors)
    away = 1 if case == "pairs apart" else 0
    names = [f"{case.replace(' ', '-')}-{number}" for number in range(len(doors))]
    made = [_pair(doors[n], doors[(n + away) % len(doors)], n, names[n], qos) for n in range(len(doors))]
    return flow_all(site, made, seconds, PER_WRITE)


def _pair(publisher: Door, subscriber: Door, number: int, name: str, qos: int) -> Flow:
    topic = f"bench/{number:02d}"
    cycle = Cycle([topic.encode()] * ROUND, [numbered(n, PAYLOAD_BYTES, number) for n in range(ROUND)], qos)
    taking = LoadConnection(subscriber, f"{name}-subscriber")
    taking.subscribe([topic], qos)
    return Flow(LoadConnection(publisher, f"{name}-publisher"), cycle, [(taking, EvenStream(cycle))])
