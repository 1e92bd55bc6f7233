"""Pro-active proxies: copies ahead of the client, over random stories and step by step."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.proxy.foreign import Network
from tests.proxy.test_stories import FEW_SEEDS, MANY_SEEDS, SEEDS, Findings, story
from tests.proxy.world import World, in_virtual_time, run, until, with_options

from roamcast.errors import InputError
from roamcast.proxy import ahead, config, messages
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.config import Proactive

EVERYWHERE = Proactive(enabled=True, sites=tuple("abcde"))
LEARNED = Proactive(enabled=True)


def told(seed: int, monkeypatch: pytest.MonkeyPatch, proactive: Proactive = EVERYWHERE) -> Findings:
    """Where the broker keeps nothing for a proxy that is killed, none is."""
    keeps = bool(seed % 3)
    return run(story(seed, monkeypatch, kills=keeps, proactive=proactive, can_suspend=keeps))


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_nothing_is_lost_repeated_or_reordered(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = told(seed, monkeypatch)
    assert (findings.lost, findings.repeated, findings.disordered) == ([], [], [])


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY_SEEDS)
def test_the_same_over_many_seeds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for proactive in (EVERYWHERE, LEARNED):
        findings = told(seed, monkeypatch, proactive)
        assert (findings.lost, findings.repeated, findings.disordered) == ([], [], [])


def test_copies_serve_where_everybody_is_a_neighbour_and_where_neighbours_are_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sum(told(seed, monkeypatch).copies for seed in FEW_SEEDS) >= len(FEW_SEEDS)
    assert any(told(seed, monkeypatch, LEARNED).copies for seed in SEEDS)


def test_a_copy_without_what_came_before_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the handler gives nothing of what it had before the copy listened."""
    monkeypatch.setattr(ahead.Ahead, "on_ping", lambda self, handler, body: self._pings.setdefault(
        handler.id, {}).setdefault(body, 0))  # fmt: skip
    assert any(told(seed, monkeypatch).lost for seed in range(30))


def test_a_copy_that_is_given_out_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a copy does not wait until the foreign brokers know its subscriptions."""

    def opened_complete(self: ahead.Ahead, joined: object, asked: object) -> None:
        real(self, joined, asked)  # type: ignore[arg-type]
        for handler in self._service.buffers.by_id.values():
            if handler.opened.copy_of is not None:
                handler.source = None

    real = ahead.Ahead.on_surround
    monkeypatch.setattr(ahead.Ahead, "on_surround", opened_complete)
    assert any(told(seed, monkeypatch).lost for seed in range(30))


@in_virtual_time
async def test_the_handler_and_the_other_copies_end_when_the_client_has_its_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(Random(1), [("a", "b"), ("b", "c")])
    world = World(network, monkeypatch, proactive=EVERYWHERE)
    client = world.client("car", with_options(ahead=True))
    await asyncio.sleep(1)
    await client.subscribe("road/#")
    await client.move_in("a")
    await asyncio.sleep(5)
    await client.move_out()
    publisher = network.adapter("c")
    await publisher.open()
    for number in range(5):
        await publisher.publish(ForeignMessage("road/1", b"x", {}, f"c/{number}"))
    handlers = {site: server.service.buffers.by_id for site, server in world.servers.items()}
    await until(lambda: all(len(of_it) == 1 for of_it in handlers.values()))
    await asyncio.sleep(5)
    world.kill("a")  # Its proxy is not needed: everything is at the neighbour already.
    moved = await client.move_in("b")
    assert (moved.copies, moved.downloaded, moved.missing) == (1, 5, ())
    world.start("a")
    await until(lambda: not any(server.service.buffers.by_id for server in world.servers.values()))
    await client.close()


@in_virtual_time
async def test_a_copy_of_a_handler_that_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour may be told after the client has come back: nobody answers the copy's pings then."""
    world = World(Network(Random(1), [("a", "b")]), monkeypatch, proactive=EVERYWHERE)
    await asyncio.sleep(1)
    asking, asked = world.servers["a"], world.servers["b"].service.buffers
    late = messages.Surround(1, "car", "t" * 32, "", ("road/#",), 3600.0, 1 << 20, True)

    def say() -> None:
        ahead.Telling(asking.service, "b", late, lambda: True)

    asking.service.after(0.0, say)
    asking.step()
    await until(lambda: bool(asked.by_id))
    await until(lambda: not asked.by_id)


def test_neighbours_are_sites_of_other_proxies() -> None:
    with pytest.raises(InputError, match=r"proactive\.sites: x is no site of a \[\[proxy\]\]"):
        config._check_proxies(config.Config(proactive=Proactive(sites=("x",))))
