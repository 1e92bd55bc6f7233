"""Locating: wherever a client comes, its one session follows, and there is never a second."""

from __future__ import annotations

import random

import pytest
from tests.broker.broker_network import BrokerNetwork

from roamcast.broker.core import BrokerCore
from roamcast.mobility import PROTOCOLS, find_protocol
from roamcast.protocol.effects import Attached, OverlayChanged, Received, Submitted
from roamcast.protocol.messages import Hello, HolderUnknown, Leave, Locate, Located
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.network import Network
from roamcast.simulator.story import parse_story

LINE = [("b0", "b1"), ("b1", "b2"), ("b2", "b3")]
STAR = [("b0", "b1"), ("b0", "b2"), ("b0", "b3")]


def settled_at(broker: str, edges: list[tuple[str, str]]) -> BrokerNetwork:
    """A network in which client c has attached at this broker, and gone."""
    network = BrokerNetwork(edges)
    network.attach("c", broker)
    network.rest()
    assert network.holders("c") == [broker]
    network.detach("c")
    network.rest()
    network.said.clear()
    return network


def check_arrived(network: BrokerNetwork, broker: str) -> None:
    """The session is where the client is, and nowhere else; nothing is left under way."""
    roamer = network.roamers["c"]
    assert network.holders("c") == [broker] == [roamer.broker]
    assert roamer.welcome is not None
    assert not roamer.closed
    assert network.unfinished() == []


def test_a_fresh_client_is_looked_for_by_nobody() -> None:
    network = BrokerNetwork(LINE)
    network.attach("c", "b2")
    assert network.roamers["c"].welcome is not None
    assert network.said == []
    check_arrived(network, "b2")


def test_the_broker_that_the_client_names_is_asked_alone() -> None:
    network = settled_at("b0", STAR)
    network.attach("c", "b2", last_broker="b0")
    network.rest()
    check_arrived(network, "b2")
    assert network.kinds_said() == ["AttachRequest", "Grant", "GrantReceived"]


def test_a_client_that_does_not_name_its_last_broker_is_found() -> None:
    network = settled_at("b0", LINE)
    network.attach("c", "b3")
    network.rest()
    check_arrived(network, "b3")
    assert network.kinds_said().count("Locate") == 3
    assert network.kinds_said().count("Grant") == 3


def test_a_client_that_names_a_wrong_broker_is_found() -> None:
    for wrong in ("b1", "b2", "b3"):
        network = settled_at("b0", LINE)
        network.attach("c", "b2", last_broker=wrong)
        network.rest()
        check_arrived(network, "b2")


def test_a_client_that_names_the_broker_it_comes_to_is_found() -> None:
    """It was here, or so it says: this broker knows better and asks everyone."""
    network = settled_at("b0", LINE)
    network.attach("c", "b2", last_broker="b2")
    network.rest()
    check_arrived(network, "b2")


def test_returning_to_the_same_broker_needs_nobody_else() -> None:
    network = settled_at("b1", LINE)
    first = network.brokers["b1"].sessions["c"].number
    network.attach("c", "b1", last_broker="b1")
    check_arrived(network, "b1")
    assert network.said == []
    assert network.brokers["b1"].sessions["c"].number == first + 1


def test_a_connection_that_was_not_closed_makes_way_for_a_new_one() -> None:
    """The client is back before its broker noticed that it had gone."""
    network = BrokerNetwork(LINE)
    network.attach("c", "b1")
    old = network.roamers["c"].connection
    network.attach("c", "b1", last_broker="b1")
    check_arrived(network, "b1")
    assert network.brokers["b1"].attachments["c"].connection != old


@pytest.mark.parametrize("names", [True, False])
def test_the_first_hello_is_lost_on_the_air(names: bool) -> None:
    """Nobody has the session, though the client is no longer fresh: the broker that asks makes it."""
    network = BrokerNetwork(LINE)
    network.attach("c", "b1", heard=False)
    network.attach("c", "b3", last_broker="b1" if names else "")
    network.rest()
    check_arrived(network, "b3")


