"""What a broker publishes for clients that are not there any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from roamcast.core.messages import Cause
from roamcast.core.notification import Message, encode_attributes
from roamcast.mqtt.marks import TOPIC

if TYPE_CHECKING:
    from roamcast.node.broker import Broker


class PublishThat(Message, frozen=True):
    """A will, to be published by this broker."""

    topic: str
    marks: bytes
    body: bytes
    cause: ClassVar[Cause] = "publish"


class Wills:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        broker.serve(PublishThat, self.on_publish_that)

    def on_publish_that(self, sender: str, message: PublishThat) -> None:
        self._broker.publish_here(encode_attributes({TOPIC: message.topic}), message.body, message.marks)
