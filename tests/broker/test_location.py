"""Location-dependent subscriptions over MQTT: the client says where it is, and hears what is near."""

import re
from itertools import count
from typing import Any

import msgspec
import pytest
from tests.mqtt.wire import read_all

from roamcast.broker.inputs import ClientConnected, ClientFrames, ConnectionLost, RulesChanged, Started
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings, StateSettings
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import AccessRules, Identity, Rule

ROOMS = "lobby corridor\ncorridor office\noffice attic\n"


class Talk:
    """One site, and clients that send it packets."""

    def __init__(
        self,
        graph: str = ROOMS,
        states: tuple[StateSettings, ...] = (),
        step_m: float = 0.0,
        zones: tuple[tuple[str, str], ...] = (),
        **more: Any,
    ) -> None:
        settings = MachineSettings(
            "a", movement_graph=graph, states=states, position_step_m=step_m, zones=zones, **more
        )
        self.site = BrokerMachine(settings)
        self.now = 100.0
        self.site.step(self.now, [Started(settings)])

    def connect(self, number: int, name: str) -> None:
        self.send(number, ClientConnected(number, packets.Connect(5, name), Identity(name)))

    def send(self, number: int, item: ClientConnected | packets.Packet) -> dict[int, list[packets.Packet]]:
        self.now += 10.0
        step = item if isinstance(item, ClientConnected) else ClientFrames(number, write(item, 5))
        written = self.site.step(self.now, [step]).writes
        return {one: read_all(b"".join(parts)) for one, parts in written.items()}


def talking(graph: str = ROOMS, **more: Any) -> Talk:
    """A site with a reader and a writer."""
    talk = Talk(graph, **more)
    talk.connect(1, "reader")
    talk.connect(2, "writer")
    return talk


def subscribe(where: str) -> packets.Subscribe:
    return packets.Subscribe(1, (packets.SubscriptionEntry("news", 1),), user_properties=(("where", where),))


def news(location: str, packet_id: int) -> packets.Publish:
    properties = packets.PublishProperties(user_properties=(("location", location),))
    return packets.Publish("news", location.encode(), 1, packet_id=packet_id, properties=properties)


def heard(answers: dict[int, list[packets.Packet]], number: int) -> list[bytes]:
    return [one.payload for one in answers.get(number, []) if isinstance(one, packets.Publish)]


def test_a_client_hears_what_is_near_wherever_it_goes() -> None:
    talk = talking()
    talk.send(1, packets.Publish("$roamcast/move", b"lobby", 1, packet_id=9))
    suback = talk.send(1, subscribe("location WITHIN 1 OF myloc"))[1]
    assert suback == [packets.Suback(1, (Reason.GRANTED_QOS_1,))]
    assert heard(talk.send(2, news("corridor", 1)), 1) == [b"corridor"]
    assert heard(talk.send(2, news("office", 2)), 1) == []
    (ack,) = talk.send(1, packets.Publish("$roamcast/move", b'{"location": "corridor"}', 1, packet_id=8))[1]
    assert ack == packets.Puback(8)
    assert heard(talk.send(2, news("office", 3)), 1) == [b"office"]
    assert heard(talk.send(2, news("attic", 4)), 1) == []


def told(answer: packets.Suback | packets.Puback | packets.Pubrec) -> str:
    return (answer.properties.reason_string or "") if answer.properties is not None else ""


def move(place: str, packet_id: int = 9, qos: int = 1) -> packets.Publish:
    return packets.Publish("$roamcast/move", place.encode(), qos, packet_id=packet_id)


@pytest.mark.parametrize("qos", [1, 2])
def test_an_unknown_location_is_refused_with_a_reason_and_the_client_stays(qos: int) -> None:
    talk = talking()
    talk.send(1, move("lobby"))
    talk.send(1, subscribe("location IN myloc"))
    (ack,) = talk.send(1, move("cellar", 3, qos))[1]
    assert isinstance(ack, packets.Puback | packets.Pubrec)
    assert ack.reason is Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert told(ack) == "location 'cellar' is not in the movement graph, which has 4 locations"
    assert heard(talk.send(2, news("lobby", 1)), 1) == [b"lobby"]
    # A name of any length may come, but not go back: the answer is short, or as short as the client wants.
    (ack,) = talk.send(1, move("x" * 50_000))[1]
    assert isinstance(ack, packets.Puback)
    assert len(told(ack)) == 1000