def test_a_later_hello_is_lost_on_the_air() -> None:
    network = settled_at("b0", LINE)
    network.attach("c", "b1", last_broker="b0", heard=False)
    network.attach("c", "b3", last_broker="b1")
    network.rest()
    check_arrived(network, "b3")


def race(order: tuple[tuple[str, str], ...], last_brokers: tuple[str, str] = ("b0", "b0")) -> BrokerNetwork:
    """Held at b0, the client comes to b1 and then to b2; the links deliver in this order first."""
    network = settled_at("b0", STAR)
    network.attach("c", "b1", last_broker=last_brokers[0])
    network.detach("c")
    network.attach("c", "b2", last_broker=last_brokers[1])
    for link in order:
        network.arrive_on(*link)
    network.rest()
    return network


def test_of_two_attaches_the_later_wins_when_it_is_heard_first() -> None:
    network = race((("b2", "b0"), ("b1", "b0")))
    check_arrived(network, "b2")
    assert "AttachRefused" in network.kinds_said()
    assert network.kinds_said().count("Grant") == 1


def test_of_two_attaches_the_later_wins_when_it_is_heard_last() -> None:
    network = race((("b1", "b0"), ("b2", "b0")))
    check_arrived(network, "b2")
    assert network.kinds_said().count("Grant") >= 2


@pytest.mark.parametrize("first", ["b1", "b2"])
@pytest.mark.parametrize("last_brokers", [("", ""), ("b0", "b1"), ("", "b1"), ("b3", "b3"), ("b2", "b1")])
def test_races_end_with_the_later_attach(first: str, last_brokers: tuple[str, str]) -> None:
    """However the client was asked for, and whichever question is heard first."""
    second = "b2" if first == "b1" else "b1"
    network = race(((first, "b0"), (second, "b0")), last_brokers)
    check_arrived(network, "b2")


def test_of_two_that_ask_for_a_session_that_nobody_has_the_lower_makes_it() -> None:
    """The client's first hello was lost; two brokers ask everyone at once."""
    for seed in range(50):
        network = BrokerNetwork(LINE)
        network.attach("c", "b0", heard=False)
        network.attach("c", "b3")
        network.detach("c")
        network.attach("c", "b1")
        network.rest(random.Random(seed))
        check_arrived(network, "b1")


@pytest.mark.parametrize("goes_to", ["b0", "b1", "b2", "b3"])
def test_a_proclaimed_move_and_then_another(goes_to: str) -> None:
    """Said that it goes to b2; its session goes ahead, and follows it wherever it comes."""
    for seed in range(20):
        rng = random.Random(seed)
        network = BrokerNetwork(LINE)
        roamer = network.attach("c", "b0")
        network.step("b0", Submitted("c", roamer.connection, Leave("b2")))
        for _ in range(rng.randrange(4)):
            network.arrive(rng)
        network.attach("c", goes_to, last_broker="b0")
        network.rest(rng)
        check_arrived(network, goes_to)


def test_a_proclaimed_move_to_nowhere_leaves_the_session_where_it_is() -> None:
    network = BrokerNetwork(LINE)
    roamer = network.attach("c", "b0")
    network.step("b0", Submitted("c", roamer.connection, Leave("atlantis")))
    network.rest()
    assert network.holders("c") == ["b0"]
    network.attach("c", "b3", last_broker="b0")
    network.rest()
    check_arrived(network, "b3")


def test_attach_numbers_rise_with_every_attach() -> None:
    network = BrokerNetwork(LINE)
    last, rng = 0, random.Random(2)
    for _ in range(20):
        roamer = network.attach("c", f"b{rng.randrange(4)}", last_broker=rng.choice(("", "b0", "b1")))
        network.rest(rng)
        assert roamer.welcome is not None
        assert roamer.welcome.number > last
        last = roamer.welcome.number
        network.detach("c")


