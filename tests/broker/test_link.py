"""Links: whatever is cut and whoever crashes, each message arrives once and in order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.broker.link_pair import CODEC, Pair

from roamcast.broker.links import frames as wire
from roamcast.broker.links.end import ACKNOWLEDGE_EVERY, Arrivals, LinkEnd, LinkError, Resume
from roamcast.broker.links.frames import FrameCutter
from roamcast.errors import InputError
from roamcast.protocol.codec import Codec
from roamcast.protocol.messages import Fleeting, Message, Relayed, Settled
from roamcast.protocol.notification import Burst, encode_attributes

TOPIC = encode_attributes({"topic": "a/b"})


def connected(**limits: Any) -> tuple[LinkEnd, LinkEnd]:
    a, b = LinkEnd("b", 11, CODEC, **limits), LinkEnd("a", 22, CODEC)
    a.up(b.resume())
    b.up(a.resume())
    return a, b


def large(number: int, size: int = 2_000_000) -> Burst:
    return Burst("p", 0, number, TOPIC, 0.0, (random.Random(number).randbytes(size),))


# --- exactly once, in order ---


@pytest.mark.parametrize("seed", range(150))
def test_each_message_arrives_once_and_in_order_whatever_happens(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    if seed % 2:  # Frames fill up, and messages are cut into parts.
        monkeypatch.setattr(wire, "BATCH_BYTES", rng.choice((20, 60)))
        monkeypatch.setattr(wire, "PART_BYTES", rng.choice((3, 5, 12)))
    pair = Pair(rng)
    pair.connect()
    for _ in range(300):
        index = rng.randrange(2)
        what = rng.random()
        if what < 0.3:
            pair.send(index, rng.choice((1, 1, 2, 30)))
        elif what < 0.6:
            pair.write(index, rng.choice((10, 100, 10_000)))
        elif what < 0.92:
            pair.carry(index, rng.choice((1, 7, 50, 10_000)))
        elif what < 0.95:
            pair.connect()
        elif what < 0.97:
            pair.sides[index].take_snapshot()
        else:
            pair.crash(index)
        for side, other in (pair.sides, pair.sides[::-1]):
            assert side.arrived == other.sent[: len(side.arrived)]
    pair.finish()
    for side, other in (pair.sides, pair.sides[::-1]):
        assert side.arrived == other.sent
        assert side.end.kept_count == side.end.kept_bytes == 0


def test_the_story_above_has_crashes_that_lose_something_and_repeats_that_are_skipped() -> None:
    """Otherwise it would show nothing."""
    pair = Pair(random.Random(1))
    pair.connect()
    pair.send(0, 3)
    pair.write(0, 1000)
    pair.carry(1, 1000)
    assert len(pair.sides[1].arrived) == 3
    pair.crash(1)
    assert pair.sides[1].arrived == []
    pair.connect()
    pair.write(0, 1000)
    again = pair.wires[1]
    pair.carry(1, 1000)
    assert len(pair.sides[1].arrived) == 3
    arrivals = pair.sides[1].end.receive(again)
    assert arrivals == Arrivals([], [], b"")


def test_messages_of_one_turn_share_a_frame() -> None:
    a, b = connected()
    messages: list[Message] = [Settled(number) for number in range(50)]
    messages.append(Relayed("a", "c", Settled(50)))
    for message in messages:
        a.send(message)
    data = a.take()
    cutter = FrameCutter()
    cutter.feed(data)
    assert len(cutter.take_one()) == len(data) - 4
    arrivals = b.receive(data)
    assert arrivals.numbered == messages
    assert arrivals.durable == data


def test_only_new_numbered_frames_are_to_be_journalled() -> None:
    a, b = connected()
    a.send(Settled(1))
    first = a.take()
    b.receive(first)
    a.send(Settled(2))
    a.send_fleeting(Fleeting("p", 0, 0, TOPIC))
    second = a.take()
    arrivals = b.receive(a.heartbeat() + first + second)
    assert arrivals.numbered == [Settled(2)]
    assert arrivals.fleeting == [Fleeting("p", 0, 0, TOPIC)]
    assert arrivals.durable == second[: len(first)]
    assert b.receive(a.heartbeat()).durable == b""


def test_a_large_message_is_cut_into_parts_and_begins_anew_after_a_cut() -> None:
    a, b = connected()
    a.send(Settled(1))
    a.send(large(1))
    a.send(Settled(2))
    data = a.take(1000)
    assert len(data) < 600_000, "take gives about as much as was asked for"
    assert b.receive(data).numbered == [Settled(1)]
    a.up(b.resume())
    b.up(a.resume())
    journal = b""
    arrived: list[Message] = []
    while a.has_more:
        data = a.take(1000)
        assert len(data) <= wire.FRAME_BYTES_MAX + 4
        arrivals = b.receive(data)
        arrived += arrivals.numbered
        journal += arrivals.durable
    assert arrived == [large(1), Settled(2)]
    replayed = LinkEnd("a", 22, CODEC)
    replayed.received = 1
    assert replayed.receive(journal).numbered == arrived


# --- acknowledging ---


def test_nothing_is_acknowledged_before_it_is_journalled() -> None:
    a, b = connected()
    a.send(Settled(1))
    b.receive(a.take())
    b.send(Settled(9))
    a.receive(b.take())
    assert a.kept_count == 1
    b.acknowledge()
    b.send(Settled(10))
    a.receive(b.take())
    assert a.kept_count == 0


def test_one_sided_traffic_is_acknowledged_every_so_often_and_by_heartbeats() -> None:
    a, b = connected()
    for number in range(ACKNOWLEDGE_EVERY - 1):
        a.send(Settled(number))
        b.receive(a.take())
        b.acknowledge()
        assert b.take() == b""
    a.send(Settled(0))
    b.receive(a.take())
    b.acknowledge()
    a.receive(b.take())
    assert a.kept_count == 0
    a.send(Settled(1))
    b.receive(a.take())
    b.acknowledge()
    assert b.take() == b""
    a.receive(b.heartbeat())
    assert a.kept_count == 0


def test_a_turn_may_be_acknowledged_while_the_next_one_is_not_journalled_yet() -> None:
    a, b = connected()
    for number in (1, 2):
        a.send(Settled(number))
        b.receive(a.take())
    b.acknowledge(1)
    a.receive(b.heartbeat())
    assert a.kept_count == 1


# --- limits ---


def test_what_is_kept_has_a_limit_that_can_be_seen() -> None:
    a, b = connected(kept_bytes_max=1000)
    for number in range(10):
        a.send(Burst("p", 0, number, b"", 0.0, (b"x" * 100,)))
    was_over_limit = a.is_over_limit
    b.receive(a.take())
    b.acknowledge()
    a.receive(b.heartbeat())
    assert (was_over_limit, a.is_over_limit) == (True, False)
    assert a.kept_bytes == 0


def test_what_is_fleeting_goes_out_only_while_the_link_is_up_and_the_peer_keeps_pace() -> None:
    burst = Fleeting("p", 0, 0, TOPIC, 0.0, (b"x" * 100,) * 3, 3)
    a, b = connected(fleeting_bytes_max=1000)
    for _ in range(10):
        a.send_fleeting(burst)
    sent = b.receive(a.take()).fleeting
    assert 0 < len(sent) < 10
    assert a.dropped_fleeting == 3 * (10 - len(sent))
    a.send_fleeting(burst)
    a.down()
    a.send_fleeting(burst)
    dropped = a.dropped_fleeting
    a.up(b.resume())
    assert a.take() == b""
    assert dropped == 3 * (11 - len(sent)), "one was on its way, which nobody counts, and one was not sent"


def test_a_large_message_fits_the_fleeting_lane_too() -> None:
    a, b = connected(fleeting_bytes_max=1000)
    messages = [Fleeting("p", 0, 0, TOPIC, 0.0, (b"y" * size,)) for size in (10, 1_500_000)]
    for message in messages:
        a.send_fleeting(message)
    assert b.receive(a.take()).fleeting == messages[:1], "the second one had no room"
    a.send_fleeting(messages[1])
    a.send_fleeting(messages[0])
    assert a.dropped_fleeting == 2
    cutter = FrameCutter()
    cutter.feed(a.take())
    assert b.receive(cutter.take_all()).fleeting == messages[1:]


# --- giving up ---


def test_giving_up_returns_what_was_not_acknowledged() -> None:
    a, b = connected()
    for number in (1, 2):
        a.send(Settled(number))
        b.receive(a.take())
    b.acknowledge(1)
    a.receive(b.heartbeat())
    a.send(large(7))
    a.send(Settled(3))
    assert a.give_up() == [Settled(2), large(7), Settled(3)]
    assert (a.kept_count, a.kept_bytes, a.has_more) == (0, 0, False)


# --- ends that do not fit ---


def journals() -> tuple[LinkEnd, LinkEnd]:
    """Two ends that have exchanged something, which is journalled and acknowledged."""
    a, b = connected()
    for number in (1, 2, 3):
        a.send(Settled(number))
        b.send(Settled(number))
    b.receive(a.take())
    a.receive(b.take())
    a.acknowledge()
    b.acknowledge()
    a.receive(b.heartbeat())
    b.receive(a.heartbeat())
    return a, b


def test_a_peer_that_lost_its_journal_is_noticed_on_both_sides() -> None:
    a, _ = journals()
    fresh = LinkEnd("a", 33, CODEC)
    for number in range(5):
        fresh.send(Settled(number))
    with pytest.raises(LinkError, match="b has restarted this link"):
        a.up(fresh.resume())
    with pytest.raises(LinkError, match="a resumes an earlier link"):
        fresh.up(a.resume())
    with pytest.raises(LinkError, match="restarted this link"):
        a.up(Resume())
    assert not a.is_up


def test_a_journal_that_is_older_than_it_was_is_noticed() -> None:
    a, _ = journals()
    old = LinkEnd("a", 22, CODEC)
    old.send(Settled(1))
    with pytest.raises(LinkError, match="b reports 0 received messages, but 3 were sent here"):
        a.up(old.resume())
    with pytest.raises(LinkError, match="a reports 3 received messages, but 1 were sent here"):
        old.up(a.resume())


def test_frames_that_do_not_fit_are_refused_and_change_nothing() -> None:
    a, b = connected()
    for number in (1, 2):
        a.send(Settled(number))
        b.receive(a.take()) if number == 1 else None
    good = a.take()
    a.send(Settled(3))
    later = a.take()
    other = wire.batch(99, 0, 2, b"\xdd\0\0\0\0")
    for bad, why in (
        (later, "message 3 after 1: some are missing"),
        (good + b"\0\0\0\x01\x09", "unknown kind 9"),
        (good + b"\0\0\0\x02\x03\0", "unreadable frame"),
        (good + later[:-1], "incomplete"),
        (good + b"\0\0", "unreadable frame"),
        (good + b"\0\0\0\0\x03", "incomplete"),
        (good + wire.fleeting(b"\xc1"), "unreadable frame: malformed batch"),
        (good + wire.acknowledgement(1), "acknowledges message 1, but only 0 were sent"),
        (other, "with another incarnation"),
    ):
        with pytest.raises(LinkError, match=why):
            b.receive(bad)
    assert b.receive(good).numbered == [Settled(2)]


def test_random_bytes_from_a_peer_are_refused_with_one_line() -> None:
    rng = random.Random(5)
    a, _ = connected()
    a.send(large(1, 300))
    good = a.take()
    refused = []
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        end = LinkEnd("a", 22, Codec())
        try:
            end.receive(bytes(data))
        except LinkError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert not any("\n" in line for line in refused)


def test_a_message_without_bound_is_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roamcast.broker.links.end.MESSAGE_BYTES_MAX", 1_000_000)
    a, b = connected()
    with pytest.raises(InputError, match="at most 1000000 can be sent"):
        a.send(large(1))
    piece = wire.part(11, 0, 1, False, b"x" * wire.PART_BYTES)
    b.receive(piece)
    with pytest.raises(LinkError, match="more than 1000000 bytes"):
        b.receive(piece)


# --- cutting ---


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_is_cut_into_whole_frames_however_it_comes(seed: int) -> None:
    rng = random.Random(seed)
    stream = b"".join(wire.fleeting(rng.randbytes(rng.randrange(40))) for _ in range(50))
    cutter, start, got = FrameCutter(), 0, b""
    while start < len(stream):
        size = rng.choice((1, 3, 10, 200))
        cutter.feed(stream[start : start + size])
        start += size
        if rng.random() < 0.5:
            frame = cutter.take_one()
            got += len(frame).to_bytes(4, "big") + frame if frame else b""
        else:
            got += cutter.take_all()
    assert got + cutter.take_all() == stream


def test_a_frame_over_the_limit_is_refused_by_its_first_bytes() -> None:
    cutter = FrameCutter(frame_bytes_max=100)
    cutter.feed((101).to_bytes(4, "big"))
    with pytest.raises(InputError, match="a frame of 101 bytes: 1 to 100 are allowed"):
        cutter.take_one()
    empty = FrameCutter()
    empty.feed(b"\0\0\0\0")
    with pytest.raises(InputError, match="a frame of 0 bytes"):
        empty.take_all()
