"""What can be set about logical mobility."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from roamcast.errors import InputError
from roamcast.filters.expression import Value
from roamcast.routing.location.pace import Estimate
from roamcast.routing.location.ploc import Rule
from roamcast.routing.location.variables import Variable


class LocationSettings(msgspec.Struct, frozen=True):
    """The same at every broker."""

    variables: Mapping[str, Variable] = {}
    """How each variable of the clients' own state may change; for `location`, the movement graph."""
    stay_s: float | None = None
    """How long clients keep a value at least; None: learnt from the moves of each."""
    stay_first_s: float = 1.0
    """… and what to assume until then."""
    estimate: Estimate = "shortest"
    rule: Rule = Rule()
    measure_every_s: float = 30.0
    """How old the measured round trip of a link may be when a client behind it moves."""
    zones: Mapping[str, str] = {}
    """Names that filters may use for regions of the earth, and the GeoJSON of each."""
    dwell_s: float = 0.0
    """How long a client is in a zone before others are told, and …"""
    hysteresis_m: float = 0.0
    """… how far it must be outside before it has left."""
    told_in: tuple[str, ...] = ()
    """Attributes of a client's own notifications that say where it is (see `told.py`), and …"""
    told_topics: tuple[str, ...] = ()
    """… where it publishes them; empty: anywhere."""
    lent: Mapping[str, Value] = {}
    """For each broker where its clients are that have not said where they are."""

    def check(self) -> None:
        """Refuse what cannot be."""
        for variable in self.variables.values():
            variable.validate()
        for name, value in (("stay_s", self.stay_s), ("stay_first_s", self.stay_first_s)):
            if value is not None and not value >= 0:
                raise InputError(f"{name} {value}: valid is 0 (clients may be anywhere) or more, in seconds")
