"""`roamcast bench chaos`: real clients roam between real brokers while processes and links fail.

One seed determines the tree, the clients, their subscriptions, and every fault with its time; it does not
determine the scheduling of processes. At the end all faults are repaired, clients stay until no message is in
transit, and the ledger is audited.

It can include a rolling upgrade: all brokers begin with another build; one after the other is stopped cleanly
and started with this build, while faults and clients continue.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roamcast.bench.broker_network import BrokerNetwork, damage_tail
from roamcast.bench.builds import THIS_BUILD, Build
from roamcast.bench.ledger import Audit, Ledger, audit
from roamcast.bench.processes import BenchFailed
from roamcast.bench.roaming_clients import Client, RoamingClient, World, foreign_kinds, publish_unheard

BROKERS = 5
CLIENTS = 50
FOREIGN_EACH = 4
TOPICS = 12
TOPICS_EACH = 3
FAULT_EVERY_S = (0.5, 1.6)
SUBSCRIBE_S = 60.0
DRAIN_S = 60.0
QUIET_S = 2.0
RESTART_S = 60.0
UNHEARD = 6
"""Number of messages of a client that receives no answer."""
UNHEARD_S = 0.1
PAUSE_S = 0.25
SETTINGS = (
    "journal.segment_bytes=262144", "journal.snapshot_after_bytes=1048576", "link.heartbeat_s=0.5",
    "link.timeout_s=2.5", "link.reconnect_max_s=0.5", "mobility.locate_timeout_s=2",
)  # fmt: skip

KINDS = {
    "kill": "kill -9, and a restart after a while",
    "kill, torn tail": "the same, with half a record behind the last one of the journal",
    "kill, flipped tail": "the same, with a record behind the last one in which a bit is wrong",
    "kill, unheard": "kill -9 at the moment when a client publishes",
    "unheard": "a client publishes, and disappears for good before any answer",
    "stop": "SIGSTOP, and SIGCONT after its clients have moved on",
    "cut": "both sides of a link are closed",
    "apart": "both sides of a link are closed and cannot connect for a while",
    "delay": "one direction of a link is late, while a client moves back and forth over it",
    "swallow": "the traffic of one side of a link is discarded for a while, then the link is closed",
}
OF_LINKS = ("cut", "apart", "delay", "swallow")
CROSSINGS_MIN = 3
"""Minimum handoffs between brokers of different builds before the next broker is upgraded."""
CROSSING_S = 90.0


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    target: int
    """Number of a broker, or of a link."""
    seconds: float


def draw_faults(
    rng: random.Random, seconds: float, brokers: int, links: int, kinds: Iterable[str] = ()
) -> list[Fault]:
    """Draw faults in sequence, each kind equally often; nodes and links that already have a fault are
    skipped.
    """
    faults: list[Fault] = []
    kinds = list(kinds or KINDS)
    busy_until_s: dict[tuple[bool, int], float] = {}
    at_s, waiting = rng.uniform(*FAULT_EVERY_S), list[str]()
    while at_s < seconds:
        if not waiting:
            waiting = rng.sample(kinds, len(kinds))
        kind = waiting.pop()
        of_link = kind in OF_LINKS
        targets = range(links if of_link else brokers)
        free = [target for target in targets if busy_until_s.get((of_link, target), 0.0) <= at_s]
        if free:
            target = rng.choice(free)
            took_s = rng.uniform(0.2, 2.5) if kind != "cut" else 0.1
            busy_until_s[of_link, target] = at_s + took_s + 1.0
            faults.append(Fault(at_s, kind, target, took_s))
        at_s += rng.uniform(*FAULT_EVERY_S)
    return faults


def draw_tree(rng: random.Random, brokers: int) -> list[tuple[int, int]]:
    return [(number, rng.randrange(number)) for number in range(1, brokers)]


def run(
    *,
    seconds: float,
    seed: int,
    clients: int = CLIENTS,
    brokers: int = BROKERS,
    sync: str = "process",
    keep: Path | None = None,
    upgrade_from: Build | None = None,
    make: Callable[..., Chaos] | None = None,
) -> dict[str, Any]:
    """Run the test. If a promise was broken, the folder with logs and journals is kept and named.

    `make` creates the kind of chaos; the default has no replicas.
    """
    folder = keep or Path(tempfile.mkdtemp(prefix="roamcast-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    make = make or Chaos
    result = asyncio.run(make(folder, seconds, seed, clients, brokers, sync, upgrade_from).run())
    if result["kept"] and keep is None:
        shutil.rmtree(folder)
        result["folder"] = None
    return result


class Chaos:
    def __init__(
        self,
        folder: Path,
        seconds: float,
        seed: int,
        clients: int,
        brokers: int,
        sync: str,
        upgrade_from: Build | None = None,
    ) -> None:
        rng = self.rng = random.Random(seed)
        self.folder = folder
        self.seed = seed
        self.seconds = seconds
        self.tree = draw_tree(rng, brokers)
        self.settings = (f"journal.sync={sync}", *SETTINGS)
        self.upgrade_from = upgrade_from
        self.network = self._make_network()
        self.kinds_of_faults = self._kinds_of_faults()
        self.faults = draw_faults(rng, seconds, brokers, len(self.tree), self.kinds_of_faults)
        self.upgraded: list[int] = []
        """Brokers that run this build after an upgrade."""
        self.crossings = 0
        """Handoffs between brokers of different builds."""
        self.ledger = Ledger()
        self.topics = [f"chaos/{number}" for number in range(TOPICS)]
        self.kinds: Counter[str] = Counter()
        self.clients: list[Client] = []
        self.done: Counter[str] = Counter()
        self.troubles: list[str] = []
        """Errors other than lost, duplicated or reordered messages."""
        self._client_count = clients
        self._care = [asyncio.Lock() for _ in range(brokers)]
        """One lock per broker, held while a fault affects it and until it listens again."""

    def _make_network(self) -> BrokerNetwork:
        return BrokerNetwork(self.folder, self.tree, self.settings, build=self.upgrade_from or THIS_BUILD)

    def _kinds_of_faults(self) -> dict[str, str]:
        return KINDS

    async def run(self) -> dict[str, Any]:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.network.start()
            world = self._make_world()
            tasks += [asyncio.create_task(client.run()) for client in self.clients]
            if not await self._until(lambda: all(one.is_subscribed for one in self.clients), SUBSCRIBE_S):
                late = [one.id for one in self.clients if not one.is_subscribed]
                raise BenchFailed(f"could not subscribe within {SUBSCRIBE_S:.0f} s: {', '.join(late)}")
            world.is_roaming = world.is_publishing = True
            watching = asyncio.create_task(self._watch())
            await asyncio.gather(
                *map(self._perform, self.faults), self._upgrade_all(world), asyncio.sleep(self.seconds)
            )
            watching.cancel()
            world.is_publishing = False
            await self._heal()
            world.is_roaming = False
            found = await self._drain()
            self._look_for_ended(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.network.stop()
        self._read_logs()
        return self._result(found, world)

    def _make_world(self) -> World:
        rng, foreign = self.rng, foreign_kinds()
        each = min(FOREIGN_EACH, self._client_count // (2 * len(foreign))) if foreign else 0
        makers: list[tuple[str, Callable[..., Client]]] = [
            (name, maker) for name, maker in foreign.items() for _ in range(each)
        ]
        makers += [("own", RoamingClient)] * (self._client_count - len(makers))
        world = World(self.network.doors, self.ledger, self.topics, is_roaming=False)
        for number, (name, maker) in enumerate(makers):
            id, own = f"c{number}", random.Random(rng.getrandbits(64))
            qos = rng.choice((1, 2))
            self.ledger.subscriptions[id] = dict.fromkeys(rng.sample(self.topics, TOPICS_EACH), qos)
            self.clients.append(maker(id, world, own, rng.choice((1, 2))))
            self.kinds[name] += 1
        return world

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not is_so():
            if loop.time() > deadline:
                return False
            await asyncio.sleep(PAUSE_S)
        return True

    # --- faults ---

    async def _perform(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        self.done[fault.kind] += 1
        if fault.kind in OF_LINKS:
            await self._trouble_link(fault)
        else:
            async with self._care[fault.target]:
                await self._trouble_broker(fault)

    async def _trouble_broker(self, fault: Fault) -> None:
        if fault.kind == "stop":
            await self._stop(fault)
            return
        if "unheard" in fault.kind:
            await self._publish_unheard(fault)
        if fault.kind != "unheard":
            await self._kill(fault)

    async def _stop(self, fault: Fault) -> None:
        broker = self.network.brokers[fault.target]
        broker.send(signal.SIGSTOP)
        self._hurry(at=fault.target, hops=[self._other_than(fault.target)])
        await asyncio.sleep(fault.seconds)
        broker.send(signal.SIGCONT)

    async def _publish_unheard(self, fault: Fault) -> None:
        """Run a publisher that reads no answers and never returns, so that the fate of its messages is
        unknown.
        """
        rng, port = random.Random(f"{self.seed} {fault.at_s}"), self.network.doors[fault.target].port
        id, topics = f"unheard{fault.at_s:.3f}", rng.choices(self.topics, k=UNHEARD)
        stay_s = rng.uniform(0, UNHEARD_S) if fault.kind != "unheard" else None
        await publish_unheard(port, self.ledger, id, topics, rng.choice((1, 2)), stay_s)

    async def _kill(self, fault: Fault) -> None:
        number, kind = fault.target, fault.kind
        await asyncio.to_thread(self.network.brokers[number].kill)
        if "tail" in kind:
            tail = "torn" if kind == "kill, torn tail" else "flipped"
            self._damage(number, tail, random.Random(f"{self.seed} {fault.at_s}"))
        await asyncio.sleep(fault.seconds)
        await self._restart(number)

    def _damage(self, number: int, tail: str, rng: random.Random) -> None:
        damage_tail(self.network.data(number) / "journal", tail, rng)

    async def _restart(self, number: int) -> None:
        self.network.restart(number)
        try:
            await asyncio.to_thread(self.network.brokers[number].wait_listening, RESTART_S)
        except BenchFailed as error:
            self.troubles.append(str(error))

    async def _trouble_link(self, fault: Fault) -> None:
        edge = self.network.edges[fault.target]
        direction = int(fault.at_s * 1000) % 2
        for relay in edge.relays:
            if fault.kind in ("cut", "apart"):
                relay.is_open = fault.kind == "cut"
                relay.cut()
            elif fault.kind == "delay":
                relay.delays_s[direction] = fault.seconds / 2
            else:
                relay.is_swallowed[direction] = True
        if fault.kind == "delay":
            # Back and forth, faster than the message of the handoff before.
            self._hurry(at=edge.dialer, hops=[edge.listener, edge.dialer] * 3)
        await asyncio.sleep(fault.seconds)
        for relay in edge.relays:
            relay.heal()

    def _hurry(self, at: int, hops: Sequence[int]) -> None:
        """Make an attached client move at once."""
        for client in self.clients:
            if isinstance(client, RoamingClient) and client.broker == at and not client.hops:
                client.hurry(hops)
                return

    def _other_than(self, number: int) -> int:
        return (number + 1) % len(self.network.doors)

    async def _watch(self) -> None:
        """Restart a broker that ended by itself, and record that as an error."""
        while True:
            await asyncio.sleep(PAUSE_S)
            for number, broker in enumerate(self.network.brokers):
                care = self._care_for(number)
                if not care.locked() and not broker.is_running:
                    self.troubles.append(f"{broker.name} ended by itself: {broker.last_words()}")
                    async with care:
                        await self._restart(number)

    def _care_for(self, number: int) -> asyncio.Lock:
        """Lock of the process with this number, held while it is stopped or restarted."""
        return self._care[number]

    # --- upgrades ---

    async def _upgrade_all(self, world: World) -> None:
        """Upgrade one broker after the other, in random order; between two upgrades both builds serve for a
        while.
        """
        if self.upgrade_from is None:
            return
        count = len(self.network.brokers)
        for number in random.Random(f"{self.seed} upgrades").sample(range(count), count):
            before = world.moves.copy()
            await asyncio.sleep(self.seconds / (count + 1))
            if self.upgraded:
                await self._see_crossings(world, before)
            async with self._care[number]:
                await self._upgrade(number)

    async def _see_crossings(self, world: World, before: Counter[tuple[int, int]]) -> None:
        """Wait until some clients have moved between the builds since the last upgrade."""

        def seen() -> int:
            since = world.moves - before
            is_new = self.upgraded.__contains__
            return sum(count for (one, other), count in since.items() if is_new(one) != is_new(other))

        if not await self._until(lambda: seen() >= CROSSINGS_MIN, CROSSING_S):
            self.troubles.append(f"only {seen()} handoffs between the builds within {CROSSING_S:.0f} s")
        self.crossings += seen()

    async def _upgrade(self, number: int) -> None:
        broker = self.network.brokers[number]
        if not await asyncio.to_thread(broker.stop, RESTART_S):
            self.troubles.append(f"{broker.name} did not stop cleanly: {broker.last_words()}")
        self.network.set_build(number, THIS_BUILD)
        self.upgraded.append(number)
        await self._restart(number)

    async def _heal(self) -> None:
        for edge in self.network.edges:
            for relay in edge.relays:
                relay.heal()
        for number, broker in enumerate(self.network.brokers):
            broker.send(signal.SIGCONT)
            if not broker.is_running:
                await self._restart(number)

    # --- the end ---

    async def _drain(self) -> Audit:
        """Wait until everything has arrived and nothing is in transit, or until the time limit."""
        loop = asyncio.get_running_loop()
        deadline, quiet_since, last = loop.time() + DRAIN_S, loop.time(), -1
        while True:
            await asyncio.sleep(PAUSE_S)
            found = audit(self.ledger)
            if found.delivered != last:
                last, quiet_since = found.delivered, loop.time()
            stuck = [client.id for client in self.clients if not client.is_idle]
            is_quiet = loop.time() - quiet_since > QUIET_S
            if is_quiet and not stuck and not found.lost:
                return found
            if loop.time() > deadline:
                self.troubles += [f"{id} could not finish publishing within {DRAIN_S:.0f} s" for id in stuck]
                return found

    def _look_for_ended(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for client, task in zip(self.clients, tasks, strict=True):
            if task.done():
                self.troubles.append(f"{client.id} ended: {task.exception()!r}")

    def _read_logs(self) -> None:
        for broker in self.network.brokers:
            lines = broker.log.read_text(errors="replace").splitlines()
            wrong = [line for line in lines if "Traceback" in line or "internal error" in line]
            if wrong:
                self.troubles.append(
                    f"{broker.log}: {len(wrong)} errors inside the broker, first: {wrong[0]}"
                )

    def _result(self, found: Audit, world: World) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "kept": found.is_kept and not self.troubles,
            "settings": "MQTT 5, QoS 1 and 2, " + ", ".join(self.settings) + ", no event log",
            "brokers": len(self.network.doors),
            "links": [f"b{one} to b{other}" for one, other in self.tree],
            "clients": dict(self.kinds),
            "handoffs": world.moves.total(),
            "faults": {kind: self.done[kind] for kind in self.kinds_of_faults},
            "upgrades": self._upgrades(),
            "refusals": world.refusals,
            **found.as_dict(),
            "troubles": self.troubles,
            "folder": str(self.network.folder),
        }

    def _upgrades(self) -> dict[str, Any] | None:
        if self.upgrade_from is None:
            return None
        return {
            "from": self.upgrade_from.version,
            "to": THIS_BUILD.version,
            "brokers": len(self.upgraded),
            "handoffs between them": self.crossings,
        }
