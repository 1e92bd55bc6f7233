"""A client whose session is over begins to count at 1 again; its incarnation tells one from the other."""

from __future__ import annotations

from tests.broker.broker_network import Roamer
from tests.broker.linked_network import LinkedNetwork

from roamcast.filters.selector import parse
from roamcast.protocol.effects import Input, SessionOver, Submitted
from roamcast.protocol.messages import ClientPublish, ClientSubscribe
from roamcast.protocol.notification import Burst, encode_attributes

AHEAD_S = 1000.0


class Network(LinkedNetwork):
    """The clock of `a` is ahead of those of the others."""

    def step(self, broker: str, item: Input) -> None:
        self.now += 1.0
        now = self.now + (AHEAD_S if broker == "a" else 0.0)
        self.perform(broker, self.brokers[broker].step(now, [item]))


def network() -> Network:
    made = Network(("a", "b", "c"), "proactive")
    for edge in (("a", "b"), ("b", "c")):
        made.connect(*edge)
        made.rest()
    made.roamers["k"] = Roamer("k", counts=False)
    made.attach("k", "b")
    made.rest()
    made.step("b", Submitted("k", made.roamers["k"].connection, ClientSubscribe(1, parse("n = 1"))))
    made.rest()
    return made


def live(made: Network, broker: str, ends: bool = True) -> tuple[int, int]:
    """A whole life of the publisher: incarnation and number of what it publishes."""
    made.roamers["p"] = Roamer("p", counts=False)
    made.attach("p", broker)
    made.rest()
    made.said.clear()
    connection = made.roamers["p"].connection
    made.step(broker, Submitted("p", connection, ClientPublish(1, encode_attributes({"n": 1}), (b"",))))
    made.rest()
    made.detach("p")
    if ends:
        made.step(broker, SessionOver("p"))
    made.rest()
    (burst,) = [one for _, peer, one in made.said if isinstance(one, Burst) and peer == "b"]
    return burst.incarnation, burst.number


def test_each_session_of_a_publisher_has_a_higher_incarnation_whatever_the_clocks_say() -> None:
    made = network()
    lives = [live(made, broker) for broker in ("c", "a", "c", "c", "a")]
    incarnations = [incarnation for incarnation, _ in lives]
    assert incarnations == sorted(set(incarnations))
    assert [number for _, number in lives] == [1] * 5
    assert made.holders("p") == []


def test_a_session_that_goes_on_keeps_its_incarnation() -> None:
    made = network()
    first = live(made, "c", ends=False)
    made.roamers["p"] = Roamer("p", counts=False)
    made.attach("p", "a")
    made.rest()
    session = made.brokers["a"].sessions["p"]
    assert (session.incarnation, session.published) == first
