"""Notifications as a client receives them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.mqtt.codec.packets import Publish, PublishProperties, UserProperties
from roamcast.mqtt.codec.properties import PUBLISH, encode
from roamcast.mqtt.server.identities import NotificationIdentity, split_identity

if TYPE_CHECKING:
    from roamcast.filters.filter import Attributes

NONE = PublishProperties()


class Notification(msgspec.Struct, frozen=True):
    """A received notification."""

    topic: str
    payload: bytes
    qos: int = 0
    """QoS of the delivery."""
    retain: bool = False
    """True if it was stored before the subscription was made (or was published with retain, if that was
    requested)."""
    dup: bool = False
    """True if the broker may have sent it before; with QoS 2 it is delivered only once."""
    user_properties: UserProperties = ()
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    message_expiry: int | None = None
    """Remaining seconds until expiry."""
    payload_format: int | None = None
    """1 if the publisher says that the payload is UTF-8."""
    subscription_identifiers: tuple[int, ...] = ()
    identity: NotificationIdentity | None = None
    """Publisher, incarnation and number, if the client asked for them and the broker is Roamcast."""

    @property
    def text(self) -> str:
        """The payload as text; bytes that are not UTF-8 are replaced."""
        return self.payload.decode("utf-8", "replace")

    def json(self) -> Any:
        """The payload as JSON; ValueError if it is none."""
        return json.loads(self.payload)

    @property
    def properties(self) -> dict[str, str]:
        """The user properties by name; of several with one name the last."""
        return dict(self.user_properties)

    @property
    def attributes(self) -> Attributes:
        """Attributes for content filters: user properties, the fields of a JSON payload, and the topic."""
        # Computed on request: this loads the filter modules.
        from roamcast.mqtt.server.attributes import contents_of

        seen = PublishProperties(content_type=self.content_type, user_properties=self.user_properties)
        (attributes,) = contents_of(self.topic, encode(seen, PUBLISH), (self.payload,))
        return attributes


def notification_of(publish: Publish) -> Notification:
    found = publish.properties
    if found is None:
        return Notification(publish.topic, publish.payload, publish.qos, publish.retain, publish.dup)
    own, identity = split_identity(found.user_properties)
    return Notification(
        publish.topic, publish.payload, publish.qos, publish.retain, publish.dup, own, found.content_type,
        found.response_topic, found.correlation_data, found.message_expiry, found.payload_format,
        found.subscription_identifiers, identity,
    )  # fmt: skip
