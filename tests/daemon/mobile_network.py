"""Networks of broker processes that can be parted: namespaces with a switch between them, or relays."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.daemon.brokers import BrokerProcess, MqttClient, free_port, wait_until

from roamcast.bench.relays import Relay

QUICK = (
    "mobility.protocol=mft", "election.period_s=0.25", "election.patience_s=0.05", "link.heartbeat_s=0.3",
    "link.timeout_s=2", "link.reconnect_min_s=0.05", "discovery.interval_s=0.2", "mqtt.sys_interval_s=0",
)  # fmt: skip
"""An election that is as quick as a busy machine allows."""
Result = TypeVar("Result")


class Network(Protocol):
    """What is between the brokers."""

    def settings(self, id: str) -> dict[str, Any]:
        """For the broker's process: `settings`, and what else `BrokerProcess` takes."""

    def inside(self, id: str) -> Any:
        """A context in which connections come from where the broker is."""

    def part(self, *groups: str) -> None:
        """Brokers reach those of their own group; their ids are letters."""

    def heal(self) -> None: ...
    def close(self) -> None: ...


# --- namespaces: every broker has a machine of its own, as far as the network is concerned ---

CLONE_NEWNET = 0x40000000


def why_no_namespaces() -> str:
    """Why they cannot be used here; "" if they can."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    name = f"rc-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network namespaces: {done.stderr.strip()}"
    try:
        command = ["ip", "-n", name, "link", "add", "br0", "type", "bridge"]
        bridge = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"no bridges: {bridge.stderr.strip()}" if bridge.returncode else ""
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def remove_left_over() -> None:
    """Namespaces of tests that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for name, pid in re.findall(r"^(rc(\d+)-\S+)", listed, re.MULTILINE):
        if not Path(f"/proc/{pid}").exists():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Namespaces:
    """Each broker in a namespace with one interface, eth0, all plugged into a switch with two bridges."""

    _count = 0

    def __init__(self, ids: str) -> None:
        Namespaces._count += 1
        self._prefix = f"rc{os.getpid()}-{Namespaces._count}"
        self._ids = ids
        self._switch = f"{self._prefix}-switch"
        self._libc = ctypes.CDLL(None, use_errno=True)
        remove_left_over()
        try:
            self._ip("netns", "add", self._switch)
            for number in range(2):
                bridge = ["link", "add", f"br{number}", "type", "bridge", "mcast_snooping", "0"]
                self._ip("-n", self._switch, *bridge)
                self._ip("-n", self._switch, "link", "set", f"br{number}", "up")
            for number, id in enumerate(ids):
                self._plug_in(id, number)
        except BaseException:
            self.close()
            raise

    def _plug_in(self, id: str, number: int) -> None:
        place = self._place(id)
        self._ip("netns", "add", place)
        ends = ["link", "add", f"to-{id}", "type", "veth", "peer", "name", "eth0", "netns", place]
        self._ip("-n", self._switch, *ends)
        self._ip("-n", self._switch, "link", "set", f"to-{id}", "master", "br0", "up")
        self._ip("-n", place, "link", "set", "lo", "up")
        self._ip("-n", place, "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
        self._ip("-n", place, "link", "set", "eth0", "up")

    def _place(self, id: str) -> str:
        return f"{self._prefix}-{id}"

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def settings(self, id: str) -> dict[str, Any]:
        settings = ["discovery.enabled=true", "discovery.interface=eth0"]
        settings += ["link.address=0.0.0.0", "link.port=0"]
        return {"settings": settings, "before": ["ip", "netns", "exec", self._place(id)]}

    @contextmanager
    def inside(self, id: str) -> Iterator[None]:
        """This thread is there for a while; sockets that it makes stay there."""
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self._place(id)}") as place:
            self._enter(place.fileno())
            try:
                yield
            finally:
                self._enter(home.fileno())

    def _enter(self, file: int) -> None:
        if self._libc.setns(file, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    def part(self, *groups: str) -> None:
        for number, group in enumerate(groups):
            for id in group:
                self._ip("-n", self._switch, "link", "set", f"to-{id}", "master", f"br{number}")

    def heal(self) -> None:
        self.part(self._ids)

    def move(self, id: str, address: str) -> None:
        """Another address, while the broker runs."""
        self._ip("-n", self._place(id), "address", "flush", "dev", "eth0")
        self._ip("-n", self._place(id), "address", "add", f"{address}/24", "dev", "eth0")

    def close(self) -> None:
        for name in (*map(self._place, self._ids), self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


# --- relays: where namespaces are not allowed, every connection goes through one that can be cut ---


class Relays:
    """A list of peers for each broker; of each pair the lower one dials, through a relay."""

    def __init__(self, ids: str) -> None:
        self._ids = ids
        self._ports = {id: free_port() for id in ids}
        self._relays = {(low, high): Relay(self._ports[high]) for low, high in combinations(sorted(ids), 2)}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for relay in self._relays.values():
            self._do(relay.start)

    def _do(self, work: Callable[[], Any]) -> None:
        async def run() -> None:
            result = work()
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def settings(self, id: str) -> dict[str, Any]:
        peers = {high: relay.port for (low, high), relay in self._relays.items() if low == id}
        return {"settings": [], "link_port": self._ports[id], "peers": peers}

    @contextmanager
    def inside(self, id: str) -> Iterator[None]:
        yield

    def part(self, *groups: str) -> None:
        """Nothing passes, and nobody is told; a connection that is begun is accepted and hears nothing."""
        group_of = {id: group for group in groups for id in group}
        for (low, high), relay in self._relays.items():
            if group_of[low] != group_of[high]:
                relay.is_swallowed = [True, True]

    def heal(self) -> None:
        for relay in self._relays.values():
            self._do(relay.heal)

    def close(self) -> None:
        for relay in self._relays.values():
            self._do(relay.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


class Loopback:
    """All on this machine, found by multicast."""

    def __init__(self, port: int) -> None:
        self._port = port

    def settings(self, id: str) -> dict[str, Any]:
        wanted = ["discovery.enabled=true", f"discovery.port={self._port}", "link.port=0"]
        return {"settings": wanted}

    @contextmanager
    def inside(self, id: str) -> Iterator[None]:
        yield

    def part(self, *groups: str) -> None:
        raise NotImplementedError("one machine cannot be parted")

    def heal(self) -> None:
        pass

    def close(self) -> None:
        pass


# --- brokers and clients ---


class MobileBrokers:
    """Broker processes with mft in a network, and clients of theirs."""

    def __init__(self, folder: Path, ids: str, network: Network) -> None:
        self.network = network
        self.brokers: dict[str, BrokerProcess] = {}
        self._clients: list[MqttClient] = []
        self._stack = ExitStack()
        self._stack.callback(network.close)
        try:
            threads = [threading.Thread(target=self._start, args=(folder, id)) for id in ids]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(self.brokers) == sorted(ids), "a broker has not started"
        except BaseException:
            self.close()
            raise

    def _start(self, folder: Path, id: str) -> None:
        options = self.network.settings(id)
        settings = options.pop("settings")
        broker = BrokerProcess(folder, id, *QUICK, *settings, **options)
        self._stack.callback(broker.stop)
        self.brokers[id] = broker

    def close(self) -> None:
        for client in self._clients:
            client.paho.loop_stop()
        self._stack.close()

    def __enter__(self) -> MobileBrokers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- clients ---

    def client(self, name: str, id: str) -> MqttClient:
        with self.network.inside(id):
            client = MqttClient(name, self.brokers[id].port)
        assert client.connected == "Success", client.connected
        self._clients.append(client)
        return client

    def attach(self, client: MqttClient, id: str) -> None:
        """The connection of before has ended, or is given up."""
        client.paho.loop_stop()
        with self.network.inside(id):
            client.connect(self.brokers[id].port)
        assert client.connected == "Success", client.connected

    # --- the tree ---

    def tree(self, id: str) -> dict[str, Any]:
        with self.network.inside(id):
            found: dict[str, Any] = json.loads(self.brokers[id].get("/healthz")[1])["tree"]
        return found

    def metric(self, id: str, name: str) -> float:
        with self.network.inside(id):
            return self.brokers[id].metric(name)

    def is_tree(self, ids: Sequence[str], leader: str = "") -> bool:
        """One leader, each parent has its child, and every chain of parents ends at the leader."""
        trees = {id: self.tree(id) for id in ids}
        leader = leader or min(ids)
        if any(tree["leader"] != leader for tree in trees.values()):
            return False
        for id in ids:
            steps = [id]
            while trees[steps[-1]]["parent"]:
                parent = trees[steps[-1]]["parent"]
                if parent not in trees or steps[-1] not in trees[parent]["children"] or len(steps) > len(ids):
                    return False
                steps.append(parent)
            if steps[-1] != leader:
                return False
        return True

    def wait_for_tree(self, ids: Sequence[str], leader: str = "") -> None:
        wait_until(lambda: self.is_tree(ids, leader), lambda: str({id: self.tree(id) for id in ids}))


class Publisher:
    """Publishes with QoS 1 and knows what was acknowledged."""

    def __init__(self, brokers: MobileBrokers, name: str, id: str) -> None:
        self.name = name
        self._brokers = brokers
        self.client = brokers.client(name, id)
        self._sent: dict[bytes, Any] = {}

    def attach(self, id: str) -> None:
        self._brokers.attach(self.client, id)

    def publish(self, topic: str, count: int = 1) -> None:
        for _ in range(count):
            payload = f"{self.name}-{len(self._sent)}".encode()
            self._sent[payload] = self.client.paho.publish(topic, payload, qos=1)

    @property
    def acknowledged(self) -> set[bytes]:
        return {payload for payload, info in self._sent.items() if info.rc == 0 and info.is_published()}

    def wait_for_last(self) -> None:
        """Until what was published last was acknowledged."""
        last = next(reversed(self._sent.values()))
        wait_until(lambda: bool(last.is_published()), lambda: f"{self.name}: the last is not acknowledged")

    def wait(self) -> None:
        """Until everything was acknowledged."""
        wait_until(
            lambda: len(self.acknowledged) == len(self._sent),
            lambda: f"{len(self._sent) - len(self.acknowledged)} are not acknowledged",
        )


def wait_for_all(subscriber: MqttClient, owed: set[bytes]) -> None:
    wait_until(
        lambda: owed <= {payload for _, payload in list(subscriber.messages)},
        lambda: f"{subscriber.id} misses {sorted(owed - {payload for _, payload in subscriber.messages})}",
    )
