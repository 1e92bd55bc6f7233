"""Notifications at the border of a link: their form, and their names on its two sides.

Nothing here depends on who may speak for whom: that is the border's (`border.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from roamcast.broker.links.guard import Guard, Refused
from roamcast.broker.links.rules import TOPIC
from roamcast.errors import InputError
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.properties import publish_properties
from roamcast.mqtt.server.marks import EXPIRY
from roamcast.protocol.messages import Message
from roamcast.protocol.notification import Burst, encode_attributes

NUMBER_MAX = 1 << 62
"""Limit of counters; sums of larger ones would not fit into a message."""
WITHHELD = encode_attributes({TOPIC: "$withheld"})
EXPIRED = b"\x02\0\0\0\0"
"""The MQTT property that expires a message after 0 s, so that it is not delivered."""
MARKS_MAX = 4096
"""Limit of remembered marks."""


class Crossing:
    def __init__(self, is_mqtt: bool) -> None:
        self._is_mqtt = is_mqtt
        self.marks: dict[bytes, bool] = {}
        """Marks that were looked at, and whether they are well-formed."""

    def translated(self, guard: Guard, burst: Burst) -> Burst:
        """Translate a burst to names of this side, if all its notifications may pass."""
        self.check_form(burst)
        try:
            if not burst.varied:
                passed = guard.incoming.attributes(burst.attributes)
                if passed is None:
                    raise Refused("topic")
                if passed is burst.attributes or passed == burst.attributes:
                    return burst
                return msgspec.structs.replace(burst, attributes=passed)
            varied = [guard.incoming.attributes(one) for one in burst.varied]
        except InputError:
            raise Refused("form") from None
        places = [place for place, one in enumerate(varied) if one is not None]
        if not places:
            raise Refused("topic")
        # Numbered notifications stay consecutive: only the first run of permitted ones passes.
        if len(places) < len(varied):
            if burst.number:
                end = next((n for n, place in enumerate(places) if place != places[0] + n), len(places))
                burst = burst.part(places[0], places[0] + end)
                places = places[:end]
            else:
                burst = burst.pick(places)
        if not burst.varied:
            passed = varied[places[0]]
            assert passed is not None
            return msgspec.structs.replace(burst, attributes=passed)
        return msgspec.structs.replace(burst, varied=tuple([varied[place] for place in places]))

    def check_form(self, burst: Burst) -> None:
        count = burst.count
        if count < 1 or count != len(burst.bodies) or (burst.varied and len(burst.varied) != count):
            raise Refused("form")
        if not 0 <= burst.number < NUMBER_MAX or not 0 <= burst.incarnation < NUMBER_MAX:
            raise Refused("form")
        if type(burst) is Burst and not burst.number:
            raise Refused("form")
        if not -1e15 < burst.published_at < 1e15:
            raise Refused("form")
        if self._is_mqtt and not self.are_marks(burst.marks):
            raise Refused("form")

    def are_marks(self, marks: bytes) -> bool:
        known = self.marks.get(marks)
        if known is None:
            known = _are_marks(marks)
            if len(self.marks) >= MARKS_MAX:
                self.marks.clear()
            self.marks[marks] = known
        return known

    def with_bursts(self, guard: Guard, message: Message, names: Iterable[str]) -> Message:
        """Replace forbidden notifications that a message carries for a session by placeholders.

        Their number stays the same, because protocols count fetched notifications.
        """
        changes: dict[str, Any] = {}
        for name in names:
            carried = getattr(message, name)
            if not carried:
                continue  # A handoff carries nothing where nothing was published meanwhile.
            if isinstance(carried, Burst):
                changes[name] = self._carried(guard, carried)
            elif isinstance(carried, tuple) and isinstance(carried[0], Burst):
                changes[name] = self.carried(guard, carried)
        if not changes:
            return message
        changed = {name: value for name, value in changes.items() if value is not getattr(message, name)}
        return msgspec.structs.replace(message, **changed) if changed else message

    def carried(self, guard: Guard, bursts: tuple[Burst, ...]) -> tuple[Burst, ...]:
        """Return stored notifications of a session, with placeholders for forbidden ones."""
        if not bursts:
            return bursts
        passed = tuple([self._carried(guard, one) for one in bursts])
        is_same = all(one is other for one, other in zip(passed, bursts, strict=True))
        return bursts if is_same else passed

    def _carried(self, guard: Guard, burst: Burst) -> Burst:
        self.check_form(burst)
        try:
            if not burst.varied:
                passed = guard.incoming.attributes(burst.attributes)
                return burst if passed == burst.attributes else _withheld(burst)
            if all(guard.incoming.attributes(one) == one for one in burst.varied):
                return burst
        except InputError:
            raise Refused("form") from None
        return _withheld(burst)

    def released(self, guard: Guard, burst: Burst) -> Burst | None:
        if not burst.varied:
            passed = guard.outgoing.attributes(burst.attributes)
            if passed is None or passed == burst.attributes:
                return burst if passed is not None else None
            return msgspec.structs.replace(burst, attributes=passed)
        varied = [guard.outgoing.attributes(one) for one in burst.varied]
        if None in varied:
            return None if burst.number else _picked(burst, varied)
        return msgspec.structs.replace(burst, varied=tuple(varied))


def _picked(burst: Burst, varied: list[bytes | None]) -> Burst | None:
    places = [place for place, one in enumerate(varied) if one is not None]
    if not places:
        return None
    left = tuple([one for one in varied if one is not None])
    return msgspec.structs.replace(burst.pick(places), varied=left)


def _withheld(burst: Burst) -> Burst:
    """Return placeholders for notifications: the same number, empty and expired."""
    marks = bytes((burst.marks[0] & ~EXPIRY | EXPIRY,)) + EXPIRED if burst.marks else b""
    return msgspec.structs.replace(
        burst, attributes=WITHHELD, varied=(), bodies=(b"",) * burst.count, marks=marks
    )


def _are_marks(marks: bytes) -> bool:
    if not marks:
        return False
    try:
        publish_properties(marks[1:], from_client=False)
    except PacketError:
        return False
    return marks[0] & 3 != 3
