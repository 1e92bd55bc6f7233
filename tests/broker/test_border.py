"""The rules of a link: topics, clients and prefixes, and what follows for subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from roamcast.broker.core import BrokerCore, CoreSettings
from roamcast.broker.links.border import Border
from roamcast.broker.links.reach import Join, Reach, Reaches
from roamcast.broker.links.rules import USUAL, ClientRules, PeerRules, TopicRules, Translation
from roamcast.broker.retained import Retain
from roamcast.broker.reunion import Claim, Claims, Rival
from roamcast.broker.shared_messages import GroupJoin, GroupOver
from roamcast.filters.selector import parse, parse_subscription
from roamcast.mobility import find_protocol
from roamcast.mobility.multi_hop_handoff import SubMigration
from roamcast.mobility.proactive_messages import ActivateCopy
from roamcast.protocol.codec import message_types
from roamcast.protocol.effects import Attached, OverlayChanged, Received
from roamcast.protocol.messages import AttachRequest as Request
from roamcast.protocol.messages import Grant, Hello, Locate, Located, Relayed, Settled, Update
from roamcast.protocol.notification import Burst, Fleeting, Message, decode_attributes, encode_attributes
from roamcast.protocol.session import Session
from roamcast.protocol.whereabouts import InZone, Pace, Place


@pytest.mark.parametrize(
    ("rules", "topic", "passes"),
    [
        (("#",), "a/b", True),
        (("#",), "$SYS/broker", False),
        (("#", "$SYS/broker/b/#"), "$SYS/broker/b/x", True),
        (("cars/#",), "cars", True),
        (("cars/#",), "bikes", False),
        (("cars/#", "!cars/secret/#"), "cars/secret/1", False),
        (("cars/#", "!cars/secret/#", "cars/secret/open"), "cars/secret/open", True),
        (("!cars/#", "#"), "cars/1", True),
        ((), "cars", False),
    ],
)
def test_the_last_rule_that_fits_decides(rules: tuple[str, ...], topic: str, passes: bool) -> None:
    assert TopicRules(rules).allow(topic) is passes


def test_clients_that_are_not_listed_get_the_peers_name_before_their_own() -> None:
    rules = ClientRules("b", ("guest-*", "lift"))
    named = {"guest-1": "guest-1", "lift": "lift", "lift-2": "b/lift-2", "": ""}
    assert {one: rules.named(one) for one in named} == named
    assert ClientRules("b", ("*",)).named("anyone") == "anyone"
    assert ClientRules("b", ()).named("x") == "b/x"


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("port/cars/+", "cars/+"),
        ("port/#", "#"),
        ("#", "#"),
        ("+/cars", "cars"),
        ("port", None),
        ("rail/cars", None),
        ("cars/#", None),
        ("port/cars?speed>3", "cars?speed>3"),
    ],
)
def test_a_subscription_of_this_side_in_the_words_of_the_other(here: str, there: str | None) -> None:
    incoming = Translation(TopicRules(("#",)), "port", adds=True)
    found = incoming.wanted(parse_subscription(here))
    assert found == (None if there is None else parse_subscription(there))


@pytest.mark.parametrize(
    ("there", "here"), [("cars/+", "port/cars/+"), ("#", "port/#"), ("cars?speed>3", "port/cars?speed>3")]
)
def test_a_subscription_of_the_other_side_as_it_is_here(there: str, here: str) -> None:
    outgoing = Translation(TopicRules(("#",)), "port", adds=False)
    assert outgoing.offered(parse_subscription(there)) == parse_subscription(here)


@pytest.mark.parametrize("text", ["topic = 'a' OR x = 1", "NOT topic = 'a'", "topic LIKE 'a%'"])
def test_a_filter_that_cannot_be_translated_ends_at_the_border(text: str) -> None:
    assert Translation(TopicRules(("#",)), "port", adds=False).offered(parse(text)) is None


def test_only_subscriptions_to_what_may_come_are_told() -> None:
    incoming = Translation(TopicRules(("cars/#",)), "", adds=True)
    assert incoming.wanted(parse_subscription("bikes/#")) is None
    assert incoming.wanted(parse_subscription("#")) == parse_subscription("#")


# --- a broker with two peers ---


class Here:
    """Broker a with peer b, and peer g behind whom is h; it says what passes."""

    def __init__(
        self, rules: PeerRules, others: PeerRules | None = None, protocol: str = "multi_hop_handoff"
    ) -> None:
        self.core = BrokerCore("a", find_protocol(protocol), CoreSettings())
        self.core.serve(Retain, lambda sender, message: None)
        self.reach = Reach("a")
        hops = {"b": "b", "g": "g", "h": "g"}
        self.reach.establish({"b": ("b",), "g": ("g", "h")})
        self.core.step(0.0, [OverlayChanged(["b", "g"], hops, ("g", "h") if rules.is_guest else ())])
        self.border = Border(self.core, self.reach)
        self.border.configure({"g": rules, "": others or PeerRules()}, is_mqtt=True)

    def admit(self, message: Message) -> Message | None:
        return self.border.admit("g", message)

    def reason(self, message: Message) -> str:
        """Why a message of g does not pass."""
        before = dict(self.border.refused.get("g", {}))
        assert self.admit(message) is None, "it passed"
        (reason,) = [name for name, count in self.border.refused["g"].items() if count != before.get(name, 0)]
        return reason


def published(topic: str, publisher: str = "x", **more: object) -> Burst:
    values = {"incarnation": 1, "number": 1, "bodies": (b"",), "marks": b"\x01", **more}
    return Burst(publisher, attributes=encode_attributes({"topic": topic}), **values)  # type: ignore[arg-type]


def test_a_prefix_is_added_and_taken_away() -> None:
    here = Here(PeerRules(prefix="rail", clients=(), may=("data", "subscriptions")))
    came = here.admit(published("trains/1"))
    assert isinstance(came, Burst)
    assert (decode_attributes(came.attributes), came.publisher) == ({"topic": "rail/trains/1"}, "g/x")
    went = here.border.release("g", published("rail/trains/2", "own"))
    assert isinstance(went, Burst)
    assert decode_attributes(went.attributes) == {"topic": "trains/2"}
    assert here.border.release("g", published("port/ships/1")) is None
    kept = here.admit(Retain("trains", 1.0, 0, "g", 1.0, b"\x01", b"body", "x"))
    assert isinstance(kept, Retain)
    assert (kept.topic, kept.publisher) == ("rail/trains", "g/x")
    update = here.admit(Update(((parse_subscription("trains/#"), "x"),)))
    assert isinstance(update, Update)
    assert update.subscribe == ((parse_subscription("rail/trains/#"), "g/x"),)
    assert here.reason(published("$SYS/x")) == "topic"


def test_a_guest_is_not_waited_for() -> None:
    here = Here(PeerRules(clients=("guest-*",)))
    asked = here.border.release("g", Locate(Request("ours", "a", 1, -1, {}), 5))
    assert asked is None
    (reply,) = here.border.take_replies()
    assert isinstance(reply.message, Located)
    assert not reply.message.found
    wanted = Update(((parse_subscription("x"), "ours"),), settle=7)
    told = here.border.release("g", wanted)
    assert isinstance(told, Update)
    assert told.settle == 0
    assert [one.message for one in here.border.take_replies()] == [Settled(7)]
    question = here.border.release("g", Locate(Request("guest-1", "a", 1, -1, {}), 6))
    assert question is not None, "it may have the session of this one"


def test_an_asker_behind_a_guest_hears_that_a_session_is_not_for_it() -> None:
    here = Here(PeerRules(clients=()))
    assert here.reason(Locate(Request("ours", "h", 1, -1, {}), 5)) == "client"
    out = here.core._out.sends
    assert [peer for peer, _ in out] == ["g"]
    assert isinstance(out[0][1], Located)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (published("t", "$broker/b"), "publisher"),
        (GroupJoin("g", "topic MATCHES '", "c", "g", True, False), "form"),
        (GroupJoin("g", "x = myloc", "c", "g", True, False), "form"),
        (published("t", ""), "form"),
        (published("t", count=2), "form"),
        (published("t", number=0), "form"),
        (published("t", marks=b""), "form"),
        (published("t", marks=b"\x01\xff"), "form"),
        (published("t", published_at=float("nan")), "form"),
        (Burst("x", 1, 1, b"\xc1", 0.0, (b"",), 1, b"\x01"), "form"),
        (Relayed("b", "a", Request("c", "b", 1, -1, {})), "source"),
        (Relayed("h", "a", Request("c", "b", 1, -1, {})), "source"),
        (Relayed("h", "a", Relayed("b", "a", Settled(1))), "form"),
        (Relayed("h", "a", published("t")), "form"),
        (Relayed("h", "a", Settled(1)), "form"),
        (Request("c", "g", 1, -1, {}, owner="b/user:ann"), "owner"),
        (Request("c", "g", 1, -1, {}, owner="a/user:ann"), "owner"),
        (Locate(Request("c", "b", 1, -1, {}), 1), "source"),
        (Retain("t", 1.0, 0, "b", 1.0, b"\x01", b"x"), "source"),
        (Retain("$SYS/x", 1.0, 0, "g", 1.0, b"\x01", b"x"), "topic"),
        (Settled(-1), "form"),
        (Rival(Claim("c", "g", (1.0, "g"), 1 << 61, 1)), "form"),
        (Claims("g", ("a",), (Claim("c", "g", (1.0, "g"), 1, -1),), is_last=True), "form"),
        (Reaches(), "area"),
        (Relayed("h", "nobody", Grant(Session("c"))), "form"),
        (Relayed("h", "a", SubMigration(Session("c", last_broker="h"), "a", 1, (), 0, Update())), "form"),
    ],
)
def test_a_member_speaks_only_for_itself_and_those_behind_it(message: Message, reason: str) -> None:
    assert Here(PeerRules()).reason(message) == reason


def arriving(**said: Any) -> SubMigration:
    return SubMigration(Session("c", 3, last_broker="g", **said), "a", 0, (), 0, Update())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"last_broker": ""}, "holder"),
        ({"last_broker": "a"}, "holder"),
        ({"deferred": [(1, "Subscribe", "(")]}, "form"),
        ({"deferred": [(1, "Move", "{")]}, "form"),
        ({"deferred": [(1, "Jump", "")]}, "form"),
        ({"deferred": [(-1, "Unsubscribe", "TRUE")]}, "form"),
        ({"subscriptions": {"TRUE": float("nan")}}, "form"),
        ({"places": {"location": Place("x", None, float("inf"))}}, "form"),
        ({"paces": {"location": Pace(float("nan"))}}, "form"),
        ({"zones": {"z": InZone(float("inf"))}}, "form"),
        ({"begun": (float("nan"), "g")}, "form"),
        ({"copied": -1}, "form"),
        ({"owed": (published("t", count=2),)}, "form"),
    ],
)
def test_a_session_is_refused_that_no_broker_would_send(said: dict[str, Any], reason: str) -> None:
    assert Here(PeerRules()).admit(arriving()) is not None
    message = arriving()
    assert Here(PeerRules()).reason(replace(message, session=replace(message.session, **said))) == reason


@pytest.mark.parametrize("protocol", ["reactive", "proactive", "relocation", "phoenix"])
def test_a_session_with_luggage_that_the_protocol_cannot_read_is_refused(protocol: str) -> None:
    core = BrokerCore("a", find_protocol(protocol), CoreSettings())
    assert not core.can_unpack(Session("c", luggage=b"\xc1"))


def test_what_a_session_brings_along_is_judged_like_what_comes_for_it() -> None:
    here = Here(PeerRules(imports=("cars/#",), clients=("*",)))
    came = here.admit(arriving(owed=(published("cars/1"), published("secret"))))
    assert isinstance(came, SubMigration)
    passed, withheld = came.session.owed
    assert (passed.bodies, passed.attributes) == ((b"",), encode_attributes({"topic": "cars/1"}))
    assert decode_attributes(withheld.attributes) == {"topic": "$withheld"}


def test_subscriptions_that_a_message_names_are_readable() -> None:
    here = Here(PeerRules(), protocol="proactive")
    assert here.admit(ActivateCopy("c", 1, 1, 0, {"x = 1": 1.0}, (), False)) is not None
    assert here.reason(ActivateCopy("c", 1, 1, 0, {"(": 1.0}, (), False)) == "form"


def test_messages_are_counted_as_they_are_not_as_the_peer_says() -> None:
    here = Here(PeerRules())
    assert here.admit(published("t", count=1 << 62)) is None
    assert here.border.refused["g"] == {"form": 1}


@pytest.mark.parametrize("guest", ["x", "$x", "$broker/a"])
def test_a_guest_has_client_ids_of_its_own(guest: str) -> None:
    """A client of this side that has the same id, or takes it, cannot suppress what the guest's publishes."""
    here = Here(PeerRules(prefix="rail", clients=(), may=("data", "subscriptions")))
    here.core.step(1.0, [Attached(guest, 7, Hello(guest, fresh=True))])
    here.core.step(60.0, [])
    later = here.core.sessions[guest].incarnation + 10**9
    numbered = published("t", guest, incarnation=later)
    fleeting = Fleeting(guest, 0, 0, numbered.attributes, 0.0, (b"",), 1, b"\0")
    for burst in (numbered, fleeting):
        came = here.admit(burst)
        assert isinstance(came, Burst)
        assert came.publisher == f"g/{guest}"


