"""Sites under an operator's hands, without sockets: where sessions are, draining, forgetting, $SYS."""

from __future__ import annotations

from tests.broker.world import World
from tests.mqtt.wire import read

from roamcast.broker.inputs import (
    BrokerForgotten,
    ClientConnected,
    ClientFrames,
    DrainOrdered,
    LinkDown,
    LinkFrames,
    SessionSought,
    StatusAnnounced,
)
from roamcast.broker.links.frames import acknowledgement
from roamcast.broker.seeking import IsHere
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity


def line(seed: int = 1) -> World:
    """b0 - b1 - b2."""
    return World(seed, 3, [(0, 1), (1, 2)])


def ask(world: World, broker: str, client: str) -> list[IsHere]:
    """Let a broker ask, and collect what it hears."""
    heard: list[IsHere] = []
    site = world.sites[broker]
    receive = site.seeking.on_is_here
    site.broker.serve(IsHere, lambda sender, answer: heard.append(answer))
    world.order(broker, SessionSought(client, 7))
    site.broker.serve(IsHere, receive)
    return heard


def test_the_holder_answers_and_nothing_moves() -> None:
    world = line()
    for name, broker in (("c", "b2"), ("p", "b0")):
        world.attach(name, broker)
    world.settle()
    world.subscribe("c", "t", 1)
    world.settle()
    (here,) = ask(world, "b0", "c")
    assert (here.broker, here.state, here.queued, here.subscriptions, here.number) == (
        "b2",
        "attached",
        0,
        1,
        7,
    )
    world.drop(world.clients["c"].connection, "c")
    world.tell("p", "t", 1)
    (here,) = ask(world, "b1", "c")
    assert (here.broker, here.state, here.queued) == ("b2", "away", 1)
    assert here.queued_bytes > 0
    assert ask(world, "b1", "nobody") == []


def test_a_drained_broker_holds_nothing_and_nothing_is_lost() -> None:
    for seed in range(5):
        world = line(seed)
        for name in ("p", "c", "d"):
            world.attach(name, "b1")
        world.settle()
        for name in ("c", "d"):
            world.subscribe(name, "t", 2)
        world.settle()
        for _ in range(10):
            world.publish("p", "t", 2)
            world.run(3)
        world.order("b1", DrainOrdered("b2", "elsewhere:1883"))
        assert list(world.sites["b1"].broker.sessions) == []
        assert sorted(world.sites["b2"].broker.sessions) == ["c", "d", "p"]
        world.crash("b1")  # A drain lasts until the next start.
        world.settle()
        for name, broker in (("p", "b0"), ("c", "b1"), ("d", "b2")):
            world.attach(name, broker)
        world.settle()
        for name in ("c", "d"):
            got = [payload for payload, _, _ in world.clients[name].received]
            assert got == world.clients["p"].sent, (seed, name)


def test_what_waits_for_clients_that_are_away_leaves_a_drained_broker_too() -> None:
    """More than is fetched for one who does not read; also of one whose session had gone elsewhere."""
    world = line()
    world.attach("p", "b0")
    for name in ("c", "d"):
        world.attach(name, "b1")
    world.settle()
    for name in ("c", "d"):
        world.subscribe(name, "t", 2)
    world.settle()
    for name in ("c", "d"):
        world.drop(world.clients[name].connection, name)
    for _ in range(100):
        world.publish("p", "t", 2)
    world.settle()
    world.attach("d", "b2")
    world.run(12)
    world.drop(world.clients["d"].connection, "d")
    world.settle()
    left = world.sites["b1"].broker
    assert [client for client, queue in left.protocol.stored() if queue] == ["c", "d"]
    world.order("b1", DrainOrdered("b0", ""))
    assert [client for client, queue in left.protocol.stored() if queue] == list(left.sessions) == []
    for name in ("c", "d"):
        world.attach(name, "b2")
    world.settle()
    for name in ("c", "d"):
        got = [payload for payload, _, _ in world.clients[name].received]
        assert got == world.clients["p"].sent, name


def test_a_drained_broker_sends_newcomers_elsewhere() -> None:
    world = line()
    world.step("b1", [DrainOrdered("b2", "elsewhere:1883")])
    connect = packets.Connect(5, "new", session_expiry=60)
    effects = world.sites["b1"].step(world.now, [ClientConnected(99, connect, Identity("new"))])
    (data,) = effects.writes[99]
    answer = read(data, from_client=False)
    assert isinstance(answer, packets.Connack)
    assert (answer.reason, answer.server_reference) == (Reason.USE_ANOTHER_SERVER, "elsewhere:1883")
    assert effects.closes == [99]


def test_a_forgotten_broker_is_not_waited_for() -> None:
    world = line()
    world.bring_in("c", "b2")
    world.cut_link("b1", "b2")
    world.links.remove(("b1", "b2"))
    world.bring_in("c", "b0")
    assert world.clients["c"].presents == [False], "b2 may hold its session"
    site = world.sites["b1"]
    effects = site.step(world.now, [BrokerForgotten("b2")])
    assert [peer for peer, _ in effects.link_closes] == ["b2"]
    world.order(
        "b1",
    )
    assert world.clients["c"].presents == [False, False]
    assert world.sites["b0"].broker.unfinished() == []


def test_a_link_that_goes_down_for_invalid_frames_goes_down_in_a_replay_too() -> None:
    world = line()
    site, frames = world.sites["b1"], LinkFrames("b2", acknowledgement(1_000_000))
    effects = site.step(world.now, [frames])
    assert [peer for peer, _ in effects.link_closes] == ["b2"]
    assert effects.durable == [LinkDown("b2")]
    assert site.step(world.now, [frames]).durable == [], "it is down already"


def test_announcements_stay_here_and_wait_for_whoever_subscribes() -> None:
    world = line()
    for name, broker in (("here", "b1"), ("there", "b2")):
        world.bring_in(name, broker, "$SYS/broker/#", 0)
    world.order("b1", StatusAnnounced("$SYS/broker/uptime", b"1 seconds"))
    world.bring_in("late", "b1", "$SYS/broker/#", 0)
    received = {name: [one[0] for one in client.received] for name, client in world.clients.items()}
    assert received == {"here": ["1 seconds"], "there": [], "late": ["1 seconds"]}


def test_messages_of_several_topics_are_counted_one_by_one() -> None:
    world = World(1, 1, [])
    for name in ("c", "p"):
        world.attach(name, "b0")
    world.settle()
    world.subscribe("c", "t/#", 1)
    world.settle()
    site = world.sites["b0"]
    for _ in range(2):  # The first time each topic is looked at by itself.
        frames = [write(packets.Publish(f"t/{number % 3}", b"x"), 5) for number in range(9)]
        world.order("b0", ClientFrames(world.clients["p"].connection, b"".join(frames)))
    assert site.endpoint.traffic.received == [18, 0, 0]
    assert site.endpoint.traffic.sent == [18, 0, 0]
