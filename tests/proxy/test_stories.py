"""Random stories of moving clients over a slow acyclic network: what is promised arrives, whatever the seed.

The code is the real one (service, driver, client library) in virtual time. The checker knows only what
was published and what the application got.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import pytest
from tests.proxy.foreign import MemoryAdapter, Network
from tests.proxy.world import World, run, until, with_options

from roamcast.proxy import buffers, service, steps
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.client import RoamingClient
from roamcast.proxy.config import Proactive

FEW_SEEDS, SEEDS = range(5), range(12)
MANY_SEEDS = range(200)


@dataclass
class Findings:
    published: list[str] = field(default_factory=list)
    got: list[str] = field(default_factory=list)
    copies: int = 0

    @property
    def lost(self) -> list[str]:
        return sorted(set(self.published) - set(self.got))

    @property
    def repeated(self) -> list[str]:
        return [identity for identity, count in Counter(self.got).items() if count > 1]

    @property
    def disordered(self) -> list[tuple[str, str]]:
        """Pairs of one publisher that came the wrong way round."""
        last: dict[str, int] = {}
        found = []
        for identity in self.got:
            publisher, _, number = identity.rpartition("/")
            if int(number) < last.get(publisher, 0):
                found.append((f"{publisher}/{last[publisher]}", identity))
            last[publisher] = max(last.get(publisher, 0), int(number))
        return found


def random_tree(random: Random) -> list[tuple[str, str]]:
    names = "abcde"[: random.randint(2, 5)]
    return [(random.choice(names[:place]), names[place]) for place in range(1, len(names))]


async def publish_for(network: Network, site: str, random: Random, findings: Findings) -> None:
    adapter = network.adapter(site)
    await adapter.open()
    number = 0
    while True:
        number += 1
        identity = f"{site}/{number}"
        findings.published.append(identity)
        await adapter.publish(ForeignMessage(f"road/{random.randint(1, 3)}", b"x", {}, identity))
        await asyncio.sleep(random.uniform(0.01, 0.2))


async def read_all(client: RoamingClient, findings: Findings) -> None:
    async for message in client:
        findings.got.append(message.identity)


async def leave(world: World, client: RoamingClient, way: str) -> None:
    """How a client goes away."""
    site, adapter = client.site, client._adapter
    assert site is not None
    match way:
        case "handed over":
            assert await client.move_out() in ("proxy", "nobody")
        case "returning":
            assert await client.move_out(is_returning=True) == "broker"
        case "no proxy":
            world.kill(site)
            assert await client.move_out() == "broker"
            world.start(site)
        case "cut off":
            assert isinstance(adapter, MemoryAdapter)
            adapter.lose("the radio is gone")
            await until(lambda: client.site is None)


async def story(
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    sync: str = "ping",
    kills: bool = True,
    ways: Sequence[str] = ("handed over",),
    proactive: Proactive | None = None,
    can_suspend: bool = True,
) -> Findings:
    random = Random(seed)
    network = Network(random, random_tree(random))
    world = World(network, monkeypatch, can_suspend=can_suspend, proactive=proactive)
    findings = Findings()
    client = world.client("car", with_options(sync=sync, delay_s=0.05, ahead=proactive is not None))
    await asyncio.sleep(1)
    sites = list(network.sites)
    await client.subscribe("road/#" if random.random() < 0.5 else "road/+")
    await client.move_in(random.choice(sites))
    await asyncio.sleep(5)  # Until every site knows the first subscription.
    reading = asyncio.create_task(read_all(client, findings))
    publishing = [
        asyncio.create_task(publish_for(network, site, random, findings))
        for site in random.sample(sites, min(2, len(sites)))
    ]
    for _ in range(random.randint(2, 6)):
        await asyncio.sleep(random.uniform(0, 2))
        left = client.site
        await leave(world, client, random.choice(ways))
        await asyncio.sleep(random.uniform(0, 4))
        if kills and left is not None and random.random() < 0.4:
            world.kill(left)
            await asyncio.sleep(random.uniform(0, 2))
            world.start(left)
            await asyncio.sleep(0.2)
        findings.copies += (await client.move_in(random.choice(sites))).copies
    for task in publishing:
        task.cancel()
    with suppress(TimeoutError):  # Then it is lost, and found to be.
        await until(lambda: not client.sources)
    await asyncio.sleep(5)
    await client.close()
    await reading
    return findings


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_with_ping_nothing_is_lost_repeated_or_reordered(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = run(story(seed, monkeypatch))
    assert len(findings.published) > 20
    assert (findings.lost, findings.repeated, findings.disordered) == ([], [], [])


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY_SEEDS)
def test_the_same_over_many_seeds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = run(story(seed, monkeypatch))
    assert (findings.lost, findings.repeated, findings.disordered) == ([], [], [])


WAYS = ("handed over", "returning", "no proxy", "cut off")


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_what_the_broker_keeps_is_not_lost_repeated_or_reordered_either(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = run(story(seed, monkeypatch, ways=WAYS))
    assert (findings.lost, findings.repeated, findings.disordered) == ([], [], [])


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY_SEEDS)
def test_what_the_broker_keeps_over_many_seeds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = run(story(seed, monkeypatch, ways=WAYS))
    assert (findings.lost, findings.repeated, findings.disordered) == ([], [], [])


def test_without_synchronisation_some_seed_shows_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's second claim: a basic move-in may lose where subscriptions propagate slowly."""
    assert any(run(story(seed, monkeypatch, "basic", kills=False)).lost for seed in SEEDS)


