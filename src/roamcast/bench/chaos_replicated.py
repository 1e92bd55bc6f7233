"""`roamcast bench chaos --replicas`: the same chaos, with sites of several replicas and a real etcd.

Replicas are killed, suspended beyond their lease, and cut off from each other and from etcd, which is killed,
too. With `wipe` the disk is lost with the process, unless no other disk has what was promised.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from statistics import median
from typing import Any

from roamcast.bench.broker import at_rank
from roamcast.bench.broker_network import damage_tail
from roamcast.bench.chaos import KINDS, RESTART_S, Chaos, Fault
from roamcast.bench.ledger import Audit
from roamcast.bench.relays import Relay
from roamcast.bench.replicated_sites import LEASE_S, ReplicatedNetwork, is_served
from roamcast.bench.roaming_clients import World

OF_REPLICAS = {
    "kill follower": "kill -9 of a replica that does not lead",
    "etcd": "kill -9 of etcd, and a restart after a while",
    "without etcd": "a leader does not reach etcd for a while",
    "without follower": "leader and follower do not reach each other for a while",
}
STOP_TIMES = 3
"""Factor by which leaders are suspended longer than brokers without followers: mostly beyond their lease."""
TRY_S = 0.05
SERVED_S = 60.0


class ReplicatedChaos(Chaos):
    network: ReplicatedNetwork

    def __init__(self, *about: Any, followers: int, wipe: bool) -> None:
        self.followers = followers
        self.wipe = wipe
        self.wiped = 0
        """Disks that were lost."""
        self.served_s: list[float] = []
        """Durations without service after the kill of a serving leader, with a follower in sync and etcd
        available.
        """
        self.otherwise_s: list[float] = []
        """Such durations where the site already had a fault, or had to wait for a replica or etcd."""
        self._etcd_outages = 0
        self._etcd_care = asyncio.Lock()
        super().__init__(*about)

    def _make_network(self) -> ReplicatedNetwork:
        return ReplicatedNetwork(self.folder, self.tree, self.settings, self.followers)

    def _kinds_of_faults(self) -> dict[str, str]:
        return KINDS | OF_REPLICAS

    def _care_for(self, number: int) -> asyncio.Lock:
        return self._care[number // self.network.replicas_each]

    # --- faults ---

    async def _trouble_broker(self, fault: Fault) -> None:
        network = self.network
        match fault.kind:
            case "etcd":
                await self._kill_etcd(fault)
            case "without etcd":
                leader = await network.leader_of(fault.target) or 0
                ways = [network.sites[fault.target].ways_to_etcd[leader % network.replicas_each]]
                await self._close(ways, fault.seconds * STOP_TIMES)
            case "without follower":
                await self._close(network.sites[fault.target].ways_in, fault.seconds)
            case _:
                await super()._trouble_broker(fault)

    async def _kill_etcd(self, fault: Fault) -> None:
        async with self._etcd_care:
            self._etcd_outages += 1
            await asyncio.to_thread(self.network.etcd.kill)
            await asyncio.sleep(fault.seconds)
            self.network.etcd.start()
            await asyncio.to_thread(self.network.etcd.wait_listening)

    async def _close(self, ways: list[Relay], seconds: float) -> None:
        for way in ways:
            way.is_open = False
            way.cut()
        await asyncio.sleep(seconds)
        for way in ways:
            way.heal()

    async def _stop(self, fault: Fault) -> None:
        replicas = self.network.replicas_of(fault.target)
        leader = self.network.brokers[await self.network.leader_of(fault.target) or replicas[0]]
        leader.send(signal.SIGSTOP)
        self._hurry(at=fault.target, hops=[self._other_than(fault.target)])
        await asyncio.sleep(fault.seconds * STOP_TIMES)
        leader.send(signal.SIGCONT)

    async def _kill(self, fault: Fault) -> None:
        network, kind = self.network, fault.kind
        leader, replicas = await network.leader_of(fault.target), network.replicas_of(fault.target)
        number = replicas[0] if leader is None else leader
        if kind == "kill follower":
            number = next(one for one in replicas if one != number)
        was_served = number == leader and await is_served(network.doors[fault.target].port)
        etcd_outages = -1 if self._etcd_care.locked() else self._etcd_outages
        killed_at = asyncio.get_running_loop().time()
        await asyncio.to_thread(network.brokers[number].kill)
        has_successor = await network.is_covered(number)
        if "tail" in kind:
            tail = "torn" if kind == "kill, torn tail" else "flipped"
            damage_tail(network.data(number) / "journal", tail, random.Random(f"{self.seed} {fault.at_s}"))
        elif self.wipe and has_successor:
            await asyncio.to_thread(shutil.rmtree, network.data(number))
            self.wiped += 1
        watching = asyncio.create_task(self._until_served(fault.target, killed_at))
        await asyncio.sleep(fault.seconds)
        await self._restart(number)
        took_s = await watching
        if number == leader:
            is_covered = was_served and has_successor and self._etcd_outages == etcd_outages
            (self.served_s if is_covered else self.otherwise_s).append(took_s)

    async def _until_served(self, site: int, since: float) -> float:
        loop, door = asyncio.get_running_loop(), self.network.doors[site]
        while not await is_served(door.port):
            if loop.time() - since > SERVED_S:
                self.troubles.append(f"b{site} served nobody for {SERVED_S:.0f} s after a kill")
                break
            await asyncio.sleep(TRY_S)
        return loop.time() - since

    # --- the end ---

    async def _heal(self) -> None:
        if not self.network.etcd.is_running:
            self.network.etcd.start()
        for site in self.network.sites:
            for relay in (*site.ways_in, *site.ways_to_etcd):
                relay.heal()
        await super()._heal()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RESTART_S
        while not await self.network.is_whole():
            if loop.time() > deadline:
                told = [f"b{site.number}: {site.look()}" for site in self.network.sites]
                self.troubles.append(f"not all replicas are in sync after {RESTART_S:.0f} s: {told}")
                return
            await asyncio.sleep(TRY_S)

    def _result(self, found: Audit, world: World) -> dict[str, Any]:
        return super()._result(found, world) | {
            "replicas": self.followers,
            "disks_wiped": self.wiped,
            "lease_s": LEASE_S,
            "served_again": figures(self.served_s),
            "served_again_otherwise": figures(self.otherwise_s),
        }


def figures(seconds: list[float]) -> dict[str, Any]:
    if not seconds:
        return {"kills": 0}
    seconds = sorted(seconds)
    return {
        "kills": len(seconds),
        "p50_s": round(median(seconds), 2),
        "p99_s": round(at_rank(seconds, 0.99), 2),
        "max_s": round(seconds[-1], 2),
    }
