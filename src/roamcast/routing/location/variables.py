"""Rules by which a variable of a client's own state may change in a few steps.

The rules of a location are the movement graph. For a number, such as the money that a client can still spend,
it may be enough to know how far it falls or rises in one step.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol, runtime_checkable

import msgspec

from roamcast.errors import InputError
from roamcast.filters.expression import Value
from roamcast.filters.own import Possible, Span
from roamcast.state import State


@runtime_checkable  # Values read from a journal are checked against this.
class Variable(Protocol):
    @property
    def is_metric(self) -> bool:
        """True for a position on the earth: distances from it are in metres."""

    def validate(self) -> None:
        """Refuse invalid rules."""

    def check(self, value: Value) -> None:
        """Refuse invalid values of this variable."""

    def is_step(self, start: Value, end: Value) -> bool:
        """True if the variable can change like this in one step."""

    def near(self, values: tuple[Value, ...], steps: float, within: float) -> Possible:
        """Return the values at most `within` away from what the variable may be, `steps` steps after these
        values."""


class NumberSteps(msgspec.Struct, frozen=True):
    """A number between two bounds that changes by limited amounts per step."""

    fall: float
    rise: float
    lowest: float = -1e300
    highest: float = 1e300

    is_metric: ClassVar[bool] = False

    __state__ = State("number-steps")

    def validate(self) -> None:
        if not (0 <= self.fall < math.inf and 0 <= self.rise < math.inf):
            raise InputError(f"a step of -{self.fall} to +{self.rise}: valid are 0 or more, and finite")
        if not -1e300 <= self.lowest <= self.highest <= 1e300:
            raise InputError(f"{self.lowest} to {self.highest}: valid is a range within -1e300 to 1e300")

    def check(self, value: Value) -> None:
        if isinstance(value, bool | str) or not self.lowest <= value <= self.highest:
            raise InputError(f"value {value!r}: valid is a number from {self.lowest:g} to {self.highest:g}")

    def is_step(self, start: Value, end: Value) -> bool:
        assert not isinstance(start, str)
        assert not isinstance(end, str)
        return -self.fall <= end - start <= self.rise

    def near(self, values: tuple[Value, ...], steps: float, within: float) -> Possible:
        if steps == math.inf:
            return None
        numbers = [value for value in values if not isinstance(value, str)]
        low = max(min(numbers) - self.fall * steps, self.lowest)
        high = min(max(numbers) + self.rise * steps, self.highest)
        return Span(low - within, high + within, is_exact=steps == 0 and len(values) == 1)
