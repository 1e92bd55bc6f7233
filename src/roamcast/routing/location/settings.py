"""Settings of logical mobility."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from roamcast.errors import InputError
from roamcast.filters.expression import Value
from roamcast.routing.location.pace import Estimate
from roamcast.routing.location.ploc import Rule
from roamcast.routing.location.variables import Variable


class LocationSettings(msgspec.Struct, frozen=True):
    """Settings that are the same at every broker."""

    variables: Mapping[str, Variable] = {}
    """Rules for the variables of the clients' own state; for `location`, the movement graph."""
    stay_s: float | None = None
    """Minimum time that clients keep a value; None: learnt from each client's changes."""
    stay_first_s: float = 1.0
    """Assumed minimum until it is learnt."""
    estimate: Estimate = "shortest"
    rule: Rule = Rule()
    measure_every_s: float = 30.0
    """Maximum age of a link's measured round trip when a client behind it moves."""
    zones: Mapping[str, str] = {}
    """Names that filters may use for regions of the earth, with the GeoJSON of each."""
    dwell_s: float = 0.0
    """Seconds that a client must be in a zone before its entry is published."""
    hysteresis_m: float = 0.0
    """Distance outside a zone at which a client has left it."""
    told_in: tuple[str, ...] = ()
    """Attributes of a client's notifications that report its location (see `told.py`)."""
    told_topics: tuple[str, ...] = ()
    """Topics of those notifications; empty: any topic."""
    lent: Mapping[str, Value] = {}
    """Broker to the assumed location of its clients that never reported one."""

    def check(self) -> None:
        """Refuse invalid settings."""
        for variable in self.variables.values():
            variable.validate()
        for name, value in (("stay_s", self.stay_s), ("stay_first_s", self.stay_first_s)):
            if value is not None and not value >= 0:
                raise InputError(f"{name} {value}: valid is 0 (clients may be anywhere) or more, in seconds")
