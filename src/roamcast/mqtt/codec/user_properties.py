"""The user properties of MQTT 5 with which clients request Roamcast extensions."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from roamcast.mqtt.codec.packets import Publish, UserProperties

WHERE = "where"
"""In SUBSCRIBE: a selector."""
IDENTITY = "roamcast-identity"
"""In SUBSCRIBE: "1" requests the identities of notifications."""
NETWORK = "roamcast-network"
"""In CONNECT: requests the name of the broker's network. In CONNACK: that name."""
DESTINATION = "roamcast-destination"
"""In DISCONNECT: the broker that the client moves to."""
HAS = "roamcast-has"
"""In CONNECT: what the client has received (see `Has`). In CONNACK: the name of this connection, to be
repeated in the next CONNECT. In PUBLISH: the stream and sequence that the client has with it, as `STREAM
SEQUENCE`."""
SEQUENCE_DIGITS_MAX = 18


class Has(NamedTuple):
    """What a client reports in CONNECT as received."""

    connection: str = ""
    """The last connection that a broker accepted, as named in its CONNACK."""
    stream: str = ""
    sequence: int = 0
    """Last sequence received since the session began; 0 if none."""

    def text(self) -> str:
        return (
            " ".join((self.connection, self.stream, str(self.sequence))) if self.stream else self.connection
        )

    def with_last(self, text: str) -> Has:
        """Return the state after a PUBLISH with this text."""
        stream, _, digits = text.partition(" ")
        if not _is_sequence(digits):
            return self
        # What was taken on an earlier connection may be repeated, and is behind the last one then.
        earlier = self.sequence if stream == self.stream else 0
        return self._replace(stream=stream, sequence=max(earlier, int(digits)))


def read_has(properties: UserProperties) -> Has | None:
    """Return what a CONNECT reports; None if nothing, or unreadable."""
    for name, text in properties:
        if name == HAS:
            connection, *last = text.split(" ")
            if not last:
                return Has(connection)
            return (
                Has(connection, last[0], int(last[1])) if len(last) == 2 and _is_sequence(last[1]) else None
            )
    return None


def said_with(publish: Publish) -> str:
    """Return the text that a PUBLISH carries about its sequence; "" if none."""
    properties = publish.properties
    return dict(properties.user_properties).get(HAS, "") if properties is not None else ""


def without(publish: Publish, name: str) -> Publish:
    """Return a PUBLISH without one user property, which is not for the application."""
    properties = publish.properties
    if properties is None:
        return publish
    left = tuple(pair for pair in properties.user_properties if pair[0] != name)
    return replace(publish, properties=replace(properties, user_properties=left))


def _is_sequence(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) <= SEQUENCE_DIGITS_MAX
