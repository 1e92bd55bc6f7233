"""`roamcast bench handoff --rtt`: duration of a handoff between distant brokers.

Broker processes form a chain, and every link goes through a relay that delays its traffic. A client attaches
at the first broker and leaves; messages are queued for it; it returns one or more hops away. Its own
connection has no delay, so a plain resume is the lower bound of any handoff. A packet lost on a link arrives
later by a round trip and 200 ms, the shortest time after which Linux retransmits a single packet, and so does
everything after it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from roamcast.bench.broker import machine
from roamcast.bench.broker_network import BrokerNetwork
from roamcast.bench.handoff import (
    FILLED,
    PAYLOAD_BYTES,
    QUEUED,
    TOPIC,
    Came,
    await_filled,
    come_back,
    publish,
    summary,
)
from roamcast.bench.mqtt_load import LoadConnection
from roamcast.bench.report import Report, silent
from roamcast.mqtt.codec import packets
from roamcast.storage.journal import Sync

RTTS_MS = (1.0, 10.0, 50.0, 100.0)
HOPS = (1, 2, 4)
ROUNDS = 5
RETRANSMISSION_MIN_S = 0.2
COPY_BYTES_MAX = 16 << 20
"""Memory for a copy of the longest queue."""
PATIENCE_S = 10.0
"""How long brokers wait for each other, also while all of them start at the same time."""
STEP_S = 60.0
"""Time limit for starting or stopping each broker."""
ASKED_RTT_MS = 50.0
HIT_FACTOR = 1.3
MISS_FACTOR = 1.1


@dataclass(frozen=True)
class Kind:
    """A way to return: the protocol and its settings."""

    protocol: str
    about: str
    moves: bool = True
    goes: str = ""
    """What the brokers predict: "there" for the move that clients make, "aside" for another one."""


KINDS = {
    "resume": Kind("multi_hop_handoff", "the client returns to its last broker", moves=False),
    "multi_hop_handoff": Kind("multi_hop_handoff", "the session is fetched"),
    "roam_hit": Kind("roam", "a copy is where the client appears", goes="there"),
    "roam_miss": Kind("roam", "a copy is elsewhere", goes="aside"),
    "proactive": Kind("proactive", "a neighbour stores for the client", goes="there"),
    "relocation": Kind("relocation", "the old broker is found along the routes"),
}


def run(
    *,
    rtts_ms: Sequence[float] = RTTS_MS,
    losses: Sequence[float] = (0.0,),
    hops: Sequence[int] = HOPS,
    queued: Sequence[int] = QUEUED,
    kinds: Sequence[str] = tuple(KINDS),
    rounds: int = ROUNDS,
    sync: Sync = "group",
    progress: Report = silent,
) -> dict[str, Any]:
    """Run the benchmark; `losses` are shares of lost packets on links between brokers."""
    cases: list[dict[str, Any]] = []
    links = list(product(rtts_ms, losses))
    total = sum(len(links) * len(queued) * (len(hops) if KINDS[kind].moves else 1) for kind in kinds)
    networks: dict[tuple[str, str], list[str]] = {}
    for name in kinds:
        networks.setdefault((KINDS[name].protocol, KINDS[name].goes), []).append(name)
    for names in networks.values():
        with (
            tempfile.TemporaryDirectory(prefix="roamcast-far-") as folder,
            Chain(Path(folder), KINDS[names[0]], hops, sync).running() as chain,
        ):
            for (rtt_ms, loss), name, count in product(links, names, queued):
                chain.slow_down(rtt_ms / 1_000, loss)
                for away in hops if KINDS[name].moves else (0,):
                    progress(len(cases), total)
                    came = [chain.come_back(count, away) for _ in range(rounds)]
                    cases.append(
                        {"kind": name, "rtt_ms": rtt_ms, "loss": loss, "queued": count, "hops": away}
                        | figures(came, count)
                    )
    progress(total, total)
    asked = judge(cases)
    return {
        "machine": machine(pinned=False),
        "settings": f"MQTT 5, QoS 1, {PAYLOAD_BYTES}-byte payloads, a chain of {max(hops) + 1} brokers over"
        f" loopback with delays, {rounds} rounds, journal sync = {sync}, no event log,"
        f" copies of up to {COPY_BYTES_MAX} bytes",
        "kinds": {name: KINDS[name].about for name in kinds},
        "asked": asked,
        "holds": all(one["holds"] for one in asked),
        "cases": cases,
    }


def figures(came: Sequence[Came], count: int) -> dict[str, Any]:
    return {
        "connack": summary([one.connack_s for one in came]),
        "first_message": summary([one.first_s for one in came]) if count else None,
        "all_messages": summary([one.all_s for one in came]) if count else None,
    }


def judge(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the targets for a round trip of 50 ms without loss, for medians over queues and hops."""
    asked = []
    for name, other, factor in (
        ("roam_hit", "resume", HIT_FACTOR),
        ("roam_miss", "multi_hop_handoff", MISS_FACTOR),
    ):
        for what in ("connack", "first_message"):
            ratios = [
                one[what]["p50_ms"] / base[what]["p50_ms"]
                for one, base in product(cases, cases)
                if (one["kind"], base["kind"]) == (name, other)
                and one["rtt_ms"] == base["rtt_ms"] == ASKED_RTT_MS
                and one["loss"] == base["loss"] == 0
                and one["queued"] == base["queued"]
                and base["hops"] in (0, one["hops"])
                and one[what] is not None
            ]
            if ratios:
                found = {"what": f"{name} against {other}", "until": what, "asked": factor}
                ratio = median(ratios)
                asked.append({**found, "ratio": ratio, "worst": max(ratios), "holds": ratio <= factor})
    return asked