def test_without_the_service_what_is_published_while_away_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(run(story(seed, monkeypatch, "none", kills=False)).lost for seed in range(3))


# --- planted breakages: each must be seen by the checker with the same seeds ---


@contextmanager
def broken_journal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Messages are kept in memory only."""
    real = service.Service.keep

    def keep(self: service.Service, entry: buffers.Entry) -> None:
        if isinstance(entry, buffers.Kept):
            self.buffers.apply(entry)
        else:
            real(self, entry)

    with monkeypatch.context() as patch:
        patch.setattr(service.Service, "keep", keep)
        yield


@contextmanager
def broken_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What comes directly is not held back during a download."""

    def receive(self: RoamingClient, message: ForeignMessage) -> None:
        if message.topic.startswith("roamcast/ping/"):
            self._on_ping(message)
        else:
            self._deliver(message)

    with monkeypatch.context() as patch:
        patch.setattr(RoamingClient, "_receive", receive)
        yield


@contextmanager
def broken_identity(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Copies are not recognised."""

    def deliver(self: RoamingClient, message: ForeignMessage) -> bool:
        self._queue.put_nowait(message)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(RoamingClient, "_deliver", deliver)
        yield


@contextmanager
def broken_ping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client does not wait for its ping."""

    async def synchronise(self: RoamingClient, *_: object) -> None:
        return None

    with monkeypatch.context() as patch:
        patch.setattr(RoamingClient, "_synchronise", synchronise)
        yield


@contextmanager
def broken_restart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A proxy that starts again does not listen for the clients it had."""
    real = service.Service._take

    def take(self: service.Service, input: steps.Input) -> None:
        if isinstance(input, steps.ForeignBack):
            self.down = ""
        else:
            real(self, input)

    with monkeypatch.context() as patch:
        patch.setattr(service.Service, "_take", take)
        yield


def test_a_stand_in_that_listens_on_another_channel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the client's channel and the handler that shall resume it have different names."""
    monkeypatch.setattr("roamcast.proxy.client.channel_name", lambda client, ticket: f"{client}-{ticket}")
    assert any(run(story(seed, monkeypatch, ways=WAYS)).lost for seed in SEEDS)


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (broken_journal, "lost"),
        (broken_order, "disordered"),
        (broken_identity, "repeated"),
        (broken_ping, "lost"),
        (broken_restart, "lost"),
    ],
)
def test_a_planted_breakage_is_found(
    broken: Callable[[pytest.MonkeyPatch], AbstractContextManager[None]],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with broken(monkeypatch):
        for seed in SEEDS:
            if getattr(run(story(seed, monkeypatch)), what):
                return
    pytest.fail(f"no seed of {SEEDS} shows anything {what}")
