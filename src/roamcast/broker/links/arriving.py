"""Checks a session that a peer sends: a value that no broker writes would end this one later.

The MQTT side and the protocol check their own parts (`BrokerCore.can_unpack`).
"""

from __future__ import annotations

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


def _times(session: Session) -> list[float]:
    times = [session.begun[0], *session.subscriptions.values(), *session.advertisements.values()]
    for place in session.places.values():
        times += place.stay_s, *(one for one in (place.value, place.coming) if isinstance(one, float))
    for pace in session.paces.values():
        times += pace.changed_at, *pace.stays_s
    for zone in session.zones.values():
        times.append(zone.since)
    return times