def test_an_old_connection_that_is_heard_late_is_closed() -> None:
    """Two hellos of one client cross: the one with the lower count is told to go."""
    network = settled_at("b1", LINE)
    roamer = network.attach("c", "b1", last_broker="b1")
    broker = network.brokers["b1"]
    effects = broker.step(0.0, [Attached("c", 77, Hello("c", roamer.moves - 1, {}, "b1"))])
    assert effects.client_closes == [("c", 77, "attached again")]
    assert broker.attachments["c"].connection == roamer.connection
    effects = broker.step(0.0, [Attached("c", 78, Hello("c", roamer.moves + 1, {}, "b1"))])
    assert effects.client_closes == [("c", roamer.connection, "attached again")]
    assert broker.attachments["c"].connection == 78


def test_an_answer_to_an_earlier_question_does_not_count() -> None:
    """Asked everyone, found, but too late there: it asks again while an old answer is still on its way."""
    broker = BrokerCore("b1", find_protocol("none"))
    broker.step(0.0, [OverlayChanged(["b0", "b2"], {"b0": "b0", "b2": "b2"})])
    asked = broker.step(0.0, [Attached("c", 5, Hello("c", 3, {}, ""))])
    (_, first), (_, also_first) = asked.sends
    assert isinstance(first, Locate)
    assert first == also_first
    found = Located("c", "b1", 5, first.round, found=True)
    again = broker.step(0.0, [Received("b0", found), Received("b0", HolderUnknown("c", 5))])
    (_, second), (_, _) = again.sends
    assert isinstance(second, Locate)
    # b2 has nothing and says so twice, once for each question; b0 has not answered the second.
    for question in (first, second):
        broker.step(0.0, [Received("b2", Located("c", "b1", 5, question.round, found=False))])
    assert broker.sessions == {}
    broker.step(0.0, [Received("b0", Located("c", "b1", 5, second.round, found=False))])
    assert list(broker.sessions) == ["c"]


@pytest.mark.parametrize("counts", [True, False], ids=["counting", "standard"])
def test_there_is_one_session_whatever_the_interleaving(counts: bool) -> None:
    """Random attaches with right, wrong and no last brokers, lost hellos, and messages in any order."""
    moved = 0
    for seed in range(300):
        rng = random.Random(seed)
        edges = [(f"b{rng.randrange(number)}", f"b{number}") for number in range(1, rng.randint(2, 6))]
        network = BrokerNetwork(edges)
        names = list(network.brokers)
        network.attach("c", rng.choice(names), heard=rng.random() < 0.8).counts = counts
        for _ in range(rng.randint(1, 8)):
            for _ in range(rng.choice((0, 1, 2, 5, 100))):
                network.arrive(rng)
                assert len(network.holders("c")) <= 1
            roamer = network.roamers["c"]
            there = roamer.broker
            if rng.random() < 0.7 and there and not roamer.closed:
                network.detach("c")
            last_broker = rng.choice((there, there, "", rng.choice(names)))
            network.attach("c", rng.choice(names), last_broker, heard=rng.random() < 0.8)
            moved += 1
        final = rng.choice(names)
        roamer = network.attach("c", final, rng.choice(("", rng.choice(names))))
        network.rest(rng)
        assert len(network.holders("c")) == 1, f"seed {seed}"
        assert network.unfinished() == [], f"seed {seed}"
        if counts:
            # One that counts its attaches ends up where it came last; another may have to come again.
            check_arrived(network, final)
    assert moved > 500


# --- whole stories ---


def check_one_session_each(network: Network) -> None:
    for client in network.clients.values():
        holders = [name for name, broker in network.brokers.items() if client.id in broker.sessions]
        attached = [name for name, broker in network.brokers.items() if client.id in broker.attachments]
        if network.is_attached(client.id):
            assert holders == [client.broker]
            assert client.broker in attached
        else:
            assert len(holders) <= 1


