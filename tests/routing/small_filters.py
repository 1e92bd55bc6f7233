"""A few filters over a domain so small that every notification in it can be tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from roamcast.filters.filter import Attributes, Filter, Value
from roamcast.filters.selector import parse
from roamcast.protocol.notification import encode_attributes

TEXTS = (
    "TRUE",
    *(f"x BETWEEN {low} AND {high}" for low in range(5) for high in range(low, 5)),
    *("x IN (0, 2)", "x IN (1, 3, 4)", "x <> 2", "x > 1", "x < 3", "x >= 0"),
    *(
        "kind = 'a'",
        "kind = 'b'",
        "kind LIKE 'a%'",
        "kind = 'a' AND x > 1",
        "kind = 'a' AND x BETWEEN 1 AND 2",
    ),
    *("kind = 'b' OR x = 0", "NOT kind = 'a'", "kind IS NULL", "kind IS NULL AND x = 3", "x IS NOT NULL"),
)

FILTERS = tuple(parse(text) for text in TEXTS)


def _domain() -> Iterable[Attributes]:
    for x, kind in itertools.product((None, 0, 1, 2, 3, 4, 2.5), (None, "a", "b", "ab")):
        values: dict[str, Value | None] = {"x": x, "kind": kind}
        yield {name: value for name, value in values.items() if value is not None}


DOMAIN = tuple(_domain())
ENCODED = tuple(encode_attributes(attributes) for attributes in DOMAIN)


def matched(filters: Iterable[Filter]) -> frozenset[int]:
    """Places in DOMAIN that any of the filters matches."""
    held = list(filters)
    return frozenset(
        place for place, attributes in enumerate(DOMAIN) if any(one.matches(attributes) for one in held)
    )
