"""What a broker publishes for clients that are not there any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from roamcast.mqtt.server.marks import TOPIC
from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Message, encode_attributes
from roamcast.state import State


class PublishThat(Message, frozen=True):
    """A will, to be published by this broker."""

    topic: str
    marks: bytes
    body: bytes
    cause: ClassVar[Cause] = "publish"


class PublishingHost(Protocol):
    """The broker that publishes."""

    def serve(self, kind: type[Message], handler: Callable[[str, Any], None]) -> None: ...
    def publish_here(self, attributes: bytes, body: bytes, marks: bytes) -> None: ...


class Wills:
    __state__ = State("wills", saved=("_broker",))

    def __init__(self, broker: PublishingHost) -> None:
        self._broker = broker

    def register_handlers(self) -> None:
        self._broker.serve(PublishThat, self.on_publish_that)

    def on_publish_that(self, sender: str, message: PublishThat) -> None:
        self._broker.publish_here(encode_attributes({TOPIC: message.topic}), message.body, message.marks)
