"""Somebody sends more than its share: others have their turn, and of what was sent nothing is lost."""

from __future__ import annotations

import pytest

from roamcast.broker.inputs import (
    ClientConnected,
    ClientFrames,
    ConnectionLost,
    MachineEffects,
    MachineInput,
    Started,
)
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.broker.topic_order import TopicOrder
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Connect, Pingreq, Publish, Subscribe, SubscriptionEntry
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.topics import matches
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity
from roamcast.mqtt.server.connection import MqttConnection
from roamcast.protocol.snapshot import freeze

SHARE = 50


def started(packets_per_turn: int = SHARE, **settings: int) -> BrokerMachine:
    given = MachineSettings("a", **settings)  # type: ignore[arg-type]
    site = BrokerMachine(given)
    site.step(1.0, [Started(given)])
    site.endpoint.packets_per_turn = packets_per_turn
    return site


def connected(number: int, name: str) -> ClientConnected:
    return ClientConnected(number, Connect(5, name, session_expiry=3600), Identity(name))


def publishes(count: int) -> bytes:
    return b"".join(write(Publish(f"t/{n}", b"x", 1, packet_id=n), 5) for n in range(1, count + 1))


def run(site: BrokerMachine, *inputs: MachineInput) -> list[MachineEffects]:
    """Turn after turn, as a driver does it, until nothing is left."""
    turns = [site.step(2.0, inputs)]
    while turns[-1].unread:
        goes_on: list[MachineInput] = [ClientFrames(one, b"") for one in turns[-1].unread]
        turns.append(site.step(2.0, [*goes_on, *turns[-1].deferred]))
    return turns


def answers(turns: list[MachineEffects], number: int) -> bytes:
    return b"".join(part for turn in turns for part in turn.writes.get(number, ()))


def test_a_flood_is_taken_in_turns_with_others_between() -> None:
    site = started()
    site.step(1.0, [connected(1, "flood"), connected(2, "other")])
    sent = publishes(1000)
    ping = write(Pingreq(), 5)
    turns = run(site, ClientFrames(1, sent[:7000]), ClientFrames(1, sent[7000:]), ClientFrames(2, ping))
    assert len(turns) >= 1000 / SHARE
    assert answers(turns[:1], 2) == b"\xd0\0"
    assert answers(turns, 1) == answers(run(crowd(0), ClientFrames(1, sent)), 1)


def crowd(packets_per_turn: int) -> BrokerMachine:
    site = started(packets_per_turn)
    site.step(1.0, [connected(1, "flood"), connected(2, "other")])
    return site


def test_who_leaves_behind_a_flood_has_said_all_of_it() -> None:
    site = crowd(SHARE)
    left = write(packets.Disconnect(), 5)
    turns = run(site, ClientFrames(1, publishes(1000) + left), ConnectionLost(1))
    assert answers(turns, 1) == answers(run(crowd(0), ClientFrames(1, publishes(1000) + left)), 1)
    assert [note.reason for turn in turns for note in turn.notes] == ["by the client"]
    assert not any(isinstance(item, ConnectionLost) for turn in turns for item in turn.durable)


def test_what_is_sent_before_the_session_is_there_is_no_way_around_it() -> None:
    site = started()
    turns = run(site, connected(1, "flood"), ClientFrames(1, write(Pingreq(), 5) * 1000))
    assert len(turns) >= 1000 / SHARE
    assert answers(turns, 1).count(b"\xd0\0") == 1000


def test_a_replay_takes_what_was_taken_in_turns() -> None:
    """Of every turn the journal has what it took, however many that were, and has it once."""
    site, replayed = started(), started(packets_per_turn=0)
    turns = run(site, connected(1, "flood"), ClientFrames(1, publishes(300)[:-1]))
    turns += run(site, ClientFrames(1, publishes(300)[-1:] + write(Pingreq(), 5)))
    for turn in turns:
        if turn.durable:
            replayed.step(2.0, turn.durable)
    assert freeze(replayed) == freeze(site)


