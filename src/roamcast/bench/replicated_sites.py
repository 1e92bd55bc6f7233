"""Sites of real brokers, each with a leader and followers, one etcd for all, and faults for them.

Clients reach a site through a door, which stands for a load balancer: it asks the replicas for /healthz and
leads to the one that serves. Peers know the addresses of all replicas. Replicas reach each other and etcd
through relays, so that they can be cut off.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from roamcast.bench.broker_network import BrokerNetwork, Edge
from roamcast.bench.processes import HOST, BenchFailed, Process, free_port
from roamcast.bench.relays import Relay
from roamcast.config.sections import Replication
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.writing import write
from roamcast.net.etcd import Etcd, EtcdFailed
from roamcast.replication.messages import SiteView
from roamcast.storage.replica_file import read_state

LEASE_S = 3
HEALTH_EVERY_S = 0.1
HEALTH_S = 0.5
"""Timeout of a door for the answer of a replica."""
ETCD_S = 1.0
ANSWER_S = 2.0
SETTLED_S = 0.2
"""Time after a kill until requests of the process have reached etcd."""
PACKET_MAX = 1 << 16


class EtcdProcess(Process):
    """An etcd with one member."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("etcd") is None:
            raise BenchFailed("etcd is not installed (Debian: apt install etcd-server)")
        port = free_port()
        client, peer = (f"http://{HOST}:{number}" for number in (port, free_port()))
        command = [
            "etcd", "--data-dir", str(folder / "etcd"), "--log-level", "warn",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        super().__init__("etcd", command, port, folder / "etcd.log")
        self.url = client


class Site:
    """One broker: its replicas, and the door to the leader."""

    def __init__(self, number: int, etcd: EtcdProcess) -> None:
        self.number = number
        self.replicas: list[Process] = []
        self.health_ports: list[int] = []
        self.door = Relay(0)
        self.ways_to_etcd: list[Relay] = []
        self.ways_in: list[Relay] = []
        """Relays by which other replicas reach each replica."""
        self._etcd = Etcd(Replication(etcd=(etcd.url,)), "roamcast", f"b{number}", ETCD_S)

    def look(self) -> SiteView | None:
        """Return the view in etcd; None if it does not answer."""
        try:
            return self._etcd.look()
        except EtcdFailed:
            return None

    def leader(self) -> int | None:
        """Return the number of the replica that leads according to etcd."""
        view = self.look()
        return place_of(view.leader) if view is not None and view.leader else None

    async def follow_leader(self) -> None:
        """Point the door at the serving replica."""
        at = 0
        while True:
            if not await is_healthy(self.health_ports[at]) or not self.door.target:
                self.door.cut()
                for place, port in enumerate(self.health_ports):
                    if await is_healthy(port):
                        at, self.door.target = place, self.replicas[place].port
                        break
            await asyncio.sleep(HEALTH_EVERY_S)


def place_of(name: str) -> int:
    return int(name.removeprefix("r"))


async def is_healthy(port: int) -> bool:
    """Return whether /healthz answers 200."""
    try:
        async with asyncio.timeout(HEALTH_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return (await reader.readline()).split(b" ")[1:2] == [b"200"]
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False


async def is_served(port: int) -> bool:
    """Return whether a message of a new client is acknowledged."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(write(packets.Connect(5, "", clean_start=True), 5))
                writer.write(write(packets.Publish("served", b"", 1, packet_id=1), 5))
                data = b""
                while read := await reader.read(PACKET_MAX):
                    data += read
                    while (whole := cut(data, 0, PACKET_MAX)) is not None:
                        first, start, end = whole
                        packet = parse(first, data[start:end], 5, from_client=False)
                        data = data[end:]
                        if isinstance(packet, packets.Puback):
                            return True
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        pass
    return False


class ReplicatedNetwork(BrokerNetwork):
    """Sites b0, b1, … over the edges of a tree. `brokers` holds the replicas of all sites, site by site."""

    def __init__(
        self, folder: Path, edges: Sequence[tuple[int, int]], settings: Sequence[str], followers: int
    ) -> None:
        super().__init__(folder, (), settings)
        self.replicas_each = followers + 1
        count = len(edges) + 1
        self.etcd = EtcdProcess(folder)
        self.sites = [Site(number, self.etcd) for number in range(count)]
        self.link_ports = [free_port() for _ in range(count * self.replicas_each)]
        self.edges = [
            Edge(dialer, listener, tuple(Relay(self.link_ports[one]) for one in self.replicas_of(listener)))
            for dialer, listener in edges
        ]
        self._doors: list[asyncio.Task[None]] = []

    @property
    def doors(self) -> Sequence[Relay]:
        return [site.door for site in self.sites]

    def replicas_of(self, site: int) -> range:
        """Return the process numbers of a site's replicas."""
        return range(site * self.replicas_each, (site + 1) * self.replicas_each)

    def name(self, number: int) -> str:
        site, place = divmod(number, self.replicas_each)
        return f"b{site}-r{place}"

    def _arguments(self, number: int, port: int) -> list[str]:
        index, place = divmod(number, self.replicas_each)
        site = self.sites[index]
        settings = [
            *self.settings, "metrics.enabled=true", f"metrics.port={site.health_ports[place]}",
            f"replication.name=r{place}", f"replication.port={site.ways_in[place].target}",
            f"replication.advertise={HOST}:{site.ways_in[place].port}",
            f"replication.reference={HOST}:{port}",
            f"replication.etcd=http://{HOST}:{site.ways_to_etcd[place].port}",
            f"replication.lease_s={LEASE_S}",
        ]  # fmt: skip
        dialed = [edge for edge in self.edges if edge.dialer == index]
        for peer, edge in enumerate(dialed):
            first, *others = (f"{HOST}:{relay.port}" for relay in edge.relays)
            settings += [f"peer.{peer}.id=b{edge.listener}", f"peer.{peer}.address={first}"]
            settings += [f"peer.{peer}.addresses={','.join(others)}"] if others else []
        command = [
            "broker", "--id", f"b{index}", "--listen", f"{HOST}:{port}", "--data", str(self.data(number)),
            "--peer-listen", f"{HOST}:{self.link_ports[number]}",
        ]  # fmt: skip
        for setting in settings:
            command += ["--set", setting]
        return command

    async def start(self) -> None:
        self.etcd.start()
        await asyncio.to_thread(self.etcd.wait_listening)
        for site in self.sites:
            await site.door.start()
            for _ in range(self.replicas_each):
                site.health_ports.append(free_port())
                site.ways_in.append(Relay(free_port()))
                site.ways_to_etcd.append(Relay(self.etcd.port))
            for relay in (*site.ways_in, *site.ways_to_etcd):
                await relay.start()
        await super().start()

    async def _prepare(self) -> None:
        """Wait until the door of each site leads to its leader."""
        for site in self.sites:
            site.replicas = [self.brokers[number] for number in self.replicas_of(site.number)]
            self._doors.append(asyncio.create_task(site.follow_leader()))

    async def stop(self) -> None:
        for task in self._doors:
            task.cancel()
        await asyncio.gather(*self._doors, return_exceptions=True)
        await super().stop()
        self.etcd.kill()
        for site in self.sites:
            for relay in (site.door, *site.ways_in, *site.ways_to_etcd):
                await relay.close()

    # --- what can be done to a site ---

    async def leader_of(self, site: int) -> int | None:
        """Return the number of the leading process, or None."""
        place = await asyncio.to_thread(self.sites[site].leader)
        return None if place is None else self.replicas_of(site)[place]

    async def is_covered(self, number: int) -> bool:
        """Return whether another replica's disk has all that a just killed replica has promised.

        Losing the last good disk of a site would lose the site, which nothing promises to survive.
        """
        await asyncio.sleep(SETTLED_S)
        site = self.sites[number // self.replicas_each]
        view = await asyncio.to_thread(site.look)
        others = [one for one in self.replicas_of(site.number) if one != number]
        return view is not None and any(
            view.in_sync.get(f"r{one % self.replicas_each}") in read_state(self.data(one)).disks
            for one in others
        )

    async def is_whole(self) -> bool:
        """Return whether every site has a leader and all its replicas in sync."""
        views = await asyncio.gather(*(asyncio.to_thread(site.look) for site in self.sites))
        return all(view and view.leader and len(view.in_sync) == self.replicas_each for view in views)
