"""Checks a session that a peer sends: a value that no broker writes would end this one later.

The MQTT side and the protocol check their own parts (`BrokerCore.can_unpack`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

import msgspec

from roamcast.broker.links.crossing import NUMBER_MAX
from roamcast.broker.places import decoded_values
from roamcast.broker.requests import KIND_OF_CHANGE
from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.protocol.session import Session


def is_plausible(session: Session) -> bool:
    """True if counters and times are in range, and filters and deferred requests can be read."""
    counters = (
        session.number, session.moves + 1, session.incarnation, session.published, session.accepted,
        session.copied, session.places_number, session.life, *(request for request, _, _ in session.deferred),
    )  # fmt: skip
    if min(counters) < 0 or max(counters) >= NUMBER_MAX or not session.client:
        return False
    if not all(map(isfinite, _times(session))):
        return False
    try:
        for text in (*session.subscriptions, *session.advertisements):
            parse(text)
        for _, kind, text in session.deferred:
            if kind == "Move":
                decoded_values(text)
            elif kind in KIND_OF_CHANGE:
                parse(text)
            else:
                return False
    except (InputError, msgspec.MsgspecError):
        return False
    return True


def _times(session: Session) -> Iterable[float]:
    yield session.begun[0]
    yield from session.subscriptions.values()
    yield from session.advertisements.values()
    for place in session.places.values():
        yield place.stay_s
        yield from (one for one in (place.value, place.coming) if isinstance(one, float))
    for pace in session.paces.values():
        yield pace.changed_at
        yield from pace.stays_s
    for zone in session.zones.values():
        yield zone.since