def test_of_several_moves_at_once_each_has_its_own_answer() -> None:
    talk = talking()
    frames = b"".join(
        write(move(place, number + 1), 5) for number, place in enumerate(("lobby", "x", "attic"))
    )
    talk.now += 1
    answers = read_all(b"".join(talk.site.step(talk.now, [ClientFrames(1, frames)]).writes[1]))
    assert [one.reason for one in answers if isinstance(one, packets.Puback)] == [
        Reason.SUCCESS, Reason.IMPLEMENTATION_SPECIFIC_ERROR, Reason.SUCCESS,
    ]  # fmt: skip
    talk.send(1, subscribe("location IN myloc"))
    assert heard(talk.send(2, news("attic", 1)), 1) == [b"attic"]


def test_a_client_that_wants_no_texts_gets_none() -> None:
    talk = Talk()
    silent = packets.Connect(5, "silent", request_problem_information=False)
    narrow = packets.Connect(5, "narrow", maximum_packet_size=20)
    for number, connect in enumerate((silent, narrow), 1):
        talk.send(number, ClientConnected(number, connect, Identity(connect.client_id)))
        (ack,) = talk.send(number, move("cellar"))[number]
        assert ack == packets.Puback(9, Reason.IMPLEMENTATION_SPECIFIC_ERROR)


def test_where_no_edge_leads_one_jumps_and_the_attic_is_left_in_the_same_way() -> None:
    talk = talking(ROOMS + "tower\n")
    talk.send(1, subscribe("location IN myloc"))
    assert heard(talk.send(2, news("lobby", 1)), 1) == []  # It has not said where it is: nowhere.
    for number, place in enumerate(("lobby", "attic", "tower", "office")):
        assert talk.send(1, move(place))[1] == [packets.Puback(9)]
        assert heard(talk.send(2, news(place, number + 2)), 1) == [place.encode()]
        assert heard(talk.send(2, news("corridor", number + 20)), 1) == []


def test_a_refused_subscription_is_refused_again_and_the_one_before_stays() -> None:
    talk = talking()
    talk.send(1, move("lobby"))
    talk.send(1, subscribe("location IN myloc"))
    for _ in range(2):
        (suback,) = talk.send(1, subscribe("price <= my.budget"))[1]
        assert isinstance(suback, packets.Suback)
        assert suback.reasons == (Reason.TOPIC_FILTER_INVALID,)
        assert told(suback) == "my.budget: this broker does not know how it may change; known are location"
    assert heard(talk.send(2, news("lobby", 1)), 1) == [b"lobby"]


def test_a_shared_subscription_cannot_depend_on_one_of_its_clients() -> None:
    talk = Talk()
    talk.connect(1, "reader")
    entry = packets.SubscriptionEntry("$share/g/news", 1)
    where = (("where", "location IN myloc"),)
    (suback,) = talk.send(1, packets.Subscribe(1, (entry,), user_properties=where))[1]
    assert isinstance(suback, packets.Suback)
    assert suback.reasons == (Reason.TOPIC_FILTER_INVALID,)
    assert "shared subscription" in told(suback)


def test_retained_messages_come_if_they_are_about_where_the_client_is() -> None:
    talk = talking()
    for number, place in enumerate(("lobby", "office"), 1):
        properties = packets.PublishProperties(user_properties=(("location", place),))
        kept = packets.Publish(
            f"news/{place}", place.encode(), 1, True, packet_id=number, properties=properties
        )
        talk.send(2, kept)
    talk.send(1, move("lobby"))
    entry = packets.SubscriptionEntry("news/+", 1)
    where = (("where", "location IN myloc"),)
    assert heard(talk.send(1, packets.Subscribe(1, (entry,), user_properties=where)), 1) == [b"lobby"]


def test_another_subscription_keeps_its_own_quality_of_service() -> None:
    talk = talking()
    talk.send(1, move("lobby"))
    talk.send(1, subscribe("location IN myloc"))
    talk.send(1, packets.Subscribe(2, (packets.SubscriptionEntry("other", 0),)))
    answers = talk.send(2, packets.Publish("other", b"x", 1, packet_id=5))[1]
    assert [one.qos for one in answers if isinstance(one, packets.Publish)] == [0]


def test_a_state_of_another_name_works_in_the_same_way() -> None:
    budget = StateSettings("budget", fall=10, rise=0, lowest=0, highest=100)
    talk = Talk("", (budget, StateSettings("mood", "calm busy\n")))
    talk.connect(1, "buyer")
    talk.connect(2, "shop")
    talk.send(1, packets.Publish("$roamcast/move", b'{"budget": 50, "mood": "calm"}', 1, packet_id=9))
    talk.send(1, subscribe("price <= my.budget AND mood IN my.mood"))
    for number, (price, expected) in enumerate(((50, [b"50"]), (51, []), (45, [b"45"])), 1):
        properties = packets.PublishProperties(user_properties=(("price", str(price)), ("mood", "calm")))
        offer = packets.Publish("news", str(price).encode(), 1, packet_id=number, properties=properties)
        assert heard(talk.send(2, offer), 1) == expected
    (ack,) = talk.send(1, packets.Publish("$roamcast/move", b'{"budget": 101}', 1, packet_id=9))[1]
    assert isinstance(ack, packets.Puback)
    assert told(ack) == "value 101: valid is a number from 0 to 100"


