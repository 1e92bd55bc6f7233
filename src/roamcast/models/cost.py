"""Message cost of mobility for each scheme (Gaddah 3.4).

A subscriber is in one of four states: S0 connected, S1 disconnected, S2 handing off to a neighbour of its
broker, S3 handing off elsewhere. The list at the beginning of section 3.4 exchanges S2 and S3; this module
follows matrix 3.9, the text after it and table 3.1, which agree with each other.

Symbols are the thesis's: `alpha_ij` is the probability of going from Si to Sj, xi_n the cost of buffering at
neighbours, xi_m that of fetching from the old broker, xi_n3 that of storing at every broker, xi_s that of
control messages. Matrix 3.9 also has a xi_b, which equation 3.11 makes equal to xi_n.
"""

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from roamcast.errors import InputError

SCHEMES = ("reactive", "proactive", "durable")


def _above_zero(name: str, value: float, unit: str) -> None:
    if not 0.0 < value < math.inf:
        raise InputError(f"{name} must be a number of {unit} above 0, not {value}")


@dataclass(frozen=True, slots=True)
class Roaming:
    """Probabilities of the next state, from S0 (the first three) and from S1 (the others)."""

    alpha_01: float
    alpha_02: float
    alpha_03: float
    alpha_10: float
    alpha_12: float
    alpha_13: float

    def __post_init__(self) -> None:
        values = astuple(self)
        for name, row in (("01, 02 and 03", values[:3]), ("10, 12 and 13", values[3:])):
            # Negated, so that NaN fails too.
            if not (all(0.0 <= value <= 1.0 for value in row) and math.isclose(sum(row), 1.0)):
                given = ", ".join(f"{value:g}" for value in row)
                raise InputError(f"roaming probabilities {name} are {given}; they must add up to 1")


@dataclass(frozen=True, slots=True)
class Handoffs:
    """Mean duration of a handoff: 1/lambda2 to a neighbour, 1/lambda3 elsewhere."""

    neighbour_s: float
    elsewhere_s: float

    def __post_init__(self) -> None:
        _above_zero("handoff to a neighbour", self.neighbour_s, "seconds")
        _above_zero("handoff elsewhere", self.elsewhere_s, "seconds")


# Table 3.1.
CASES: dict[int, Roaming] = {
    1: Roaming(0.1, 0.7, 0.2, 0.4, 0.4, 0.2),
    2: Roaming(0.2, 0.4, 0.4, 0.1, 0.7, 0.2),
    3: Roaming(0.2, 0.7, 0.1, 0.2, 0.7, 0.1),
    4: Roaming(0.2, 0.6, 0.2, 0.3, 0.6, 0.1),
    5: Roaming(0.4, 0.5, 0.1, 0.3, 0.5, 0.2),
}
CONNECT_S = (60.0, 120.0, 300.0, 420.0, 600.0)
DISCONNECT_S = (10.0, 30.0, 60.0, 90.0, 300.0)
STEP_S = 0.001
HANDOFFS: dict[str, Handoffs] = {
    "reactive": Handoffs(3.29, 3.29),
    "proactive": Handoffs(0.32, 3.29),
    "durable": Handoffs(0.05, 0.05),
}


class States(NamedTuple):
    """Share of time in S0, S1, S2 and S3."""

    connected: float
    disconnected: float
    to_neighbour: float
    elsewhere: float


@dataclass(frozen=True, slots=True)
class Setting:
    """Moves of a subscriber, and the duration of each state under each scheme."""

    roaming: Roaming
    connect_s: float
    disconnect_s: float
    handoffs: Mapping[str, Handoffs] = field(default_factory=lambda: dict(HANDOFFS))
    step_s: float = STEP_S

    def __post_init__(self) -> None:
        _above_zero("connect time", self.connect_s, "seconds")
        _above_zero("disconnect time", self.disconnect_s, "seconds")
        _above_zero("sampling step", self.step_s, "seconds")
        for scheme in SCHEMES:
            if scheme not in self.handoffs:
                raise InputError(
                    f"handoff times for {scheme} are missing; there must be some for each scheme"
                )


@dataclass(frozen=True, slots=True)
class Sends:
    """How often each message is sent for a mobile subscriber (N1, N2 and N3 of section 3.4)."""

    buffering: float
    fetching: float = 1.0
    storing: float = 2.0

    def __post_init__(self) -> None:
        _above_zero("sends for buffering", self.buffering, "sends")
        _above_zero("sends for fetching", self.fetching, "sends")
        _above_zero("sends for storing", self.storing, "sends")


