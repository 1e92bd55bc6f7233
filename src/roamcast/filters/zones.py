"""Replacing zone names in filters by the zones that a broker knows."""

from __future__ import annotations

from collections.abc import Mapping

from roamcast.errors import InputError, did_you_mean
from roamcast.filters.expression import Expression, Inside, mapped
from roamcast.filters.filter import Filter
from roamcast.filters.geography import NamedZone, Region


def with_zones(filter: Filter, zones: Mapping[str, Region]) -> Filter:
    """Return the filter with the zones themselves instead of their names.

    So the filter has the same meaning at every broker, and keeps it when a zone changes.
    """
    if "INSIDE" not in filter.text:
        return filter

    def known(leaf: Expression) -> Expression:
        if not isinstance(leaf, Inside) or not isinstance(leaf.region, NamedZone):
            return leaf
        region = zones.get(leaf.region.name)
        if region is None:
            hint = did_you_mean(leaf.region.name, zones) or f"known are: {', '.join(sorted(zones)) or 'none'}"
            raise InputError(f"zone {leaf.region.name!r} is not known at this broker; {hint}")
        return Inside(leaf.name, region, leaf.negative)

    return Filter(mapped(filter.expression, known))
