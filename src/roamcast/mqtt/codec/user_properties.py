"""The user properties of MQTT 5 by which clients ask Roamcast for more than the standard knows."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from roamcast.mqtt.codec.packets import Publish, UserProperties

WHERE = "where"
"""Of a SUBSCRIBE: a selector."""
IDENTITY = "roamcast-identity"
"""Of a SUBSCRIBE: with the value 1 it asks for the identities of notifications."""
NETWORK = "roamcast-network"
"""Of a CONNECT: asks for the name of the broker's network, and of its CONNACK: that name."""
DESTINATION = "roamcast-destination"
"""Of a DISCONNECT: which broker the client goes to."""
HAS = "roamcast-has"
"""Of a CONNECT: what the client has (see `Has`). Of a CONNACK: the name of this connection, which the next
CONNECT says. Of a PUBLISH: the stream and sequence that the client then has, as `STREAM SEQUENCE`."""
SEQUENCE_DIGITS_MAX = 18


class Has(NamedTuple):
    """What a client says in CONNECT that it has."""

    connection: str = ""
    """The last connection that a broker accepted, as its CONNACK named it."""
    stream: str = ""
    sequence: int = 0
    """What was sent with a sequence: the last, since the session began. Without one, 0."""

    def text(self) -> str:
        return (
            " ".join((self.connection, self.stream, str(self.sequence))) if self.stream else self.connection
        )

    def with_last(self, text: str) -> Has:
        """After a PUBLISH that says this."""
        stream, _, digits = text.partition(" ")
        return self._replace(stream=stream, sequence=int(digits)) if _is_sequence(digits) else self


def read_has(properties: UserProperties) -> Has | None:
    """What a CONNECT says; None if it says nothing, or nothing that can be read."""
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
    """What a PUBLISH says that its client has with it; "" if it says nothing."""
    properties = publish.properties
    return dict(properties.user_properties).get(HAS, "") if properties is not None else ""


def without(publish: Publish, name: str) -> Publish:
    """A PUBLISH without one user property, which is not for the application."""
    properties = publish.properties
    if properties is None:
        return publish
    left = tuple(pair for pair in properties.user_properties if pair[0] != name)
    return replace(publish, properties=replace(properties, user_properties=left))


def _is_sequence(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) <= SEQUENCE_DIGITS_MAX
