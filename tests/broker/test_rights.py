"""Rights are those of now, at the broker where the client is now: rules, users and owners that change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.broker.world import Client, World

from roamcast.broker.core import CoreSettings
from roamcast.broker.inputs import AccessRevoked, ClientFrames, RulesChanged
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import PublishProperties, Will
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.user_properties import DESTINATION
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import AccessRules, Grants, Identity, Rule
from roamcast.mqtt.server.sessions import Subscription, subscription_bytes
from roamcast.mqtt.server.settings import EndpointSettings
from roamcast.mqtt.server.welcoming import will_bytes
from roamcast.protocol.owners import is_same, site_name, site_of, vouches

NO_SECRETS = AccessRules((Rule("deny", topic="secret/#"),), "allow")
NOBODY_READS = AccessRules((Rule("deny", topic="secret/#", action="subscribe"),), "allow")
ANYTHING = AccessRules()


class Realms(World):
    """Brokers whose users are their own, or those of a realm."""

    realm = ""
    realm_brokers: tuple[str, ...] = ()
    sessions_per_user_max = 1000
    all_subscriptions_bytes_max = 1 << 30
    serves_unreachable = False

    def settings(self, id: str) -> MachineSettings:
        core = CoreSettings(realm=self.realm, realm_brokers=self.realm_brokers)
        endpoint = EndpointSettings(
            site=site_name(id, self.realm),
            sessions_per_user_max=self.sessions_per_user_max,
            all_subscriptions_bytes_max=self.all_subscriptions_bytes_max,
            serves_unreachable=self.serves_unreachable,
        )
        return MachineSettings(id, broker=core, endpoint=endpoint)

    def set_rules(self, rules: AccessRules, *brokers: str) -> None:
        for id in brokers or self.ids:
            self.step(id, [RulesChanged(rules)])

    def log_in(self, name: str, user: str, broker: str, **more: bool) -> Client:
        """Attach as a user of that broker, or of its realm."""
        client = self.clients.setdefault(name, Client(name))
        client.identity = Identity(name, user, site=site_name(broker, self.realm))
        self.attach(name, broker, **more)
        return client

    def check_replays(self) -> None:
        """Every broker comes back from its journal in the state that it has."""
        for id in self.ids:
            self.start(id)

    def denied(self, broker: str) -> dict[str, int]:
        counted: dict[str, int] = self.sites[broker].endpoint.traffic.denied
        return counted


def two_brokers(kind: type[Realms] = Realms) -> Realms:
    world = kind(3, 2, [(0, 1)])
    for name, broker in (("car", "b0"), ("garage", "b1")):
        world.attach(name, broker)
    world.settle()
    world.subscribe("car", "#", 2)
    world.settle()
    return world


def payloads(client: Client) -> list[str]:
    return [payload for payload, _, _ in client.received]


def publish_each(world: World, *topics: str, qos: int = 1) -> None:
    for topic in topics:
        world.publish("garage", topic, qos)
    world.settle()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_rule_that_denies_narrows_what_a_connected_client_receives(qos: int) -> None:
    world = two_brokers()
    car = world.clients["car"]
    publish_each(world, "a", "secret/1", qos=qos)
    assert [one.split(":")[2] for one in payloads(car)] == ["a", "secret/1"]
    world.set_rules(NOBODY_READS)
    publish_each(world, "b", "secret/2", qos=qos)
    world.set_rules(ANYTHING)
    publish_each(world, "secret/3", qos=qos)
    assert [one.split(":")[2] for one in payloads(car)] == ["a", "secret/1", "b", "secret/3"]
    assert world.denied("b0")["receive"] == 1
    assert not world.sites["b0"].broker.unfinished()
    world.check_replays()


def test_what_was_queued_before_the_rule_is_not_delivered_after_it() -> None:
    world = two_brokers()
    car = world.clients["car"]
    world.drop(car.connection, "car")
    publish_each(world, "secret/1", "a", "secret/2", "b")
    world.set_rules(NOBODY_READS)
    world.bring_in("car", "b0")
    assert [one.split(":")[2] for one in payloads(car)] == ["a", "b"]
    world.check_replays()


def test_what_was_in_flight_is_not_sent_again() -> None:
    world = two_brokers()
    car = world.clients["car"]
    world.publish("garage", "secret/1", 2)
    for _ in range(200):
        world.run(1)
        if world.back[car.connection]:
            break
    assert world.back[car.connection], "nothing was sent"
    world.drop(car.connection, "car")
    world.set_rules(NOBODY_READS)
    world.bring_in("car", "b0")
    publish_each(world, "a")
    assert [one.split(":")[2] for one in payloads(car)] == ["a"]


def test_each_broker_applies_its_own_rules_to_a_session_that_arrives() -> None:
    world = two_brokers()
    car = world.clients["car"]
    world.set_rules(NOBODY_READS, "b1")
    publish_each(world, "secret/1")
    world.bring_in("car", "b1")
    publish_each(world, "secret/2", "a")
    world.bring_in("car", "b0")
    publish_each(world, "secret/3")
    assert [one.split(":")[2] for one in payloads(car)] == ["secret/1", "a", "secret/3"]
    world.check_replays()


def test_a_publish_is_judged_by_the_rules_of_now() -> None:
    world = two_brokers()
    garage, car = world.clients["garage"], world.clients["car"]
    publish_each(world, "secret/1")
    world.set_rules(AccessRules((Rule("deny", topic="secret/#", action="publish"),), "allow"))
    publish_each(world, "secret/2", "a")
    assert [one.split(":")[2] for one in payloads(car)] == ["secret/1", "a"]
    assert len(garage.unacknowledged) == 0, "it is told that it may not"
    assert world.denied("b1")["publish"] == 1


def test_rules_about_content_narrow_too() -> None:
    world = two_brokers()
    car = world.clients["car"]
    where = AccessRules((Rule("deny", topic="a", action="subscribe", where="speed > 100"),), "allow")
    world.set_rules(where)
    garage = world.clients["garage"]
    for speed in (50, 150):
        body = b'{"speed": %d}' % speed
        packet = packets.Publish("a", body, properties=PublishProperties(content_type="application/json"))
        world.step("b1", [ClientFrames(garage.connection, write(packet, 5))])
    world.settle()
    assert payloads(car) == ['{"speed": 50}']


def test_a_member_of_a_group_that_may_not_receive_leaves_it_to_the_others() -> None:
    world = Realms(3, 2, [(0, 1)])
    for name, broker in (("one", "b0"), ("other", "b1"), ("garage", "b1")):
        world.attach(name, broker)
    world.settle()
    for name in ("one", "other"):
        world.subscribe(name, "$share/g/secret/#", 1)
    world.settle()
    world.set_rules(AccessRules((Rule("deny", topic="secret/#", client="one"),), "allow"))
    world.settle()
    publish_each(world, *(f"secret/{number}" for number in range(6)))
    one, other = world.clients["one"], world.clients["other"]
    assert (len(one.received), len(other.received)) == (0, 6)
    world.set_rules(ANYTHING)
    world.settle()
    publish_each(world, *(f"secret/{number}" for number in range(6)))
    assert (len(one.received), len(other.received)) == (3, 9)
    world.check_replays()


def test_a_will_is_judged_when_it_is_published() -> None:
    world = two_brokers()
    truck = world.clients.setdefault("truck", Client("truck"))
    truck.options = {"will": Will("secret/truck", b"gone", 1, delay=10)}
    world.bring_in("truck", "b1")
    world.drop(truck.connection, "truck")
    world.set_rules(NO_SECRETS)
    world.tick(11.0)
    world.settle()
    assert not world.clients["car"].received
    assert world.denied("b1")["will"] == 1


def test_retained_messages_are_judged_like_others() -> None:
    world = Realms(3, 2, [(0, 1)])
    world.bring_in("garage", "b1")
    garage = world.clients["garage"]
    for topic in ("secret/1", "open"):
        packet = packets.Publish(topic, topic.encode(), retain=True)
        world.step("b1", [ClientFrames(garage.connection, write(packet, 5))])
    world.settle()
    world.bring_in("bus", "b0")
    bus = world.clients["bus"]
    subscribe = packets.Subscribe(1, (packets.SubscriptionEntry("#", 1),))
    # The rules change after the subscription was granted, and before the retained messages are sent.
    world.step("b0", [ClientFrames(bus.connection, write(subscribe, 5))])
    world.set_rules(NOBODY_READS, "b0")
    bus.asked[1] = "#"
    world.settle()
    assert payloads(bus) == ["open"]


# Users.


def test_wills_of_refused_clients_and_removed_users_are_not_counted() -> None:
    world = Realms(3, 1, [])
    not_others = Rule("deny", action="connect", client="others")
    world.set_rules(AccessRules((not_others, Rule("allow", action="connect"))))
    will = Will("w", b"x" * 1000, delay=1000)
    for name, user in (("mine", "alice"), ("others", "alice"), ("car", "bob")):
        world.clients[name] = Client(name, options={"will": will})
        world.log_in(name, user, "b0")
    world.settle()
    endpoint = world.sites["b0"].endpoint
    assert endpoint._wills_bytes == 2 * will_bytes(will)
    world.drop(world.clients["mine"].connection, "mine")
    world.step("b0", [AccessRevoked(("b0/user:alice",), (), "its user was removed")])
    assert endpoint._wills_bytes == will_bytes(will)


def test_a_removed_user_loses_connections_and_sessions() -> None:
    world = Realms(3, 2, [(0, 1)])
    here, away, other = (world.log_in(name, user, "b0") for name, user in
                         (("phone", "alice"), ("car", "alice"), ("desk", "bob")))  # fmt: skip
    world.settle()
    world.drop(away.connection, "car")
    world.order("b0", AccessRevoked(("b0/user:alice",), (), "its user was removed"))
    assert here.connection == 0
    assert other.is_welcome
    assert list(world.sites["b0"].endpoint.sessions) == ["desk"]
    assert list(world.sites["b0"].broker.sessions) == ["desk"]
    world.check_replays()


def test_a_connection_that_is_revoked_leaves_its_session() -> None:
    world = Realms(3, 1, [])
    phone = world.log_in("phone", "alice", "b0")
    world.settle()
    world.order("b0", AccessRevoked((), (phone.connection,), "its password was changed"))
    assert phone.connection == 0
    world.log_in("phone", "alice", "b0")
    world.settle()
    assert phone.presents == [False, True]


class OwnUsers(Realms):
    pass


class Sharing(Realms):
    realm = "fleet"
    realm_brokers = ("b*",)


class Distrusting(Realms):
    realm = "fleet"
    realm_brokers = ("a*",)


@pytest.mark.parametrize(("kind", "roams"), [(OwnUsers, False), (Sharing, True), (Distrusting, False)])
def test_a_user_of_the_same_name_roams_only_where_brokers_share_users(
    kind: type[Realms], roams: bool
) -> None:
    world = kind(3, 2, [(0, 1)])
    phone = world.log_in("phone", "alice", "b0")
    world.settle()
    world.log_in("phone", "alice", "b1")
    world.settle()
    assert phone.presents == ([False, True] if roams else [False])
    assert ("phone" in world.sites["b0"].endpoint.sessions) is not roams
    world.log_in("phone", "alice", "b0")
    world.settle()
    assert phone.presents[-1]
    assert len(phone.presents) == (3 if roams else 2)
    world.check_replays()


def test_a_broker_that_joins_a_realm_keeps_the_sessions_of_its_users() -> None:
    world = Realms(3, 2, [(0, 1)])
    phone = world.log_in("phone", "alice", "b0")
    world.settle()
    world.realm, world.realm_brokers = "fleet", ("*",)
    world.cut_link("b0", "b1")
    for id in world.ids:
        world.start(id)
    world.settle()
    for broker in ("b1", "b0"):
        world.log_in("phone", "alice", broker)
        world.settle()
    assert phone.presents == [False, True, True]
    assert world.sites["b0"].broker.sessions["phone"].owner == "@fleet/user:alice"


def test_anonymous_clients_roam_everywhere() -> None:
    world = two_brokers()
    world.bring_in("car", "b1")
    assert world.clients["car"].presents == [False, True]


@pytest.mark.parametrize(
    ("broker", "owner", "realm", "brokers", "expected"),
    [
        ("b", "anonymous", "", (), True),
        ("b", "b/user:x", "", (), True),
        ("b", "a/user:x", "", ("*",), False),
        ("b", "@r/user:x", "", ("*",), False),
        ("b", "@r/user:x", "r", (), False),
        ("b", "@r/user:x", "r", ("c", "b"), True),
        ("b", "@other/user:x", "r", ("*",), False),
    ],
)
def test_whose_word_counts(
    broker: str, owner: str, realm: str, brokers: tuple[str, ...], expected: bool
) -> None:
    assert vouches(broker, owner, realm, brokers) is expected


def test_names_of_owners() -> None:
    assert Identity("c", "x", site="a").owner == "a/user:x"
    assert Identity("c", certificate="x/y", site="@r").owner == "@r/certificate:x/y"
    assert Identity("c", site="a").owner == "anonymous"
    assert (site_of("a/user:x"), site_of("@r/user:x"), site_of("anonymous")) == ("a", "@r", "")
    assert is_same("a/user:x", "@r/user:x", "a", "r")
    assert not is_same("b/user:x", "@r/user:x", "a", "r")
    assert not is_same("a/user:x", "@r/user:y", "a", "r")
    assert not is_same("a/user:x", "b/user:x", "a", "")
    assert Identity("c", "x", site="a").seen_from("b").user == "a/x"
    assert Identity("c", "x", site="a").seen_from("a").user == "x"


# Client ids.


@pytest.mark.parametrize(
    ("client", "allowed"), [("alice", True), ("alice-7", True), ("bob", False), ("al", False)]
)
def test_rules_for_connect_bind_client_ids_to_users(client: str, allowed: bool) -> None:
    world = Realms(3, 1, [])
    rule = Rule("allow", action="connect", user="user:*", client=("%u", "%u-*"))
    world.set_rules(AccessRules((rule,), "allow"))
    known = world.log_in(client, "alice", "b0")
    world.settle()
    assert known.is_welcome is allowed
    world.bring_in("nobody", "b0")
    assert not world.clients["nobody"].is_welcome, "what no such rule allows is denied"
    assert world.denied("b0")["connect"] == 2 - allowed


def test_a_new_rule_for_connect_ends_connections() -> None:
    world = Realms(3, 1, [])
    phone = world.log_in("phone", "alice", "b0")
    world.settle()
    world.set_rules(AccessRules((Rule("allow", action="connect", client="%u"),), "allow"))
    world.settle()
    assert phone.connection == 0
    assert "phone" in world.sites["b0"].endpoint.sessions


# What a token grants.


def test_a_client_may_do_what_is_granted_and_no_rule_denies() -> None:
    world = two_brokers()
    car = world.clients["car"]
    car.identity = Identity("car", grants=Grants(publish=("cars/%c",), subscribe=("cars/#", "secret/#")))
    world.set_rules(NO_SECRETS)
    world.bring_in("car", "b0")
    access = world.sites["b0"].endpoint.connections[car.connection].access
    assert access.publish("cars/car").allowed
    assert not access.publish("cars/bus").allowed
    assert not access.publish("secret/x").allowed
    publish_each(world, "cars/1", "secret/1", "open")
    assert [one.split(":")[2] for one in payloads(car)] == ["cars/1"], "of a subscription to everything"
    world.check_replays()


# Provisional sessions.


class Serving(Realms):
    serves_unreachable = True


@pytest.mark.parametrize("is_same_user", [True, False])
def test_provisional_sessions_never_merge_across_owners(is_same_user: bool) -> None:
    class ServingRealm(Serving):
        realm = "fleet"
        realm_brokers = ("*",)

    world = ServingRealm(3, 3, [(0, 1), (1, 2)])
    world.attach("garage", "b2")
    car = world.log_in("car", "alice", "b0")
    world.settle()
    world.subscribe("car", "open/#", 1)
    world.settle()
    world.drop(car.connection, "car")
    world.cut_link("b0", "b1")
    world.log_in("car", "alice" if is_same_user else "bob", "b2")
    world.run(200)
    world.tick(11.0)
    world.run(200)
    assert car.is_welcome, "it is not served"
    world.subscribe("car", "private/#", 1)
    world.run(200)
    world.settle()
    assert car.connection == 0, "the session is back"
    car.received.clear()
    car.asked.clear()
    world.log_in("car", "alice", "b2")
    world.settle()
    publish_each(world, "open/1", "private/1")
    expected = ["open/1", "private/1"] if is_same_user else ["open/1"]
    assert sorted(one.split(":")[2] for one in payloads(car)) == expected
    assert all("\0" not in name for site in world.sites.values() for name in site.broker.sessions)
    world.check_replays()


# Quotas.


class Bounded(Realms):
    sessions_per_user_max = 2


def test_sessions_of_one_user_are_bounded() -> None:
    world = Bounded(3, 1, [])
    clients = [world.log_in(f"c{number}", "alice", "b0") for number in range(3)]
    other = world.log_in("desk", "bob", "b0")
    for number in range(3):
        world.attach(f"anonymous-{number}", "b0")
    world.settle()
    assert [one.is_welcome for one in clients] == [True, True, False]
    assert other.is_welcome
    assert all(world.clients[f"anonymous-{number}"].is_welcome for number in range(3))
    assert len(world.sites["b0"].broker.sessions) == 6, "nothing is left of the one that was refused"
    world.check_replays()


def test_a_broker_applies_its_bound_to_sessions_that_are_pushed_to_it() -> None:
    world = Bounded(3, 2, [(0, 1)])
    for number in range(4):
        client = world.log_in(f"c{number}", "alice", "b0")
        world.settle()
        leave = packets.Disconnect(session_expiry=1000, user_properties=((DESTINATION, "b1"),))
        world.step("b0", [ClientFrames(client.connection, write(leave, 5))])
        world.drop(client.connection, client.id, tell=False)
        world.settle()
    assert len(world.sites["b1"].broker.sessions) == 2
    assert len(world.sites["b1"].endpoint.sessions) == 2
    world.check_replays()


class Frugal(Realms):
    realm, realm_brokers = "fleet", ("*",)
    all_subscriptions_bytes_max = 10 * subscription_bytes(
        Subscription("room/0", "topic = 'room/0'", 1, False, False, None)
    )


def holders(world: Realms) -> dict[str, int]:
    """How many subscriptions each session at b0 has."""
    sessions = world.sites["b0"].endpoint.sessions
    return {client: len(sessions[client].subscriptions) for client in sessions}


def test_memory_of_all_subscriptions_is_bounded_and_one_user_has_half_of_it_at_most() -> None:
    world = Frugal(3, 2, [(0, 1)])
    for name, user in (("tablet", "alice"), ("phone", "alice"), ("desk", "bob")):
        world.log_in(name, user, "b0")
        world.settle()
        for number in range(4):
            world.subscribe(name, f"room/{number}", 1)
        world.settle()
    assert holders(world) == {"tablet": 4, "phone": 1, "desk": 4}
    world.bring_in("visitor", "b0")
    for number in range(4):
        world.subscribe("visitor", f"room/{number}", 1)
    world.settle()
    assert holders(world)["visitor"] == 1, "ten are what there is room for"

    world.log_in("tablet", "alice", "b1")  # It takes its subscriptions with it, …
    world.settle()
    world.unsubscribe("desk", "room/0")  # … and this one ends: there is room for both users again.
    world.settle()
    for number in range(4, 8):
        world.subscribe("phone", f"room/{number}", 1)
    world.settle()
    assert holders(world) == {"phone": 5, "desk": 3, "visitor": 1}
    held = world.sites["b0"].endpoint.holdings.subscription_bytes
    world.check_replays()
    assert world.sites["b0"].endpoint.holdings.subscription_bytes == held


def test_a_session_that_arrives_keeps_its_subscriptions_where_there_is_no_room() -> None:
    world = Frugal(3, 2, [(0, 1)])
    for name, broker in (("car", "b1"), ("van", "b0")):
        world.bring_in(name, broker)
        for number in range(9):
            world.subscribe(name, f"room/{number}", 1)
        world.settle()
    world.bring_in("car", "b0", "room/9", 1)
    assert holders(world) == {"van": 9, "car": 9}


def test_a_refused_client_is_told_what_to_set() -> None:
    world = Realms(3, 2, [(0, 1)])
    phone = world.log_in("phone", "alice", "b0")
    world.settle()
    world.drop(phone.connection, "phone")
    told: list[packets.Connack] = []
    keep: Callable[[Client, packets.Packet], None] = world._on_packet

    def on_packet(client: Client, packet: packets.Packet) -> None:
        if isinstance(packet, packets.Connack):
            told.append(packet)
        keep(client, packet)

    world._on_packet = on_packet  # type: ignore[method-assign]
    world.log_in("phone", "alice", "b1")
    world.settle()
    assert told[0].reason is Reason.NOT_AUTHORIZED
    assert "access.realm" in (told[0].reason_string or "")


def test_the_identity_of_a_session_travels_with_it() -> None:
    world = Realms(3, 2, [(0, 1)])
    client = world.log_in("car", "alice", "b0")
    world.settle()
    leave = packets.Disconnect(session_expiry=1000, user_properties=((DESTINATION, "b1"),))
    world.order("b0", ClientFrames(client.connection, write(leave, 5)))
    session = world.sites["b1"].endpoint.sessions["car"]
    assert session.owner == "b0/user:alice"
    assert session.identity == client.identity
