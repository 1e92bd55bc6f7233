"""Location-dependent subscriptions over MQTT: the client says where it is, and hears what is near."""

from roamcast.mqtt import packets
from roamcast.mqtt.access import Identity
from roamcast.mqtt.reading import cut, parse
from roamcast.mqtt.reasons import Reason
from roamcast.mqtt.writing import write
from roamcast.site.inputs import Connected, Frames, Started
from roamcast.site.settings import SiteSettings
from roamcast.site.site import Site

ROOMS = "lobby corridor\ncorridor office\noffice attic\n"


class Talk:
    """One site, and clients that send it packets."""

    def __init__(self, graph: str = ROOMS) -> None:
        settings = SiteSettings("a", movement_graph=graph)
        self.site = Site(settings)
        self.now = 100.0
        self.site.step(self.now, [Started(settings)])

    def connect(self, number: int, name: str) -> None:
        self.send(number, Connected(number, packets.Connect(5, name), Identity(name)))

    def send(self, number: int, item: Connected | packets.Packet) -> dict[int, list[packets.Packet]]:
        self.now += 10.0
        step = item if isinstance(item, Connected) else Frames(number, write(item, 5))
        written = self.site.step(self.now, [step]).writes
        return {one: packets_in(b"".join(parts)) for one, parts in written.items()}


def packets_in(data: bytes) -> list[packets.Packet]:
    found = []
    while (whole := cut(data, 0, 1 << 20)) is not None:
        found.append(parse(whole[0], data[whole[1] : whole[2]], 5, from_client=False))
        data = data[whole[2] :]
    return found


def subscribe(where: str) -> packets.Subscribe:
    return packets.Subscribe(1, (packets.SubscriptionEntry("news", 1),), user_properties=(("where", where),))


def news(location: str, packet_id: int) -> packets.Publish:
    properties = packets.PublishProperties(user_properties=(("location", location),))
    return packets.Publish("news", location.encode(), 1, packet_id=packet_id, properties=properties)


def heard(answers: dict[int, list[packets.Packet]], number: int) -> list[bytes]:
    return [one.payload for one in answers.get(number, []) if isinstance(one, packets.Publish)]


def test_a_client_hears_what_is_near_wherever_it_goes() -> None:
    talk = Talk()
    talk.connect(1, "reader")
    talk.connect(2, "writer")
    talk.send(1, packets.Publish("$roamcast/move", b"lobby", 1, packet_id=9))
    suback = talk.send(1, subscribe("location WITHIN 1 OF myloc"))[1]
    assert suback == [packets.Suback(1, (Reason.GRANTED_QOS_1,))]
    assert heard(talk.send(2, news("corridor", 1)), 1) == [b"corridor"]
    assert heard(talk.send(2, news("office", 2)), 1) == []
    (ack,) = talk.send(1, packets.Publish("$roamcast/move", b'{"location": "corridor"}', 1, packet_id=8))[1]
    assert ack == packets.Puback(8)
    assert heard(talk.send(2, news("office", 3)), 1) == [b"office"]
    assert heard(talk.send(2, news("attic", 4)), 1) == []


def test_what_cannot_be_understood_is_refused_and_others_are_served() -> None:
    talk = Talk(graph="")
    talk.connect(1, "reader")
    talk.connect(2, "other")
    (suback,) = talk.send(1, subscribe("location IN myloc"))[1]
    assert suback == packets.Suback(1, (Reason.TOPIC_FILTER_INVALID,))
    (ack,) = talk.send(1, packets.Publish("$roamcast/move", b'{"location": [1]}', 1, packet_id=8))[1]
    assert ack == packets.Puback(8, Reason.NOT_AUTHORIZED)
    (ack,) = talk.send(1, packets.Publish("$roamcast/elsewhere", b"x", 1, packet_id=7))[1]
    assert ack == packets.Puback(7, Reason.NOT_AUTHORIZED)
    assert talk.send(2, packets.Pingreq())[2] == [packets.Pingresp()]
