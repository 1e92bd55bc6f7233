"""What is written reads as what it was, and no bytes whatever end in anything but PacketError."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mqtt.corpus import CORPUS
from tests.mqtt.strategies import packets

from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.fields import write_variable
from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

SIDES = pytest.mark.parametrize("from_client", [True, False], ids=["client", "server"])
VERSIONS = pytest.mark.parametrize("version", [4, 5])
ROOM = 1 << 20


def read_one(frame: bytes, version: int, from_client: bool) -> Packet:
    found = cut(frame, 0, ROOM)
    assert found is not None
    first, start, end = found
    assert end == len(frame)
    return parse(first, frame[start:end], version, from_client)


@pytest.mark.parametrize(("version", "from_client", "packet"), CORPUS)
def test_each_kind_of_packet_is_written_and_read(version: int, from_client: bool, packet: Packet) -> None:
    frame = write(packet, version)
    assert read_one(frame, version, from_client) == packet
    for size in range(len(frame)):
        assert cut(frame[:size], 0, ROOM) is None
    with pytest.raises(PacketError) as refused:
        cut(frame[:5], 0, len(frame) - 1)
    assert refused.value.reason == Reason.PACKET_TOO_LARGE


@SIDES
@VERSIONS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_written_and_read_is_the_same(version: int, from_client: bool, data: st.DataObject) -> None:
    packet = data.draw(packets(version, from_client))
    assert read_one(write(packet, version), version, from_client) == packet


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 50, 1000])
@SIDES
@VERSIONS
def test_frames_are_found_wherever_the_stream_is_cut(version: int, from_client: bool, piece: int) -> None:
    sent = [packet for v, side, packet in CORPUS if (v, side) == (version, from_client)]
    stream = b"".join(write(packet, version) for packet in sent)
    buffer, start, seen = b"", 0, []
    for at in range(0, len(stream), piece):
        buffer += stream[at : at + piece]
        while (found := cut(buffer, start, ROOM)) is not None:
            first, body, start = found
            seen.append(parse(first, buffer[body:start], version, from_client))
    assert seen == sent


def outcome(data: bytes, version: int, from_client: bool) -> Reason:
    """Read as a server would: any exception but PacketError, or one without a line, fails the test."""
    start = 0
    try:
        while (found := cut(data, start, ROOM)) is not None:
            first, body, start = found
            parse(first, data[body:start], version, from_client)
    except PacketError as error:
        if not (error.reason.failed and error.text and error.text.isascii() and error.text.isprintable()):
            pytest.fail(f"{error.reason!r} {error.text!r}")
        return error.reason
    return Reason.SUCCESS


@SIDES
@VERSIONS
@settings(max_examples=150, deadline=None)
@given(first=st.integers(0, 255), body=st.binary(max_size=60))
def test_any_body_of_any_type_is_read_or_refused(
    version: int, from_client: bool, first: int, body: bytes
) -> None:
    outcome(bytes((first, len(body))) + body, version, from_client)
    outcome(body, version, from_client)


def damage(frame: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(frame))
    match rng.randrange(5):
        case 0:
            frame[at] = rng.randrange(256)
        case 1:
            frame[at] ^= 1 << rng.randrange(8)
        case 2:
            frame.insert(at, rng.randrange(256))
        case 3 if len(frame) > 1:
            del frame[at]
        case _:
            frame[at:at] = frame[at : at + rng.randrange(12)]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_packets_are_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    seen: Counter[Reason] = Counter()
    for version, from_client, packet in CORPUS:
        whole = write(packet, version)
        for _ in range(150):
            frame = bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                damage(frame, rng)
            seen[outcome(bytes(frame), version, from_client)] += 1
            # With the length put right, the damage reaches the part behind it.
            found = cut(whole, 0, ROOM)
            assert found is not None
            body = bytearray(whole[found[1] :] or b"\0")
            damage(body, rng)
            seen[outcome(whole[:1] + write_variable(len(body)) + body, version, from_client)] += 1
    # The damage is of every kind, or the test would show little.
    assert len(seen) >= 6
    assert seen[Reason.SUCCESS] > 100
    assert seen[Reason.MALFORMED_PACKET] > 1000
