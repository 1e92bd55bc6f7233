"""What MQTT clients get from brokers that move: sessions, their limits, and what is refused and why."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.broker.mobile_world import MobileWorld
from tests.broker.test_mobile_site import make_world, payloads, subscribed

from roamcast.broker.inputs import (
    AccessRevoked,
    BrokerForgotten,
    ClientConnected,
    LinkFrames,
    QueuesOverLimit,
    RulesChanged,
    SessionSought,
    Started,
    StatusAnnounced,
    Tick,
)
from roamcast.broker.making import make_machine
from roamcast.broker.moving.machine import MovingMachine
from roamcast.broker.moving.noted_filters import subscriptions_in
from roamcast.broker.settings import MachineSettings, StateSettings
from roamcast.errors import InputError
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.server.access import AccessRules, Identity, Rule
from roamcast.protocol.queues import QueueLimits
from roamcast.protocol.snapshot import freeze, thaw


def connected(
    world: MobileWorld, name: str, broker: str, connect: packets.Connect, user: str = ""
) -> list[Packet]:
    """A client connects with a CONNECT of its own; gives what it hears until all is at rest."""
    world.attach(name, broker)
    client = world.clients[name]
    world.drop(client.connection, name)
    world.settle()
    world.heard[name].clear()
    connection = world.rng.getrandbits(40) + 1
    client.connection, client.broker = connection, broker
    world.owner[connection] = (name, broker)
    world.order(broker, ClientConnected(connection, connect, Identity(name, user)))
    return list(world.heard[name])


def lasting(name: str, **more: object) -> packets.Connect:
    return packets.Connect(5, name, clean_start=False, session_expiry=1000, **more)  # type: ignore[arg-type]


def part(world: MobileWorld, *pairs: tuple[str, str]) -> None:
    """Cut these, and let both parts elect a leader. `settle` heals them again."""
    for pair in pairs:
        world.cut_link(*pair)
    world.run_for(8.0)


# --- coming back ---


def test_options_of_subscriptions_are_known_wherever_the_client_goes() -> None:
    world = make_world()
    world.bring_in("s", "b0")
    entry = packets.SubscriptionEntry("a/+", 1, no_local=True)
    world.clients["s"].subscriptions["a/+"] = 1
    world.clients["s"].asked[9] = "a/+"
    world.say("s", packets.Subscribe(9, (entry,), subscription_identifier=77))
    world.bring_in("s", "b2")
    world.bring_in("p", "b1")
    world.publish("s", "a/own", 1)
    world.tell("p", "a/x", 1)
    (came,) = [one for one in world.heard["s"] if isinstance(one, packets.Publish)]
    assert came.properties is not None
    assert (came.topic, came.properties.subscription_identifiers) == ("a/x", (77,))


def test_the_old_connection_ends_when_the_client_attaches_elsewhere() -> None:
    world = make_world()
    subscribed(world, "s", "b0")
    before = world.clients["s"].connection
    world.owner.pop(before)  # It breaks, and its broker does not notice.
    world.clients["s"].connection = 0
    world.bring_in("s", "b2")
    assert before not in world.sites["b0"].endpoint.connections
    assert "s" not in world.sites["b0"].endpoint.sessions
    assert world.end_of_way("b0", "s") == "b2"


def test_a_clean_start_ends_the_session_everywhere() -> None:
    world = make_world()
    subscribed(world, "s", "b0")
    world.attach("p", "b0")
    world.drop(world.clients["s"].connection, "s")
    world.tell("p", "a/1", 1)
    world.bring_in("s", "b2", clean=True)
    assert world.clients["s"].presents == [False, False]
    assert payloads(world, "s") == []
    assert not any(site.core.filters_of("s") for site in world.sites.values())


def test_a_clean_start_elsewhere_ends_a_connection_that_has_just_been_made() -> None:
    world = make_world()
    subscribed(world, "s", "b0")
    world.attach("s", "b0")
    before = world.clients["s"].connection
    world.owner.pop(before)  # It breaks, and its broker does not notice.
    world.clients["s"].connection = 0
    world.bring_in("s", "b2", clean=True)
    assert world.clients["s"].is_welcome
    assert before not in world.sites["b0"].endpoint.connections
    assert not any(site.core.filters_of("s") for site in world.sites.values())


def test_a_session_expires_everywhere_and_a_newer_one_in_another_part_does_not() -> None:
    world = make_world()
    for name in ("s", "t"):
        subscribed(world, name, "b0")
        connected(world, name, "b0", packets.Connect(5, name, clean_start=False, session_expiry=30))
        world.drop(world.clients[name].connection, name)
    part(world, ("b0", "b1"))
    world.attach("t", "b2")
    world.run_for(40.0)
    assert not world.sites["b0"].core.filters_of("s")
    world.settle()
    for site in world.sites.values():
        assert not site.core.filters_of("s")
        assert site.core.filters_of("t")
    assert world.clients["t"].presents[-1]


def test_who_is_not_the_owner_is_refused_at_every_broker() -> None:
    world = make_world()
    connected(world, "s", "b0", lasting("s"), user="ann")
    world.clients["s"].asked[1] = "a/#"
    world.say("s", packets.Subscribe(1, (packets.SubscriptionEntry("a/#", 1),)))
    (refused,) = connected(world, "s", "b2", lasting("s"), user="bob")
    assert isinstance(refused, packets.Connack)
    assert refused.reason == Reason.NOT_AUTHORIZED
    (welcome,) = connected(world, "s", "b2", lasting("s"), user="ann")
    assert isinstance(welcome, packets.Connack)
    assert (welcome.reason, welcome.session_present) == (Reason.SUCCESS, True)


# --- parts that meet ---


def test_a_client_that_a_part_does_not_know_is_served_at_once_and_gets_its_session_later() -> None:
    world = make_world()
    part(world, ("b1", "b2"))
    world.attach("p", "b0")
    world.attach("s", "b0")
    world.run_for(3.0)
    world.subscribe("s", "a/#", 1)
    world.run_for(3.0)
    world.attach("s", "b2")
    before = world.now
    while not world.clients["s"].is_welcome:
        world.run(1)
    assert world.now - before < 0.1
    assert world.clients["s"].presents == [False, False]
    world.publish("p", "a/1", 1)
    world.run_for(1.0)
    assert payloads(world, "s") == []
    world.settle()
    assert payloads(world, "s") == ["p:1:a/1"]
    assert set(world.sites["b2"].endpoint.sessions["s"].subscriptions) == {"a/#"}


def test_a_broker_that_has_just_started_waits_for_the_tree_before_it_answers() -> None:
    world = make_world()
    subscribed(world, "s", "b0")
    world.crash("b2", amnesia=True)
    world.bring_in("s", "b2")
    assert world.clients["s"].presents == [False, True]


def test_the_wait_for_a_tree_is_bounded() -> None:
    world = make_world(brokers=1)
    world.crash("b0")
    world.attach("s", "b0")
    world.run_for(2.0)
    assert not world.clients["s"].is_welcome
    world.run_for(1.0)
    assert world.clients["s"].is_welcome


def test_subscriptions_changed_in_two_parts_are_all_kept() -> None:
    world = make_world()
    for topic in ("a/#", "b/#", "c/#"):
        subscribed(world, "s", "b2", topic)
    part(world, ("b0", "b1"))
    world.unsubscribe("s", "b/#")
    world.subscribe("s", "d/#", 1)
    world.run_for(1.0)
    world.attach("s", "b0")  # That one knows nothing of it.
    world.run_for(1.0)
    assert set(world.sites["b0"].endpoint.sessions["s"].subscriptions) == {"a/#", "b/#", "c/#"}
    world.unsubscribe("s", "c/#")
    world.run_for(1.0)
    world.settle()
    assert set(world.sites["b0"].endpoint.sessions["s"].subscriptions) == {"a/#", "d/#"}
    world.check_knowledge()


def test_a_clean_start_in_another_part_ends_the_old_session_when_they_meet() -> None:
    for topics in ([], ["b/#"]):
        world = make_world()
        subscribed(world, "s", "b2")
        world.drop(world.clients["s"].connection, "s")
        part(world, ("b0", "b1"))
        world.clients["s"].subscriptions.clear()
        world.attach("s", "b0", clean=True)
        world.run_for(1.0)
        for topic in topics:
            world.subscribe("s", topic, 1)
            world.run_for(1.0)
        world.settle()
        assert list(world.sites["b0"].endpoint.sessions["s"].subscriptions) == topics
        for site in world.sites.values():
            assert list(subscriptions_in(site.core.filters_of("s"))) == topics


def test_an_arrival_goes_on_waiting_if_the_link_is_lost_over_which_it_asks() -> None:
    world = make_world()
    subscribed(world, "s", "b0")
    world.crash("b2", amnesia=True)
    world.run_for(1.5)
    assert world.sites["b2"].core.machine.peers
    world.sites["b2"].core.machine.known.clear()  # As if nobody had told it yet.
    world.attach("s", "b2")
    assert not world.clients["s"].is_welcome
    world.cut_link("b1", "b2")
    world.settle()
    assert world.clients["s"].presents == [False, True]


def with_slow_clock() -> MobileWorld:
    """All but b2 are an hour ahead of it."""
    world = make_world()
    world.clocks = {"b0": 3600.0, "b1": 3600.0}
    for id in ("b0", "b1"):
        world.crash(id, amnesia=True)
    world.settle()
    subscribed(world, "s", "b0")
    world.bring_in("p", "b0")
    return world


def test_clocks_do_not_matter_within_the_tree() -> None:
    world = with_slow_clock()
    for broker in ("b1", "b2", "b1", "b2"):
        world.attach("s", broker)
        world.tell("p", "a/1", 1)
        assert world.clients["s"].broker == world.end_of_way("b0", "s") == broker
    assert len(payloads(world, "s")) == 4


def test_a_clock_that_is_behind_costs_a_client_one_connection_when_parts_meet() -> None:
    world = with_slow_clock()
    part(world, ("b1", "b2"))
    world.attach("s", "b1")
    world.run_for(1.0)
    world.attach("s", "b2")
    world.run_for(6.0)
    world.settle()
    assert world.clients["s"].connection == 0
    world.attach("s", "b2")
    world.tell("p", "a/1", 1)
    assert payloads(world, "s") == ["p:1:a/1"]
    assert world.end_of_way("b0", "s") == "b2"


def test_a_leader_that_is_gone_for_good_is_replaced_and_nothing_else_is_lost() -> None:
    world = make_world(brokers=4, links=[(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)])
    subscribed(world, "s", "b3")
    world.bring_in("p", "b1")
    world.links = [pair for pair in world.links if "b0" not in pair]
    part(world, ("b0", "b1"), ("b0", "b2"), ("b0", "b3"))
    assert world.leaders() == ["b0", "b1"]
    world.tell("p", "a/1", 1)
    assert payloads(world, "s") == ["p:1:a/1"]


# --- what is offered, and what is not ---


def test_connack_says_what_is_not_offered() -> None:
    world = make_world(brokers=1)
    (answer,) = connected(world, "s", "b0", lasting("s"))
    assert isinstance(answer, packets.Connack)
    offered = answer.maximum_qos, answer.retain_available, answer.shared_subscription_available
    assert offered == (1, False, False)


@pytest.mark.parametrize(
    ("publish", "reason"),
    [
        (packets.Publish("a", b"", 2, packet_id=1), Reason.QOS_NOT_SUPPORTED),
        (packets.Publish("a", b"", 1, retain=True, packet_id=1), Reason.RETAIN_NOT_SUPPORTED),
    ],
)
def test_publishes_that_are_not_offered_are_refused_with_their_reason(
    publish: packets.Publish, reason: Reason
) -> None:
    world = make_world(brokers=1)
    world.bring_in("p", "b0")
    (answer,) = world.say("p", publish)
    assert isinstance(answer, packets.Disconnect)
    assert answer.reason == reason
    assert answer.reason_string


def test_qos_2_is_granted_as_qos_1_and_shared_subscriptions_are_refused() -> None:
    world = make_world(brokers=1)
    world.bring_in("s", "b0")
    entries = tuple(packets.SubscriptionEntry(name, 2) for name in ("a/#", "$share/g/a"))
    world.clients["s"].asked[1] = "a/#"
    (answer,) = world.say("s", packets.Subscribe(1, entries))
    assert isinstance(answer, packets.Suback)
    assert answer.reasons == (Reason.GRANTED_QOS_1, Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)


def test_filters_that_cannot_be_known_everywhere_are_refused() -> None:
    world = make_world(brokers=1)
    world.bring_in("s", "b0")
    refused = ["location WITHIN 1 OF myloc", '"$mqtt x" IS NULL', f"x = '{'x' * 3000}'"]
    for number, where in enumerate(refused, 1):
        world.clients["s"].asked[number] = where
        entries = (packets.SubscriptionEntry("a", 1),)
        asked = packets.Subscribe(number, entries, user_properties=(("where", where),))
        (answer,) = world.say("s", asked)
        assert isinstance(answer, packets.Suback)
        assert answer.reasons == (Reason.TOPIC_FILTER_INVALID,), where


def test_content_filters_prune_in_the_tree() -> None:
    world = make_world()
    subscribed(world, "s", "b2", "a/+?value>20")
    world.bring_in("p", "b0")
    properties = packets.PublishProperties(content_type="application/json")
    values = (10, 30, 15, 40)
    for number, value in enumerate(values, 1):
        world.clients["p"].unacknowledged[number] = ("a/1", str(value), 1)
        payload = json.dumps({"value": value}).encode()
        world.say("p", packets.Publish("a/1", payload, 1, packet_id=number, properties=properties))
    assert payloads(world, "s") == ['{"value": 30}', '{"value": 40}']
    rows = [row for told in world.told["b0"] for row in told[2] if row.kind == "forwarded"]
    assert len(rows) == 2


def test_qos_0_goes_to_whoever_is_there_and_nothing_of_it_is_kept() -> None:
    world = make_world()
    subscribed(world, "s", "b2")
    subscribed(world, "away", "b1")
    world.drop(world.clients["away"].connection, "away")
    world.attach("p", "b0")
    world.run_for(15.0)  # Whatever was to be looked at later has been.
    entries = {id: len(world.journals[id]) for id in world.ids}
    world.say("p", packets.Publish("a/1", b"p:1:a/1", 0))
    assert payloads(world, "s") == ["p:1:a/1"]
    assert {id: len(world.journals[id]) for id in world.ids} == entries
    assert not any(list(site.stored()) for site in world.sites.values())


def test_the_will_of_a_client_is_published_by_its_broker() -> None:
    world = make_world()
    subscribed(world, "s", "b2")
    will = packets.Will("a/will", b"w:1:a/will", 1)
    connected(world, "p", "b0", lasting("p", will=will))
    world.drop(world.clients["p"].connection, "p")
    world.settle()
    assert payloads(world, "s") == ["w:1:a/will"]


def test_what_a_broker_says_of_itself_is_for_those_who_are_there() -> None:
    world = make_world()
    for name, broker in (("here", "b0"), ("there", "b1")):
        subscribed(world, name, broker, "$SYS/#")
    world.order("b0", StatusAnnounced("$SYS/broker/uptime", b"1 second"))
    assert (payloads(world, "here"), payloads(world, "there")) == (["1 second"], [])
    subscribed(world, "late", "b0", "$SYS/broker/+")
    assert payloads(world, "late") == ["1 second"]


# --- limits ---


class Limited(MobileWorld):
    limits = QueueLimits(3, 1 << 20)

    def settings(self, id: str) -> MachineSettings:
        settings = super().settings(id)
        return msgspec.structs.replace(
            settings, broker=msgspec.structs.replace(settings.broker, queue=self.limits)
        )


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        (QueueLimits(3, 1 << 20), [3, 4, 5]),
        (QueueLimits(3, 1 << 20, drops_newest=True), [1, 2, 3]),
        (QueueLimits(100, 800), [4, 5]),
    ],
)
def test_a_full_queue_gives_up_the_oldest_or_the_newest(
    limits: QueueLimits, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limited, "limits", limits)
    world = Limited(1, 2, [(0, 1)])
    subscribed(world, "s", "b1")
    world.attach("p", "b0")
    world.drop(world.clients["s"].connection, "s")
    for _ in range(5):
        world.publish("p", "a/1", 1)
    world.settle()
    dropped = [row for told in world.told["b1"] for row in told[2] if row.kind == "dropped"]
    assert sum(row.notifications or 0 for row in dropped) == 5 - len(left)
    assert sum(world.sites["b1"].figures.dropped.values()) == 5 - len(left)
    world.bring_in("s", "b0")
    assert payloads(world, "s") == [f"p:{number}:a/1" for number in left]


def test_when_all_queues_together_are_too_large_the_longest_give_up_first() -> None:
    world = make_world(brokers=1)
    for name in ("s", "t"):
        subscribed(world, name, "b0", f"{name}/#")
    world.attach("p", "b0")
    for name, count in (("s", 5), ("t", 1)):
        world.drop(world.clients[name].connection, name)
        for _ in range(count):
            world.publish("p", f"{name}/1", 1)
    world.settle()
    held = world.sites["b0"].queued_bytes
    world.step("b0", [QueuesOverLimit(held // 2)])
    assert world.sites["b0"].queued_bytes <= held // 2
    for name in ("s", "t"):
        world.attach(name, "b0")
    world.settle()
    assert payloads(world, "s") == ["p:4:s/1", "p:5:s/1"]
    assert payloads(world, "t") == ["p:6:t/1"]


def test_each_client_has_less_in_flight_while_much_is_held() -> None:
    world = Limited(1, 2, [(0, 1)])
    subscribed(world, "s", "b0")
    world.attach("p", "b0")
    site = world.sites["b0"]
    world.step("b0", [QueuesOverLimit(1 << 40, 1)])
    world.drop(world.clients["s"].connection, "s")
    for _ in range(3):
        world.publish("p", "a/1", 1)
    world.settle()
    taken = site.taken_bytes
    assert taken == site.queued_bytes > 0
    world.attach("s", "b0")
    while "s" not in site.core.visits or not site.core.visits["s"].in_flight:
        world.step("b0", [])
    assert len(site.core.visits["s"].in_flight) == 1
    world.settle()
    assert payloads(world, "s") == [f"p:{number}:a/1" for number in (1, 2, 3)]


def test_no_more_is_sent_than_the_client_takes_at_once() -> None:
    world = make_world(brokers=1)
    subscribed(world, "s", "b0")
    world.attach("p", "b0")
    connected(world, "s", "b0", lasting("s", receive_maximum=2))
    site = world.sites["b0"]
    for _ in range(5):
        world.publish("p", "a/1", 1)
    most = 0
    for _ in range(200):
        found = world.moves()
        if not found:
            break
        world.rng.choice(found)()
        most = max(most, len(site.core.visits["s"].in_flight))
    assert most == 2
    assert payloads(world, "s") == [f"p:{number}:a/1" for number in range(1, 6)]


# --- operators ---


def ask(world: MobileWorld, broker: str, client: str) -> list[tuple[str, str, int]]:
    world.step(broker, [SessionSought(client, 7)])
    answers = list(world.answers[broker])
    world.answers[broker].clear()
    world.settle()
    answers += world.answers[broker]
    world.answers[broker].clear()
    return [(one.broker, one.state, one.queued) for one in answers]


def test_an_operator_can_ask_anywhere_where_a_client_is() -> None:
    world = make_world()
    subscribed(world, "s", "b2")
    world.bring_in("p", "b0")
    assert ask(world, "b0", "s") == [("b2", "attached", 0)]
    world.drop(world.clients["s"].connection, "s")
    world.tell("p", "a/1", 1)
    assert ask(world, "b1", "s") == ask(world, "b2", "s") == [("b2", "away", 1)]
    assert ask(world, "b0", "nobody") == []
    part(world, ("b0", "b1"))
    world.step("b0", [SessionSought("s", 8)])
    assert [(one.broker, one.state) for one in world.answers["b0"]] == [("b0", "out of reach")]


def test_what_makes_no_sense_is_said_in_one_line() -> None:
    site = make_machine(MachineSettings("a", protocol="mft"))
    with pytest.raises(InputError, match=r"^b need not be forgotten"):
        site.check_forgetting("b")
    with pytest.raises(InputError, match=r"^where brokers move, a session follows its client"):
        site.check_draining("b")
    with pytest.raises(InputError, match="does not support BrokerForgotten"):
        site.step(1.0, [BrokerForgotten("b")])
    with pytest.raises(InputError, match=r"recursive_migration: it promises nothing"):
        make_machine(MachineSettings("a", protocol="recursive_migration"))
    placed = MachineSettings("a", protocol="mft", states=(StateSettings("speed"),))
    with pytest.raises(InputError, match="own state are not offered"):
        site.step(1.0, [Started(placed)])
    with pytest.raises(InputError, match=r"is that of broker 'a' with mft: it cannot become 'b'"):
        site.step(1.0, [Started(MachineSettings("b", protocol="mft"))])


def test_frames_that_cannot_be_read_end_the_connection_and_nothing_else() -> None:
    world = make_world(brokers=2)
    subscribed(world, "s", "b1")
    site = world.sites["b0"]
    effects = site.step(world.now, [LinkFrames("b1", b"\0\0\0\1\xff")])
    assert [peer for peer, _ in effects.link_closes] == ["b1"]
    assert "b1" not in site.links.ends
    assert site.core.machine.peers == {}
    assert site.core.filters_of("s")


def test_a_site_comes_back_from_a_snapshot_without_its_election() -> None:
    world = make_world()
    subscribed(world, "s", "b2")
    world.attach("p", "b0")
    world.publish("p", "a/1", 1)
    world.run(5)
    site: MovingMachine = thaw(freeze(world.sites["b2"]))
    rounds = [site.election]
    site.step(world.now + 1, [Started(site.settings)])
    assert site.links.ends == {}
    assert site.deadline() == 0.0
    site.step(world.now + 1, [Tick()])
    rounds.append(site.election)
    assert [election and election.round for election in rounds] == [None, (int((world.now + 1) * 1000), 1)]


def test_rights_are_those_of_now_where_brokers_move_too() -> None:
    world = make_world()
    subscribed(world, "car", "b2", "#")
    world.bring_in("garage", "b0")
    world.step("b2", [RulesChanged(AccessRules((Rule("deny", topic="secret/#"),), "allow"))])
    for topic in ("secret/1", "open"):
        world.publish("garage", topic, 1)
    world.settle()
    assert payloads(world, "car") == ["garage:2:open"]
    world.check_replay("b2")


def test_a_removed_user_has_nothing_left_where_brokers_move() -> None:
    world = make_world()
    heard = connected(world, "car", "b1", lasting("car"), user="alice")
    assert isinstance(heard[0], packets.Connack)
    world.order("b1", AccessRevoked(("user:alice",), (), "its user was removed"))
    assert [one.reason for one in world.heard["car"] if isinstance(one, packets.Disconnect)] == [
        Reason.NOT_AUTHORIZED
    ]
    assert "car" not in world.sites["b1"].endpoint.sessions
    world.check_replay("b1")
