"""Marks of a burst on the MQTT side: a byte of flags, then the property block of MQTT 5.

The properties (without their length) are the same for all notifications of a
burst; the bodies are the payloads alone.
"""

from __future__ import annotations

from roamcast.mqtt.codec.packets import PublishProperties
from roamcast.mqtt.codec.properties import publish_properties

QOS = 0x03
RETAIN = 0x04
"""The publisher set the retain flag."""
RETAINED = 0x08
"""Retained before the subscription was made, and sent because of it."""
EXPIRY = 0x10
"""The properties contain a message expiry."""

SHARED = 0x20
"""Picked for a member of a shared subscription. (The core knows RETAINED and SHARED as `PICKED`.)"""

TOPIC = "topic"
"""Name of the attribute that holds the topic."""

PLAIN = tuple(bytes((flags,)) for flags in range(256))
"""Marks without properties."""


def message_expiry(marks: bytes) -> int | None:
    """Return the message expiry in seconds after publishing; None without one."""
    if not marks or not marks[0] & EXPIRY:
        return None
    found: PublishProperties | None = publish_properties(marks[1:], from_client=False)
    return found.message_expiry if found is not None else None
