"""Whole runs, shortened: what comes out must add up, and one seed must decide it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roamcast.errors import InputError
from roamcast.simulator.radio.aodv_program import AodvProgram
from roamcast.simulator.radio.mft_program import MftBroker
from roamcast.simulator.radio.parameters import RadioParameters
from roamcast.simulator.radio.scenario import RadioProtocol, RadioRun, RadioScenario
from roamcast.simulator.radio.workload import SIDES_M, Configuration, Publishing

PROTOCOLS: tuple[RadioProtocol, ...] = ("mft", "aodv")
NO_SHADOWS = RadioParameters(shadowing_db=0.0, asymmetry_db=0.0)


def scenario(protocol: RadioProtocol, brokers: int = 4, speed: float = 8.0, seed: int = 1) -> RadioScenario:
    publishing = Publishing(until_s=30.0)
    return RadioScenario(brokers, speed, protocol, seed, duration_s=45.0, publishing=publishing)


def test_the_density_is_that_of_the_thesis_roughly() -> None:
    for brokers in SIDES_M:
        configuration = Configuration(brokers)
        assert configuration.stations / configuration.side_m**2 == pytest.approx(0.005, rel=0.13)


def test_an_unknown_configuration_is_refused() -> None:
    with pytest.raises(InputError, match="C2, C4, C8, C16, C32"):
        Configuration(3)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_in_a_small_network_nearly_all_arrives(protocol: RadioProtocol) -> None:
    figures = scenario(protocol).run().figures()
    assert figures["published"] == 60
    assert figures["delivered_of_all"] > 0.9
    assert figures["delivered"] <= figures["owed"] <= 60 * 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_where_everyone_hears_everyone_all_that_is_owed_arrives_once(protocol: RadioProtocol) -> None:
    still = replace(scenario(protocol, brokers=2, speed=0.0), parameters=NO_SHADOWS)
    figures = still.run().figures()
    assert figures["delivery_rate"] == 1.0
    assert figures["duplicates"] == 0
    assert figures["hops_max"] <= 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_seed_decides_a_run(protocol: RadioProtocol) -> None:
    one, same = (scenario(protocol, brokers=8).run().figures() for _ in range(2))
    assert one == same
    assert one != scenario(protocol, brokers=8, seed=2).run().figures()


def test_under_aodv_what_finds_no_route_is_given_up_with_its_reason() -> None:
    apart = replace(scenario("aodv", speed=0.0), parameters=replace(NO_SHADOWS, power_dbm=-60.0))
    run = apart.run()
    assert run.figures()["delivered"] == 0
    assert run.ledger.given_up["no route"] > 0
    assert set(run.ledger.given_up) <= {"no route", "too many wait for the route"}


def test_under_aodv_only_publishers_ask_for_routes() -> None:
    run = scenario("aodv", brokers=8).run()
    nodes = [program.aodv for program in run.programs if isinstance(program, AodvProgram)]
    assert len(nodes) == run.configuration.stations
    assert [node.node for node in nodes if node.rreq_number] == list(run.configuration.publisher_numbers)


def brokers_of(run: RadioRun) -> list[MftBroker]:
    return [program for program in run.programs if isinstance(program, MftBroker)]


def test_mft_ends_with_one_tree_where_everyone_hears_everyone() -> None:
    run = replace(scenario("mft", brokers=8, speed=0.0), parameters=replace(NO_SHADOWS, power_dbm=20.0)).run()
    leaders = {broker.election.leader for broker in brokers_of(run)}
    assert leaders == {f"{run.configuration.broker_numbers[0]:04d}"}
    ways = [broker.protocol.routes() for broker in brokers_of(run)]
    assert all(len(routes) == 8 for routes in ways)


def test_mft_brokers_work_more_than_their_clients() -> None:
    figures = scenario("mft", brokers=8).run().figures()
    assert figures["messages_per_broker"] > figures["messages_per_publisher"]
    assert figures["messages_per_broker"] > figures["messages_per_subscriber"]
    assert figures["load_at_0_hops"] > 0


def test_mft_counts_as_owed_only_what_a_broker_could_route() -> None:
    # Nobody is in reach of anybody: nothing is owed, and nothing arrives.
    apart = replace(scenario("mft", speed=0.0), parameters=replace(NO_SHADOWS, power_dbm=-60.0))
    figures = apart.run().figures()
    assert (figures["published"], figures["owed"], figures["delivered"]) == (60, 0, 0)
    assert figures["delivery_rate"] is None
