"""Broker processes joined by links, with a relay in each link, and faults for them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from roamcast.bench.builds import THIS_BUILD, Build
from roamcast.bench.mqtt_load import LoadConnection
from roamcast.bench.processes import HOST, BenchFailed, Process, free_port
from roamcast.bench.relays import Relay
from roamcast.mqtt.codec import packets
from roamcast.storage.recovery import find_recoverable
from roamcast.storage.segments import RECORD_HEAD_BYTES, SegmentScan, pack_length, seal_record

JOIN_S = 60.0


@dataclass(frozen=True)
class Edge:
    """A link: the first broker dials the second."""

    dialer: int
    listener: int
    relays: tuple[Relay, ...]
    """One relay for each replica of the second broker."""


class Door(Protocol):
    """Address at which clients reach a broker."""

    @property
    def port(self) -> int: ...


class BrokerNetwork:
    """Brokers b0, b1, … over the edges of a tree."""

    process = Process

    def __init__(
        self,
        folder: Path,
        edges: Sequence[tuple[int, int]],
        settings: Sequence[str],
        *,
        is_relayed: bool = True,
        build: Build = THIS_BUILD,
    ) -> None:
        """`build` starts all brokers at first."""
        count = len(edges) + 1
        self.folder = folder
        self.settings = settings
        self.is_relayed = is_relayed
        """True if links go through relays; otherwise they cannot be disturbed."""
        self.link_ports = [free_port() for _ in range(count)]
        self.edges = [Edge(one, other, (Relay(self.link_ports[other]),)) for one, other in edges]
        self.brokers: list[Process] = []
        self._first_build = build

    async def start(self) -> None:
        for edge in self.edges if self.is_relayed else ():
            for relay in edge.relays:
                await relay.start()
        for number in range(len(self.link_ports)):
            port = free_port()
            name = self.name(number)
            process = self.process(name, (), port, self.folder / f"{name}.log")
            self.brokers.append(process)
            self.set_build(number, self._first_build)
            process.start()
        for process in self.brokers:
            await asyncio.to_thread(process.wait_listening)
        await self._prepare()
        await asyncio.to_thread(self._wait_joined)

    async def _prepare(self) -> None:
        """Finish the start after all processes listen."""

    @property
    def doors(self) -> Sequence[Door]:
        """Return how clients reach each broker."""
        return self.brokers

    def name(self, number: int) -> str:
        """Return the name of a process."""
        return f"b{number}"

    def set_build(self, number: int, build: Build) -> None:
        """Use that build for this broker from its next start on."""
        process = self.brokers[number]
        process.command = [*build.program, *self._arguments(number, process.port)]
        process.variables = dict(build.variables)

    def _arguments(self, number: int, port: int) -> list[str]:
        command = [
            "broker", "--id", f"b{number}", "--listen", f"{HOST}:{port}", "--data", str(self.data(number)),
            "--peer-listen", f"{HOST}:{self.link_ports[number]}",
        ]  # fmt: skip
        for edge in self.edges:
            if edge.dialer == number:
                port = edge.relays[0].port if self.is_relayed else self.link_ports[edge.listener]
                command += ["--peer", f"b{edge.listener}={HOST}:{port}"]
        for setting in self.settings:
            command += ["--set", setting]
        return command

    def data(self, number: int) -> Path:
        return self.folder / self.name(number)

    def _wait_joined(self) -> None:
        """Wait until a message published at the first broker arrives at every other one: then all links are
        up.
        """
        deadline = time.monotonic() + JOIN_S
        for number, door in enumerate(self.doors[1:], start=1):
            topic = f"joined/{number}"
            subscriber = _connect(door, "joined", deadline)
            publisher = _connect(self.doors[0], "asks", deadline)
            subscriber.subscribe([topic], 0)
            subscriber.socket.settimeout(0.2)
            while True:
                publisher.send_all(packets.Publish(topic))
                try:
                    subscriber.receive_packet()
                    break
                except TimeoutError:
                    if time.monotonic() > deadline:
                        raise BenchFailed(f"b{number} did not join within {JOIN_S:.0f} s") from None
            subscriber.close()
            publisher.close()

    async def stop(self) -> None:
        for process in self.brokers:
            process.kill()
        for edge in self.edges:
            for relay in edge.relays:
                await relay.close()

    def restart(self, number: int) -> None:
        self.brokers[number].start()


def _connect(door: Door, client: str, deadline: float) -> LoadConnection:
    """Connect, retrying while the broker refuses clients because it has not met its peers yet."""
    while True:
        try:
            return LoadConnection(door.port, client)
        except (BenchFailed, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def damage_tail(journal: Path, kind: str, rng: random.Random) -> int:
    """Append a damaged record to the journal, as a torn commit or a flipped bit leaves it; return its number
    of bytes.

    The broker must not be running. Nothing in this record was promised, so its loss must not lose anything.
    """
    scans = find_recoverable(journal).scans
    if not scans:
        return 0
    scan: SegmentScan = scans[-1]
    entry = rng.randbytes(rng.randint(20, 400))
    record = bytearray(RECORD_HEAD_BYTES) + pack_length(len(entry)) + entry
    seal_record(record, scan.head.marker, scan.next, 1)
    if kind == "torn":
        del record[rng.randrange(1, len(record)) :]
    else:
        record[rng.randrange(len(record))] ^= 1 << rng.randrange(8)
    with scan.path.open("r+b") as file:
        file.seek(scan.end)
        file.write(record)
    return len(record)
