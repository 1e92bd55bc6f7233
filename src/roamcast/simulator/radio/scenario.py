"""One run of the thesis's comparison: a configuration, a speed, a protocol and a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from roamcast.errors import InputError
from roamcast.mobility.moving.election import ElectionSettings
from roamcast.mobility.moving.mft import Mft
from roamcast.mobility.moving.mobile import MobileProtocol
from roamcast.simulator.radio.aodv import AodvSettings
from roamcast.simulator.radio.aodv_program import AodvProgram, AodvPublisher
from roamcast.simulator.radio.ledger import Ledger, Notification
from roamcast.simulator.radio.mft_links import LINKS, LinkSettings
from roamcast.simulator.radio.mft_program import MftBroker, MftClient, number_of
from roamcast.simulator.radio.movement import RandomWaypoint
from roamcast.simulator.radio.network import Program, RadioNetwork
from roamcast.simulator.radio.parameters import RadioParameters
from roamcast.simulator.radio.workload import Configuration, Publishing
from roamcast.simulator.tree_shape import TreeWatch

RadioProtocol = Literal["mft", "aodv"]

PUBLISHING = Publishing()
PARAMETERS = RadioParameters()
AODV = AodvSettings()
ELECTION = ElectionSettings()


@dataclass(frozen=True)
class RadioScenario:
    brokers: int
    speed: float
    protocol: RadioProtocol
    seed: int
    duration_s: float = 700.0
    publishing: Publishing = PUBLISHING
    parameters: RadioParameters = PARAMETERS
    aodv: AodvSettings = AODV
    election: ElectionSettings = ELECTION
    links: LinkSettings = LINKS
    slow_speed: float | None = None
    """Speed of every second station, beginning with the first; None if all have the same speed."""
    rules: type[MobileProtocol] = Mft
    """Rules of MFT-PubSub: corrected, as published, or those of the first approach."""

    def run(self) -> RadioRun:
        configuration = Configuration(self.brokers)
        # Everyone walks the same ways under each protocol.
        speeds = np.array([self.speed_of(number) for number in range(configuration.stations)])
        movement = RandomWaypoint(
            configuration.stations, configuration.side_m, speeds, np.random.default_rng([self.seed, 0])
        )
        network = RadioNetwork(self.parameters, movement, configuration.side_m, self.seed)
        ledger = Ledger()
        programs = self._programs(network, configuration, ledger)
        brokers = [program for program in programs if isinstance(program, MftBroker)]
        watch = TreeWatch(lambda: {one.election.me: one.election.parent for one in brokers})
        if brokers:
            look_at_times(network, watch, self.election.period_s)
        network.run(programs, self.duration_s)
        return RadioRun(self, configuration, network, ledger, programs, watch)

    def speed_of(self, station: int) -> float:
        return self.speed if self.slow_speed is None or station % 2 else self.slow_speed

    def _programs(
        self, network: RadioNetwork, configuration: Configuration, ledger: Ledger
    ) -> Sequence[Program]:
        if self.protocol == "aodv":
            subscribers = configuration.subscriber_numbers
            return [
                AodvPublisher(station, ledger, self.aodv, self.publishing, subscribers)
                if station.number in configuration.publisher_numbers
                else AodvProgram(station, ledger, self.aodv)
                for station in network.stations
            ]
        if self.protocol != "mft":
            raise InputError(f"radio protocol {self.protocol!r}: valid are aodv, mft")
        brokers = configuration.broker_numbers
        return [
            MftBroker(
                station,
                ledger,
                self.election,
                brokers,
                configuration.publisher_numbers,
                self.publishing.content_bytes,
                self.links,
                self.rules,
                self.speed_of(station.number),
            )
            if station.number in brokers
            else MftClient(
                station,
                ledger,
                self.election.period_s,
                self.publishing,
                subscribers=configuration.subscriber_numbers,
                links=self.links,
            )
            for station in network.stations
        ]


def look_at_times(network: RadioNetwork, watch: TreeWatch, every_s: float) -> None:
    """Yield a sampling time for each heartbeat period."""

    def look(*_: None) -> None:
        watch.look()
        network.push(network.now + every_s, look)

    network.push(every_s, look)


HOPS_MAX = 3
"""Brokers at this distance from the leader or more are counted together."""

NEAR_HOPS = 1
"""Brokers up to this distance count as near the leader, including the leader."""


@dataclass(frozen=True)
class RadioRun:
    scenario: RadioScenario
    configuration: Configuration
    network: RadioNetwork
    ledger: Ledger
    programs: Sequence[Program]
    watch: TreeWatch

    def figures(self) -> dict[str, Any]:
        """Return the figures of the run as plain data."""
        stations, configuration = self.network.stations, self.configuration
        air = [station.access.counts for station in stations]
        return {
            **self.ledger.figures(self._stored()),
            "messages": sum(station.sent.total() for station in stations),
            "messages_per_node": self._messages_per(range(configuration.stations)),
            "messages_per_publisher": self._messages_per(configuration.publisher_numbers),
            "messages_per_subscriber": self._messages_per(configuration.subscriber_numbers),
            "messages_per_broker": self._messages_per(configuration.broker_numbers),
            **self._load(),
            **self.watch.figures(),
            "migrations": sum(one.migrations for one in self.programs if isinstance(one, MftBroker)),
            "frames": sum(one.frames for one in air),
            "air_s": 8 * sum(one.bytes for one in air) / self.scenario.parameters.bit_rate,
            "busy": sum(one.busy for one in air),
            "overflow": sum(one.overflow for one in air),
            "given_up": self.ledger.given_up.total(),
            "events": self.network.steps,
        }

    def _stored(self) -> Iterator[tuple[Notification, int]]:
        """Return what brokers store for subscribers that they cannot reach."""
        for program in self.programs:
            if isinstance(program, MftBroker):
                for subscriber, bursts in program.protocol.queues.items():
                    for burst in bursts:
                        yield (number_of(burst.publisher), burst.number), number_of(subscriber)

    def sent_by_kind(self) -> dict[str, int]:
        kinds: Counter[str] = Counter()
        for station in self.network.stations:
            kinds.update(station.sent)
        return dict(sorted(kinds.items()))

    def _messages_per(self, numbers: range) -> float:
        return sum(self.network.stations[number].sent.total() for number in numbers) / len(numbers)

    def _load(self) -> dict[str, float | None]:
        """Return the messages that a broker sends in a heartbeat period, by its distance from its leader."""
        messages, periods = [0] * (HOPS_MAX + 1), [0] * (HOPS_MAX + 1)
        for program in self.programs:
            for hops, load in program.load.items() if isinstance(program, MftBroker) else ():
                messages[min(hops, HOPS_MAX)] += load.messages
                periods[min(hops, HOPS_MAX)] += load.periods
        places = {f"load_at_{hops}_hops": (hops, hops + 1) for hops in range(HOPS_MAX + 1)}
        places["load_far"] = NEAR_HOPS + 1, HOPS_MAX + 1
        return {
            name: sum(messages[low:high]) / sum(periods[low:high]) if sum(periods[low:high]) else None
            for name, (low, high) in places.items()
        }
