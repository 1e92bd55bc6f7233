"""A network of stations on one radio channel: virtual time, one seed decides everything.

Each station runs a program, a pure machine that gets arrivals, failed sends and due timers as inputs, and
acts through its `Station`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from roamcast.simulator.engine import Engine
from roamcast.simulator.radio.channel import EVERYONE, Channel
from roamcast.simulator.radio.medium_access import MediumAccess
from roamcast.simulator.radio.movement import Movement
from roamcast.simulator.radio.parameters import RadioParameters
from roamcast.simulator.radio.reception import Shadowing


class Program(Protocol):
    """Interface of a station's program."""

    def on_start(self) -> None: ...

    def accepts(self, sender: int, message: Any) -> bool:
        """Return whether a unicast message is acknowledged; otherwise it is treated as not received."""

    def on_received(self, sender: int, message: Any) -> None: ...

    def on_sent(self, destination: int, message: Any) -> None:
        """Handle that a unicast message was acknowledged, or that a broadcast is over."""

    def on_send_failed(self, destination: int, message: Any) -> None:
        """Handle that a message could not be sent: no acknowledgement came, or the channel was never free."""


class Station:
    """The network as seen by a program."""

    def __init__(self, network: RadioNetwork, number: int, access: MediumAccess) -> None:
        self.number = number
        self.access = access
        self.chance = random.Random(network.chance.random())
        self.sent: Counter[str] = Counter()
        """Messages by kind; repeated frames and acknowledgements are not messages."""
        self._network = network

    @property
    def now(self) -> float:
        return self._network.now

    @property
    def payload_bytes_max(self) -> int:
        """Return the largest payload of one frame."""
        return self._network.parameters.payload_bytes_max

    def broadcast(self, kind: str, message: Any, payload_bytes: int) -> bool:
        return self.unicast(EVERYONE, kind, message, payload_bytes)

    def unicast(self, destination: int, kind: str, message: Any, payload_bytes: int) -> bool:
        """Queue a unicast message. Returns False if the queue is full: neither `on_sent` nor `on_send_failed`
        follows then.
        """
        self.sent[kind] += 1
        return self.access.send(destination, message, payload_bytes)

    def set_timer(self, at: float, then: Callable[..., Any], *about: Any) -> None:
        """Call `then(*about)` at that time."""
        self._network.push(at, lambda *_: then(*about))


class RadioNetwork(Engine):
    def __init__(
        self,
        parameters: RadioParameters,
        movement: Movement,
        side_m: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.parameters = parameters
        self.movement = movement
        self.chance = random.Random(seed)
        self.programs: Sequence[Program] = ()
        rng = np.random.default_rng([seed, 1])
        self.channel = Channel(parameters, movement.positions_m, Shadowing(parameters, side_m, rng), rng)
        self.stations = [self._new_station(number) for number in range(len(movement.positions_m))]
        accesses = [station.access for station in self.stations]
        for access in accesses:
            access.peers = accesses

    def _new_station(self, number: int) -> Station:
        chance = random.Random(self.chance.random())
        access = MediumAccess(number, self.parameters, self.channel, self, chance)
        return Station(self, number, access)

    def run(self, programs: Sequence[Program], until_s: float) -> None:
        """Start all stations, and simulate until that time."""
        self.programs = programs
        self.push(self.now + self.parameters.move_every_s, self._move)
        for program in programs:
            program.on_start()
        self.go(until_s=until_s)
        self.now = until_s

    def _move(self, *_: None) -> None:
        self.movement.advance(self.parameters.move_every_s)
        self.channel.move(self.movement.positions_m)
        self.push(self.now + self.parameters.move_every_s, self._move)
