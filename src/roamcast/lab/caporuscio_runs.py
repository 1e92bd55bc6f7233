"""Trips of a mobile client over real foreign brokers, one or many at a time.

Three servers and two proxies on loopback; the publisher is at the hub, the client moves from site a to site
b. The slow link carries all of the client's traffic, to brokers and proxies. Trips mostly wait, so many of
them share the servers, each with its own topics.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

from roamcast.bench.foreign_brokers import ForeignNetwork
from roamcast.bench.processes import HOST, free_port
from roamcast.lab.rows import Row
from roamcast.proxy.adapter import Adapter, AdapterError, ForeignMessage
from roamcast.proxy.client import MoveFailed, Options, RoamingClient, SyncOption
from roamcast.proxy.config import Broker, Buffers, Config, Listener, Neighbour, Peers, Ping
from roamcast.proxy.driver import ProxyServer
from roamcast.slow_link.channel import Direction, Profile, find_profile
from roamcast.slow_link.relay import SlowLink

COPIES = {"activemq", "mosquitto"}
"""Systems that deliver a message once for each matching subscription; other systems deliver it once."""
WILDCARDS = 7
"""Topic levels that a filter may replace by a wildcard, so up to 128 filters match the topic."""
AT_ONCE = 48
COPIES_PER_S_MAX = 3_000
"""Maximum messages per second received by all concurrent trips: a fraction of what a core can handle, so that
no trip waits for it.
"""
SUBSCRIBE_S = {"gprs": 0.35}
NARROW = Profile(Direction(96_000), Direction(10_000_000), "96 kbit/s to the broker, 10 Mbit/s back")
"""A link so narrow that subscribing takes a noticeable time."""
WARM_UP = -1
SETTLE_S = 0.3
PATIENCE_S = 600.0
QUIET_S = {"wired": 1.5, "narrow": 3.0, "gprs": 10.0}
"""Seconds of silence after the last publish that end a trip."""


@dataclass(frozen=True)
class Trip:
    """Parameters of one migration."""

    system: str
    option: SyncOption
    subscriptions: int
    per_s: float
    link: str = "wired"
    number: int = 1
    before_s: float = 3.0
    away_s: float = 10.0
    after_s: float = 3.0
    is_unique: bool = False
    """True if the client drops copies that it can recognise; the paper's client does not."""
    is_hasty: bool = False
    """True if the client does not wait for confirmations of its subscriptions (NATS only)."""

    @property
    def name(self) -> str:
        what = f"{self.system} {self.option} s={self.subscriptions} p={self.per_s:g} {self.link}"
        return f"{what}{' hasty' if self.is_hasty else ''} number={self.number}"

    @property
    def repetition(self) -> int:
        return self.number

    @property
    def copies(self) -> int:
        """Copies of each publication that arrive without a move."""
        return self.subscriptions if self.system in COPIES and not self.is_unique else 1

    @property
    def copies_per_s(self) -> float:
        return self.per_s * self.copies

    @property
    def expected_s(self) -> float:
        """Approximate duration; over a slow link it includes subscribing three times."""
        subscribing_s = SUBSCRIBE_S.get(self.link, 0.0) * self.subscriptions
        return self.before_s + self.away_s + self.after_s + subscribing_s

    def row(self) -> Row:
        return {
            "trip": self.name, "system": self.system, "option": self.option, "link": self.link,
            "s": self.subscriptions, "p": self.per_s, "number": self.number, "unique": self.is_unique,
            "hasty": self.is_hasty,
        }  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Trips that run at the same time over one running network of servers."""

    system: str
    ports: tuple[tuple[str, int], ...]
    """Ports of the servers, by site."""
    folder: str
    """Folder for the data of the proxies."""
    number: int
    trips: tuple[Trip, ...]

    @property
    def name(self) -> str:
        return f"{len(self.trips)} trips over {self.system}, such as {self.trips[0].name}"

    @property
    def cost(self) -> float:
        return max(trip.expected_s for trip in self.trips)


def measure(batch: Batch) -> Row:
    """Make the trips of a batch; return their rows in order."""
    network = ForeignNetwork(batch.system, ports=dict(batch.ports))
    folder = Path(mkdtemp(prefix=f"batch-{batch.number}-", dir=batch.folder))
    # A process that died may have left subscriptions behind: this time nothing is called as it was then.
    series = len(list(folder.parent.glob(f"batch-{batch.number}-*")))
    return {"system": batch.system, "trips": asyncio.run(_measure(network, folder, batch, series))}


async def _measure(network: ForeignNetwork, folder: Path, batch: Batch, series: int) -> list[Row]:
    async with AsyncExitStack() as stack:
        publisher, sites = await start_service(network, folder, stack)

        async def travel(place: int, trip: Trip) -> Row:
            """Make a trip, and retry it once if it fails; the row holds the reason."""
            reason = None
            for attempt in (2 * series, 2 * series + 1):
                tag = f"t{folder.parent.name[-1]}x{batch.number}x{place}x{attempt}"
                try:
                    row = await _Traveller(network, publisher, sites, trip, tag).travel()
                    return {**row, "again_because": reason}
                except (MoveFailed, AdapterError, TimeoutError) as error:
                    reason = str(error) or "it took too long"
            return {**trip.row(), "failed": reason}

        return list(await asyncio.gather(*(travel(place, trip) for place, trip in enumerate(batch.trips))))


async def start_service(
    network: ForeignNetwork, folder: Path, stack: AsyncExitStack
) -> tuple[Adapter, dict[str, int]]:
    """Start a publisher at the hub and a proxy at each end, for as long as the stack; the proxies' ports."""
    publisher = network.adapter("hub")
    await publisher.open()
    stack.push_async_callback(publisher.close)
    sites = {site: free_port() for site in ("a", "b")}
    for site in sites:
        proxy = ProxyServer(proxy_config(network, folder, site, sites))
        await proxy.start()
        stack.push_async_callback(proxy.stop)
    return publisher, sites