class Chain:
    """Brokers in a row; one more, beside the first, is the predicted one for clients that go elsewhere."""

    def __init__(self, folder: Path, kind: Kind, hops: Sequence[int], sync: Sync) -> None:
        last = max(hops)
        self._aside = last + 1
        destinations = [*hops] if kind.goes == "there" else [self._aside]
        settings = [f"journal.sync={sync}", "log.level=warning", f"mobility.protocol={kind.protocol}"]
        settings += [f"mobility.{name}={PATIENCE_S}" for name in ("meet_timeout_s", "locate_timeout_s")]
        if kind.goes:
            expected = {f"b{one}": {"probability": 1 / len(destinations)} for one in destinations}
            settings += [
                f"mobility.settings.neighbour_graph={json.dumps({'brokers': {'b0': expected}})}",
                f"mobility.settings.copies_max={len(destinations)}",
                f"mobility.settings.copy_bytes_max={COPY_BYTES_MAX}",
            ]
        edges = [*((one + 1, one) for one in range(last)), (self._aside, 0)]
        self._network = BrokerNetwork(folder, edges, settings)
        self._goes = kind.goes
        self._loop = asyncio.new_event_loop()
        self._watchers: list[LoadConnection] = []
        self._clients = self._published = 0

    @contextmanager
    def running(self) -> Iterator[Chain]:
        """Run the relays in their own thread, because a client here blocks while it waits."""
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            self._do(self._network.start())
            self._watchers = [
                LoadConnection(broker.port, f"watcher{number}", 5)
                for number, broker in enumerate(self._network.brokers)
            ]
            for number, watcher in enumerate(self._watchers):
                watcher.subscribe([f"{FILLED}/{number}"], 1)
            yield self
        finally:
            for watcher in self._watchers:
                watcher.close()
            self._do(self._network.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(STEP_S * len(self._network.link_ports))

    def slow_down(self, rtt_s: float, loss: float) -> None:
        for edge in self._network.edges:
            for relay in edge.relays:
                relay.delays_s = [rtt_s / 2, rtt_s / 2]
                relay.loss, relay.retransmission_s = loss, RETRANSMISSION_MIN_S + rtt_s

    def come_back(self, count: int, hops: int) -> Came:
        """Attach a new client at the first broker and move it by this number of hops."""
        if self._goes == "aside":
            # Brokers learn from what they see: most clients go where they are expected.
            self._move(0, self._aside)
        return self._move(count, hops)

    def _move(self, count: int, to: int) -> Came:
        self._clients += 1
        client_id, brokers = f"client{self._clients}", self._network.brokers
        first = LoadConnection(brokers[0].port, client_id, 5, is_lasting=True)
        first.subscribe([TOPIC], 1)
        first.send_all(packets.Disconnect())
        first.close()
        self._watchers[0].ping()
        publisher = LoadConnection(brokers[0].port, "publisher", 5)
        payloads = publish(publisher, self._published, count)
        self._published += count
        # Copies and what is fed to them go before this over the same links.
        await_filled(publisher, self._watchers[to], to)
        publisher.close()
        for number in dict.fromkeys((0, to)):
            self._watchers[number].ping()
        came = come_back(brokers[to].port, client_id, payloads)
        LoadConnection(brokers[to].port, client_id, 5).close()  # Ends the session.
        return came