@pytest.mark.parametrize(
    ("client", "is_reserved"),
    [
        ("$broker/a", True), ("$share/x/t", True), ("$x", False), ("x/1", False), ("b/1", False),
        ("g", False), ("g/1", True), ("g/train-1", False), ("h/1", True),
    ],
)  # fmt: skip
def test_no_client_has_a_name_that_stands_for_something_else(client: str, is_reserved: bool) -> None:
    """g is a guest that may speak for some clients whose names happen to start with its own."""
    here = Here(PeerRules(clients=("g/train-*",)))
    assert here.border.reserves(client) == is_reserved


def test_a_client_id_of_a_member_may_start_with_a_dollar() -> None:
    assert Here(PeerRules()).admit(published("t", "$x")) is not None


def test_an_owner_of_a_site_behind_the_peer_passes() -> None:
    request = Request("c", "g", 1, -1, {}, owner="g/user:ann")
    assert Here(PeerRules()).admit(request) is request


def test_unknown_unsubscriptions_and_too_many_subscriptions_are_left_out() -> None:
    here = Here(PeerRules(subscriptions_max=2))
    entries = tuple((parse_subscription(topic), "") for topic in "abc")
    passed = here.admit(Update(entries, ((parse_subscription("z"), ""),)))
    assert isinstance(passed, Update)
    assert (passed.subscribe, passed.unsubscribe) == (entries[:2], ())
    assert here.border.refused["g"] == {"quota": 1}


