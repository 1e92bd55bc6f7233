"""`roamcast bench proxy`: duration of a move-in, compared with the foreign broker's own delivery.

Three servers of a foreign broker and two proxy processes run on loopback. A client moves out at one site,
messages are published, and it moves in at the other site: the move-in is timed until the last message has
reached the application. It is compared with a plain subscriber. Where the broker stores messages for absent
subscribers, its time runs from its return to the last of the same messages; elsewhere, from the first byte of
the same messages, published as fast as the broker accepts them, to the last one received.

`through` measures the cost of storing: from the first publish to the last message at the application, for a
client that moves in as soon as everything is published. It depends on `buffers.sync`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from textwrap import dedent
from typing import Any

from roamcast.bench.broker import machine
from roamcast.bench.foreign_brokers import ForeignNetwork, foreign_network, missing
from roamcast.bench.processes import HOST, BenchFailed, Process, free_port, roamcast_command
from roamcast.bench.report import Report, silent
from roamcast.proxy.adapter import Adapter, ForeignMessage
from roamcast.proxy.client import Options, RoamingClient
from roamcast.storage.journal import Sync

KINDS = ("mosquitto", "nats", "activemq", "roamcast")
SYNCS: tuple[Sync, ...] = ("process", "group")
THROUGH_ROUNDS = 3
BOUND = 2.0
PAYLOAD_BYTES = 64
WAIT_S = 120.0
PLAIN, MOVED = ["bench", "plain"], ["bench", "moved"]
"""Topics of the subscriber that stays, and of the client that moves."""
AT_ONCE = 200
"""Maximum number of unacknowledged publishes."""


def run(
    kinds: Sequence[str], *, syncs: Sequence[str] = ("process",), messages: int = 10_000, rounds: int = 9,
    progress: Report = silent,
) -> dict[str, Any]:  # fmt: skip
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    cases = [(kind, sync) for kind in kinds for sync in SYNCS if sync in syncs]
    for number, (kind, sync) in enumerate(cases):
        reason = missing(kind)
        if reason is not None:
            skipped[kind] = reason
            continue
        with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as name, ExitStack() as stack:
            network = stack.enter_context(foreign_network(kind, Path(name) / "brokers"))
            proxies = start_proxies(network, Path(name), stack, sync)
            measured = asyncio.run(_measure(network, proxies, messages, rounds))
            rows.append({"broker": kind, "sync": sync, **measured})
        progress(number + 1, len(cases))
    return {
        "machine": machine(pinned=False),
        "settings": f"{messages} messages of {PAYLOAD_BYTES} bytes, 3 servers, 2 proxies, loopback, ping",
        "bound": f"move-in takes at most {BOUND:g} times what the broker itself takes, median of the rounds",
        "cases": rows,
        "skipped": skipped,
    }


def start_proxies(
    network: ForeignNetwork, folder: Path, stack: ExitStack, sync: Sync = "process"
) -> dict[str, str]:
    """Start a proxy process at each end; return their addresses by site."""
    ports = {site: free_port() for site in ("a", "b")}
    for site, port in ports.items():
        other = "b" if site == "a" else "a"
        settings = dedent(f"""\
            site = "{site}"
            data = "{folder / f"proxy-{site}"}"
            [broker]
            kind = "{network.kind}"
            url = "{network.url(site)}"
            [listener]
            port = {port}
            [peers]
            secret = "only among proxies of a benchmark"
            [[proxy]]
            site = "{other}"
            address = "{HOST}:{ports[other]}"
            [buffers]
            sync = "{sync}"
            [log]
            level = "warning"
            """)
        path = folder / f"{site}.toml"
        path.write_text(settings)
        os.chmod(path, 0o600)
        process = Process(
            f"proxy {site}", roamcast_command("proxy", "--config", str(path)), port, folder / f"{site}.log"
        )
        stack.callback(process.serve().stop)
    return {site: f"{HOST}:{port}" for site, port in ports.items()}


async def _measure(
    network: ForeignNetwork, proxies: dict[str, str], messages: int, rounds: int
) -> dict[str, Any]:
    publisher = network.adapter("hub")
    await publisher.open()
    plain_s: list[float] = []
    moved_s: list[float] = []
    warm_up = range(rounds * messages, (rounds + 1) * messages)
    client = RoamingClient("bench", proxies, Options(sync="ping"))
    await client.move_in("a")
    await client.subscribe(publisher.topic_of(MOVED))
    await _plain(network, publisher, warm_up)  # Not counted: a server of Java is slow at first.
    await _moved(client, publisher, "b", warm_up)
    for number in range(rounds):
        numbers = range(number * messages, (number + 1) * messages)
        plain_s.append(await _plain(network, publisher, numbers))
        moved_s.append(await _moved(client, publisher, "ab"[number % 2], numbers))
    through_s = []
    for number in range(THROUGH_ROUNDS):
        numbers = range((rounds + 1 + number) * messages, (rounds + 2 + number) * messages)
        through_s.append(await _through(client, publisher, numbers))
    await client.close()
    await publisher.close()
    # Of one round each: whatever else the machine does, it does to both.
    ratios = sorted(moved / plain for moved, plain in zip(moved_s, plain_s, strict=True))
    ratio = median(ratios)
    return {
        "messages": messages,
        "rounds": rounds,
        "broker_s": median(plain_s),
        "move_in_s": median(moved_s),
        "messages_per_s": messages / median(moved_s),
        "ratio": ratio,
        "ratio_half_from": ratios[len(ratios) // 4],
        "ratio_half_to": ratios[-1 - len(ratios) // 4],
        "holds": ratio <= BOUND,
        "through_per_s": messages / median(through_s),
        "all": {"broker_s": plain_s, "move_in_s": moved_s, "through_s": through_s},
    }


async def _publish(publisher: Adapter, topic: str, numbers: range) -> None:
    """Publish in order, with many unacknowledged messages at a time."""
    for first in range(0, len(numbers), AT_ONCE):
        some = numbers[first : first + AT_ONCE]
        await asyncio.gather(*(publisher.publish(_message(topic, number)) for number in some))


def _message(topic: str, number: int) -> ForeignMessage:
    return ForeignMessage(topic, b"%0*d" % (PAYLOAD_BYTES, number), {}, f"n{number}")


async def _plain(network: ForeignNetwork, publisher: Adapter, numbers: range) -> float:
    """Return the seconds that a subscriber of the foreign broker at site b needs to receive all messages."""
    topic, got = publisher.topic_of(PLAIN), _Counter(len(numbers))
    subscriber = network.adapter("b")
    await subscriber.open()
    await subscriber.subscribe("plain", topic, got.add)
    await _until_heard(publisher, topic, got)
    if subscriber.can_suspend:
        await subscriber.suspend("plain")
        await _publish(publisher, topic, numbers)
        await asyncio.sleep(1.0)  # What is still on its way between the servers gets there.
        gc.collect()  # As before a move-in: what publishing has left is not swept up within it.
        began_s = time.perf_counter()
        await subscriber.resume("plain", (topic,), got.add)
    else:
        data = b"".join(
            b"PUB %s %d\r\n%0*d\r\n" % (topic.encode(), PAYLOAD_BYTES, PAYLOAD_BYTES, number)
            for number in numbers
        )
        gc.collect()
        began_s = time.perf_counter()
        await asyncio.to_thread(_send_raw, network.ports["hub"], data)
    await got.wait()
    took_s = time.perf_counter() - began_s
    await subscriber.unsubscribe("plain", topic)
    await subscriber.close()
    return took_s


def _send_raw(port: int, data: bytes) -> None:
    """Publish over NATS as plain text, so that no client library is measured."""
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(b'CONNECT {"verbose":false}\r\n' + data + b"PING\r\n")
        said = b""
        while b"PONG" not in said:
            part = connection.recv(65_536)
            if not part:
                raise BenchFailed("the server closed the connection")
            said = said[-4:] + part


async def _until_heard(publisher: Adapter, topic: str, got: _Counter) -> None:
    """Publish until the publisher's site knows the subscription."""
    while not got.is_warm:
        await publisher.publish(ForeignMessage(topic, b""))
        await asyncio.sleep(0.02)


