"""The fuzzer finds mistakes in how copies serve standard MQTT clients: each is planted in what ships."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulator.test_mqtt_breakages import Plant, first_failing_seed

from roamcast.broker.endings import Endings
from roamcast.broker.handoffs import Handoffs
from roamcast.broker.session import ClientHere
from roamcast.mobility.roam import DropCopy, FeedCopy, Replica, Roam
from roamcast.mqtt.server import delivering, session_front
from roamcast.mqtt.server.connection import MqttConnection
from roamcast.mqtt.server.endpoint import Endpoint
from roamcast.mqtt.server.sessions import MqttSession
from roamcast.protocol.messages import READ_IN_VAIN, Welcome
from roamcast.simulator.drawing import everyone_next
from roamcast.simulator.story import parse_story, violations_of

SEEDS_MAX = 400
"""A copy begins with something to serve: the first seed that has one while QoS 2 is unfinished is 293."""
EVERYONE = everyone_next(("b00", "b01", "b02"))
WITHOUT_ITS_COPY = f"""
brokers b00-b01 b01-b02
protocol roam
link 0.03
access 0.005
loss 0.5
seed 533
front mqtt
neighbour_graph {EVERYONE}
copies_for_s 1.0
at 0.001303 c0 attach b02 version 5 expiry 0 alive 1
at 0.001834 c3 attach b00 version 5
at 0.005741 c1 attach b02 version 5 window 2
at 0.009755 c2 attach b02 version 5
at 1.000000 c0 subscribe job/# no-local qos 1
at 1.000000 c1 subscribe b/# qos 1 identifier 213
at 1.000000 c2 subscribe a/2 qos 1 retain-handling 1 where x > 1
at 1.000000 c2 subscribe +/1 qos 1 retain-handling 1 identifier 312 where x > 1
at 1.000000 c3 subscribe a/1 no-local qos 1 retain-handling 1 identifier 411
at 10.004094 c1 subscribe $share/g/job/# qos 1 identifier 200
at 10.013770 c3 disconnect to b02
at 10.017853 c1 disconnect to b01
at 10.032728 c1 publish a/1 qos 2 times 5 x=3
at 10.044229 c1 publish a/1 qos 1 x=2
at 10.050765 c1 attach b01
at 10.104928 c0 subscribe b/# qos 1 retain-handling 1
at 10.123579 c3 attach b01
at 10.133499 c1 publish a/1 qos 1 expiry 2 x=2
at 10.165552 c0 publish b/1 times 2 x=1
at 10.169251 b01 crash unsent
at 10.238696 c1 publish a/2 qos 2 times 5 x=2
at 10.286595 b01 restart
at 10.297274 c3 attach b02
at 10.331789 c1 attach b01
at 10.334803 c2 attach b00
at 10.387827 c0 publish a/1 qos 1 x=2
"""
"""A copy serves c3; its holder gives the copy up. The session comes without it, with messages in flight."""

EXPIRES_WHILE_A_COPY_SERVES = f"""
brokers b00-b01 b01-b02
protocol roam
link 0.1
seed 125
front mqtt
neighbour_graph {EVERYONE}
at 1.000000 c2 subscribe a/1 qos 2
at 34.185701 c2 attach b02
at 46.569562 c2 disconnect expiry 1
at 47.522637 c2 attach b00
at 47.729930 c2 attach b01
at 47.767740 c2 disconnect
"""
"""A copy serves c2 until a moment before its session ends, and c2 leaves for a third broker at once."""
GIVEN_UP_BY_A_FULL_QUEUE = f"""
brokers b00-b01 b00-b02 b00-b03
protocol roam
access 0.005
loss 0.05
seed 17
front mqtt
queue_max 1
neighbour_graph {everyone_next(("b00", "b01", "b02", "b03"))}
at 0.000000 c0 attach b00 version 5
at 0.004931 c1 attach b02 version 5
at 0.009431 c3 attach b03 version 4
at 0.009680 c2 attach b00 version 5
at 1.000000 c1 subscribe a/1 qos 1
at 1.000000 c1 subscribe b/1
at 1.000000 c2 subscribe a/1 qos 1
at 1.000000 c3 subscribe a/1 qos 1
at 1.000000 c3 subscribe b/1 qos 1
at 10.000000 c2 disconnect expiry 4
at 10.000000 c3 disconnect
at 10.020219 c0 publish a/1 qos 2
at 10.045671 c0 publish a/1 qos 1
at 10.218909 c0 publish a/1 qos 1
at 10.229538 c2 attach b01
at 10.242668 c2 attach b02
"""
"""Two copies serve c2, one after the other; the second one has not heard yet what the queue gave up."""


def every_qos_is_served(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_front, "may_be_repeated", lambda *_: True)


def unfinished_qos_2_is_served(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MqttSession, "may_be_copied", property(lambda self: not self.connection and self.expiry_s))
    patch.setattr(MqttSession, "has_qos_2", False)
    every_qos_is_served(patch)


def sessions_end_before_their_copies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Endings, "_withdraw_copies", lambda *_: False)


def copies_of_ended_sessions_stay(patch: pytest.MonkeyPatch) -> None:
    on_drop_copy = Roam.on_drop_copy

    def stay(self: Roam, sender: str, message: DropCopy) -> None:
        if not message.ends:
            on_drop_copy(self, sender, message)

    patch.setattr(Roam, "on_drop_copy", stay)


def old_copies_are_believed(patch: pytest.MonkeyPatch) -> None:
    """What the session says that has come does not count, nor does its queue."""
    patch.setattr(MqttSession, "is_copied_from", lambda *_: True)
    arrived = Endpoint.arrived

    def believe(self: Endpoint, client: str, capsule: bytes, owner: str, reads_on: bool = False) -> None:
        arrived(self, client, capsule, owner, reads_on=True)

    patch.setattr(Endpoint, "arrived", believe)
    close = Handoffs.close

    def go_on(self: Handoffs, here: ClientHere, reason: str) -> None:
        if reason != READ_IN_VAIN:
            close(self, here, reason)

    patch.setattr(Handoffs, "close", go_on)


def repeats_are_not_marked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delivering, "DUP", 0)


def only_copies_mark_repeats(patch: pytest.MonkeyPatch) -> None:
    on_welcome = Endpoint._on_welcome

    def unmarked(self: Endpoint, connection: MqttConnection, message: Welcome) -> None:
        on_welcome(self, connection, Welcome(message.number, message.accepted, message.named_next))

    patch.setattr(Endpoint, "_on_welcome", unmarked)


def acknowledgements_at_copies_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """The former holder is told to keep what the copy has delivered."""
    follow = Replica.follow

    def forget(self: Replica, base: int) -> None:
        delivered = self.queue.base - base
        if delivered > 0:
            self.queue.base = self.queue.sent = base
        follow(self, base)

    patch.setattr(Replica, "follow", forget)


def what_is_fed_meanwhile_is_lost(patch: pytest.MonkeyPatch) -> None:
    on_feed_copy = Roam.on_feed_copy

    def lose(self: Roam, sender: str, message: FeedCopy) -> None:
        on_feed_copy(self, sender, message)
        copy = self.copies.get(message.client)
        if copy is not None:
            copy.aside.clear()

    patch.setattr(Roam, "on_feed_copy", lose)


def a_new_expiry_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A client that a copy has served leaves before its session comes."""
    arrived = Endpoint.arrived

    def forget(self: Endpoint, client: str, capsule: bytes, owner: str, reads_on: bool = False) -> None:
        former = self.sessions.get(client)
        if former is not None and former.copied_from and not former.connection:
            self.give_up(client)
        arrived(self, client, capsule, owner, reads_on)

    patch.setattr(Endpoint, "arrived", forget)


