"""What a proxy does not do: each time one clear answer, and nothing that was promised is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from tests.proxy.foreign import Network
from tests.proxy.world import SECRET, World, in_virtual_time, until, with_options

from roamcast.proxy import messages, service
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.buffers import Entry, Frozen, size_of
from roamcast.proxy.client import MoveFailed, RoamingClient
from roamcast.proxy.client_state import Source
from roamcast.proxy.config import Buffers as BufferSettings
from roamcast.proxy.messages import MoveRefused
from roamcast.proxy.wire import ProxyError, connect_client, connect_proxy

EDGES = [("a", "b"), ("b", "c")]


def new_world(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> World:
    return World(Network(Random(1), EDGES, 0.05), monkeypatch, **settings)


async def moved_out(world: World, id: str = "car", site: str = "a", **options: Any) -> RoamingClient:
    client = world.client(id, with_options(**options))
    await asyncio.sleep(0.5)
    await client.subscribe("road/#")
    await client.move_in(site)
    await client.move_out()
    return client


async def publish(world: World, numbers: range, site: str = "a") -> None:
    adapter = world.network.adapter(site)
    await adapter.open()
    for number in numbers:
        await adapter.publish(ForeignMessage(f"road/{number}", b"", {}, f"m{number}"))
    await asyncio.sleep(1)


def received(client: RoamingClient) -> list[str]:
    found = []
    while not client._queue.empty():
        message = client._queue.get_nowait()
        assert message is not None
        found.append(message.identity)
    return found


def names(numbers: range) -> list[str]:
    return [f"m{number}" for number in numbers]


@in_virtual_time
async def test_who_has_no_ticket_gets_nothing_and_the_owner_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = new_world(monkeypatch)
    client = await moved_out(world)
    await publish(world, range(3))
    thief = world.client("car", with_options(sync="basic"))
    thief.sources.append(Source("a", "0123456789abcdef"))
    for site in ("a", "b"):
        result = await thief.move_in(site)
        (why,) = result.lost
        assert "client 'car' has a buffer at a, but not under this ticket" in why
        await thief.close()
        thief = world.client("car", with_options(sync="basic"))
        thief.sources.append(Source("a", "0123456789abcdef"))
    await client.move_in("b")
    assert received(client) == names(range(3))


@in_virtual_time
async def test_a_client_id_of_another_user_is_refused_at_move_out_and_download(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = new_world(monkeypatch)
    client = await moved_out(world)
    asked = world.servers["a"].service.joined
    pipe, _ = await connect_client("a:1", "car", "", "")
    await asyncio.sleep(0.2)
    (connection,) = asked
    asked[connection] = type(asked[connection])(connection, "client", "mallory")
    pipe.write(messages.MoveOut(1, "car", "fedcba9876543210", ("x",)))
    answer = await pipe.read()
    assert isinstance(answer, MoveRefused)
    assert answer.text == "client id 'car' belongs to another user at this site"
    pipe.write(messages.Download(2, "car", client.sources[0].ticket))
    answer = await pipe.read()
    assert isinstance(answer, MoveRefused)
    assert (answer.code, answer.text) == ("identity", "client 'car' belongs to another user at this site")
    await client.move_in("a")
    assert not client.sources


@in_virtual_time
async def test_a_proxy_with_another_secret_is_told_so_by_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(monkeypatch)
    with pytest.raises(ProxyError, match="site a does not know the proxy 'c': the secrets differ"):
        await connect_proxy("a:1", "c", "a", "some other secret, long")
    with pytest.raises(ProxyError, match="the proxy there is not that of site b"):
        await connect_proxy("a:1", "c", "b", SECRET)
    client = await moved_out(world, sync="basic")
    await publish(world, range(2))
    world.kill("b")
    world.start("b", secret="the secret of somebody else")
    await asyncio.sleep(0.5)
    result = await client.move_in("b")
    (why,) = result.missing
    assert "the proxy of site a cannot be asked" in why
    assert "the secrets differ" in why
    await client.move_out()
    await client.move_in("c")
    assert [source.site for source in client.sources] == ["b"]
    assert received(client) == names(range(2))


@in_virtual_time
async def test_a_proxy_that_only_pretends_to_be_ours_gets_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    new_world(monkeypatch)
    real = messages.proof
    answers = {"listener": b"x" * 32}
    monkeypatch.setattr(
        messages, "proof", lambda secret, role, *rest: answers.get(role) or real(secret, role, *rest)
    )
    monkeypatch.setattr(messages, "is_proof", lambda given, secret, role, *rest: role == "dialer")
    with pytest.raises(ProxyError, match="the proxy there does not have our secret"):
        await connect_proxy("a:1", "b", "a", SECRET)


@pytest.mark.parametrize(("overflow", "kept"), [("newest", range(4)), ("oldest", range(6, 10))])
@in_virtual_time
async def test_a_full_buffer_says_how_many_it_dropped(
    overflow: Any, kept: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = size_of(ForeignMessage("road/1", b"", {}, "m1"))
    world = new_world(monkeypatch, buffers=BufferSettings(overflow=overflow))
    client = await moved_out(world, bytes_max=4 * size)
    await publish(world, range(10))
    result = await client.move_in("b")
    assert (result.downloaded, result.dropped) == (4, 6)
    assert received(client) == names(kept)


@in_virtual_time
async def test_a_proxy_that_is_full_refuses_the_move_out_and_the_client_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = new_world(monkeypatch, buffers=BufferSettings(clients_max=1))
    first = await moved_out(world, "one")
    second = world.client("two", with_options())
    await second.subscribe("road/#")
    await second.move_in("a")
    with pytest.raises(MoveFailed, match="site a: site a already keeps 1 clients, its maximum"):
        await second.move_out()
    assert second.site == "a"
    await publish(world, range(2))
    assert received(second) == names(range(2))
    await first.move_in("c")
    await second.move_out()
    assert received(first) == names(range(2))


@in_virtual_time
async def test_a_broker_that_is_down_at_the_new_site_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(monkeypatch)
    client = await moved_out(world)
    await publish(world, range(5))
    world.stop_broker("b")
    with pytest.raises(MoveFailed, match="site b: the broker is down"):
        await client.move_in("b")
    pipe, _ = await connect_client("b:1", "car", "", "")
    pipe.write(messages.Download(1, "car", client.sources[0].ticket, "a"))
    answer = await pipe.read()
    assert isinstance(answer, MoveRefused)
    assert answer.code == "broker"
    assert "no message was taken over" in answer.text
    world.network.sites["b"].is_up = True
    await asyncio.sleep(10)
    await client.move_in("b")
    assert received(client) == names(range(5))


@in_virtual_time
async def test_a_broker_that_is_down_at_the_old_site_keeps_the_rest_for_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = new_world(monkeypatch)
    client = await moved_out(world, sync="basic")
    await publish(world, range(3))
    world.stop_broker("a")
    result = await client.move_in("b")
    (why,) = result.missing
    assert "the broker of site a is down (the broker is down): ask again later" in why
    assert received(client) == names(range(3))
    await publish(world, range(3, 5), site="b")
    world.network.sites["a"].is_up = True
    await asyncio.sleep(10)
    assert not client.sources
    assert received(client) == names(range(3, 5))


@in_virtual_time
async def test_a_move_out_where_the_broker_is_down_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(monkeypatch)
    await asyncio.sleep(0.5)
    client = world.client("car", with_options(sync="basic"))
    await client.subscribe("road/#")
    await client.move_in("a")
    world.stop_broker("a")
    with pytest.raises(MoveFailed, match=r"the broker of site a is down .*: stay attached"):
        await client.move_out()
    assert client.is_attached


@in_virtual_time
async def test_who_stays_away_longer_than_the_lease_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(monkeypatch)
    client = await moved_out(world, lease_s=60.0)
    await publish(world, range(2))
    await asyncio.sleep(61)
    assert world.servers["a"].service.buffers.bytes == 0
    client.options = with_options(sync="basic")
    result = await client.move_in("b")
    (why,) = result.lost
    assert "was away for longer than its lease" in why
    assert not client.sources


@in_virtual_time
async def test_leaving_again_during_a_download_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(monkeypatch)
    client = await moved_out(world, sync="basic")
    await publish(world, range(100))
    monkeypatch.setattr(service, "BATCH_MESSAGES", 5)
    monkeypatch.setattr(service, "WINDOW_MESSAGES", 25)
    moving = asyncio.create_task(client.move_in("b"))
    while not 5 < client._queue.qsize() < 60:
        await asyncio.sleep(0.001)
    for writer in world.pipes.pop("b"):
        writer.close()
    result = await moving
    assert result.missing
    taken = client._queue.qsize()
    assert taken < 100
    await client._detach(unsubscribe=True)
    await client.move_in("b")
    await client.move_out()
    await publish(world, range(100, 110))
    await client.move_in("c")
    assert received(client) == names(range(110))
    assert not client.sources


@in_virtual_time
async def test_what_is_published_while_away_goes_out_in_order_at_move_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = new_world(monkeypatch)
    listener = world.client("ear", with_options())
    await asyncio.sleep(0.5)
    await listener.subscribe("said/#")
    await listener.move_in("c")
    await asyncio.sleep(1)
    speaker = world.client("mouth", with_options(publishes_max=3))
    await speaker.move_in("a")
    await speaker.publish("said/0", b"")
    await speaker.move_out()
    for number in (1, 2, 3):
        await speaker.publish(f"said/{number}", b"")
    with pytest.raises(MoveFailed, match="3 publishes wait"):
        await speaker.publish("said/4", b"")
    await speaker.move_in("b")
    await speaker.publish("said/5", b"")
    await asyncio.sleep(1)
    topics = [(await anext(listener)).topic for _ in range(5)]
    assert topics == [f"said/{number}" for number in (0, 1, 2, 3, 5)]


@pytest.mark.parametrize("site", ["a", "b"])
@in_virtual_time
async def test_what_the_broker_has_not_kept_is_told(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(monkeypatch)
    client = await moved_out(world, suspend="always")
    world.network.sites["a"].sessions.clear()
    result = await client.move_in(site)
    (why,) = result.lost
    assert "has not kept" in why
    assert (result.missing, client.sources) == ((), [])
    await asyncio.sleep(1)  # Until every site knows the new subscription.
    await publish(world, range(3))
    assert received(client) == names(range(3))


@in_virtual_time
async def test_a_suspended_channel_is_only_for_who_has_its_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(monkeypatch)
    client = await moved_out(world, suspend="always")
    await publish(world, range(3))
    pipe, _ = await connect_client("b:1", "car", "", "")
    pipe.write(messages.StandIn(1, "car", "fedcba9876543210", ("road/#",), site="a"))
    answer = await pipe.read()
    assert isinstance(answer, MoveRefused)
    assert answer.code == "expired"
    await client.move_in("b")
    assert received(client) == names(range(3))


@in_virtual_time
async def test_without_a_proxy_a_broker_that_keeps_nothing_lets_no_client_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = new_world(monkeypatch, can_suspend=False)
    client = RoamingClient(
        "car", world.proxies, adapter=lambda welcome: world.network.adapter(welcome.site, False)
    )
    await asyncio.sleep(0.5)
    await client.subscribe("road/#")
    await client.move_in("a")
    world.kill("a")
    with pytest.raises(MoveFailed, match="a:1: connection refused"):
        await client.move_out()
    await publish(world, range(3))
    assert (client.site, received(client)) == ("a", names(range(3)))


@in_virtual_time
async def test_a_download_that_was_cut_by_a_kill_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    world = new_world(monkeypatch)
    client = await moved_out(world)
    await publish(world, range(3))
    store = world.stores["a"]
    write = store.write

    def write_and_die(entries: Iterable[Entry]) -> None:
        """It listens no more, and has not said so."""
        kept = list(entries)
        write(kept)
        if any(isinstance(entry, Frozen) for entry in kept):
            world.kill("a")

    monkeypatch.setattr(store, "write", write_and_die)
    result = await client.move_in("b")
    assert result.missing
    world.start("a")
    await until(lambda: not client.sources)
    assert received(client) == names(range(3))
