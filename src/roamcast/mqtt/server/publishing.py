"""Properties of PUBLISH packets on their way in: aliases, expiry, and the properties that are
forwarded."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from roamcast.mqtt.codec import properties
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.packets import PublishProperties
from roamcast.mqtt.codec.properties import publish_properties
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.server.marks import EXPIRY
from roamcast.state import State

BLOCKS_KEPT_MAX = 1024
BLOCK_BYTES_KEPT_MAX = 1024
"""A longer property block is decoded again each time."""


class Described(NamedTuple):
    """A property block as it is forwarded."""

    flags: int
    block: bytes
    """The block without its length, and without the alias, which belongs to the connection alone."""
    alias: int


def described(found: PublishProperties | None) -> Described:
    if found is None:
        return Described(0, b"", 0)
    alias = found.topic_alias or 0
    block = properties.encode(msgspec.structs.replace(found, topic_alias=None), properties.PUBLISH)
    return Described(EXPIRY if found.message_expiry is not None else 0, block, alias)


class PropertyReader:
    """Checks property blocks; repeated ones are decoded once."""

    __state__ = State("mqtt-property-reader", derived=("_known",))

    def __init__(self) -> None:
        self._restore()

    def _restore(self) -> None:
        self._known: dict[bytes, Described] = {}

    def read(self, block: bytes, user_properties_max: int) -> Described:
        found = self._known.get(block)
        if found is None:
            found = described(publish_properties(block, user_properties_max=user_properties_max))
            if len(block) <= BLOCK_BYTES_KEPT_MAX:
                if len(self._known) >= BLOCKS_KEPT_MAX:
                    self._known.clear()
                self._known[block] = found
        return found


def resolve(alias: int, topic: bytes, alias_max: int, aliases: dict[int, bytes]) -> bytes:
    """Return the topic of a PUBLISH with an alias, which is learned or used."""
    if alias > alias_max:
        raise PacketError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias}: at most {alias_max} are allowed")
    if topic:
        aliases[alias] = topic
        return topic
    try:
        return aliases[alias]
    except KeyError:
        raise PacketError(Reason.PROTOCOL_ERROR, f"topic alias {alias} has not been set") from None
