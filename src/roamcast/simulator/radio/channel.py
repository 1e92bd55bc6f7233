"""The shared channel: who receives what, with all other transmissions as interference.

Interference adds up (SINR). A frame is divided into intervals during which the same stations transmit, and
every bit must survive its interval; so of two simultaneous frames the stronger may still arrive.

A broadcast is computed for all stations at once with numpy. A unicast frame matters to one receiver only, and
there plain floats are several times faster than arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roamcast.simulator.radio.parameters import RadioParameters
from roamcast.simulator.radio.reception import (
    CLEAR_SINR,
    STEPS,
    Floats,
    Shadowing,
    interference_weight,
    log_success,
    log_success_table,
    milliwatts,
    received_mw,
)

EVERYONE = -1
"""The destination of a broadcast."""


@dataclass(slots=True, eq=False)
class Transmission:
    """A frame on the air."""

    sender: int
    destination: int
    ends_at: float
    power_row: list[float]
    power_mw: Floats
    log_arrived: Floats | None = None
    """For each station: ln of the probability that all bits so far have arrived."""
    log_arrived_one: float = 0.0
    """Like `log_arrived`, for the destination of a unicast frame."""


class Channel:
    def __init__(
        self, parameters: RadioParameters, positions_m: Floats, shadowing: Shadowing, rng: np.random.Generator
    ) -> None:
        self._parameters = parameters
        self._shadowing = shadowing
        self._rng = rng
        self._noise_mw = milliwatts(parameters.noise_floor_dbm)
        self._weight = interference_weight(parameters)
        self._sensitivity_mw = milliwatts(parameters.sensitivity_dbm)
        self._clear_mw = milliwatts(parameters.clear_channel_dbm)
        self._table: list[float] = log_success_table().tolist()
        self._on_air: list[Transmission] = []
        self._settled_at = 0.0
        self.move(positions_m)

    def move(self, positions_m: Floats) -> None:
        """Move the stations. Frames on the air keep the power with which they began."""
        self.power_mw = received_mw(self._parameters, positions_m, self._shadowing)
        self._rows: list[list[float]] = self.power_mw.tolist()
        self._log_clean = log_success(self.power_mw / self._noise_mw)
        self._log_heard = np.where(self.power_mw >= self._sensitivity_mw, 0.0, -np.inf)

    def is_busy(self, station: int) -> bool:
        """Return whether the station senses a transmission, or transmits itself."""
        power_mw = 0.0
        for transmission in self._on_air:
            if transmission.sender == station:
                return True
            power_mw += transmission.power_row[station]
        return power_mw >= self._clear_mw

    def is_sending(self, station: int) -> bool:
        return any(transmission.sender == station for transmission in self._on_air)

    def begin(self, now: float, sender: int, destination: int, air_s: float) -> Transmission:
        """Let a station that is not sending begin a frame."""
        self._settle(now)
        frame = Transmission(sender, destination, now + air_s, self._rows[sender], self.power_mw[sender])
        if destination == EVERYONE:
            frame.log_arrived = self._log_heard[sender].copy()
        elif frame.power_row[destination] < self._sensitivity_mw:
            frame.log_arrived_one = -math.inf
        for other in self._on_air:
            # Nobody hears while sending.
            _deafen(frame, other.sender)
            _deafen(other, sender)
        self._on_air.append(frame)
        return frame

    def end(self, now: float, frame: Transmission) -> list[int]:
        """End a frame, and return who has received it."""
        self._settle(now)
        self._on_air.remove(frame)
        if frame.log_arrived is None:
            arrived = self._rng.random() < math.exp(frame.log_arrived_one)
            return [frame.destination] if arrived else []
        chances = np.exp(frame.log_arrived)
        received: list[int] = np.flatnonzero(self._rng.random(len(chances)) < chances).tolist()
        return received

    def _settle(self, now: float) -> None:
        """Account for the interval that ends now."""
        bits = (now - self._settled_at) * self._parameters.bit_rate
        self._settled_at = now
        if bits <= 0.0:
            return
        alone = len(self._on_air) == 1
        for frame in self._on_air:
            if frame.log_arrived is None:
                frame.log_arrived_one += bits * self._log_success_one(frame)
            elif alone:
                frame.log_arrived += bits * self._log_success_alone(frame)
            else:
                frame.log_arrived += bits * self._log_success_among(frame)

    def _log_success_alone(self, frame: Transmission) -> Floats:
        if frame.power_row is self._rows[frame.sender]:
            clean: Floats = self._log_clean[frame.sender]
            return clean
        return log_success(frame.power_mw / self._noise_mw)

    def _log_success_among(self, frame: Transmission) -> Floats:
        others_mw = np.zeros_like(frame.power_mw)
        for other in self._on_air:
            if other is not frame:
                others_mw += other.power_mw
        return log_success(frame.power_mw / (self._noise_mw + self._weight * others_mw))

    def _log_success_one(self, frame: Transmission) -> float:
        station = frame.destination
        others_mw = 0.0
        for other in self._on_air:
            if other is not frame:
                others_mw += other.power_row[station]
        sinr = frame.power_row[station] / (self._noise_mw + self._weight * others_mw)
        return self._table[int(sinr * (STEPS / CLEAR_SINR))] if sinr < CLEAR_SINR else 0.0


def _deafen(frame: Transmission, station: int) -> None:
    if frame.log_arrived is not None:
        frame.log_arrived[station] = -math.inf
    elif frame.destination == station:
        frame.log_arrived_one = -math.inf
