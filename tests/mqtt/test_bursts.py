"""Bursts of PUBLISH frames: the fast way says exactly what the plain way says."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mqtt.strategies import publishes

from roamcast.errors import InputError
from roamcast.mqtt.codec import bursts
from roamcast.mqtt.codec.bursts import (
    FrameWriter,
    acknowledged,
    cut_bursts,
    last_frame,
    written_acknowledgements,
)
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.packet_ids import consecutive, following
from roamcast.mqtt.codec.packets import Pingreq, Puback, Pubcomp, Publish, PublishProperties, Pubrec, Pubrel
from roamcast.mqtt.codec.properties import PUBLISH, encode, publish_properties
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.topics import decode_topic
from roamcast.mqtt.codec.writing import write

ROOM = 1 << 20


def plainly(data: bytes, version: int) -> tuple[list[Publish], int]:
    """The PUBLISH packets at the start of the data, one by one, up to whatever else there is."""
    found: list[Publish] = []
    at = 0
    try:
        while (frame := cut(data, at, ROOM)) is not None:
            first, start, end = frame
            packet = parse(first, data[start:end], version)
            if not isinstance(packet, Publish):
                break
            found.append(packet)
            at = end
    except PacketError:
        pass
    return found, at


def by_bursts(data: bytes, version: int) -> tuple[list[Publish], int]:
    """The same, but in bursts, up to the first whose topic or properties are wrong."""
    found, at = cut_bursts(data, 0, ROOM, version)
    packets: list[Publish] = []
    for first, topic, block, packet_id, payloads in found:
        assert payloads, "a burst holds at least one frame"
        qos = first >> 1 & 3
        assert (packet_id > 0) == (qos > 0)
        try:
            described = publish_properties(block)
            name = "" if not topic and described and described.topic_alias else decode_topic(topic)
        except PacketError:
            return packets, sum(len(write(packet, version)) for packet in packets)
        ids = consecutive(packet_id, len(payloads)) if qos else [0] * len(payloads)
        packets += (
            Publish(name, payload, qos, bool(first & 1), bool(first & 8), number, described)
            for number, payload in zip(ids, payloads, strict=True)
        )
    return packets, at


class Stream:
    """A stream as clients send it: stretches of one topic, often of one size, with ids that go round."""

    def __init__(self, rng: random.Random, version: int) -> None:
        self.rng, self.version, self.packet_id = rng, version, rng.choice((1, 255, 65_500))

    def stretch(self) -> list[Publish]:
        rng = self.rng
        topic = rng.choice(("a", "site/7/tram", "ü" * 70))
        qos, retain = rng.randrange(3), rng.random() < 0.3
        described = rng.choice((None, PublishProperties(content_type="x"), PublishProperties(topic_alias=3)))
        size = rng.choice((0, 1, 60, 200))
        steady = rng.random() < 0.7
        packets = []
        for _ in range(rng.choice((1, 2, 20, 60, 200))):
            if rng.random() < 0.01:  # An id that is not the next one.
                self.packet_id = rng.randint(1, 65_535)
            payload = rng.randbytes(size if steady else rng.randrange(90))
            number = self.packet_id if qos else 0
            packets.append(
                Publish(topic, payload, qos, retain, False, number, described if self.version == 5 else None)
            )
            self.packet_id = following(self.packet_id)
        return packets


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("seed", range(25))
def test_bursts_hold_what_the_frames_hold(version: int, seed: int) -> None:
    rng = random.Random(seed)
    stream = Stream(rng, version)
    sent = [packet for _ in range(6) for packet in stream.stretch()]
    data = b"".join(write(packet, version) for packet in sent)
    assert by_bursts(data, version) == (sent, len(data))
    assert len(cut_bursts(data, 0, ROOM, version)[0]) < len(sent) / 2
    for _ in range(20):  # Wherever it is cut off, what is whole is found.
        cut_off = data[: rng.randrange(len(data))]
        assert by_bursts(cut_off, version) == plainly(cut_off, version)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("seed", range(25))
def test_bursts_end_where_damage_starts(version: int, seed: int) -> None:
    rng = random.Random(seed)
    data = b"".join(write(packet, version) for packet in Stream(rng, version).stretch() * 2)
    for _ in range(60):
        broken = bytearray(data)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        assert by_bursts(bytes(broken), version) == plainly(bytes(broken), version)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.sampled_from([4, 5]), st.integers(0, 90))
def test_any_bytes_are_passed_over(data: bytes, version: int, packet_max: int) -> None:
    for start in (b"", b"\x30\x05\0\1axx", b"\x32\x06\0\1a\0\1\0"):
        found, at = cut_bursts(start + data, 0, packet_max, version)
        assert 0 <= at <= len(start + data)
        assert all(payloads for *_, payloads in found)


def test_a_payload_full_of_frames_is_a_payload() -> None:
    """What looks like the start of the next frame, inside a payload, at any place."""
    inner = write(Publish("a", b"", 1, packet_id=7), 4)
    size = 3 * len(inner)
    sent = [
        Publish("a", (inner * 4)[shift : shift + size], 1, packet_id=1 + number)
        for shift in range(len(inner))
        for number in range(70)
    ]
    data = b"".join(write(packet, 4) for packet in sent)
    assert by_bursts(data, 4) == (sent, len(data))


def test_what_looks_like_one_burst_is_not_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of one size whose ids hardly ever follow each other: the work stays in proportion."""
    looked_at = 0
    take_apart = bursts._take_apart

    def counted(
        data: bytes, at: int, end: int, id_at: int, payload_at: int, together: int, payloads: list[bytes]
    ) -> int:
        nonlocal looked_at
        looked_at += min(together * (end - at), len(data) - at)
        return take_apart(data, at, end, id_at, payload_at, together, payloads)

    monkeypatch.setattr(bursts, "_take_apart", counted)
    sent = [Publish("a", b"x", 1, packet_id=1 + number // 2 % 2 + number % 2) for number in range(2_000)]
    data = b"".join(write(packet, 4) for packet in sent)
    assert by_bursts(data, 4) == (sent, len(data))
    assert 0 < looked_at <= bursts.TOGETHER_FIRST * len(data)


def test_other_packets_and_large_ones_end_the_bursts() -> None:
    small = write(Publish("a", b"x"), 5)
    for other in (
        write(Pingreq(), 5),
        write(Publish("a", b"x" * 16_384), 5),
        write(Publish("a", b"x", properties=PublishProperties(content_type="y" * 127)), 5),
        b"\x36\x05\0\1a\0\1",
        b"\x38\x04\0\1a\0",
        b"\x32\x06\0\1a\0\0\0",
        b"\x30\x80\x00",
    ):
        burst = (0x30, b"a", b"", 0, [b"x", b"x"])
        assert cut_bursts(small * 2 + other + small, 0, ROOM, 5) == ([burst], 2 * len(small))
    assert cut_bursts(small, 0, len(small) - 1, 5) == ([], 0)
    assert cut_bursts(b"", 0, ROOM, 5) == ([], 0)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("count", [0, 1, 2, 10, 700])
@pytest.mark.parametrize("even", [True, False])
def test_frames_are_written_as_one_by_one(version: int, qos: int, count: int, even: bool) -> None:
    rng = random.Random(count)
    payloads = [rng.randbytes(70 if even else rng.randrange(200)) for _ in range(count)]
    described = PublishProperties(content_type="x", subscription_identifiers=(4,)) if version == 5 else None
    block = encode(described, PUBLISH)
    first = 65_400
    wanted = b"".join(
        write(Publish("a/ü", payload, qos, True, False, number if qos else 0, described), version)
        for number, payload in zip(consecutive(first, count), payloads, strict=True)
    )
    between = bytes((len(block),)) + block if version == 5 else b""
    assert FrameWriter("a/ü".encode(), qos, True, between).write(payloads, first) == wanted


def test_a_writer_forgets_sizes_it_has_seen_too_many_of() -> None:
    topic = "a" * 100
    writer = FrameWriter(topic.encode(), 0)
    for size in range(1000):
        assert writer.write([b"x" * size]) == write(Publish(topic, b"x" * size), 4)
    assert sum(map(len, writer._headers.values())) <= bursts.HEADERS_BYTES_MAX


@pytest.mark.parametrize("first", [0, 65_536, -1])
def test_ids_out_of_range_are_refused(first: int) -> None:
    with pytest.raises(InputError, match="1 to 65535 are valid"):
        FrameWriter(b"a", 1).write([b"x"], first)


def test_repeated_frames_are_marked() -> None:
    repeated = Publish("a", b"x", 1, False, True, 9)
    assert FrameWriter(b"a", 1, dup=True).write([b"x"], 9) == write(repeated, 4)


@pytest.mark.parametrize(
    ("first_byte", "made"), [(0x40, Puback), (0x50, Pubrec), (0x62, Pubrel), (0x70, Pubcomp)]
)
def test_acknowledgements_are_written_as_one_by_one(
    first_byte: int, made: type[Puback | Pubrec | Pubrel | Pubcomp]
) -> None:
    wanted = b"".join(write(made(number), 5) for number in consecutive(65_000, 1_000))
    assert written_acknowledgements(first_byte, 65_000, 1_000) == wanted
    assert acknowledged(wanted, 0, first_byte, 65_000, 2_000) == 1_000
    assert acknowledged(wanted, 4, first_byte, 65_001, 10) == 10
    assert acknowledged(wanted, 4, first_byte, 65_000, 10) == 0
    assert acknowledged(wanted[:-1], 0, first_byte, 65_000, 1_000) == 999
    assert acknowledged(b"", 0, first_byte, 1, 10) == 0
    for gap in (0, 1, 2, 500, 998, 999):
        sent = wanted[: 4 * gap] + wanted[4 * gap + 4 :] + b"\xc0\0"
        assert acknowledged(sent, 0, first_byte, 65_000, 1_000) == gap
    assert written_acknowledgements(0x40, 65_535, 1) == write(Puback(65_535), 4)


def test_ids_go_round() -> None:
    assert following(65_535) == 1
    assert following(1, 65_535) == 1
    assert list(consecutive(65_534, 4)) == [65_534, 65_535, 1, 2]
    assert list(consecutive(65_534, 2)) == [65_534, 65_535]


# --- frames that come one by one ---


def as_burst(frame: tuple[bytes, int, bytes]) -> tuple[int, bytes, bytes, int, list[bytes]]:
    topic, packet_id, payload = frame
    return 0x32 if packet_id else 0x30, topic, b"", packet_id, [payload]


@given(st.data(), st.sampled_from([4, 5]))
def test_the_last_frame_is_what_bursts_say(drawn: st.DataObject, version: int) -> None:
    packet = drawn.draw(publishes(version, from_client=True))
    data = b"\x40\x02\x00\x07" + write(packet, version)
    found = last_frame(data, 4, 1 << 20, version)
    if found is not None:
        assert cut_bursts(data, 4, 1 << 20, version) == ([as_burst(found)], len(data))


@pytest.mark.parametrize("version", [4, 5])
def test_the_last_frame_is_taken_where_it_is_plain(version: int) -> None:
    data = write(Publish("a/b", b"body", 1, packet_id=7), version)
    assert last_frame(data, 0, 1 << 20, version) == (b"a/b", 7, b"body")
    assert last_frame(data[:-1], 0, 1 << 20, version) is None
    assert last_frame(data + data, 0, 1 << 20, version) is None
    assert last_frame(data, 0, len(data) - 1, version) is None


@given(st.binary(max_size=140), st.sampled_from([4, 5]))
def test_any_bytes_may_be_the_last(data: bytes, version: int) -> None:
    data = b"\x32" + data
    found = last_frame(data, 0, 1 << 20, version)
    assert found is None or cut_bursts(data, 0, 1 << 20, version) == ([as_burst(found)], len(data))
