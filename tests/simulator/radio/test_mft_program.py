"""Brokers and clients over the air, where links fail on one side only."""

from __future__ import annotations

import numpy as np

from roamcast.mobility.moving.election import ElectionSettings
from roamcast.simulator.radio.ledger import Ledger
from roamcast.simulator.radio.mft_links import Group, Wire
from roamcast.simulator.radio.mft_program import MftBroker, MftClient
from roamcast.simulator.radio.movement import Still
from roamcast.simulator.radio.network import Program, RadioNetwork
from roamcast.simulator.radio.parameters import RadioParameters
from roamcast.simulator.radio.workload import Publishing

PARAMETERS = RadioParameters(shadowing_db=0.0, asymmetry_db=0.0)
PUBLISHER, SUBSCRIBER = 0, 1
PUBLISHING = Publishing(until_s=40.0)


class Deaf(MftClient):
    """A subscriber that hears heartbeats all the time, but what is sent to itself only before and after."""

    deaf_s = (10.0, 32.0)

    def accepts(self, sender: int, message: Wire | Group) -> bool:
        begin, end = self.deaf_s
        return not begin <= self.station.now < end and super().accepts(sender, message)


class Cut(MftBroker):
    """A broker that refuses everything from its neighbour for a while, but hears its heartbeats."""

    cut_s = (10.0, 14.0)

    def accepts(self, sender: int, message: Wire | Group) -> bool:
        begin, end = self.cut_s
        refused = begin <= self.station.now < end and sender in (2, 3)
        return not refused and super().accepts(sender, message)


def run(
    places_m: list[float], subscriber: type[MftClient], broker: type[MftBroker]
) -> tuple[Ledger, list[Program]]:
    """One publisher, one subscriber, and the brokers 2 and more, in a line; 80 s."""
    positions = np.array([[place, 0.0] for place in places_m])
    network = RadioNetwork(PARAMETERS, Still(positions), max(places_m) + 1.0, 1)
    ledger, settings, brokers = Ledger(), ElectionSettings(), range(2, len(places_m))
    clients = [
        kind(
            network.stations[number],
            ledger,
            settings.period_s,
            PUBLISHING,
            subscribers=range(SUBSCRIBER, SUBSCRIBER + 1),
        )
        for number, kind in ((PUBLISHER, MftClient), (SUBSCRIBER, subscriber))
    ]
    kinds = [broker, *[MftBroker] * (len(brokers) - 1)]
    served = [
        kind(network.stations[number], ledger, settings, brokers, range(1), PUBLISHING.content_bytes)
        for number, kind in zip(brokers, kinds, strict=True)
    ]
    programs: list[Program] = [*clients, *served]
    network.run(programs, 80.0)
    return ledger, programs


def test_a_subscriber_that_could_not_be_reached_for_long_gets_everything() -> None:
    ledger, programs = run([0.0, 10.0, 5.0], Deaf, MftBroker)
    figures = ledger.figures()
    assert figures["delivery_rate"] == 1.0
    # Only what was published before it had subscribed is not owed to it.
    assert figures["delivered"] in range(38, 41)
    (broker,) = (program for program in programs if isinstance(program, MftBroker))
    assert broker.station.sent["RELINK"] >= 4


def test_a_link_that_one_side_has_given_up_is_made_again() -> None:
    # The publisher hears only the first broker, the subscriber only the second.
    ledger, programs = run([0.0, 85.0, 25.0, 60.0], MftClient, Cut)
    figures = ledger.figures()
    assert figures["owed"]
    assert figures["delivery_rate"] == 1.0
    first, second = (program for program in programs if isinstance(program, MftBroker))
    assert second.station.number in first._outbox.links
    assert first._outbox.links[3] == second._outbox.links[2]


def test_hops_are_counted_from_the_publisher() -> None:
    ledger, _ = run([0.0, 85.0, 25.0, 60.0], MftClient, MftBroker)
    assert ledger.figures()["hops_max"] == 3
