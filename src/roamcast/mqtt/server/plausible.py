"""Checks a capsule that another broker sent: a value that no broker writes would end this one later.

Only values are checked: their types are those of the capsule's fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.fields import LENGTH_MAX, VARIABLE_MAX
from roamcast.mqtt.codec.packet_ids import PACKET_ID_MAX
from roamcast.mqtt.codec.packets import Will
from roamcast.mqtt.codec.properties import publish_properties
from roamcast.mqtt.codec.topics import check_topic
from roamcast.mqtt.server.access import check_grants
from roamcast.mqtt.server.publishing import described

if TYPE_CHECKING:
    from roamcast.mqtt.server.sessions import Capsule

SECONDS_MAX = 0xFFFF_FFFF
TIME_MAX_S = 1e15
QOS_MAX = 2


def check_capsule(capsule: Capsule) -> None:
    """Raise InputError for a capsule with values that a session cannot have."""
    try:
        _check(capsule)
    except (PacketError, struct.error, OverflowError, ValueError) as error:
        raise InputError(str(error)) from None


def _check(capsule: Capsule) -> None:
    _within(SECONDS_MAX, capsule.expiry_s)
    _are_times(capsule.since, capsule.will_at)
    for one in capsule.subscriptions:
        _check_request(one.filter, one.qos, one.identifier)
        if one.group and parse(one.filter).own:
            raise InputError("a shared subscription that depends on where one client is")
    for recall in capsule.recalls:
        _check_request(recall.filter, recall.qos, recall.identifier)
        _are_times(recall.clock[0])
    for filters in (*capsule.leaving.values(), capsule.silent):
        for filter in filters:
            parse(filter)
    in_flight = capsule.in_flight
    _are_packet_ids((in_flight.next_id, *capsule.received, *in_flight.early, *in_flight.released))
    for *_, packet_id, qos in in_flight.resend:
        _within(QOS_MAX, qos)
        if qos:
            _are_packet_ids((packet_id,))
    if capsule.will is not None:
        _check_will(capsule.will)
    if capsule.identity is not None and capsule.identity.grants is not None:
        check_grants(capsule.identity.grants)


def _check_request(filter: str, qos: int, identifier: int | None) -> None:
    parse(filter)
    _within(QOS_MAX, qos)
    if identifier is not None:
        _within(VARIABLE_MAX, identifier, least=1)


def _check_will(will: Will) -> None:
    check_topic(will.topic)
    if len(will.topic.encode()) > LENGTH_MAX:
        raise InputError("a will with a topic that is too long")
    _within(QOS_MAX, will.qos)
    _within(SECONDS_MAX, will.delay)
    publish_properties(described(will.properties).block)


def _within(most: int, value: int, least: int = 0) -> None:
    if not least <= value <= most:
        raise InputError(f"{value} is not within {least} and {most}")


def _are_packet_ids(ids: Iterable[int]) -> None:
    for one in ids:
        _within(PACKET_ID_MAX, one, least=1)


def _are_times(*times: float) -> None:
    for one in times:
        if not abs(one) < TIME_MAX_S:
            raise InputError(f"{one} is no time")
