"""Reception: path loss, shadowing, bit errors, and the probability that a packet arrives."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from roamcast.errors import InputError
from roamcast.simulator.radio.parameters import RadioParameters

Floats = npt.NDArray[np.float64]

CLEAR_SINR = 4.0
"""Above this ratio (6 dB) less than one bit in 10^15 is wrong."""
STEPS = 4000
CELLS_MAX = 4096
"""Maximum number of cells; the table of the shadowing of every pair then takes 64 MB."""


def milliwatts(dbm: float) -> float:
    return math.pow(10.0, dbm / 10.0)


def bit_error_rate(sinr: float) -> float:
    """Return the bit error rate for a ratio that is not in dB. IEEE 802.15.4-2006, E.4.1.8: O-QPSK with 16
    quasi-orthogonal codes.
    """
    terms = ((-1) ** k * math.comb(16, k) * math.exp(20.0 * sinr * (1.0 / k - 1.0)) for k in range(2, 17))
    return min(0.5, max(0.0, 8.0 / 15.0 / 16.0 * math.fsum(terms)))


@cache
def log_success_table() -> Floats:
    """Return ln(1 - bit error rate) for ratios from 0 to `CLEAR_SINR`; the last entry stands for
    all above.
    """
    rates = [bit_error_rate(CLEAR_SINR * step / STEPS) for step in range(STEPS)]
    table: Floats = np.log1p(-np.array([*rates, 0.0]))
    return table


def log_success(sinr: Floats) -> Floats:
    """Return ln of the probability that one bit arrives, for each ratio."""
    index = np.minimum(sinr * (STEPS / CLEAR_SINR), STEPS).astype(np.intp)
    return log_success_table()[index]


def packet_success(sinr: float, frame_bytes: int) -> float:
    """Return the probability that every bit of a frame arrives."""
    return (1.0 - bit_error_rate(sinr)) ** (8 * frame_bytes)


PACKET_OF_STANDARD_BYTES = 26
"""Standard, 6.1.7: at the sensitivity, one in a hundred packets of 20 bytes is lost; here with preamble."""


@cache
def ratio_needed(lost: float = 0.01, frame_bytes: int = PACKET_OF_STANDARD_BYTES) -> float:
    """Return the ratio of signal to white noise at which this share of packets is lost."""
    low, high = 0.0, CLEAR_SINR
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if 1.0 - packet_success(middle, frame_bytes) > lost else (low, middle)
    return high


def interference_weight(parameters: RadioParameters) -> float:
    """Return by which factor another station's frame disturbs more than white noise of the same power."""
    return milliwatts(parameters.co_channel_rejection_db) / ratio_needed()


def path_loss_db(parameters: RadioParameters, distance_m: Floats) -> Floats:
    """Return the log-distance path loss without shadowing; below 1 m it is that of 1 m."""
    decades = np.log10(np.maximum(distance_m, 1.0))
    return parameters.path_loss_at_1m_db + 10.0 * parameters.path_loss_exponent * decades


class Shadowing:
    """Deviation of a link's loss from the loss at its distance, fixed for each pair of cells.

    A station that moves into the next cell has other walls around it. Both directions of a pair share most of
    the deviation.
    """

    def __init__(self, parameters: RadioParameters, side_m: float, rng: np.random.Generator) -> None:
        self._cell_m = parameters.shadowing_cell_m
        self._across = max(1, math.ceil(side_m / self._cell_m))
        if parameters.shadowing_db == parameters.asymmetry_db == 0.0:
            self._across = 1  # No cell differs from another.
        cells = self._across**2
        if cells > CELLS_MAX:
            raise InputError(
                f"an area of {side_m:g} m has {cells} cells of {self._cell_m:g} m, too many for a table of "
                f"their shadowing; at most {CELLS_MAX}: make shadowing_cell_m larger"
            )
        drawn = np.triu(rng.normal(0.0, 1.0, (cells, cells)) * parameters.shadowing_db)
        common = drawn + np.triu(drawn, 1).T
        difference = np.triu(rng.normal(0.0, 1.0, (cells, cells)) * parameters.asymmetry_db, 1)
        self._loss_db = (common + (difference - difference.T) / 2.0).astype(np.float32)

    def loss_db(self, positions_m: Floats) -> Floats:
        """Return the path loss in dB from each station (row) to each (column)."""
        column_row = np.minimum((positions_m / self._cell_m).astype(np.intp), self._across - 1)
        cell = column_row[:, 0] * self._across + column_row[:, 1]
        loss_db: Floats = self._loss_db[np.ix_(cell, cell)].astype(np.float64)
        return loss_db


def received_mw(parameters: RadioParameters, positions_m: Floats, shadowing: Shadowing) -> Floats:
    """Return the power that each station (row) causes at each other one (column), and 0 at itself."""
    apart = positions_m[:, None, :] - positions_m[None, :, :]
    distance_m = np.sqrt((apart * apart).sum(axis=2))
    loss_db = path_loss_db(parameters, distance_m) + shadowing.loss_db(positions_m)
    power: Floats = 10.0 ** ((parameters.power_dbm - loss_db) / 10.0)
    np.fill_diagonal(power, 0.0)
    return power


def expected_reception(parameters: RadioParameters, distance_m: float, frame_bytes: int) -> float:
    """Return the mean over shadowing of the probability that a frame arrives while nobody else sends.

    Each direction has the shadowing of the pair and half of the difference between directions.
    """
    deviation_db = math.hypot(parameters.shadowing_db, parameters.asymmetry_db / 2.0)
    mean_dbm = parameters.power_dbm - float(path_loss_db(parameters, np.array([distance_m]))[0])
    offsets = np.linspace(-5.0, 5.0, 401)
    weights = np.exp(-(offsets**2) / 2.0)
    total = 0.0
    for offset, weight in zip(offsets, weights, strict=True):
        dbm = mean_dbm + deviation_db * float(offset)
        if dbm >= parameters.sensitivity_dbm:
            total += float(weight) * packet_success(milliwatts(dbm - parameters.noise_floor_dbm), frame_bytes)
    return total / float(weights.sum())
