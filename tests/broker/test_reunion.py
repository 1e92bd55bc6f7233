"""Two trees join whose brokers hold sessions of the same clients: in the end each client has one."""

from __future__ import annotations

import random

import pytest
from tests.broker.broker_network import Roamer
from tests.broker.linked_network import LinkedNetwork

from roamcast.filters.selector import parse
from roamcast.protocol.effects import Effects, SessionOver, Submitted
from roamcast.protocol.messages import ClientPublish, ClientSubscribe, Request
from roamcast.protocol.notification import encode_attributes

PROTOCOLS = (
    "durable", "home_broker", "multi_hop_handoff", "none", "phoenix", "proactive", "reactive", "relocation",
)  # fmt: skip
FIRST, SECOND = ("a", "b", "c"), ("x", "y", "z")
INSIDE = (("a", "b"), ("b", "c"), ("x", "y"), ("y", "z"))


class Network(LinkedNetwork):
    """Knows when the last session of each client was begun."""

    def __init__(self, names: tuple[str, ...], protocol: str) -> None:
        super().__init__(names, protocol)
        self.begun: dict[str, tuple[float, str]] = {}

    def perform(self, broker: str, effects: Effects) -> None:
        for client, session in self.brokers[broker].sessions.items():
            self.begun[client] = max(self.begun.get(client, session.begun), session.begun)
        super().perform(broker, effects)


def two_trees(protocol: str, rng: random.Random) -> Network:
    network = Network((*FIRST, *SECOND), protocol)
    for pair in INSIDE:
        network.connect(*pair)
        network.rest(rng)
    return network


def submit(network: Network, client: str, message: Request) -> None:
    roamer = network.roamers[client]
    if roamer.broker:
        network.step(roamer.broker, Submitted(client, roamer.connection, message))


def attach(network: Network, client: str, broker: str, *, clean: bool = False) -> None:
    """As a standard client does: it knows nothing of where it was."""
    network.roamers.setdefault(client, Roamer(client, counts=False))
    network.attach(client, broker, clean=clean)


def test_the_session_that_was_begun_later_stays_and_the_other_client_is_told() -> None:
    rng = random.Random(0)
    network = two_trees("multi_hop_handoff", rng)
    attach(network, "k", "z")
    network.rest(rng)
    submit(network, "k", ClientSubscribe(1, parse("n > 1")))
    network.rest(rng)
    network.detach("k")
    attach(network, "k", "a")
    network.rest(rng)
    submit(network, "k", ClientSubscribe(1, parse("n > 2")))
    network.rest(rng)
    assert network.holders("k") == ["a", "z"]
    network.connect("c", "x")
    network.rest(rng)
    assert network.holders("k") == ["a"]
    assert not network.roamers["k"].closed, "its connection is where its session is"
    assert list(network.brokers["a"].sessions["k"].subscriptions) == ["n > 2"]
    assert network.unfinished() == []


def test_a_client_attached_where_its_older_session_was_is_closed_and_finds_the_other() -> None:
    rng = random.Random(0)
    network = two_trees("multi_hop_handoff", rng)
    attach(network, "k", "z")
    network.rest(rng)
    older = network.roamers.pop("k")
    attach(network, "k", "a")
    network.rest(rng)
    network.roamers["k"] = older
    network.connect("c", "x")
    network.rest(rng)
    assert older.closed
    attach(network, "k", "z")
    network.rest(rng)
    assert network.holders("k") == ["z"]
    assert network.brokers["z"].sessions["k"].begun[1] == "a"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("ends", [False, True], ids=["", "sessions end"])
def test_whatever_clients_do_while_two_trees_join_each_has_one_session_in_the_end(
    protocol: str, seed: int, ends: bool
) -> None:
    rng = random.Random(seed)
    network = two_trees(protocol, rng)
    clients = ["k", "l"]
    requests = 0

    def act() -> None:
        nonlocal requests
        client = rng.choice(clients)
        what = rng.random()
        if what < 0.4 or client not in network.roamers:
            attach(network, client, rng.choice((*FIRST, *SECOND)), clean=ends and rng.random() < 0.3)
        elif what < 0.5 and network.roamers[client].broker:
            network.detach(client)
        elif ends and what < 0.6 and network.holders(client):
            network.step(rng.choice(network.holders(client)), SessionOver(client))
        else:
            requests += 1
            attributes = encode_attributes({"n": rng.randrange(5)})
            publish = ClientPublish(requests, attributes, (b"",))
            submit(network, client, publish if what < 0.8 else ClientSubscribe(requests, parse("n > 1")))
        for _ in range(rng.choice((0, 1, 5, 30))):
            network.arrive(rng)

    for _ in range(12):
        act()
    network.connect(rng.choice(FIRST), rng.choice(SECOND))
    for _ in range(12):
        act()
    network.rest(rng)
    for client in clients:
        attach(network, client, rng.choice((*FIRST, *SECOND)))
        network.rest(rng)
        assert network.holders(client) == [network.roamers[client].broker]
        assert network.roamers[client].welcome is not None
        session = network.brokers[network.roamers[client].broker].sessions[client]
        if not ends:
            assert session.begun == network.begun[client], "the one that was begun last has stayed"
    # Neighbours of proactive store for those who are away, for a while.
    assert [one for one in network.unfinished() if not one.startswith("timers")] == []