def test_forbidden_topics_are_refused_one_by_one_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying all that are left together after each of them took the square of their number."""
    tries: list[int] = []
    together = MqttConnection._publish_varied

    def counted(self: MqttConnection, endpoint: object, first: int, bursts: list[object]) -> bool:
        tries.append(len(bursts))
        return together(self, endpoint, first, bursts)  # type: ignore[arg-type]

    monkeypatch.setattr(MqttConnection, "_publish_varied", counted)
    site = crowd(0)
    data = b"".join(write(Publish(f"$SYS/{n}", b"", 1, packet_id=n), 5) for n in range(1, 101))
    (turn,) = run(site, ClientFrames(1, data))
    assert tries == [100]
    assert answers([turn], 1).count(bytes((Reason.NOT_AUTHORIZED,))) == 100


def test_more_topic_filters_in_one_packet_than_one_may_have_are_not_looked_at() -> None:
    site = crowd(0)
    most = site.endpoint.settings.subscriptions_max
    entries = tuple(SubscriptionEntry("same") for _ in range(most + 1))
    turns = run(site, ClientFrames(1, write(Subscribe(1, entries), 5)))
    assert answers(turns, 1).endswith(bytes((0, 0, Reason.QUOTA_EXCEEDED)))


def test_a_large_subscribe_is_carried_out_over_several_turns() -> None:
    """Others come in between; what the client sends behind it waits for it, and the answer comes once."""
    site, replayed = crowd(SHARE), crowd(0)
    names = [f"many/{n}" for n in range(120)]
    entries = tuple(SubscriptionEntry(name) for name in (*names, names[0]))
    unsubscribe = write(packets.Unsubscribe(2, (*names, "other")), 5)
    sent = write(Subscribe(1, entries), 5) + write(Pingreq(), 5)
    first = site.step(2.0, [ClientFrames(1, sent), ClientFrames(2, write(Pingreq(), 5))])
    assert answers([first], 2) == b"\xd0\0"
    assert answers([first], 1) == b""
    turns = [first, *run(site, ClientFrames(1, unsubscribe))]
    answer = answers(turns, 1)
    assert len(turns) >= 2 * 120 / 50
    assert answer.index(b"\0" * 121) < answer.index(b"\xd0\0") < answer.index(b"\0" * 120 + b"\x11")
    for turn in turns:
        if turn.durable:
            replayed.step(2.0, turn.durable)
    assert freeze(replayed) == freeze(site)


def test_who_subscribes_to_much_before_its_session_is_there_is_served_in_turns_too() -> None:
    site = crowd(SHARE)
    large = write(Subscribe(1, tuple(SubscriptionEntry(f"many/{n}") for n in range(120))), 5)
    turns = run(site, connected(3, "late"), ClientFrames(3, large + write(Pingreq(), 5)))
    assert len(turns) > 2
    assert answers(turns, 3).endswith(b"\0" * 120 + b"\xd0\0")


def test_a_topic_that_many_others_have_driven_out_of_memory_is_read_again() -> None:
    site = crowd(0)
    for body in (b"old", b"new"):
        retain(site, ("a", body))
        for first in range(0, 5000, 500):
            others = b"".join(write(Publish(f"t/{n}"), 5) for n in range(first, first + 500))
            run(site, ClientFrames(2, others))
    assert site.retained._kept["a"].body == b"new"


# --- what is retained ---


def retain(site: BrokerMachine, *messages: tuple[str, bytes]) -> None:
    data = b"".join(write(Publish(topic, body, 0, retain=True), 5) for topic, body in messages)
    run(site, ClientFrames(1, data))


def recalled(site: BrokerMachine, topic_filter: str) -> list[str]:
    answer = answers(
        run(site, ClientFrames(2, write(Subscribe(1, (SubscriptionEntry(topic_filter),)), 5))), 2
    )
    run(site, ClientFrames(2, write(packets.Unsubscribe(1, (topic_filter,)), 5)))
    return sorted(topic for topic in site.retained._kept if topic.encode() in answer)


def test_a_retained_message_may_not_grow_past_the_limit() -> None:
    site = started(0, retained_bytes_max=12_000)
    site.step(1.0, [connected(1, "writer"), connected(2, "reader")])
    retain(site, ("grows", b"x"), ("stays", b"y" * 8000))
    retain(site, ("grows", b"x" * 5000))
    assert (site.retained_count, site.retained_refused) == (1, 1)
    assert recalled(site, "#") == ["stays"]  # And not what "grows" was before, which is not true any more.
    retain(site, ("stays", b""), ("grows", b"x" * 5000))
    assert recalled(site, "#") == ["grows"]


def test_deletions_leave_no_more_behind_than_there_may_be_messages() -> None:
    site = started(0, retained_messages_max=10)
    site.step(1.0, [connected(1, "writer")])
    for first in range(0, 4096, 512):
        retain(site, *((f"never/{n}", b"") for n in range(first, first + 512)))
    assert len(site.retained._kept) <= 10
    retain(site, ("one", b"x"))
    assert (site.retained_count, site.retained_refused) == (1, 0), "deletions took its room"


TOPICS = ["a", "a/b", "a/b/c", "a//c", "/", "/a", "$SYS/a", "b/b", "b/c/d", "a/c"]
FILTERS = ["a", "#", "a/#", "+", "+/+", "a/+", "+/b/#", "a/+/c", "/#", "$SYS/#", "b", "b/+/d", "none/#"]


@pytest.mark.parametrize("visits", [1, 3, 1000])
@pytest.mark.parametrize("topic_filter", FILTERS)
def test_a_search_finds_what_a_topic_filter_matches(topic_filter: str, visits: int) -> None:
    order = TopicOrder()
    for topic in (*TOPICS, "b", "b/c", "gone/x"):
        order.add(topic)
    for topic in ("b", "b/c", "gone/x", "never"):
        order.discard(topic)
    found: list[str] = []
    onward: str | None = ""
    while onward is not None:
        topics, onward, _ = order.search(tuple(topic_filter.split("/")), onward, visits)
        found += topics
    assert sorted(found) == sorted(one for one in TOPICS if matches(topic_filter, one))


def test_retained_messages_are_found_by_topic_and_by_content() -> None:
    site = started(0)
    site.step(1.0, [connected(1, "writer"), connected(2, "reader")])
    retain(site, ("t/1", b"x"), ("t/2", b"x"), ("u", b"x"))
    described = packets.PublishProperties(user_properties=(("n", "5"),))
    run(site, ClientFrames(1, write(Publish("t/3", b"x", 0, True, properties=described), 5)))
    assert recalled(site, "t/2") == ["t/2"]
    assert recalled(site, "t/+") == ["t/1", "t/2", "t/3"]
    assert recalled(site, "+/+?n>4") == ["t/3"]
    assert recalled(site, "t/3?n>5") == []
