"""A link is cut between broker processes, and a third broker carries it: clients notice nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.daemon.brokers import DEADLINE_S, BrokerProcess, MqttClient, free_port, roamcast, wait_until

from roamcast.bench.relays import Relay

pytestmark = pytest.mark.slow

QUICK = ("link.heartbeat_s=0.2", "link.timeout_s=60")
"""Silence is noticed soon, and does not end a connection."""


class Wan:
    """The direct way between two brokers, in a thread: it can be cut, or swallow everything."""

    def __init__(self, target: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.relay = Relay(target)
        asyncio.run_coroutine_threadsafe(self.relay.start(), self._loop).result(DEADLINE_S)

    def do(self, change: Callable[[], None]) -> None:
        async def changed() -> None:
            change()

        asyncio.run_coroutine_threadsafe(changed(), self._loop).result(DEADLINE_S)

    def cut(self) -> None:
        def change() -> None:
            self.relay.is_open = False
            self.relay.cut()

        self.do(change)

    def swallow(self) -> None:
        def change() -> None:
            self.relay.is_swallowed = [True, True]

        self.do(change)

    def heal(self) -> None:
        self.do(self.relay.heal)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.relay.close(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


class Triangle:
    """The tree is a - b - c; b dials a through the WAN, and c may carry that link."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        ports = {id: free_port() for id in "abc"}
        self.wan = Wan(ports["a"])
        stack.callback(self.wan.close)
        detour = ("detour.0.id=c", f"detour.0.address=127.0.0.1:{ports['c']}", "detour.0.peers=*", *QUICK)
        relay = ("relay.brokers=a,b", *QUICK)
        self.a = BrokerProcess(folder, "a", *detour, link_port=ports["a"], peers={"b": 0})
        stack.callback(self.a.stop)
        self.c = BrokerProcess(folder, "c", *relay, link_port=ports["c"], peers={"b": ports["b"]})
        stack.callback(self.c.stop)
        self.b = BrokerProcess(
            folder, "b", *detour, link_port=ports["b"], peers={"a": self.wan.relay.port, "c": 0}
        )
        stack.callback(self.b.stop)
        for here, there in ((self.a, "b"), (self.b, "a"), (self.b, "c"), (self.c, "b")):
            here.wait_for_link(there)

    def wait_until_carried(self, is_carried: bool = True) -> None:
        for here, there in ((self.a, "b"), (self.b, "a")):
            name = f'roamcast_link_detour{{peer="{there}",relay="c"}}'
            wait_until(
                lambda here=here, name=name: (here.metric(name) == 1) == is_carried,  # type: ignore[misc]
                lambda here=here: "".join(here.lines),  # type: ignore[misc]
            )
            here.wait_for_link(there)


@pytest.fixture
def triangle(tmp_path: Path) -> Iterator[Triangle]:
    with ExitStack() as stack:
        yield Triangle(tmp_path, stack)


class Roaming:
    """A client that moves between a and b, and one at each of them that publishes for it with QoS 2."""

    def __init__(self, triangle: Triangle) -> None:
        self._brokers = [triangle.a, triangle.b]
        self._publishers = [MqttClient(f"p-{one.id}", one.port) for one in self._brokers]
        self._walker = MqttClient("walker", triangle.a.port)
        self._walker.subscribe("news", qos=2)
        self._at = 0
        self.published: list[bytes] = []

    def walk(self, rounds: int = 3) -> None:
        """Move, publish at both brokers, and get everything."""
        for _ in range(rounds):
            self._walker.leave()
            self._at = 1 - self._at
            for publisher in self._publishers:
                self.published.append(f"{publisher.id} {len(self.published)}".encode())
                publisher.publish("news", self.published[-1], qos=2)
            self._walker.connect(self._brokers[self._at].port)
            self._walker.wait_for_messages(len(self.published))
        assert sorted(body for _, body in self._walker.messages) == sorted(self.published), "each once"

    def leave(self) -> None:
        for one in (self._walker, *self._publishers):
            one.leave()


@pytest.mark.parametrize("how", ["cut", "swallow"])
def test_qos_2_roams_on_while_a_third_broker_carries_the_link(triangle: Triangle, how: str) -> None:
    roaming = Roaming(triangle)
    roaming.walk()
    triangle.wan.cut() if how == "cut" else triangle.wan.swallow()
    roaming.walk()
    triangle.wait_until_carried()
    roaming.walk()
    said = roamcast("broker", "status", "--data", str(triangle.b.data)).stdout
    assert "link to a: up, carried by c (" in said
    assert "link to c: up, 0 bytes kept" in said
    said = roamcast("broker", "status", "--data", str(triangle.c.data)).stdout
    assert "carries the link between a and b" in said
    assert triangle.c.metric("roamcast_relay_links") == 1
    # The broker in the middle is killed: the link waits, and goes on over it.
    triangle.c.kill()
    triangle.c.start()
    roaming.walk()
    triangle.wait_until_carried()
    triangle.wan.heal()
    triangle.wait_until_carried(is_carried=False)
    roaming.walk()
    roaming.leave()


def test_a_broker_that_is_killed_comes_back_over_the_detour(triangle: Triangle) -> None:
    roaming = Roaming(triangle)
    triangle.wan.cut()
    roaming.walk()
    roaming.leave()
    triangle.b.kill()
    triangle.b.start()
    triangle.wait_until_carried()
