"""`roamcast bench handoff`: how long a client waits when it returns at another broker, and at the same one.

Two broker processes are joined by a link. The client goes away, messages are queued for it, and it returns:
alternately at its last broker (a plain resume) and at the other one (a handoff). Both are timed from before
the TCP connection is opened, over loopback, and every queued message is checked.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from roamcast.bench.broker import at_rank, machine
from roamcast.bench.broker_network import BrokerNetwork
from roamcast.bench.chaos_workers import WorkersNetwork
from roamcast.bench.mqtt_load import Door, LoadConnection
from roamcast.bench.processes import BenchFailed
from roamcast.bench.report import Report, silent
from roamcast.bench.worker_doors import find_doors
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.bursts import FrameWriter, written_acknowledgements
from roamcast.storage.journal import Journal, Sync

QUEUED = (0, 100, 10_000)
ROUNDS = 30
SYNCS = 3
P99_FACTOR = 2.0
WINDOW = 500
PAYLOAD_BYTES = 64
TOPIC = "handoff"
DOORS = 8
"""Number of concurrent connections to each worker."""
FILLED = "filled"
CLIENT = "roaming"
PUBACK = b"\x40\x02"
ACKNOWLEDGEMENT_BYTES = 4
DUP = 0x08


def run(
    *,
    sync: Sync = "group",
    rounds: int = ROUNDS,
    queued: Sequence[int] = QUEUED,
    within: bool = False,
    progress: Report = silent,
) -> dict[str, Any]:
    """Run the benchmark; `within` moves the client between two workers of one site."""
    settings = [f"journal.sync={sync}", "log.level=warning", *(["workers=2"] if within else [])]
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name, ExitStack() as stack:
        kind, edges = (WorkersNetwork, []) if within else (BrokerNetwork, [(1, 0)])
        network = kind(Path(name), edges, settings, is_relayed=False)
        stack.callback(lambda: asyncio.run(network.stop()))
        asyncio.run(network.start())
        ports: Sequence[int | Door] = [broker.port for broker in network.brokers]
        if within:
            ports = list(find_doors(network.brokers[0].port, 2, DOORS).values())
        floor = stack.enter_context(closing(Floor(Path(name) / "floor", sync, ports)))
        walk = stack.enter_context(closing(Walk(ports, floor)))
        rows = walk.measure(queued, rounds, progress)
    for row in rows:
        judge(row)
    places = "2 workers of one site" if within else "2 brokers and 1 link over loopback"
    return {
        "machine": machine(pinned=False),
        "settings": f"MQTT 5, QoS 1, {PAYLOAD_BYTES}-byte payloads, {places},"
        f" journal sync = {sync}, records as counters (no event log)",
        "bound": "plain resume + 3 journal syncs + 1 round trip, medians; twice that at p99",
        "cases": rows,
    }


def judge(row: dict[str, Any]) -> None:
    """Add the limits, and whether they are met."""
    floor_ms = SYNCS * row["journal_sync_ms"] + row["round_trip_ms"]
    for what in ("connack", "first_message"):
        resumed, handed = row["resume"][what], row["handoff"][what]
        if resumed is None:
            continue
        bound_ms = resumed["p50_ms"] + floor_ms
        handed["bound_p50_ms"], handed["bound_p99_ms"] = bound_ms, P99_FACTOR * bound_ms
        handed["holds_p50"] = handed["p50_ms"] <= bound_ms
        handed["holds_p99"] = handed["p99_ms"] <= P99_FACTOR * bound_ms


class Came(NamedTuple):
    """Seconds until the CONNACK, the first message, and the last message if any wait."""

    connack_s: float
    first_s: float
    all_s: float


class Floor:
    """Lower bound of any handoff: a sync of the journal, and a round trip to a broker."""

    def __init__(self, folder: Path, sync: Sync, ports: Sequence[int | Door]) -> None:
        self._journal, _ = Journal.open(folder, sync=sync, version="bench")
        self._is_synced = sync == "group"
        self._clients = [LoadConnection(port, f"pings{number}", 5) for number, port in enumerate(ports)]

    def measure(self, broker: int) -> tuple[float, float]:
        """Measure the seconds of a sync, and of a round trip over loopback and through a broker's loop."""
        client = self._clients[broker]
        started_s = time.perf_counter()
        self._journal.write(bytes(100))
        synced_s = time.perf_counter()
        client.ping()
        return synced_s - started_s if self._is_synced else 0.0, time.perf_counter() - synced_s

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._journal.close()


