"""Bulk encoding of bursts as PUBLISH packets."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roamcast.mqtt.codec import properties
from roamcast.mqtt.codec.bursts import FrameWriter
from roamcast.mqtt.codec.fields import write_variable
from roamcast.mqtt.server.identities import identity_properties
from roamcast.mqtt.server.marks import EXPIRY, RETAIN, RETAINED, TOPIC
from roamcast.mqtt.server.sessions import Options, Plans, public_name
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.state import State

TOPICS_KEPT_MAX = 4096
TOPIC_BYTES_KEPT_MAX = 512
WRITERS_KEPT_MAX = 4096
WRITER_BYTES_KEPT_MAX = 1024
"""Longer topics and properties are not cached."""
APART_BYTES = 16_384
"""A payload of this size is not copied for each client: all of them share one object."""


class Encoder:
    """Encodes bursts; the same burst for several clients is encoded once, where possible."""

    __state__ = State(
        "mqtt-encoder", derived=("_bursts", "_plans", "_topics", "_writers", "is_mute", "written")
    )

    def __init__(self) -> None:
        self._restore()

    def _restore(self) -> None:
        self.is_mute = False
        """True where output is never read: at a follower, and during a replay. The state does not depend on
        it."""
        self._topics: dict[bytes, str] = {}
        self._writers: dict[tuple[bytes, bytes, int, int, Options, int], FrameWriter] = {}
        self._plans: dict[tuple[int, Options], Plans] = {}
        """Plans for clients whose subscriptions all have the same options, by MQTT version and options."""
        self.written: dict[tuple[int, int, int], bytes] = {}
        self._bursts: list[tuple[Burst, FrameWriter]] = []
        """Keeps the bursts alive while their ids are keys."""

    def forget(self) -> None:
        """Clear the cache at the end of a turn."""
        self.written.clear()
        self._bursts.clear()

    def plans_of(self, version: int, options: Options) -> Plans:
        """Return the plans shared by all clients of this version with these options."""
        return self._plans.setdefault((version, options), {})

    def topic_of(self, attributes: bytes) -> str:
        topic = self._topics.get(attributes)
        if topic is None:
            topic = str(decode_attributes(attributes)[TOPIC])
            if len(attributes) <= TOPIC_BYTES_KEPT_MAX:
                if len(self._topics) >= TOPICS_KEPT_MAX:
                    self._topics.clear()
                self._topics[attributes] = topic
        return topic

    def write(self, burst: Burst, writer: FrameWriter, packet_id: int) -> tuple[bytes, ...]:
        """Return the PUBLISH packets of a burst, with consecutive packet ids, in one part or more."""
        if self.is_mute:
            return ()
        if burst.count == 1:
            body = burst.bodies[0]
            if len(body) >= APART_BYTES:
                return writer.write_apart(body, packet_id)
            return (writer.write_one(body, packet_id),)
        key = (id(burst), id(writer), packet_id)
        frames = self.written.get(key)
        if frames is None:
            frames = self.written[key] = writer.write(burst.bodies, packet_id)
            self._bursts.append((burst, writer))
        return (frames,)

    def again(
        self, burst: Burst, version: int, qos: int, options: Options, packet_id: int, now: float
    ) -> bytes:
        """Return a message for resending: with the same packet id, marked as duplicate."""
        frames = self.writer(burst, version, qos, options, now).write(burst.bodies, packet_id)
        return bytes((frames[0] | 0x08,)) + frames[1:]

    def writer(
        self, burst: Burst, version: int, qos: int, options: Options, now: float, alias: int = 0
    ) -> FrameWriter:
        """Return a writer. An alias replaces the topic; a negative alias is announced together with the
        topic."""
        marks = burst.marks
        is_long = len(marks) + len(burst.attributes) > WRITER_BYTES_KEPT_MAX
        if is_long or marks[0] & EXPIRY or options.identity:
            return self.new_writer(burst, version, qos, options, int(now - burst.published_at), alias)
        key = (burst.attributes, marks, version, qos, options, alias)
        writer = self._writers.get(key)
        if writer is None:
            if len(self._writers) >= WRITERS_KEPT_MAX:
                self._writers.clear()
            writer = self._writers[key] = self.new_writer(burst, version, qos, options, 0, alias)
        return writer

    def new_writer(
        self, burst: Burst, version: int, qos: int, options: Options, age_s: int = 0, alias: int = 0
    ) -> FrameWriter:
        flags = burst.marks[0]
        retain = bool(flags & RETAINED) or (options.retain_as_published and bool(flags & RETAIN))
        # A retained message carries the identifier of the subscription that requested it, and no other.
        identifiers = () if flags & RETAINED else options.identifiers
        block = _amended(burst.marks[1:], identifiers, age_s) if version == 5 else b""
        if options.identity and version == 5:
            number = 0 if flags & RETAINED else burst.number
            block += identity_properties(public_name(burst.publisher), burst.incarnation, number)
        if alias:
            block += b"\x23" + abs(alias).to_bytes(2, "big")
        described = write_variable(len(block)) + block if version == 5 else b""
        topic = b"" if alias > 0 else self.topic_of(burst.attributes).encode()
        return FrameWriter(topic, qos, retain, described)


def _amended(block: bytes, identifiers: Sequence[int], age_s: int) -> bytes:
    """Return properties with the subscription identifiers, and with the remaining expiry."""
    if age_s > 0:
        found = properties.publish_properties(block, from_client=False)
        if found is not None and found.message_expiry is not None:
            left_s = max(0, found.message_expiry - age_s)
            found = msgspec.structs.replace(found, message_expiry=left_s)
            block = properties.encode(found, properties.PUBLISH)
    return block + identified(*identifiers)


def identified(*identifiers: int) -> bytes:
    """Encode subscription identifiers as properties."""
    return b"".join(b"\x0b" + write_variable(one) for one in identifiers)


def runs_of(burst: Burst, runs: Sequence[tuple[int, int]]) -> list[tuple[int, Burst]]:
    """Cut the burst at the borders of its packet id runs: (packet id, part)."""
    if len(runs) == 1:
        return [(runs[0][0], burst)]
    parts, start = [], 0
    for packet_id, count in runs:
        parts.append((packet_id, burst.part(start, start + count)))
        start += count
    return parts
