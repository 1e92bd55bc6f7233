"""The client of the chaos: what it remembers over connections, and what it tells the ledger."""

from roamcast.bench.ledger import Ledger
from roamcast.bench.roaming_session import IN_FLIGHT_MAX, RoamingSession
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write


def said(data: bytes) -> list[Packet]:
    found: list[Packet] = []
    while (whole := cut(data, 0, 1 << 20)) is not None:
        found.append(parse(whole[0], data[whole[1] : whole[2]], 5))
        data = data[whole[2] :]
    return found


def answer(session: RoamingSession, *heard: Packet) -> list[Packet]:
    return said(session.receive(b"".join(write(packet, 5) for packet in heard)))


def joined() -> tuple[RoamingSession, Ledger]:
    ledger = Ledger()
    session = RoamingSession("c", ledger, {"t": 2})
    assert session.connect()
    (subscribe,) = answer(session, packets.Connack())
    assert isinstance(subscribe, packets.Subscribe)
    answer(session, packets.Suback(subscribe.packet_id, (Reason(2),)))
    assert session.is_subscribed
    return session, ledger


def test_what_is_not_acknowledged_is_sent_again_in_its_order() -> None:
    session, ledger = joined()
    first, second = (said(session.publish("t", qos))[0] for qos in (1, 2))
    assert isinstance(first, packets.Publish)
    assert isinstance(second, packets.Publish)
    session.connect()
    again = answer(session, packets.Connack(session_present=True))
    assert [(one.packet_id, one.dup) for one in again if isinstance(one, packets.Publish)] == [
        (first.packet_id, True),
        (second.packet_id, True),
    ]
    assert answer(session, packets.Puback(first.packet_id), packets.Pubrec(second.packet_id)) == [
        packets.Pubrel(second.packet_id)
    ]
    assert all(message.is_acknowledged for message in ledger.published.values())
    assert not session.is_idle
    session.connect()
    assert answer(session, packets.Connack(session_present=True)) == [packets.Pubrel(second.packet_id)]
    answer(session, packets.Pubcomp(second.packet_id))
    assert session.is_idle


def test_a_refused_publish_is_unknown() -> None:
    session, ledger = joined()
    (sent,) = said(session.publish("t", 1))
    assert isinstance(sent, packets.Publish)
    answer(session, packets.Puback(sent.packet_id, Reason.QUOTA_EXCEEDED))
    assert not ledger.published["c/0"].is_acknowledged
    assert session.is_idle


def test_a_qos_2_message_is_taken_once_until_it_is_released() -> None:
    session, ledger = joined()
    message = packets.Publish("t", b"p/0", 2, packet_id=5)
    assert answer(session, message) == [packets.Pubrec(5)]
    session.connect()
    answer(session, packets.Connack(session_present=True))
    again = packets.Publish("t", b"p/0", 2, dup=True, packet_id=5)
    assert answer(session, again, packets.Pubrel(5)) == [packets.Pubrec(5), packets.Pubcomp(5)]
    assert ledger.received["c"] == ["p/0"]
    answer(session, packets.Publish("t", b"p/1", 2, packet_id=5))
    assert ledger.received["c"] == ["p/0", "p/1"]


def test_qos_1_messages_count_as_often_as_they_come() -> None:
    session, ledger = joined()
    assert answer(session, *[packets.Publish("t", b"p/0", 1, packet_id=5)] * 2) == [packets.Puback(5)] * 2
    assert ledger.received["c"] == ["p/0", "p/0"]


def test_a_session_that_is_gone_is_noted() -> None:
    session, ledger = joined()
    session.connect()
    answer(session, packets.Connack(session_present=True))
    assert ledger.lost_sessions == []
    session.connect()
    assert isinstance(answer(session, packets.Connack())[0], packets.Subscribe)
    assert ledger.lost_sessions == ["c"]


def test_a_refusal_is_told() -> None:
    session, _ = joined()
    session.connect()
    answer(session, packets.Connack(reason=Reason.SERVER_UNAVAILABLE))
    assert (session.is_welcome, session.refused) == (False, Reason.SERVER_UNAVAILABLE)


def test_the_window_is_kept() -> None:
    session, _ = joined()
    sent = [said(session.publish("t", 1)) for _ in range(IN_FLIGHT_MAX + 2)]
    assert list(map(len, sent)) == [1] * IN_FLIGHT_MAX + [0, 0]
    first = sent[0][0]
    assert isinstance(first, packets.Publish)
    assert len(answer(session, packets.Puback(first.packet_id))) == 1