class Walk:
    """A client that leaves, and returns at either broker."""

    def __init__(self, ports: Sequence[int | Door], floor: Floor) -> None:
        self._ports = ports
        self._floor = floor
        self._at = 0
        self._published = 0
        self._floors: list[tuple[float, float]] = []
        self._watchers = [LoadConnection(port, f"watcher{number}", 5) for number, port in enumerate(ports)]
        for number, watcher in enumerate(self._watchers):
            watcher.subscribe([f"{FILLED}/{number}"], 1)
        first = LoadConnection(ports[0], CLIENT, 5, is_lasting=True)
        first.subscribe([TOPIC], 1)
        first.close()

    def measure(self, queued: Sequence[int], rounds: int, progress: Report) -> list[dict[str, Any]]:
        rows = []
        # Filling a long queue takes longer than what is measured.
        plan = [(count, rounds if count < 1_000 else max(3, rounds // 3)) for count in queued]
        total, done = sum(turns for _, turns in plan), 0
        for count, turns in plan:
            times: dict[str, list[Came]] = {"resume": [], "handoff": []}
            self._floors = []
            for _ in range(turns):
                progress(done, total)
                done += 1
                for kind, found in times.items():
                    found.append(self._come_back(count, moves=kind == "handoff"))
            row: dict[str, Any] = {
                "queued": count,
                "rounds": turns,
                "journal_sync_ms": 1_000 * median(sync_s for sync_s, _ in self._floors),
                "round_trip_ms": 1_000 * median(trip_s for _, trip_s in self._floors),
            }
            for kind, found in times.items():
                row[kind] = {
                    "connack": summary([one.connack_s for one in found]),
                    "first_message": summary([one.first_s for one in found]) if count else None,
                    "all_messages": summary([one.all_s for one in found]) if count else None,
                }
            rows.append(row)
        progress(total, total)
        return rows

    def _come_back(self, count: int, *, moves: bool) -> Came:
        payloads = self._publish(count) if count else []
        if moves:
            self._at = 1 - self._at
        else:
            # Caches and disks are as cold or warm now as for a handoff, and the broker that is
            # asked has done nothing meanwhile either; nor does it take part in what comes next.
            self._floors.append(self._floor.measure(1 - self._at))
        self._settle()
        return come_back(self._ports[self._at], CLIENT, payloads)

    def _publish(self, count: int) -> list[bytes]:
        """Queue `count` messages for the client, which is away. They are published at the other broker, so
        that both brokers have just worked: otherwise only the broker of a plain resume would have warm
        caches.
        """
        publisher = LoadConnection(self._ports[1 - self._at], "publisher", 5)
        payloads = publish(publisher, self._published, count)
        await_filled(publisher, self._watchers[self._at], self._at)
        publisher.close()
        self._published += count
        return payloads

    def _settle(self) -> None:
        """Wait until both brokers have finished earlier work: the publisher and the client have left, and all
        messages are acknowledged. Otherwise the next measurement would include it.
        """
        for watcher in self._watchers:
            watcher.ping()

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.close()


def publish(publisher: LoadConnection, first: int, count: int) -> list[bytes]:
    """Publish `count` messages, numbered from `first`, and wait for their acknowledgements."""
    payloads = []
    for at in range(0, count, WINDOW):
        numbers = range(first + at, first + min(at + WINDOW, count))
        chunk = [(b"%08d:" % number).ljust(PAYLOAD_BYTES, b"x") for number in numbers]
        publisher.socket.sendall(FrameWriter(TOPIC.encode(), 1, described=b"\0").write(chunk))
        due = written_acknowledgements(0x40, 1, len(chunk))
        while due:
            came = publisher.receive_frames(ACKNOWLEDGEMENT_BYTES, len(due) // ACKNOWLEDGEMENT_BYTES)
            if not due.startswith(came):
                raise BenchFailed(f"{came[:40].hex()}… arrived where PUBACK {due[:40].hex()}… was expected")
            due = due[len(came) :]
        payloads += chunk
    return payloads


def await_filled(publisher: LoadConnection, watcher: LoadConnection, broker: int) -> None:
    """Wait until what was published has reached this broker; the last message of the queue marks it."""
    publisher.send_all(packets.Publish(f"{FILLED}/{broker}", b"", qos=1, packet_id=1))
    publisher.receive_packet()
    filled = watcher.receive_packet()
    if not isinstance(filled, packets.Publish):
        raise BenchFailed(f"{filled} arrived where the last message of the queue was expected")
    watcher.send_all(packets.Puback(filled.packet_id))


def come_back(port: int | Door, client_id: str, payloads: Sequence[bytes]) -> Came:
    """Connect, read these messages and acknowledge them. The session stays when the connection ends."""
    started_s = time.perf_counter()
    client = LoadConnection(port, client_id, 5, is_lasting=True)
    connack_s = time.perf_counter() - started_s
    try:
        if not client.is_resumed:
            raise BenchFailed("the client reconnected and CONNACK said that there is no session")
        first_s = all_s = connack_s
        for part in read_and_acknowledge(client, payloads):
            all_s = time.perf_counter() - started_s
            if part == 0:
                first_s = all_s
        # What the broker has not read yet when the connection ends it would send again.
        client.ping()
    finally:
        client.close()
    return Came(connack_s, first_s, all_s)


def read_and_acknowledge(client: LoadConnection, payloads: Sequence[bytes]) -> Iterator[int]:
    """Read these messages in this order and acknowledge them; return the number of messages in each read.

    One write acknowledges all messages of a read: a write for each would mostly measure the load program.
    """
    if not payloads:
        return
    pattern = FrameWriter(TOPIC.encode(), 1, described=b"\0").write(payloads[:1])
    size, end_of_id = len(pattern), len(pattern) - PAYLOAD_BYTES - 1
    start = pattern[: end_of_id - 2]
    reads = number = 0
    while number < len(payloads):
        frames = client.receive_frames(size, len(payloads) - number)
        ids = []
        for at in range(0, len(frames), size):
            id_at = at + len(start)
            # What a copy of the session may have sent already is marked as sent again.
            is_publish = frames[at] & ~DUP == start[0] and frames[at + 1 : id_at] == start[1:]
            if not is_publish or frames[id_at + 2 : at + size] != b"\0" + payloads[number]:
                raise BenchFailed(f"{frames[at : at + size]!r} arrived where message {number} was expected")
            ids.append(frames[id_at : id_at + 2])
            number += 1
        client.socket.sendall(PUBACK + PUBACK.join(ids))
        yield reads
        reads += 1


def summary(took_s: Sequence[float]) -> dict[str, Any]:
    return {"p50_ms": 1_000 * median(took_s), "p99_ms": 1_000 * at_rank(took_s, 0.99)}