def test_what_cannot_be_understood_is_refused_and_others_are_served() -> None:
    talk = Talk(graph="")
    talk.connect(1, "reader")
    talk.connect(2, "other")
    (suback,) = talk.send(1, subscribe("location IN myloc"))[1]
    assert isinstance(suback, packets.Suback)
    assert suback.reasons == (Reason.TOPIC_FILTER_INVALID,)
    assert "does not know how it may change" in told(suback)
    for payload in (b'{"location": [1]}', b"{}", b"", b"\xff"):
        (ack,) = talk.send(1, packets.Publish("$roamcast/move", payload, 1, packet_id=8))[1]
        assert isinstance(ack, packets.Puback)
        assert (ack.reason, told(ack)[:8]) == (Reason.IMPLEMENTATION_SPECIFIC_ERROR, "a move: ")
    (ack,) = talk.send(1, packets.Publish("$roamcast/elsewhere", b"x", 1, packet_id=7))[1]
    assert ack == packets.Puback(7, Reason.NOT_AUTHORIZED)
    assert talk.send(2, packets.Pingreq())[2] == [packets.Pingresp()]


HARBOUR = '{"type":"Polygon","coordinates":[[[-3.1,43.3],[-3.0,43.3],[-3.0,43.4],[-3.1,43.4]]]}'


def position(latitude: float, longitude: float, packet_id: int) -> packets.Publish:
    body = f'{{"lat": {latitude}, "lon": {longitude}, "kind": "bus"}}'.encode()
    properties = packets.PublishProperties(content_type="application/json")
    return packets.Publish("news", body, 1, packet_id=packet_id, properties=properties)


def on_earth() -> Talk:
    return talking("", step_m=200.0, zones=(("harbour", HARBOUR),))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ('{"lat": 43.26, "lon": -2.93}', '{"lat": 43.27, "lon": -2.93}'),
        ("43.26,-2.93", '{"type": "Point", "coordinates": [-2.93, 43.27]}'),
        ('{"location": {"latitude": 43.26, "longitude": -2.93}}', '{"location": "43.27,-2.93"}'),
    ],
)
def test_positions_are_locations(first: str, then: str) -> None:
    talk = on_earth()
    talk.send(1, move(first))
    talk.send(1, subscribe("location WITHIN 500 M OF myloc AND kind = 'bus'"))
    assert len(heard(talk.send(2, position(43.263, -2.93, 1)), 1)) == 1
    assert len(heard(talk.send(2, position(43.27, -2.93, 2)), 1)) == 0
    talk.send(1, move(then))
    assert len(heard(talk.send(2, position(43.27, -2.93, 3)), 1)) == 1
    assert len(heard(talk.send(2, position(43.263, -2.93, 4)), 1)) == 0


def test_a_zone_is_called_by_its_name() -> None:
    talk = on_earth()
    talk.send(1, subscribe("location INSIDE 'harbour'"))
    assert len(heard(talk.send(2, position(43.35, -3.05, 1)), 1)) == 1
    assert len(heard(talk.send(2, position(43.35, -2.95, 2)), 1)) == 0
    (answer,) = talk.send(1, subscribe("location INSIDE 'harbor'"))[1]
    assert isinstance(answer, packets.Suback)
    assert answer.reasons == (Reason.TOPIC_FILTER_INVALID,)
    assert "did you mean 'harbour'?" in told(answer)


@pytest.mark.parametrize(
    ("where", "why"),
    [("location WITHIN 2 OF myloc", "valid is a distance"), ("location IN myloc", "valid is a distance")],
)
def test_on_earth_a_distance_has_a_unit(where: str, why: str) -> None:
    (answer,) = on_earth().send(1, subscribe(where))[1]
    assert isinstance(answer, packets.Suback)
    assert why in told(answer)


def test_among_names_a_distance_has_none() -> None:
    talk = Talk()
    talk.connect(1, "reader")
    (answer,) = talk.send(1, subscribe("location WITHIN 2 KM OF myloc"))[1]
    assert isinstance(answer, packets.Suback)
    assert "a number of steps" in told(answer)


