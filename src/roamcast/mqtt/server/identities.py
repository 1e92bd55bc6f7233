"""Publisher and number of a notification, sent to clients that request them: MQTT has no field
for these.

The broker adds the user properties behind those of the publisher, and the last ones count, so
a publisher cannot forge them.
"""

from __future__ import annotations

from typing import NamedTuple

from roamcast.mqtt.codec.fields import write_pair
from roamcast.mqtt.codec.packets import UserProperties

PUBLISHER = "roamcast-publisher"
INCARNATION = "roamcast-incarnation"
NUMBER = "roamcast-number"
NAMES = (PUBLISHER, INCARNATION, NUMBER)

_USER_PROPERTY = b"\x26"


class NotificationIdentity(NamedTuple):
    publisher: str
    incarnation: int
    number: int


def identity_properties(publisher: str, incarnation: int, number: int) -> bytes:
    """Return the user properties of an identity; the number is 0 where there is none (QoS 0, retained)."""
    values = (publisher, str(incarnation), str(number))
    return b"".join(_USER_PROPERTY + write_pair(pair) for pair in zip(NAMES, values, strict=True))


def split_identity(found: UserProperties) -> tuple[UserProperties, NotificationIdentity | None]:
    """Return the publisher's own user properties, and the identity that the broker added, if any."""
    if len(found) < len(NAMES) or tuple(name for name, _ in found[-3:]) != NAMES:
        return found, None
    publisher, incarnation, number = (value for _, value in found[-3:])
    if not (incarnation.isdecimal() and number.isdecimal() and int(number)):
        return found[:-3], None
    return found[:-3], NotificationIdentity(publisher, int(incarnation), int(number))
