"""The load program must notice whatever a broker loses, repeats, swaps or changes."""

import re
from collections.abc import Callable

import pytest

from roamcast.bench.accounting import Acknowledged, Cycle, Echo, EvenStream, Miscounted, MixedStream
from roamcast.mqtt.codec.bursts import written_acknowledgements


def numbered(
    count: int, publisher: int = 0, topics: int = 1, uneven: bool = False
) -> tuple[list[bytes], list[bytes]]:
    return (
        [b"t/%d" % (number % topics) for number in range(count)],
        [
            b"%02d:%04d%s" % (publisher, number, b"." * (number % 5 if uneven else 0))
            for number in range(count)
        ],
    )


def as_sent(cycle: Cycle, count: int, first_id: int = 1) -> list[bytes]:
    """The frames of the first messages as a broker sends them on, with packet ids of its own."""
    frames = []
    for number in range(count):
        frame, place = cycle.blanked(number % len(cycle)), cycle.id_at[number % len(cycle)]
        packet_id = (first_id + number - 1) % 65_535 + 1
        number_bytes = packet_id.to_bytes(2, "big")
        frames.append(frame[:place] + number_bytes + frame[place + 2 :] if cycle.qos else frame)
    return frames


def lost(frames: list[bytes]) -> None:
    del frames[7]


def repeated(frames: list[bytes]) -> None:
    frames.insert(7, frames[6])


def swapped(frames: list[bytes]) -> None:
    frames[7], frames[8] = frames[8], frames[7]


def changed(frames: list[bytes]) -> None:
    frames[7] = frames[7][:-1] + b"!"


def duplicate_flag(frames: list[bytes]) -> None:
    frames[7] = bytes((frames[7][0] | 0x08,)) + frames[7][1:]


TAMPERINGS = [lost, repeated, swapped, changed, duplicate_flag]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_even_stream_accepts_what_was_sent_however_it_is_cut(qos: int, size: int) -> None:
    cycle = Cycle(*numbered(10), qos)
    stream = EvenStream(cycle)
    data = b"".join(as_sent(cycle, 25, 65_530))
    acks = b"".join(stream.take(data[at : at + size]) for at in range(0, len(data), size))
    assert (stream.received, stream.done(), stream.expected(25)) == (25, 25, 25)
    assert acks == (written_acknowledgements(0x40, 65_530, 25) if qos else b"")


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("tamper", TAMPERINGS)
def test_an_even_stream_notices(tamper: Callable[[list[bytes]], None], qos: int) -> None:
    cycle = Cycle(*numbered(10), qos)
    frames = as_sent(cycle, 25)
    tamper(frames)
    with pytest.raises(Miscounted, match=r"message \d+"):
        EvenStream(cycle).take(b"".join(frames))


def test_a_stream_of_some_messages_knows_which_are_due() -> None:
    cycle = Cycle(*numbered(10), 0)
    stream = EvenStream(cycle, due=[2, 5, 6])
    assert [stream.expected(sent) for sent in (2, 3, 7, 10, 13)] == [0, 1, 3, 3, 4]
    stream.take(b"".join(cycle.frames[number] for number in (2, 5)))
    assert stream.done() == 6
    with pytest.raises(Miscounted, match="message 2"):
        stream.take(cycle.frames[7])


@pytest.mark.parametrize("qos", [0, 1])
def test_mixed_publishers_may_come_in_any_interleaving(qos: int) -> None:
    cycles = [Cycle(*numbered(10, publisher, 3, uneven=True), qos) for publisher in range(2)]
    one, other = (as_sent(cycle, 12) for cycle in cycles)
    data = b"".join([*one[:5], *other[:11], *one[5:], other[11]])
    stream = MixedStream(cycles)
    acks = b"".join(stream.take(data[at : at + 9]) for at in range(0, len(data), 9))
    stream.verify([12, 12])
    assert (stream.received, len(acks)) == (24, 4 * 24 if qos else 0)
    with pytest.raises(Miscounted, match="publisher 1 sent 13 messages, 12 came"):
        stream.verify([12, 13])


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("tamper", TAMPERINGS)
def test_mixed_publishers_are_each_in_order(tamper: Callable[[list[bytes]], None], qos: int) -> None:
    cycle = Cycle(*numbered(10, 0, 3, uneven=True), qos)
    frames = as_sent(cycle, 12)
    tamper(frames)
    stream = MixedStream([cycle])
    stream.take(b"".join(frames))
    with pytest.raises(Miscounted):
        stream.verify([12])


def test_mixed_publishers_notice_a_stranger() -> None:
    stream = MixedStream([Cycle(*numbered(10), 0)])
    stream.take(Cycle(*numbered(1, publisher=7), 0).frames[0])
    with pytest.raises(Miscounted, match="comes from no known publisher"):
        stream.verify([0])


def test_acknowledgements_are_counted_in_order() -> None:
    got = Acknowledged(10)
    data = written_acknowledgements(0x40, 1, 10) + written_acknowledgements(0x40, 1, 3)
    got.take(data[:6], 13)
    got.take(data[6:], 13)
    assert got.count == 13
    with pytest.raises(Miscounted, match="where PUBACK 4 was expected"):
        got.take(written_acknowledgements(0x40, 5, 1), 20)
    with pytest.raises(Miscounted):
        got.take(written_acknowledgements(0x40, 4, 1), 13)  # never sent


@pytest.mark.parametrize("qos", [0, 1])
def test_an_echo_sends_the_next_one_when_the_last_is_back(qos: int) -> None:
    cycle = Cycle(*numbered(3), qos)
    echo = Echo(cycle)
    back = as_sent(cycle, 2, 700)
    ack = written_acknowledgements(0x40, 1, 2)
    assert echo.first() == cycle.frames[0]
    if qos:
        assert echo.take(back[0]) is None
        assert echo.take(ack[:4]) == written_acknowledgements(0x40, 700, 1) + cycle.frames[1]
        assert echo.take(ack[4:] + back[1]) == written_acknowledgements(0x40, 701, 1) + cycle.frames[2]
    else:
        assert echo.take(back[0][:4]) is None
        assert echo.take(back[0][4:]) == cycle.frames[1]
        assert echo.take(back[1]) == cycle.frames[2]
    assert echo.count == 2
    with pytest.raises(Miscounted, match=re.escape("message 2")):
        echo.take(back[0] + ack[:4] if qos else back[0])
