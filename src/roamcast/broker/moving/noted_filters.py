"""MQTT subscriptions as filters that carry all their own metadata.

Every broker that moves knows the filters of every subscriber, and nothing else about it. The other data of a
subscription (topic filter as written by the client, QoS, options, owner, time of change) is noted in the
filter, as the condition that an attribute is absent which no notification has. The condition is always true,
and it travels with the filter, also to a partition that lost the rest. A withdrawn subscription leaves a
filter that matches nothing: the condition that this attribute exists. So two parts of a network with
different subscriptions of a client can compare them one by one, and keep the last change of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from roamcast.filters.expression import And, IsNull, conjunction, names_of
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mqtt.server.marks import TOPIC
from roamcast.mqtt.server.sessions import Subscription
from roamcast.state import State

NOTE = "$mqtt "
"""Prefix of the attribute's name."""
FILTER_LENGTH_MAX = 3000
"""Limit for the filter alone; with its note it must still be sendable and parsable."""
NOTED_KEPT = 16_384
WITHDRAWN_KEPT_MAX = 256
"""Withdrawn subscriptions kept per client; older ones are forgotten."""


class Note(msgspec.Struct, frozen=True, array_like=True):
    name: str

    __state__ = State("filter-note")
    changed: int
    """Timestamp of the change."""
    owner: str
    began: int = 0
    """Time of the clean start with which the session began: earlier changes are void."""
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int | None = None
    identity: bool = False


class Noted(NamedTuple):
    """Content of a filter's note."""

    filter: Filter
    note: Note
    subscription: Subscription | None
    """None for a withdrawn subscription."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Note).decode


def noted(subscription: Subscription, owner: str, changed: int, began: int) -> Filter:
    one = subscription
    note = Note(
        one.name, changed, owner, began, one.qos, one.no_local, one.retain_as_published, one.identifier,
        one.identity,
    )  # fmt: skip
    return Filter(conjunction((parse(one.filter).expression, _condition(note))))


def withdrawn(name: str, owner: str, changed: int, began: int) -> Filter:
    return Filter(_condition(Note(name, changed, owner, began)).negated())


def _condition(note: Note) -> IsNull:
    return IsNull(NOTE + _encode(note).decode())


@lru_cache(maxsize=NOTED_KEPT)
def read(filter: Filter) -> Noted | None:
    """Return the note of a filter; None if it has none."""
    parts = filter.expression.children if isinstance(filter.expression, And) else (filter.expression,)
    notes = [one for one in parts if isinstance(one, IsNull) and one.name.startswith(NOTE)]
    if len(notes) != 1:
        return None
    try:
        note = _decode(notes[0].name[len(NOTE) :])
    except msgspec.MsgspecError:
        return None
    if notes[0].negative:
        return Noted(filter, note, None)
    plain = Filter(conjunction(one for one in parts if one is not notes[0]))
    subscription = Subscription(
        note.name, plain.text, note.qos, note.no_local, note.retain_as_published, note.identifier, "",
        note.identity,
    )  # fmt: skip
    return Noted(filter, note, subscription)


def read_all(filters: Iterable[Filter]) -> dict[str, Noted]:
    """Return the notes by name; of several with one name, the last change."""
    found: dict[str, Noted] = {}
    ones = [one for one in map(read, filters) if one is not None]
    began = max((one.note.began for one in ones), default=0)
    for one in ones:
        known = found.get(one.note.name)
        if one.note.changed >= began and (known is None or _order(known) < _order(one)):
            found[one.note.name] = one
    return found


def _order(one: Noted) -> tuple[int, str]:
    return one.note.changed, one.filter.text


def subscriptions_in(filters: Iterable[Filter]) -> dict[str, Subscription]:
    found = read_all(filters)
    return {name: one.subscription for name, one in found.items() if one.subscription is not None}


def began_of(filters: Iterable[Filter]) -> int:
    return max((one.note.began for one in map(read, filters) if one is not None), default=0)


def owners_of(filters: Iterable[Filter]) -> list[str]:
    return [one.note.owner for one in read_all(filters).values()]


def merged(ones: Iterable[Filter], others: Iterable[Filter]) -> tuple[Filter, ...]:
    """Return the last change of each subscription, without those withdrawn long ago."""
    found = read_all([*ones, *others])
    gone = sorted((_order(one), name) for name, one in found.items() if one.subscription is None)
    for _, name in gone[:-WITHDRAWN_KEPT_MAX]:
        del found[name]
    return tuple(one.filter for one in found.values())


def misses(filters: Collection[Filter], others: Collection[Filter]) -> bool:
    """True if `others` has later subscriptions or withdrawals than `filters`."""
    known, both = read_all(filters), read_all([*filters, *others])
    return any(
        _order(known[name]) < _order(one) if name in known else one.subscription is not None
        for name, one in both.items()
    )


@lru_cache(maxsize=NOTED_KEPT)
def asks_more(filter: Filter) -> bool:
    """True if the filter depends on more than the topic."""
    return any(name != TOPIC and not name.startswith(NOTE) for name in sorted(names_of(filter.expression)))
