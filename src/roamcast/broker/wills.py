"""Publishing the wills of clients whose connection has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from roamcast.mqtt.server.marks import QOS, TOPIC
from roamcast.protocol.notification import Command, encode_attributes
from roamcast.state import State


class PublishThat(Command, frozen=True):
    """A will, to be published by this broker."""

    topic: str
    marks: bytes
    body: bytes


class PublishingHost(Protocol):
    """The broker that publishes."""

    def obey(self, kind: type[Command], handler: Callable[[Any], None]) -> None: ...
    def publish_here(self, attributes: bytes, body: bytes, marks: bytes) -> None: ...
    def publish_fleeting(self, attributes: bytes, body: bytes, marks: bytes) -> None: ...


class Wills:
    __state__ = State("wills", saved=("_broker",))

    def __init__(self, broker: PublishingHost) -> None:
        self._broker = broker

    def register_handlers(self) -> None:
        self._broker.obey(PublishThat, self.on_publish_that)

    def on_publish_that(self, command: PublishThat) -> None:
        attributes, broker = encode_attributes({TOPIC: command.topic}), self._broker
        # QoS 0 messages are not stored for links that are down, either.
        publish = broker.publish_here if command.marks[0] & QOS else broker.publish_fleeting
        publish(attributes, command.body, command.marks)
