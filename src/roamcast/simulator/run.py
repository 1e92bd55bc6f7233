"""One checked run: a network, the actions of its clients, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from roamcast.mobility import check_combination, find_protocol
from roamcast.protocol.notification import Message
from roamcast.protocol.records import Row
from roamcast.simulator.checkers import Checker, Edges, Identity, Result
from roamcast.simulator.faults import longest_detour
from roamcast.simulator.hostile import is_of_hostile
from roamcast.simulator.links import longest_s
from roamcast.simulator.location_checks import LocationChecker
from roamcast.simulator.network import Action, Network, NetworkSettings, Traffic
from roamcast.simulator.replicated_network import ReplicatedNetwork
from roamcast.simulator.topology import Topology


@dataclass
class Run:
    """Result of a run."""

    result: Result
    traffic: Traffic
    network: Network
    location: LocationChecker | None = None
    """Observations of clients whose filters depend on their location, if there are any."""


def check_settings(topology: Topology, settings: NetworkSettings) -> None:
    """Refuse invalid settings before any work is done."""
    protocol = find_protocol(settings.protocol)
    check_combination(protocol, settings.routing or protocol.strategies[0], settings.advertisements)
    protocol.check(settings.mobility_settings(topology))


def run_checked(
    topology: Topology,
    settings: NetworkSettings,
    actions: Iterable[Action],
    observe: Callable[[list[Row]], None] | None = None,
    progress: Callable[[float], None] | None = None,
    trace: Callable[[float, str, str, Message], None] | None = None,
    prepare: Callable[[Network], None] | None = None,
    faults: bool = False,
) -> Run:
    """Perform the actions, let the network come to rest, and check everything.

    `prepare` gets the network before the run, so that its caller can observe it during the run. Actions may
    contain faults only with `faults`, which makes the network keep journals.
    """
    check_settings(topology, settings)
    if faults:
        actions = list(actions)
    edges = _edges(topology, settings, longest_detour(actions) if isinstance(actions, list) else 1.0)
    checker = Checker(find_protocol(settings.protocol).promise, edges)
    checker.hostile = settings.hostile
    location = LocationChecker(settings.location) if settings.location.variables else None
    if location is not None:
        observe = _both(location.observe, observe)
    kind = ReplicatedNetwork if settings.replicas else Network
    network = kind(topology, settings, _both(checker.observe, observe), trace, faults)
    if prepare is not None:
        prepare(network)
    network.run(actions, progress)
    result = checker.finish(_stored(network), network.asked())
    _check_at_rest(network, checker)
    return Run(result, network.traffic, network, location)


def _edges(topology: Topology, settings: NetworkSettings, factor: float) -> Edges:
    """Compute tolerances; `factor` is how many times as long as the direct path a link's path may be."""
    bound_s = factor * settings.delay_bound_s(topology)
    return Edges(
        before_leave_s=bound_s + settings.access_delay.high_s + 2 * settings.service_s,
        after_attach_s=bound_s + settings.service_s,
        after_outage_s=factor * longest_s(settings.link_delay, settings.loss),
    )


def _both(
    first: Callable[[list[Row]], None], second: Callable[[list[Row]], None] | None
) -> Callable[[list[Row]], None]:
    if second is None:
        return first

    def observe(rows: list[Row]) -> None:
        first(rows)
        second(rows)

    return observe


def _stored(network: Network) -> set[tuple[str, Identity]]:
    """List every notification that some broker still holds, with its receiver."""
    return {
        (client, (burst.publisher, burst.incarnation, number))
        for broker in network.brokers.values()
        for client, queue in broker.protocol.stored()
        for burst in queue.bursts()
        for number in range(burst.number, burst.number + burst.count)
    }


def _check_at_rest(network: Network, checker: Checker) -> None:
    """Check that nothing is in transit, and that nothing is stored for an attached client."""
    promise = find_protocol(network.settings.protocol).promise
    for kind, text in network.wrongs():
        checker.violate(kind, text)
    for broker in network.brokers.values():
        for reason in broker.unfinished():
            if not is_of_hostile(reason, network.settings.hostile):
                checker.violate("in flight at the end", reason)
        for client, queue in broker.protocol.stored():
            is_hostile = bool(network.settings.hostile) and client.startswith(network.settings.hostile)
            if queue and not is_hostile and (client in broker.attachments or not promise.remainder):
                checker.violate("never drained", f"{len(queue)} notifications for {client} at {broker.id}")