def proxy_config(network: ForeignNetwork, folder: Path, site: str, sites: dict[str, int]) -> Config:
    others = [Neighbour(site=one, address=f"{HOST}:{port}") for one, port in sites.items() if one != site]
    return Config(
        site=site,
        data=str(folder / f"proxy-{site}"),
        broker=Broker(kind=network.kind, url=network.url(site)),
        listener=Listener(port=sites[site]),
        proxies=tuple(others),
        peers=Peers(secret="only among proxies of a lab"),
        buffers=Buffers(bytes_max=1 << 28),
        ping=Ping(timeout_s=120.0),
    )


def filters_of(system: str, tag: str, count: int) -> tuple[str, list[str], dict[str, str]]:
    """Return a topic, filters that all match it, and the headers that the filters use."""
    if system == "activemq":
        return tag, [f"{tag}?colour <> 'c{number}'" for number in range(count)], {"colour": "x"}
    separator, wildcard = (".", "*") if system == "nats" else ("/", "+")
    levels = [tag, *"abcdefg"]
    filters = []
    for number in range(count):
        opened = [wildcard if number >> place & 1 else levels[place + 1] for place in range(WILDCARDS)]
        filters.append(separator.join([tag, *opened]))
    return separator.join(levels), filters, {}


@dataclass
class _Traveller:
    """A publisher and a mobile client, from the first attach to the last arrival."""

    network: ForeignNetwork
    publisher: Adapter
    proxies: dict[str, int]
    trip: Trip
    tag: str
    departures: list[float] = field(default_factory=list)
    arrivals: list[tuple[int, float]] = field(default_factory=list)

    async def travel(self) -> Row:
        async with AsyncExitStack() as stack:
            self.random = random.Random(self.trip.name)
            self.topic, filters, self.headers = filters_of(
                self.trip.system, self.tag, self.trip.subscriptions
            )
            client = await self._client(stack)
            stack.push_async_callback(client.close)
            await client.move_in("a")
            for filter in filters:
                await client.subscribe(filter)
            reader = asyncio.create_task(self._read(client))
            stack.callback(reader.cancel)
            await self._warm_up()
            return await self._travel(client, stack)

    async def _client(self, stack: AsyncExitStack) -> RoamingClient:
        trip, network = self.trip, self.network
        brokers, proxies = dict(network.ports), dict(self.proxies)
        if trip.link != "wired":
            relays = self._relays(brokers, proxies)
            for relay in relays.values():
                await relay.start()
                stack.push_async_callback(relay.close)
            brokers, proxies = (
                {site: relays[port].port if port in relays else port for site, port in ports.items()}
                for ports in (brokers, proxies)
            )
        options = Options(
            sync=trip.option, is_unique=trip.is_unique, move_timeout_s=PATIENCE_S, ping_timeout_s=120.0
        )
        return RoamingClient(
            f"trip-{self.tag}", {site: f"{HOST}:{port}" for site, port in proxies.items()}, options,
            adapter=lambda welcome: self._adapter(welcome.site, brokers[welcome.site]),
        )  # fmt: skip

    def _relays(self, brokers: dict[str, int], proxies: dict[str, int]) -> dict[int, SlowLink]:
        """Return the relays of one radio, by port; a narrow link lies only between client and brokers."""
        is_narrow = self.trip.link == "narrow"
        profile = NARROW if is_narrow else find_profile(self.trip.link)
        ports = [brokers["a"], brokers["b"], *([] if is_narrow else proxies.values())]
        radio = SlowLink(ports[0], profile, self.random.random)
        return {ports[0]: radio} | {port: radio.beside(port) for port in ports[1:]}

    def _adapter(self, site: str, port: int) -> Adapter:
        if not self.trip.is_hasty:
            return self.network.adapter(site, port)
        from roamcast.proxy.nats import NatsAdapter

        class HastyNats(NatsAdapter):
            """Subscribe calls return before the broker has the subscription, as in the paper's Siena. Over a
            narrow link this shows where ping's duplicates come from (figure 10).
            """

            async def _settle(self, client: object, filter: str) -> None:
                """Continue at once; a refusal by the server goes unnoticed."""

        return HastyNats(self.network.url(site, port))

    async def _read(self, client: RoamingClient) -> None:
        loop = asyncio.get_running_loop()
        async for message in client:
            self.arrivals.append((int(message.body), loop.time()))

    async def _publish(self, number: int) -> None:
        await self.publisher.publish(ForeignMessage(self.topic, b"%d" % number, self.headers))

    async def _warm_up(self) -> None:
        """Publish until the hub knows the subscriptions: the first attach is not measured."""
        while not self.arrivals:
            await self._publish(WARM_UP)
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S + self.random.random() / self.trip.per_s)

    async def _travel(self, client: RoamingClient, stack: AsyncExitStack) -> Row:
        loop, trip = asyncio.get_running_loop(), self.trip
        began = loop.time()
        publishing = asyncio.create_task(self._publish_all(began))
        stack.callback(publishing.cancel)
        # The phase of the moves against the publications differs from trip to trip.
        await asyncio.sleep(trip.before_s + self.random.random() / trip.per_s)
        left = loop.time()
        await client.move_out()
        detached = loop.time()
        await asyncio.sleep(trip.away_s)
        attached = loop.time()
        moved = await client.move_in("b")
        here = loop.time()
        await asyncio.sleep(trip.after_s)
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
        await self._wait_for_the_last()
        return {
            **self._count(began, detached, attached),
            "left_s": left - began,
            "attached_s": attached - began,
            "move_out_s": detached - left,
            "move_in_s": here - attached,
            "downloaded": moved.downloaded,
            "troubles": [*moved.missing, *moved.lost],
        }

    async def _publish_all(self, began: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            number = len(self.departures)
            await asyncio.sleep(max(began + number / self.trip.per_s - loop.time(), 0))
            self.departures.append(loop.time())
            # Cut off in the middle it would be neither published nor not.
            await asyncio.shield(asyncio.ensure_future(self._publish(number)))

    async def _wait_for_the_last(self) -> None:
        loop = asyncio.get_running_loop()
        quiet_s = QUIET_S[self.trip.link]
        heard, count = loop.time(), -1
        while loop.time() - heard < quiet_s:
            if len(self.arrivals) != count:
                heard, count = loop.time(), len(self.arrivals)
            if self._copies_of(len(self.departures) - 1) >= self.trip.copies:
                return
            await asyncio.sleep(0.05)

    def _copies_of(self, number: int) -> int:
        return sum(found == number for found, _ in self.arrivals[-2 * self.trip.copies :])

    def _count(self, began: float, detached: float, attached: float) -> Row:
        copies = Counter(number for number, _ in self.arrivals)
        first: dict[int, float] = {}
        for number, at in self.arrivals:
            first.setdefault(number, at - began)
        published = range(len(self.departures))
        away = [number for number in published if detached < self.departures[number] < attached]
        lost = [number for number in published if not copies[number]]
        extra = [max(copies[number] - self.trip.copies, 0) for number in published]
        order = [number for number, _ in self.arrivals if number >= 0]
        return {
            **self.trip.row(), "failed": None,
            "published": len(published), "away": len(away), "lost": len(lost),
            "lost_away": len(set(lost) & set(away)),
            "lost_copies": sum(max(self.trip.copies - copies[number], 0) for number in published),
            "duplicates": sum(count > 0 for count in extra), "duplicate_copies": sum(extra),
            "out_of_order": sum(later < earlier for earlier, later in pairwise(order)),
            "trace": [[self.departures[number] - began, first.get(number)] for number in published],
        }  # fmt: skip


# --- discovery, and subscriptions that are left out ---

LEFT_OUT_COUNT = 20


async def discover_and_exclude(network: ForeignNetwork, folder: Path) -> Row:
    """A client chooses the nearer of two proxies and moves; one of its two subscriptions is excluded from the
    service.
    """
    tag = f"r{network.kind}"
    topics = {kept: filters_of(network.kind, f"{tag}{kept}", 1) for kept in ("kept", "excluded")}
    async with AsyncExitStack() as stack:
        publisher, sites = await start_service(network, folder, stack)
        far = SlowLink(sites["b"], find_profile("gprs"), random.Random(1).random)
        await far.start()
        stack.push_async_callback(far.close)
        addresses = {"b": f"{HOST}:{far.port}", "a": f"{HOST}:{sites['a']}"}
        client = RoamingClient(f"client-{tag}", addresses, Options(move_timeout_s=PATIENCE_S),
                               adapter=lambda welcome: network.adapter(welcome.site))  # fmt: skip
        stack.push_async_callback(client.close)
        found = (await client.move_in()).site
        heard: Counter[str] = Counter()

        async def read() -> None:
            async for message in client:
                heard[message.body.decode()] += 1

        reader = asyncio.create_task(read())
        stack.callback(reader.cancel)
        for kept, (_, (filter,), _) in topics.items():
            await client.subscribe(filter, is_kept=kept == "kept")

        async def publish(when: str) -> None:
            for kept, (topic, _, headers) in topics.items():
                for _ in range(LEFT_OUT_COUNT):
                    await publisher.publish(ForeignMessage(topic, f"{when} {kept}".encode(), headers))

        async def publish_until_heard(when: str) -> None:
            """Publish until a message arrives, because subscriptions take a moment to spread."""
            async with asyncio.timeout(60.0):
                while not (heard[f"{when} kept"] and heard[f"{when} excluded"]):
                    await publish(when)
                    await asyncio.sleep(0.1)

        await publish_until_heard("before")
        await client.move_out()
        await publish("away")
        await asyncio.sleep(SETTLE_S)
        await client.move_in("b")
        await publish_until_heard("after")
        return {"system": network.kind, "nearest": found,
                **{f"{when} {kept}": heard[f"{when} {kept}"] for when in ("before", "away", "after")
                   for kept in topics}}  # fmt: skip


def batches(
    trips: Sequence[Trip], ports: Mapping[str, Mapping[str, int]], folder: Path, at_once: int
) -> list[Batch]:
    """Group trips over the same system with similar durations into batches, as large as this machine can
    serve. Trips that differ only in their option are in the same batch, so that the machine's load affects
    all of them alike.
    """
    open_ones: dict[str, list[list[Trip]]] = {}
    for trip in sorted(trips, key=lambda one: (-one.expected_s, one.number, one.per_s, one.subscriptions)):
        places = open_ones.setdefault(trip.system, [])
        for place in places:
            load = sum(one.copies_per_s for one in [*place, trip])
            is_alike = place[0].expected_s < 1.5 * trip.expected_s
            if len(place) < at_once and load <= COPIES_PER_S_MAX and is_alike:
                place.append(trip)
                break
        else:
            places.append([trip])
    chosen = [(system, place) for system, places in open_ones.items() for place in places]
    return [
        Batch(system, tuple(ports[system].items()), str(folder), number, tuple(place))
        for number, (system, place) in enumerate(chosen)
    ]