@pytest.mark.parametrize("place", ["lobby", "91,0", '{"lat": 91, "lon": 0}', '{"lat": 1}', "{"])
def test_what_is_no_position_is_refused(place: str) -> None:
    (ack,) = on_earth().send(1, move(place))[1]
    assert isinstance(ack, packets.Puback)
    assert ack.reason is Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert re.search("valid (is|are)", told(ack))


# --- where a client is, as it publishes it ------------------------------------------------------------


packet_ids = count(1)


def at_latitude(latitude: float, topic: str = "track/bus", qos: int = 1) -> packets.Publish:
    payload = msgspec.json.encode({"y": latitude, "x": -2.93})
    json = packets.PublishProperties(content_type="application/json")
    return packets.Publish(topic, payload, qos, packet_id=next(packet_ids) if qos else 0, properties=json)


def tracked(**more: Any) -> Talk:
    talk = Talk("", step_m=2_000.0, told_in=("y", "x"), **more)
    talk.connect(1, "bus")
    talk.connect(2, "writer")
    talk.send(1, subscribe("location WITHIN 1 KM OF myloc"))
    return talk


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_is_where_its_own_notifications_say(qos: int) -> None:
    talk = tracked(told_topics=("track/#",))
    assert heard(talk.send(2, news("43.26,-2.93", 1)), 1) == []
    answers = talk.send(1, at_latitude(43.26, qos=qos))
    assert [type(one) for one in answers.get(1, [])] == [[], [packets.Puback], [packets.Pubrec]][qos]
    assert heard(talk.send(2, news("43.26,-2.93", 1)), 1) == [b"43.26,-2.93"]
    # Neither what others publish there says it, nor what it publishes elsewhere, nor what is no position.
    talk.send(2, at_latitude(43.5))
    talk.send(1, at_latitude(43.5, "depot"))
    talk.send(1, at_latitude(143.5))
    assert heard(talk.send(2, news("43.26,-2.93", 2)), 1) == [b"43.26,-2.93"]
    talk.send(1, at_latitude(43.5, qos=qos))
    assert heard(talk.send(2, news("43.26,-2.93", 3)), 1) == []
    assert heard(talk.send(2, news("43.5,-2.93", 4)), 1) == [b"43.5,-2.93"]


@pytest.mark.parametrize("qos", [0, 1])
def test_where_a_client_published_that_it_is_survives_a_crash(qos: int) -> None:
    talk = tracked()
    frames = ClientFrames(1, write(at_latitude(43.26, qos=qos), 5))
    step = talk.site.step(200.0, [frames])
    assert step.durable == [frames]
    # Of several at once the last one counts.
    several = b"".join(write(at_latitude(43.0 + part / 100, qos=qos), 5) for part in range(10))
    talk.site.step(300.0, [ClientFrames(1, several)])
    talk.now = 400.0
    assert heard(talk.send(2, news("43.09,-2.93", 1)), 1) == [b"43.09,-2.93"]


def test_a_client_that_may_not_publish_there_says_nothing_by_it() -> None:
    """Not even of itself: what the rules refuse has not been said."""
    rules = AccessRules((Rule("deny", "track/#", "publish"),))
    talk = tracked()
    talk.site.step(150.0, [RulesChanged(rules)])
    talk.send(1, at_latitude(43.26, qos=0))
    talk.send(1, at_latitude(43.26))
    assert heard(talk.send(2, news("43.26,-2.93", 1)), 1) == []


def test_the_name_of_a_location_may_be_an_attribute_too() -> None:
    talk = talking(told_in=("room",))
    talk.send(1, subscribe("location IN myloc"))
    for room in ("lobby", "cellar"):  # There is no cellar: the client stays where it was.
        properties = packets.PublishProperties(user_properties=(("room", room),))
        (ack,) = talk.send(1, packets.Publish("hello", b"", 1, packet_id=3, properties=properties))[1]
        assert ack == packets.Puback(3)
        assert heard(talk.send(2, news("lobby", 1)), 1) == [b"lobby"]


# --- a client that has never said where it is ---------------------------------------------------------


def test_it_is_where_its_broker_is_until_it_says_more() -> None:
    talk = tracked(lent="43.26,-2.93")
    assert heard(talk.send(2, news("43.265,-2.93", 1)), 1) == [b"43.265,-2.93"]
    talk.send(1, at_latitude(43.5))
    assert heard(talk.send(2, news("43.265,-2.93", 2)), 1) == []
    # What it has said once holds, also when it comes again.
    talk.site.step(500.0, [ConnectionLost(1)])
    talk.connect(3, "bus")
    assert heard(talk.send(2, news("43.265,-2.93", 3)), 3) == []