class Costs(NamedTuple):
    """Average cost in sends for each published message (equations 3.10, 3.11 and 3.12)."""

    reactive: float
    proactive: float
    durable: float


def state_probabilities(setting: Setting, scheme: str) -> States:
    """Return the stationary distribution of matrix 3.7 (equation 3.15)."""
    if scheme not in SCHEMES:
        raise InputError(f"scheme {scheme!r}: valid are {', '.join(SCHEMES)}")
    roaming, handoffs = setting.roaming, setting.handoffs[scheme]
    # Equation 3.15 divided by p0 p1 p2 p3: the same shares, without products that could vanish.
    visits = (
        1.0,
        roaming.alpha_01,
        roaming.alpha_02 + roaming.alpha_01 * roaming.alpha_12,
        roaming.alpha_03 + roaming.alpha_01 * roaming.alpha_13,
    )
    means_s = (setting.connect_s, setting.disconnect_s, handoffs.neighbour_s, handoffs.elsewhere_s)
    weights = [
        often / _leaving(mean_s, setting.step_s) for often, mean_s in zip(visits, means_s, strict=True)
    ]
    total = sum(weights)
    if not math.isfinite(total):
        raise InputError("the mean times are too long for the sampling step; give a longer step")
    return States(*(weight / total for weight in weights))


def bound_against_reactive(setting: Setting) -> float:
    """Return R1 (equation 3.16): pro-active costs less than reactive if xi_n / xi_m is below it."""
    reactive = state_probabilities(setting, "reactive")
    proactive = state_probabilities(setting, "proactive")
    saved = reactive.to_neighbour + reactive.elsewhere - proactive.elsewhere
    if proactive.disconnected == 0.0:
        # Nothing is ever buffered, so what buffering costs does not matter.
        return math.inf if saved > 0.0 else 0.0
    return saved / proactive.disconnected


def bound_against_durable(setting: Setting, fetch_to_buffer: float) -> float:
    """Return R2 (equation 3.17) for a given xi_m / xi_n: pro-active costs less if xi_n / xi_n3 is
    below it.
    """
    if not 0.0 <= fetch_to_buffer < math.inf:
        raise InputError(f"ratio of fetching to buffering must be a number from 0, not {fetch_to_buffer}")
    proactive = state_probabilities(setting, "proactive")
    share = proactive.disconnected + fetch_to_buffer * proactive.elsewhere
    return 1.0 / share if share > 0.0 else math.inf


def buffer_to_fetch(sends: Sends, disconnect_s: float, elsewhere_s: float = 3.29) -> float:
    """Return the estimate of xi_n / xi_m in table 3.2: N1 lambda1 / (N2 lambda3)."""
    _above_zero("disconnect time", disconnect_s, "seconds")
    _above_zero("handoff elsewhere", elsewhere_s, "seconds")
    return sends.buffering * elsewhere_s / (sends.fetching * disconnect_s)


def average_costs(setting: Setting, sends: Sends, control: float = 0.0) -> Costs:
    """Return each scheme's cost per published message; `control` is xi_s.

    xi_m is assumed to be equal for the reactive and the pro-active scheme, as for equation 3.13.
    """
    if not 0.0 <= control < math.inf:
        raise InputError(f"control cost must be a number from 0, not {control}")
    reactive = state_probabilities(setting, "reactive")
    xi_n = sends.buffering
    xi_m = xi_n / buffer_to_fetch(sends, setting.disconnect_s, setting.handoffs["proactive"].elsewhere_s)
    _, away, to_neighbour, elsewhere = state_probabilities(setting, "proactive")
    controlled = away * setting.roaming.alpha_10 + to_neighbour + elsewhere
    return Costs(
        reactive=(xi_m + control) * (reactive.to_neighbour + reactive.elsewhere),
        proactive=xi_n * away + control * controlled + xi_m * elsewhere,
        durable=sends.storing,
    )


def _leaving(mean_s: float, step_s: float) -> float:
    """Return the probability of leaving a state within one sampling step (p_i, after matrix 3.7)."""
    # Not 1 - exp(-x): the steps are short, and nothing would be left of their small difference.
    # What is too small for a number is not zero either: the caller divides by it, and then says so.
    return -math.expm1(-step_s / mean_s) or math.ulp(0.0)