@pytest.mark.parametrize("protocol", [name for name in sorted(PROTOCOLS) if ":" not in name])
def test_every_client_has_exactly_one_session_at_rest(protocol: str) -> None:
    clients = 0
    for seed in range(1_000, 1_020):
        network = draw_story(protocol, seed).run().network
        check_one_session_each(network)
        clients += len(network.clients)
    assert clients > 50


def test_locating_everywhere_costs_every_link_and_naming_does_not() -> None:
    text = "brokers b0-b1 b1-b2 b2-b3\nprotocol none\nat 0 c attach b0\nat 1 c attach b1\n"
    asked: dict[bool, int] = {}
    for names in (True, False):
        messages: list[object] = []
        story = parse_story(f"{text}names_last_broker {names}\n")
        story.run(trace=lambda _now, _from, _to, message, seen=messages: seen.append(message))  # type: ignore[misc]
        asked[names] = sum(isinstance(message, Locate) for message in messages)
    assert asked == {True: 0, False: 3}


def test_what_a_session_has_deferred_waits_until_it_has_arrived() -> None:
    """Moving on in the middle of a handoff, with a subscription not yet carried out.

    Where advertisements are not used they settle at once, which must not hurry the rest.
    """
    text = """
    brokers b0-b1
    link 0.1
    at 0 c attach b0
    at 0.1 c advertise TRUE
    at 1 c attach b1
    at 1.21 c subscribe TRUE
    at 1.24 c attach b0
    at 5 c publish {}
    """
    for protocol in ("sub_unsub", "durable", "none"):
        result = parse_story(f"protocol {protocol}\n{text}").run().result
        assert result.violations == []
        assert result.delivered == 1


# --- brokers that are gone for good ---


def rest_without(network: BrokerNetwork, broker: str) -> None:
    """Until nothing moves, but nothing reaches this broker, which is down."""
    while ways := [way for way, waiting in network.links.items() if waiting and broker not in way]:
        network.arrive_on(*ways[0])


@pytest.mark.parametrize("last_broker", ["", "b3"])
@pytest.mark.parametrize("edges", [LINE, STAR])
def test_an_attach_stops_waiting_for_a_broker_that_is_forgotten(
    edges: list[tuple[str, str]], last_broker: str
) -> None:
    network = settled_at("b3", edges)
    network.attach("c", "b2", last_broker)
    rest_without(network, "b3")
    assert network.roamers["c"].welcome is None, "its session may be where nobody can ask"
    network.lose("b3")
    network.rest()
    check_arrived(network, "b2")


def test_who_asked_and_is_gone_is_not_served() -> None:
    network = settled_at("b0", LINE)
    network.attach("c", "b3")
    network.arrive_on("b3", "b2")
    network.lose("b3")
    network.rest()
    assert network.holders("c") == ["b0"]
    assert network.unfinished() == []
    network.roamers["c"].broker = ""
    network.attach("c", "b2")
    network.rest()
    check_arrived(network, "b2")


@pytest.mark.parametrize("seed", range(200))
def test_wherever_a_broker_is_lost_everyone_else_gets_a_session(seed: int) -> None:
    rng = random.Random(seed)
    network = BrokerNetwork(rng.choice((LINE, STAR)), rng.choice(["none", "reactive", "multi_hop_handoff"]))
    clients = ["c", "d"]
    for _ in range(rng.randrange(1, 8)):
        network.attach(rng.choice(clients), f"b{rng.randrange(4)}", rng.choice(("", "b0", "b3")))
        for _ in range(rng.randrange(12)):
            network.arrive(rng)
    rest_without(network, "b3")
    network.lose("b3")
    for client in clients:
        network.attach(client, f"b{rng.randrange(3)}")
    network.rest(rng)
    for client in clients:
        assert network.holders(client) == [network.roamers[client].broker]
