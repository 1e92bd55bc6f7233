"""The client's machine against the real broker machine: whatever is cut, MQTT's promises hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mqtt.client_and_site import Machine, World
from tests.mqtt.wire import read_all

from roamcast.mqtt.client.client import PING, Accepted, ClientSession, ClientSettings, ConnectRefused, Ended
from roamcast.mqtt.client.outgoing import SESSION_LOST, Acknowledged
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Connack, Disconnect, Packet, Publish, PublishProperties
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.user_properties import HAS
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.identities import NotificationIdentity, split_identity

# --- against the broker ---

Move = tuple[str, int, int]

MOVES = st.lists(
    st.tuples(
        st.sampled_from(("publish", "up", "up", "down", "down", "take", "cut")),
        st.integers(0, 1),
        st.integers(1, 60),
    ),
    max_size=120,
)


def perform(machines: tuple[Machine, Machine], moves: list[Move], qos: int) -> list[str]:
    """Both publish and receive; gives what was published."""
    sent: list[str] = []
    for what, who, count in moves:
        machine = machines[who]
        match what:
            case "publish":
                sent.append(f"{who}:{len(sent)}")
                machine.publish("t", sent[-1], qos)
            case "up":
                machine.carry_up(count)
            case "down":
                machine.carry_down(count)
            case "take":
                machine.take(1 + count % 3)
            case "cut":
                machine.connect()
    return sent


def test_clients_that_want_the_same_in_the_same_way_part_when_one_wants_it_otherwise() -> None:
    world = World()
    alike, changing, grouped, publisher = machines = [Machine(world, name) for name in "abgp"]
    for machine in machines:
        machine.connect()
        world.settle(*machines)
    for machine, filter in ((alike, "#"), (changing, "#"), (grouped, "$share/g/t/#"), (publisher, "t/#")):
        machine.subscribe(filter, 1)
        world.settle(*machines)
    sessions = [world.site.endpoint.sessions[machine.session.settings.client_id] for machine in machines]

    def publish(*topics: str) -> list[list[tuple[str, int]]]:
        for topic in topics:
            publisher.publish(topic, "x", 2)
        world.settle(*machines)
        got = [[(one.topic, one.qos) for one in machine.taken] for machine in machines]
        for machine in machines:
            machine.taken.clear()
        return got

    assert publish("t/1", "t/2", "t/1") == [[("t/1", 1), ("t/2", 1), ("t/1", 1)]] * 4
    assert sessions[0].plans is sessions[1].plans is sessions[3].plans
    changing.subscribe("#", 0)
    world.settle(*machines)
    assert publish("t/1", "t/3") == [[("t/1", qos), ("t/3", qos)] for qos in (1, 0, 1, 1)]
    assert sessions[0].plans is not sessions[1].plans


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
@settings(max_examples=60, deadline=None)
@given(moves=MOVES)
def test_connections_are_cut_anywhere(version: int, qos: int, moves: list[Move]) -> None:
    world = World()
    machines = (Machine(world, "one", version=version), Machine(world, "two", version=version))
    for machine in machines:
        machine.connect()
        machine.subscribe("t", qos)
        world.settle(*machines)
    sent = perform(machines, moves, qos)
    for machine in machines:
        machine.connect()
    world.settle(*machines)
    for machine in machines:
        assert all(machine.presents()[1:])
        assert set(machine.payloads) == set(sent)
        assert qos == 1 or len(machine.payloads) == len(sent)
        first = list(dict.fromkeys(machine.payloads))
        for who in "01":
            mine = [one for one in sent if one[0] == who]
            assert [one for one in first if one[0] == who] == mine
    acknowledged = [len(machine.acknowledged()) for machine in machines]
    assert sum(acknowledged) == len(sent)
    assert not any(one.reason for machine in machines for one in machine.acknowledged().values())


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1), qos=st.sampled_from([0, 1, 2]))
def test_bytes_may_come_in_any_pieces(sizes: list[int], qos: int) -> None:
    world = World()
    machine = Machine(world, "one")
    machine.connect()
    machine.subscribe("#", qos)
    for number in range(5):
        machine.publish(f"topic/{number % 2}", "x" * 40 * number, qos)
    for round in range(10_000):
        machine.carry_up(sizes[round % len(sizes)])
        machine.carry_down(sizes[round % len(sizes)])
        machine.take()
        if not machine.up and not machine.down:
            break
    assert [len(one) for one in machine.payloads] == [0, 40, 80, 120, 160]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_too_large_is_left_out(qos: int) -> None:
    world = World()
    machine = Machine(world, "one", packet_max=30)
    machine.connect()
    machine.subscribe("t", qos)
    for size in (10, 40, 20):
        machine.publish("t", "x" * size, qos)
    world.settle(machine)
    assert [len(one) for one in machine.payloads] == [10, 20]


def test_what_is_not_taken_is_not_acknowledged() -> None:
    world = World()
    reader, writer = Machine(world, "reader"), Machine(world, "writer")
    for machine in (reader, writer):
        machine.connect()
    reader.subscribe("t", 2)
    world.settle(reader, writer)
    for number in range(6):
        writer.publish("t", str(number), 1 + number % 2)
    writer.carry_up(1 << 20)
    reader.carry_down(1 << 20)
    reader.take(2)
    reader.carry_up(1 << 20)
    another = Machine(world, "reader")
    another.connect()
    world.settle(another, writer)
    assert reader.payloads + another.payloads == list("012345")


def test_taken_while_away_is_not_repeated() -> None:
    world = World()
    machine = Machine(world, "one")
    machine.connect()
    machine.subscribe("t", 2)
    world.settle(machine)
    for number, qos in enumerate((1, 2, 1, 2)):
        machine.publish("t", str(number), qos)
    machine.carry_up(1 << 20)
    machine.carry_down(1 << 20)
    machine.cut()
    machine.take()
    machine.connect()
    world.settle(machine)
    assert machine.payloads == list("0123")


def test_a_publish_is_acknowledged_only_where_it_was_sent() -> None:
    """What came on an earlier connection is not acknowledged before it has come again."""
    script = Script()
    script.begin()
    script.tell(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 2, packet_id=2))
    script.begin()
    assert [script.session.take().payload for _ in range(2)] == [b"1", b"2"]
    assert script.said() == []
    again = [Publish("t", b"1", 1, dup=True, packet_id=1), Publish("t", b"2", 2, dup=True, packet_id=2)]
    script.tell(*again)
    assert script.said() == [packets.Puback(1), packets.Pubrec(2)]
    assert not len(script.session.incoming)


def test_what_was_taken_before_a_copy_repeats_it_counts_as_taken() -> None:
    """The copy does not count in the end, and its packet ids are void then: this must not come again."""

    def fresh(packet_id: int, qos: int) -> Publish:
        return Publish("t", str(packet_id).encode(), qos, packet_id=packet_id)

    def from_copy(packet_id: int, qos: int) -> Publish:
        said = PublishProperties(user_properties=((HAS, f"session {packet_id}"),))
        return msgspec.structs.replace(fresh(packet_id, qos), dup=True, properties=said)

    script = Script(says_what_it_has=True)
    script.begin(Connack(True, user_properties=((HAS, "first"),)))
    script.tell(fresh(1, 1), fresh(2, 2))
    assert [script.session.take().payload for _ in range(2)] == [b"1", b"2"]
    script.begin(Connack(True, user_properties=((HAS, "second"),)))
    script.tell(from_copy(1, 1), from_copy(2, 2))
    assert [script.session.take().payload for _ in range(len(script.session.incoming))] == [b"1"]
    script.session.begin(0.0)
    (connect,) = script.said()
    assert isinstance(connect, packets.Connect)
    assert dict(connect.user_properties)[HAS] == "second session 2"


def test_another_process_leaves_packet_ids_behind() -> None:
    """A process that died within a QoS 2 publish does not make its successor lose one."""
    world = World()
    dead = Machine(world, "one")
    dead.connect()
    dead.subscribe("t", 2)
    world.settle(dead)
    for number in range(3):
        dead.publish("t", f"dead {number}", 2)
    dead.carry_up(1 << 20)
    successor = Machine(world, "one", first_packet_id=2)
    successor.connect()
    for number in range(3):
        successor.publish("t", f"new {number}", 2)
    world.settle(successor)
    assert [one for one in successor.payloads if one.startswith("new")] == ["new 0", "new 1", "new 2"]
    assert len(successor.acknowledged()) == 3


def test_identities_are_told_to_those_who_ask() -> None:
    world = World()
    asking, plain = Machine(world, "asking"), Machine(world, "plain")
    for machine in (asking, plain):
        machine.connect()
    asking.subscribe("t/#", 2, [("roamcast-identity", "1")])
    plain.subscribe("t/#", 2)
    world.settle(asking, plain)
    forged = PublishProperties(
        user_properties=(
            ("roamcast-publisher", "x"), ("roamcast-incarnation", "1"), ("roamcast-number", "9")
        )
    )  # fmt: skip
    for number in range(3):
        plain.publish("t/a", str(number), 2, properties=forged)
    plain.publish("t/b", "fleeting", 0)
    world.settle(asking, plain)
    found = [
        split_identity(one.properties.user_properties if one.properties else ())[1] for one in asking.taken
    ]
    assert found[3] is None
    assert [one.number for one in found[:3] if one] == [1, 2, 3]
    assert {one.publisher for one in found[:3] if one} == {"plain"}
    assert plain.taken[3].properties is None
    again = Machine(world, "asking")
    asking.cut()
    plain.publish("t/a", "late", 1)
    world.settle(plain)
    again.connect()
    world.settle(again)
    assert again.taken[0].properties is not None
    own, identity = split_identity(again.taken[0].properties.user_properties)
    assert (own, identity) == ((), NotificationIdentity("plain", identity.incarnation if identity else 0, 4))


# --- against a broker that is written here, packet by packet ---


class Script:
    """Says what a broker might say, and shows what the client said."""

    def __init__(self, version: packets.Version = 5, **more: Any) -> None:
        given: dict[str, Any] = {"client_id": "c", "version": version, "clean": False, **more}
        self.version = version
        self.session = ClientSession(ClientSettings(**given))
        self.now = 0.0

    def begin(self, connack: Connack | None = None) -> list[Packet]:
        self.session.begin(self.now)
        self.said()
        self.events = self.tell(connack if connack is not None else Connack(session_present=True))
        return self.said()

    def tell(self, *packets: Packet) -> list[Any]:
        data = b"".join(write(packet, self.version) for packet in packets)
        return list(self.session.receive(self.now, data))

    def said(self) -> list[Packet]:
        return read_all(self.session.take_out(self.now), self.version, from_client=True)

    def publish(self, payload: str, qos: int, **more: Any) -> int:
        token, events = self.session.publish(Publish("t", payload.encode(), qos, **more))
        self.events = list(events)
        return token


def test_the_window_of_the_broker_is_kept_also_when_sending_again() -> None:
    script = Script()
    script.begin(Connack(receive_maximum=4))
    for number in range(6):
        script.publish(str(number), 1)
    assert [one.packet_id for one in script.said()] == [1, 2, 3, 4]  # type: ignore[union-attr]
    script.begin(Connack(True, receive_maximum=3))
    said = script.begin(Connack(True, receive_maximum=2))
    assert [(one.packet_id, one.dup) for one in said if isinstance(one, Publish)] == [(1, True), (2, True)]
    script.tell(packets.Puback(1), packets.Puback(2))
    assert [(one.packet_id, one.dup) for one in script.said()] == [(3, True), (4, True)]  # type: ignore[union-attr]
    script.tell(packets.Puback(3))
    assert [(one.packet_id, one.dup) for one in script.said()] == [(5, False)]  # type: ignore[union-attr]


def test_without_its_session_a_publish_is_repeated_or_unknown() -> None:
    script = Script()
    script.begin(Connack(receive_maximum=3))
    tokens = [script.publish(name, qos) for name, qos in (("a", 1), ("b", 2), ("c", 2), ("d", 1))]
    script.said()
    script.tell(packets.Pubrec(2))
    script.begin(Connack(session_present=False))
    settled = [event for event in script.events if isinstance(event, Acknowledged)]
    unknown = Acknowledged(tokens[2], Reason.UNSPECIFIED_ERROR, SESSION_LOST)
    assert settled == [Acknowledged(tokens[1]), unknown]


def test_subscriptions_are_made_again_where_the_session_is_gone() -> None:
    script = Script()
    script.begin()
    entry = packets.SubscriptionEntry("a/#", 2)
    script.session.subscribe(packets.Subscribe(0, (entry,), 7, (("where", "x > 1"),)))
    (asked,) = script.said()
    assert isinstance(asked, packets.Subscribe)
    # Without an answer it is asked again, though the session is there.
    (again,) = script.begin()
    assert isinstance(again, packets.Subscribe)
    script.tell(packets.Suback(again.packet_id, (Reason.GRANTED_QOS_2,)))
    assert script.begin() == []
    (restored,) = script.begin(Connack(session_present=False))
    assert isinstance(restored, packets.Subscribe)
    assert restored.entries == (entry,)
    assert (restored.subscription_identifier, restored.user_properties) == (7, (("where", "x > 1"),))


def test_what_the_broker_does_not_take_is_not_sent() -> None:
    script = Script()
    script.begin(Connack(maximum_qos=1, retain_available=False, maximum_packet_size=30))
    script.publish("x", 2)
    assert script.events == [Acknowledged(1, Reason.QOS_NOT_SUPPORTED)]
    script.publish("x", 1, retain=True)
    assert script.events == [Acknowledged(2, Reason.RETAIN_NOT_SUPPORTED)]
    script.publish("x" * 40, 1)
    assert script.events == [Acknowledged(3, Reason.PACKET_TOO_LARGE, "the broker takes at most 30 bytes")]
    script.publish("x", 0)
    assert script.events == [Acknowledged(4)]
    assert script.said() == [Publish("t", b"x")]


def test_what_is_on_its_way_waits_for_a_broker_that_takes_it() -> None:
    script = Script()
    script.begin()
    script.publish("x", 2)
    script.publish("y", 1)
    script.said()
    again = [Publish("t", b"x", 2, dup=True, packet_id=1), Publish("t", b"y", 1, dup=True, packet_id=2)]
    assert script.begin(Connack(True, maximum_qos=1)) == again[1:]
    script.tell(packets.Puback(2))
    assert script.begin() == again[:1]


@pytest.mark.parametrize(
    ("packet", "qos", "reason"),
    [
        (packets.Puback(1, Reason.NOT_AUTHORIZED), 1, Reason.NOT_AUTHORIZED),
        (packets.Pubrec(1, Reason.QUOTA_EXCEEDED), 2, Reason.QUOTA_EXCEEDED),
        (packets.Puback(1, Reason.NO_MATCHING_SUBSCRIBERS), 1, Reason.NO_MATCHING_SUBSCRIBERS),
    ],
)
def test_a_refused_publish_says_why(packet: Packet, qos: int, reason: Reason) -> None:
    script = Script()
    script.begin()
    token = script.publish("x", qos)
    assert script.tell(packet) == [Acknowledged(token, reason)]


def test_keep_alive() -> None:
    script = Script(keep_alive_s=20)
    script.begin()
    assert script.session.deadline() == 15.0
    script.now = 15.0
    assert script.session.on_time(15.0) == []
    assert script.session.take_out(15.0) == PING
    assert script.tell(packets.Pingresp()) == []
    assert script.session.deadline() == 30.0
    script.session.on_time(30.0)
    script.session.take_out(30.0)
    assert script.session.deadline() == 40.0
    # A driver that does not read goes on saying that it is there, and hears nothing.
    script.session.listen(31.0, False)
    assert script.session.on_time(45.0) == []
    assert script.session.take_out(45.0) == PING
    script.session.listen(50.0, True)
    assert script.session.on_time(60.0) == []
    assert script.session.take_out(60.0) == PING
    (event,) = script.session.on_time(70.0)
    assert event == Ended(Reason.KEEP_ALIVE_TIMEOUT, "the broker does not answer")
    assert script.session.deadline() is None


def test_the_broker_may_choose_the_keep_alive_and_the_name() -> None:
    script = Script(clean=True)
    script.begin(Connack(server_keep_alive=4, assigned_client_id="given"))
    assert script.session.deadline() == 3.0
    assert script.session.client_id == "given"


def test_the_connect_says_what_was_set() -> None:
    will = packets.Will("gone", b"!", 1, True, 5)
    login: dict[str, Any] = {"username": "u", "password": b"p"}
    script = Script(clean=True, session_expiry_s=60, will=will, receive_maximum=9, **login)
    script.session.begin(0.0)
    (first,) = script.said()
    assert isinstance(first, packets.Connect)
    assert (first.clean_start, first.session_expiry, first.receive_maximum) == (True, 60, 9)
    assert (first.will, first.username, first.password) == (will, "u", b"p")
    script.tell(Connack())
    script.session.begin(0.0)
    (second,) = script.said()
    assert isinstance(second, packets.Connect)
    assert not second.clean_start, "what it has by now must not be thrown away"


def test_leaving_names_the_destination() -> None:
    script = Script()
    script.begin()
    script.session.leave("b", 0)
    expected = Disconnect(session_expiry=0, user_properties=(("roamcast-destination", "b"),))
    assert script.said() == [expected]
    script.session.leave("b")
    assert script.said() == [], "there is nobody to hear it"


@pytest.mark.parametrize("version", [4, 5])
def test_a_refusal_and_an_end_are_told(version: packets.Version) -> None:
    script = Script(version)
    script.session.begin(0.0)
    assert script.tell(Connack(reason=Reason.NOT_AUTHORIZED)) == [ConnectRefused(Reason.NOT_AUTHORIZED, "")]
    script.session.begin(0.0)
    (event,) = script.tell(packets.Pingresp())
    assert event.reason is Reason.PROTOCOL_ERROR
    script.said()
    script.session.begin(0.0)
    assert isinstance(script.tell(Connack())[0], Accepted)
    if version == 5:
        ended = script.tell(Disconnect(Reason.SESSION_TAKEN_OVER, reason_string="two of you"))
        assert ended == [Ended(Reason.SESSION_TAKEN_OVER, "two of you")]


def test_malformed_bytes_end_the_connection() -> None:
    script = Script()
    script.begin()
    (event,) = script.session.receive(0.0, b"\x00\x00")
    assert isinstance(event, Ended)
    assert event.reason is Reason.MALFORMED_PACKET
    assert script.said() == [Disconnect(Reason.MALFORMED_PACKET)]


# --- bursts ---


def in_flight(script: Script) -> list[tuple[int, bytes, bool]]:
    return [(one.packet_id, one.payload, one.dup) for one in script.said() if isinstance(one, Publish)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_burst_is_numbered_acknowledged_and_sent_again_like_its_publishes(qos: int) -> None:
    script = Script(first_packet_id=65_534)
    script.begin(Connack(receive_maximum=4))
    payloads = [b"%d" % number * (number + 1) for number in range(6)]
    token = script.session.new_token()
    assert script.session.publish_burst(token, Publish("t", qos=qos), payloads) == []
    ids = [65_534, 65_535, 1, 2]
    assert in_flight(script) == [(id, payload, False) for id, payload in zip(ids, payloads, strict=False)]
    answer = packets.Puback if qos == 1 else packets.Pubrec
    first: list[Packet] = [answer(id) for id in ids[:2]]
    if qos == 2:
        assert script.tell(*first) == []
        assert script.said() == [packets.Pubrel(id) for id in ids[:2]]
        first = [packets.Pubcomp(id) for id in ids[:2]]
    assert script.tell(*first, packets.Pingresp()) == [Acknowledged(token, publishes=2)]
    assert in_flight(script) == [(3, payloads[4], False), (4, payloads[5], False)]
    again = script.begin(Connack(True, receive_maximum=9))
    assert [one.packet_id for one in again] == [1, 2, 3, 4]  # type: ignore[union-attr]
    assert len(script.session.outgoing) == 4


def test_acknowledgements_of_many_publishes_and_of_none() -> None:
    script = Script()
    script.begin()
    tokens = [script.publish(str(number), 1) for number in range(5)]
    script.said()
    nobody = Reason.NO_MATCHING_SUBSCRIBERS
    # Of ids that are not in flight, or in another way, nothing is heard.
    mixed: list[Packet] = [
        *(packets.Puback(id, nobody) for id in (1, 2, 9)),
        packets.Puback(3),
        packets.Pubcomp(4),
    ]
    heard = script.tell(*mixed)
    assert heard == [*(Acknowledged(token, nobody) for token in tokens[:2]), Acknowledged(tokens[2])]
    # However the bytes come.
    data = write(packets.Puback(4), 5) + write(packets.Puback(5, nobody), 5)
    heard = [event for at in range(len(data)) for event in script.session.receive(0.0, data[at : at + 1])]
    assert heard == [Acknowledged(tokens[3]), Acknowledged(tokens[4], nobody)]
    assert script.tell(packets.Pubrec(77)) == []
    assert script.said() == [packets.Pubrel(77, Reason.PACKET_IDENTIFIER_NOT_FOUND)]
    assert [type(event) for event in script.session.receive(0.0, b"\x40\x02\0\0")] == [Ended]


def test_a_burst_passes_by_what_cannot_be_sent_and_ids_that_are_taken() -> None:
    script = Script()
    script.begin(Connack(maximum_packet_size=20))
    script.session.subscribe(packets.Subscribe(0, (packets.SubscriptionEntry("a", 0),)))
    script.session.outgoing.reserve_id()
    token = script.session.new_token()
    script.publish("early", 1)
    script.session.outgoing._next = 2
    events = script.session.publish_burst(token, Publish("t", qos=1), [b"a", b"x" * 30, b"c"])
    assert [(event.token, event.reason) for event in events] == [(token, Reason.PACKET_TOO_LARGE)]  # type: ignore[union-attr]
    assert [id for id, _, _ in in_flight(script)] == [3, 4, 6]
