"""Sessions that end, under every protocol: nothing of them stays anywhere, and a new one can begin."""

import pytest

from roamcast.mobility.base import PROTOCOLS
from roamcast.protocol.effects import Attached, AttachTo, LeaveFor, PublishThis, SessionOver, SubscribeTo
from roamcast.protocol.messages import Hello
from roamcast.protocol.notification import encode_attributes
from roamcast.simulator.network import Action, Network, NetworkSettings
from roamcast.simulator.topology import from_edges

PLACES = from_edges("line", ("a", "b", "c", "d"), [("a", "b"), ("b", "c"), ("c", "d")])
NEWS = encode_attributes({"topic": "news"})
FILTER = "topic = 'news'"
NAMES = sorted(name for name in PROTOCOLS if ":" not in name)


def roamed(protocol: str, moves: list[tuple[float, str]]) -> Network:
    """A client has subscribed, gone from place to place and away; others went on publishing."""
    network = Network(PLACES, NetworkSettings(protocol=protocol), lambda rows: None)
    actions: list[Action] = [(0.0, "w", AttachTo("d", 0)), (0.0, "r", AttachTo("a", 0))]
    actions.append((1.0, "r", SubscribeTo(FILTER)))
    for at, place in moves:
        actions.append((at, "r", AttachTo(place, 0) if place else LeaveFor()))
    actions += [(2.0 + 0.05 * n, "w", PublishThis(NEWS, (b"x",))) for n in range(100)]
    network.run(sorted(actions, key=lambda action: action[0]))
    return network


def remains(network: Network) -> list[str]:
    """What is known anywhere of the reader."""
    found = []
    for name, broker in network.brokers.items():
        found += [f"{what} at {name}" for what in broker.unfinished()]
        found += [f"a session at {name}"] if "r" in broker.sessions else []
        stored = [queue for client, queue in broker.protocol.stored() if client == "r" and queue]
        found += [f"{len(queue)} stored at {name}" for queue in stored]
        found += [f"{filter} for {whom} at {name}" for filter, whom in broker.router.table.entries()]
    return found


def holder_of(network: Network) -> str:
    return next(name for name, broker in network.brokers.items() if "r" in broker.sessions)


@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize(
    "moves",
    [
        [(3.0, "")],
        [(3.0, ""), (3.5, "c"), (5.0, "")],
        [(3.0, ""), (3.5, "c"), (3.505, ""), (3.51, "b"), (3.52, "")],
    ],
    ids=["away", "moved", "interrupted"],
)
def test_nothing_is_left_of_a_session_that_is_over(protocol: str, moves: list[tuple[float, str]]) -> None:
    network = roamed(protocol, moves)
    network.step(holder_of(network), (SessionOver("r"),))
    network.run()
    if network.brokers["a"].protocol.promise.remainder:
        pytest.skip(f"{protocol} leaves subscriptions at every broker that was visited, by its own rules")
    assert remains(network) == []


@pytest.mark.parametrize("protocol", NAMES)
def test_a_clean_attach_elsewhere_ends_the_old_session_first(protocol: str) -> None:
    network = roamed(protocol, [(3.0, ""), (3.5, "c"), (5.0, "")])
    if network.brokers["a"].protocol.promise.remainder:
        pytest.skip(f"{protocol} leaves subscriptions at every broker that was visited, by its own rules")
    network.step("b", (Attached("r", 1000, Hello("r", 99, clean=True)),))
    network.run()
    (session,) = [broker.sessions["r"] for broker in network.brokers.values() if "r" in broker.sessions]
    assert session.subscriptions == {}
    assert holder_of(network) == "b"
    assert [one for one in remains(network) if not one.startswith("a session")] == []