def test_retained_messages_of_a_peer_have_a_limit() -> None:
    here = Here(PeerRules(retained_max=1))
    assert here.admit(Retain("t", 1.0, 0, "g", 1.0, b"\x01", b"x")) is not None
    assert here.reason(Retain("u", 1.0, 0, "g", 1.0, b"\x01", b"x")) == "quota"
    assert here.admit(Retain("t", 2.0, 0, "h", 1.0, b"\x01", None)) is not None
    assert here.admit(Retain("u", 2.0, 0, "g", 1.0, b"\x01", b"x")) is not None


@pytest.mark.parametrize(
    ("may", "forgotten", "passed"),
    [
        (USUAL, ("h",), ()),
        ((*USUAL, "forget"), ("h",), ("h",)),
        ((*USUAL, "forget"), ("a", "b", "g"), ()),
    ],
)
def test_brokers_are_forgotten_only_by_who_may(
    may: tuple[str, ...], forgotten: tuple[str, ...], passed: tuple[str, ...]
) -> None:
    here = Here(PeerRules(may=may))
    message = here.border.admit_overlay("g", Reaches(forgotten=forgotten))
    assert isinstance(message, Reaches)
    assert message.forgotten == passed


def test_a_peer_names_no_broker_that_cannot_be_one() -> None:
    here = Here(PeerRules())
    assert here.border.admit_overlay("g", Join(("g", "a b"))) is None
    assert here.border.admit_overlay("g", Reaches(tuple(f"x{i}" for i in range(10_001)))) is None
    assert here.border.refused["g"] == {"form": 1, "quota": 1}


def test_other_rules_change_what_peers_are_asked_for() -> None:
    here = Here(PeerRules(imports=("cars/#",)))
    entries = [(parse_subscription("cars/1"), ""), (parse_subscription("bikes/1"), "")]
    here.core.step(1.0, [Received("b", Update(tuple(entries)))])
    (change,) = here.border.configure({"g": PeerRules(imports=("bikes/#",)), "": PeerRules()}, is_mqtt=True)
    assert change == ("g", Update((entries[1],), (entries[0],)))


def test_every_message_says_what_it_is_about() -> None:
    areas = {kind.__name__: kind.area for kind in message_types()}
    assert areas["Burst"] == areas["Retain"] == areas["Fleeting"] == "data"
    assert areas["Reaches"] == areas["Join"] == "overlay"
    assert areas["GroupJoin"] == GroupOver.area == "groups"
    assert areas["Grant"] == areas["SubMigration"] == areas["Claims"] == "sessions"
    assert Fleeting.area == "data"