async def _moved(client: RoamingClient, publisher: Adapter, site: str, numbers: range) -> float:
    """Return the seconds from the call of move-in to the last message."""
    await client.move_out()
    await _publish(publisher, publisher.topic_of(MOVED), numbers)
    await asyncio.sleep(1.0)
    gc.collect()
    began_s = time.perf_counter()
    await _move_in(client, site, len(numbers))
    return time.perf_counter() - began_s


async def _through(client: RoamingClient, publisher: Adapter, numbers: range) -> float:
    """Return the seconds from the first publish to the last message, for a client that moves in after the
    last publish.
    """
    site = client.site
    await client.move_out()
    gc.collect()
    began_s = time.perf_counter()
    await _publish(publisher, publisher.topic_of(MOVED), numbers)
    await _move_in(client, site, len(numbers))
    return time.perf_counter() - began_s


async def _move_in(client: RoamingClient, site: str | None, count: int) -> None:
    """Move in, and wait until all stored notifications have arrived."""
    moved = await client.move_in(site)
    if moved.missing or moved.lost or moved.dropped:
        raise BenchFailed(
            f"a move-in was not whole: {[*moved.missing, *moved.lost]}, {moved.dropped} dropped"
        )
    got = _Counter(count)
    async with asyncio.timeout(WAIT_S):
        while not got.is_full:
            got.add(await anext(client))


class _Counter:
    """Counts distinct messages."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._seen: set[bytes] = set()
        self._full = asyncio.Event()
        self.is_warm = False

    def add(self, message: ForeignMessage) -> None:
        if not message.body:
            self.is_warm = True
            return
        self._seen.add(message.body)
        if self.is_full:
            self._full.set()

    @property
    def is_full(self) -> bool:
        return len(self._seen) >= self._wanted

    async def wait(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._full.wait()
