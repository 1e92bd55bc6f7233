"""How stations move in a square: to random points, or in random steps."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from roamcast.errors import InputError
from roamcast.simulator.radio.reception import Floats


class Movement(Protocol):
    """Positions in metres, one row for each station."""

    positions_m: Floats

    def advance(self, seconds: float) -> None: ...


class RandomWaypoint:
    """Each station goes straight to a random point at a given speed, and then to another (thesis, 4.5.2)."""

    def __init__(self, stations: int, side_m: float, speed: float | Floats, rng: np.random.Generator) -> None:
        """`speed` is one value for all stations, or one for each."""
        check_movement(side_m, float(np.min(speed)))
        self._side_m, self._rng = side_m, rng
        self._speed: Floats = np.broadcast_to(np.asarray(speed, dtype=float), stations)
        self.positions_m: Floats = rng.uniform(0.0, side_m, (stations, 2))
        self._targets_m: Floats = rng.uniform(0.0, side_m, (stations, 2))

    def advance(self, seconds: float) -> None:
        left_m = self._speed * seconds
        while True:
            way = self._targets_m - self.positions_m
            distance_m = np.sqrt((way * way).sum(axis=1))
            arrived = distance_m <= left_m
            if not arrived.any():
                break
            # It goes on to its next point with what is left of this step.
            self.positions_m = np.where(arrived[:, None], self._targets_m, self.positions_m)
            left_m = np.where(arrived, left_m - distance_m, left_m)
            self._targets_m = np.where(
                arrived[:, None], self._rng.uniform(0.0, self._side_m, way.shape), self._targets_m
            )
        self.positions_m = self.positions_m + way * (left_m / np.maximum(distance_m, 1e-12))[:, None]


class RandomWalk:
    """At each tick of a clock every station takes a random direction and distance; walls reflect it.

    The thesis began with it and dropped it, because stations stay near where they started.
    """

    tick_s = 1.0

    def __init__(self, stations: int, side_m: float, speed: float, rng: np.random.Generator) -> None:
        check_movement(side_m, speed)
        self._side_m, self._speed, self._rng = side_m, speed, rng
        self.positions_m: Floats = rng.uniform(0.0, side_m, (stations, 2))
        self._velocity = np.zeros((stations, 2))
        self._until_tick_s = 0.0

    def advance(self, seconds: float) -> None:
        while seconds > 1e-12:
            if self._until_tick_s <= 1e-12:
                self._turn()
            step_s = min(seconds, self._until_tick_s)
            self._step(step_s)
            self._until_tick_s -= step_s
            seconds -= step_s

    def _turn(self) -> None:
        stations = len(self.positions_m)
        angle = self._rng.uniform(0.0, 2.0 * np.pi, stations)
        # The distance of a tick is uniform, with the given speed as its mean.
        speed = self._rng.uniform(0.0, 2.0 * self._speed, stations)
        self._velocity = np.stack([np.cos(angle), np.sin(angle)], axis=1) * speed[:, None]
        self._until_tick_s = self.tick_s

    def _step(self, seconds: float) -> None:
        free = self.positions_m + self._velocity * seconds
        wrapped = np.mod(free, 2.0 * self._side_m)
        self.positions_m = np.where(wrapped > self._side_m, 2.0 * self._side_m - wrapped, wrapped)
        turned = (free < 0.0) | (free > self._side_m)
        self._velocity = np.where(turned, -self._velocity, self._velocity)


class Still:
    """Stations that do not move."""

    def __init__(self, positions_m: Floats) -> None:
        self.positions_m = np.asarray(positions_m, dtype=np.float64)

    def advance(self, seconds: float) -> None:
        pass


def check_movement(side_m: float, speed: float) -> None:
    if side_m <= 0:
        raise InputError(f"side of the area: {side_m:g} m; it must be above 0")
    if speed < 0:
        raise InputError(f"speed: {speed:g} m/s; it must not be below 0")
    if speed > 1000 * side_m:
        raise InputError(f"speed: {speed:g} m/s; at most {1000 * side_m:g} in an area of {side_m:g} m")
