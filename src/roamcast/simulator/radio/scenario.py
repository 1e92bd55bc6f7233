"""One run of the thesis's comparison: a configuration, a speed, a protocol and a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from roamcast.errors import InputError
from roamcast.simulator.radio.aodv import AodvSettings
from roamcast.simulator.radio.aodv_program import AodvProgram, AodvPublisher
from roamcast.simulator.radio.ledger import Ledger
from roamcast.simulator.radio.movement import RandomWaypoint
from roamcast.simulator.radio.network import Program, RadioNetwork
from roamcast.simulator.radio.parameters import RadioParameters
from roamcast.simulator.radio.workload import Configuration, Publishing

RadioProtocol = Literal["mft", "aodv"]

PUBLISHING = Publishing()
PARAMETERS = RadioParameters()
AODV = AodvSettings()


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

    def run(self) -> RadioRun:
        configuration = Configuration(self.brokers)
        # Everyone walks the same ways under each protocol.
        movement = RandomWaypoint(
            configuration.stations, configuration.side_m, self.speed, np.random.default_rng([self.seed, 0])
        )
        network = RadioNetwork(self.parameters, movement, configuration.side_m, self.seed)
        ledger = Ledger()
        network.run(self._programs(network, configuration, ledger), self.duration_s)
        return RadioRun(self, configuration, network, ledger)

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
        raise InputError(f"radio protocol {self.protocol!r}: valid are aodv, mft")


@dataclass(frozen=True)
class RadioRun:
    scenario: RadioScenario
    configuration: Configuration
    network: RadioNetwork
    ledger: Ledger

    def figures(self) -> dict[str, Any]:
        """Plain figures of the run."""
        stations = self.network.stations
        sent = [station.sent.total() for station in stations]
        kinds: Counter[str] = Counter()
        for station in stations:
            kinds.update(station.sent)
        air = [station.access.counts for station in stations]
        return {
            **self.ledger.figures(self.scenario.brokers),
            "messages_per_node": sum(sent) / len(sent),
            "messages_by_kind": dict(sorted(kinds.items())),
            "frames": sum(one.frames for one in air),
            "air_share": 8 * sum(one.bytes for one in air) / self.scenario.parameters.bit_rate
            / self.scenario.duration_s,
            "busy": sum(one.busy for one in air),
            "overflow": sum(one.overflow for one in air),
            "given_up": dict(sorted(self.ledger.given_up.items())),
            "events": self.network.events,
        }  # fmt: skip
