"""MQTT subscriptions as filters that say all about themselves.

Every broker that moves knows the filters of every subscriber, and nothing else about it. What else MQTT
wants to know of a subscription (its topic filter as the client wrote it, QoS, options, whose it is) is
noted in the filter: as a condition on an attribute that no notification has, and that is therefore always
true. So it is wherever the filter is, also in a part of the network that has lost the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from roamcast.filters.expression import And, Expression, IsNull, conjunction, names_of
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mqtt.marks import TOPIC
from roamcast.mqtt.sessions import Subscription

NOTE = "$mqtt "
"""Begins the name of the attribute."""
FILTER_LENGTH_MAX = 3000
"""Of the filter alone; with its note it must still be one that can be sent and parsed."""
NOTED_KEPT = 16_384


class Note(msgspec.Struct, frozen=True, array_like=True):
    name: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None
    identity: bool
    owner: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Note).decode


@lru_cache(maxsize=NOTED_KEPT)
def noted(subscription: Subscription, owner: str) -> Filter:
    one = subscription
    note = Note(one.name, one.qos, one.no_local, one.retain_as_published, one.identifier, one.identity, owner)
    return Filter(conjunction((parse(one.filter).expression, IsNull(NOTE + _encode(note).decode()))))


@lru_cache(maxsize=NOTED_KEPT)
def read_note(filter: Filter) -> tuple[Subscription, str] | None:
    """The subscription, and whose it is; None if there is no note."""
    parts = filter.expression.children if isinstance(filter.expression, And) else (filter.expression,)
    notes = [one.name for one in parts if isinstance(one, IsNull) and _is_note(one)]
    try:
        note = _decode(notes[0][len(NOTE) :]) if len(notes) == 1 else None
    except msgspec.MsgspecError:
        note = None
    if note is None:
        return None
    plain = Filter(conjunction(one for one in parts if not _is_note(one)))
    subscription = Subscription(
        note.name, plain.text, note.qos, note.no_local, note.retain_as_published, note.identifier, "",
        note.identity,
    )  # fmt: skip
    return subscription, note.owner


def _is_note(part: Expression) -> bool:
    return isinstance(part, IsNull) and not part.negative and part.name.startswith(NOTE)


def subscriptions_in(filters: Iterable[Filter]) -> dict[str, Subscription]:
    """By name."""
    found = [read_note(filter) for filter in filters]
    return {one[0].name: one[0] for one in found if one is not None}


def owners_of(filters: Iterable[Filter]) -> list[str]:
    found = [read_note(filter) for filter in filters]
    return [one[1] for one in found if one is not None]


@lru_cache(maxsize=NOTED_KEPT)
def asks_more(filter: Filter) -> bool:
    """Whether it depends on more than the topic."""
    return any(name != TOPIC and not name.startswith(NOTE) for name in sorted(names_of(filter.expression)))