def what_clients_say_is_not_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MqttConnection, "received", {})


def requests_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    take: Any = MqttConnection._take
    patch.setattr(MqttConnection, "_take_ahead", take)


BREAKAGES: dict[str, Plant] = {
    "QoS 0 and 2 are served from copies": every_qos_is_served,
    "unfinished QoS 2 is served from copies": unfinished_qos_2_is_served,
    "sessions end before their copies": sessions_end_before_their_copies,
    "copies of sessions that have ended stay": copies_of_ended_sessions_stay,
    "old copies are believed": old_copies_are_believed,
    "repeats are not marked": repeats_are_not_marked,
    "only copies mark repeats": only_copies_mark_repeats,
    "acknowledgements at copies do not count": acknowledgements_at_copies_do_not_count,
    "what is fed meanwhile is lost": what_is_fed_meanwhile_is_lost,
    "the expiry of a client that has left again is forgotten": a_new_expiry_is_forgotten,
    "what clients say that they have is not heard": what_clients_say_is_not_heard,
    "requests do not wait for the session": requests_do_not_wait,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKAGES)
def test_a_planted_breakage_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKAGES[name](monkeypatch)
    assert first_failing_seed("roam", SEEDS_MAX) is not None


def test_a_session_that_comes_without_its_copy_repeats_nothing_unmarked() -> None:
    assert violations_of(parse_story(WITHOUT_ITS_COPY)) == []


@pytest.mark.parametrize("story", [EXPIRES_WHILE_A_COPY_SERVES, GIVEN_UP_BY_A_FULL_QUEUE])
def test_clients_that_hurry_lose_no_session_and_no_order(story: str) -> None:
    assert violations_of(parse_story(story)) == []
