"""Access rules: what they say, what they cannot be talked into, and that subscriptions are never too wide."""

from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.filters.selector import parse, parse_subscription
from roamcast.mqtt.server import access as module
from roamcast.mqtt.server.access import (
    ALLOWED,
    DENIED,
    Access,
    AccessRules,
    ClientAccess,
    Default,
    Grants,
    Identity,
    Rule,
)

ALICE = Identity("phone", user="alice")
CAR = Identity("car-7", certificate="car-7.example.org")
NOBODY = Identity("probe")


def access_of(*rules: Rule, default: Default = "deny", identity: Identity = ALICE) -> ClientAccess:
    return Access(AccessRules(rules, default)).of(identity)


def allow(topic: str | tuple[str, ...] = "#", **conditions: str | tuple[str, ...]) -> Rule:
    return msgspec.convert({"verdict": "allow", "topic": topic, **conditions}, Rule)


def deny(topic: str | tuple[str, ...] = "#", **conditions: str | tuple[str, ...]) -> Rule:
    return msgspec.structs.replace(allow(topic, **conditions), verdict="deny")


def may_subscribe(access: ClientAccess, text: str) -> bool:
    return access.may_subscribe(parse_subscription(text))


# Publishing.


def test_the_first_rule_that_fits_decides() -> None:
    access = access_of(deny("a/secret"), allow("a/#"), deny("#"), default="allow")
    assert access.publish("a/b") is ALLOWED
    assert access.publish("a/secret") is DENIED
    assert access.publish("b") is DENIED
    assert not access.needs_content("a/b")


@pytest.mark.parametrize("default", ["allow", "deny"])
def test_the_default_decides_where_no_rule_fits(default: Default) -> None:
    access = access_of(default=default)
    assert access.publish("a").allowed is (default == "allow")
    assert may_subscribe(access, "a") is (default == "allow")


def test_a_rule_for_one_action_says_nothing_about_the_other() -> None:
    access = access_of(allow("up", action="publish"), allow("down", action="subscribe"), allow("both"))
    assert [access.publish(topic).allowed for topic in ("up", "down", "both")] == [True, False, True]
    assert [may_subscribe(access, topic) for topic in ("up", "down", "both")] == [False, True, True]


@pytest.mark.parametrize(
    ("user", "fitting"),
    [
        ("*", (ALICE, CAR, NOBODY)),
        ("alice", (ALICE,)),
        ("user:alice", (ALICE,)),
        ("user:*", (ALICE,)),
        ("a*e", (ALICE,)),
        ("ali", ()),
        ("Alice", ()),
        ("anonymous", (NOBODY,)),
        ("certificate:car-7.example.org", (CAR,)),
        ("certificate:car-*.example.org", (CAR,)),
        ("certificate:*", (CAR,)),
        ("car-7.example.org", ()),
        (("anonymous", "alice"), (ALICE, NOBODY)),
    ],
)
def test_whom_a_rule_is_for(user: str | tuple[str, ...], fitting: tuple[Identity, ...]) -> None:
    rules = Access(AccessRules((allow(user=user),), "deny"))
    assert tuple(one for one in (ALICE, CAR, NOBODY) if rules.of(one).publish("a").allowed) == fitting


def test_a_client_with_password_and_certificate_is_both() -> None:
    both = Identity("x", user="alice", certificate="car")
    for user in ("alice", "certificate:car"):
        assert access_of(allow(user=user), identity=both).publish("a").allowed
    assert both.name == "alice"


def test_rules_by_client_id() -> None:
    rules = Access(AccessRules((allow(client=("car-*", "bus")),), "deny"))
    verdicts = {
        client: rules.of(Identity(client)).publish("a").allowed
        for client in ("car-1", "car-", "bus", "busy", "xcar-1")
    }
    assert verdicts == {"car-1": True, "car-": True, "bus": True, "busy": False, "xcar-1": False}


def test_sessions_belong_to_who_proved_what() -> None:
    assert [one.owner for one in (ALICE, CAR, NOBODY)] == [
        "user:alice",
        "certificate:car-7.example.org",
        "anonymous",
    ]


# Placeholders.


@pytest.mark.parametrize(
    ("topic", "fits", "fits_not"),
    [
        ("a/#", ["a", "a/", "a/b"], ["ab", "b"]),
        ("a/+/#", ["a/b", "a/b/c"], ["a", "b/b"]),
        ("a%c/#", ["aphone", "aphone/x"], ["a", "aphon"]),
        ("#", ["a", "/"], ["$x"]),
        ("+/%c", ["/phone", "x/phone"], ["phone", "x/phone/y"]),
    ],
)
def test_which_topics_a_rule_fits(topic: str, fits: list[str], fits_not: list[str]) -> None:
    access = access_of(allow(topic))
    assert [one for one in (*fits, *fits_not) if access.publish(one).allowed] == fits
    assert [one for one in (*fits, *fits_not) if may_subscribe(access, one)] == fits


def test_placeholders_stand_for_user_and_client() -> None:
    access = access_of(allow("users/%u/%c/#"))
    assert access.publish("users/alice/phone/x").allowed
    assert not access.publish("users/alice/tablet/x").allowed
    assert not access.publish("users/%u/%c/x").allowed
    assert access_of(allow("cars/%u"), identity=CAR).publish("cars/car-7.example.org").allowed


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a+", "$SYS", "x\0"])
def test_a_crafted_name_opens_nothing(name: str) -> None:
    access = access_of(allow(("own/%c/#", "%c/#")), identity=Identity(name))
    for topic in ("own/a/b/x", "own/x", "own//x", "a/b/x", f"own/{name}/x", f"{name}/x"):
        assert not access.publish(topic).allowed
        if "+" not in topic and "#" not in topic and "\0" not in topic:
            assert not may_subscribe(access, topic)
    for asked in ("own/+/x", "own/#", "+/x", "#", "$SYS/#"):
        assert not may_subscribe(access, asked)


def test_what_is_denied_to_a_name_with_a_slash_stays_denied() -> None:
    access = access_of(deny("own/%c/secret"), default="allow", identity=Identity("a/b"))
    assert not access.publish("own/a/b/secret").allowed
    assert access.publish("own/a/secret").allowed
    assert not may_subscribe(access, "own/#")


def test_what_is_denied_to_a_name_with_a_dollar_stays_denied() -> None:
    access = access_of(deny("%c/x"), default="allow", identity=Identity("$mine"))
    assert not may_subscribe(access, "$mine/x")
    assert not may_subscribe(access, "$mine/#")
    assert may_subscribe(access, "mine/x")


def test_a_rule_without_any_topic_for_a_client_fits_nothing() -> None:
    for rule in (allow("own/%c"), deny("own/%c")):
        access = access_of(rule, allow("a"), identity=Identity("+"))
        assert may_subscribe(access, "a")
        assert not may_subscribe(access, "own/#")


def test_a_name_that_looks_like_a_placeholder_is_not_filled_in_again() -> None:
    access = access_of(allow("%u/x"), identity=Identity("victim", user="%c"))
    assert access.publish("%c/x").allowed
    assert not access.publish("victim/x").allowed


@pytest.mark.parametrize("length", [9_000, 70_000])
def test_an_endless_name_opens_nothing_and_harms_nobody(length: int) -> None:
    endless = Identity("x" * length)
    assert not may_subscribe(access_of(allow("own/%c/#"), identity=endless), "own/x")
    denied = access_of(deny("own/%c/#"), default="allow", identity=endless)
    # Longer than any topic may be: there is nothing to deny. Else more is denied than must be.
    assert may_subscribe(denied, "own/#") is (length > 65_535)
    assert denied.publish("own/x").allowed


# Topics of the broker.


def test_nobody_writes_to_the_brokers_own_topics() -> None:
    access = access_of(allow(("#", "$SYS/#", "$share/#", "$other/#")))
    assert not access.publish("$SYS/broker/uptime").allowed
    assert not access.publish("$share/group/a").allowed
    assert access.publish("$other/a").allowed
    assert may_subscribe(access, "$SYS/#")


def test_topics_with_a_dollar_are_opened_by_a_rule_only() -> None:
    access = access_of(default="allow")
    assert not access.publish("$other/a").allowed
    assert may_subscribe(access, "$SYS/#")
    assert not may_subscribe(access_of(allow("#")), "$SYS/#"), "# leaves out topics that begin with $"


# Content.


def test_a_condition_needs_the_content() -> None:
    access = access_of(allow("cars/#", where="speed < 200"), allow("bikes/#"))
    assert access.needs_content("cars/7")
    assert not access.needs_content("bikes/7")
    assert not access.needs_content("trams/7")
    assert access.may_publish("cars/7", {"speed": 100})
    assert not access.may_publish("cars/7", {"speed": 250})
    assert not access.may_publish("cars/7", {})
    assert access.may_publish("bikes/7", {})


def test_conditions_are_asked_in_order() -> None:
    access = access_of(deny("a", where="x > 5"), allow("a", where="x > 2"), default="deny")
    assert [access.may_publish("a", {"x": x}) for x in (1, 3, 6)] == [False, True, False]


def test_a_condition_that_changes_nothing_does_not_ask_for_content() -> None:
    assert not access_of(allow("a", where="x > 5"), default="allow").needs_content("a")
    assert not access_of(deny("a", where="x > 5"), deny("a")).needs_content("a")


def test_the_topic_in_a_condition_is_the_one_published_to() -> None:
    access = access_of(allow("a/#", where="topic = 'a/b'"))
    assert access.may_publish("a/b", {})
    assert not access.may_publish("a/c", {"topic": "a/b"})


# Subscribing.


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("a/#", True),
        ("a/b", True),
        ("a/+/c", True),
        ("a", True),
        ("a/b?x<5", True),
        ("#", False),
        ("+/b", False),
        ("b", False),
        ("+", False),
    ],
)
def test_what_is_asked_must_be_covered(asked: str, allowed: bool) -> None:
    assert may_subscribe(access_of(allow("a/#")), asked) is allowed


def test_a_denied_part_refuses_the_whole() -> None:
    access = access_of(deny("a/secret/#"), allow("a/#"))
    assert not may_subscribe(access, "a/#")
    assert not may_subscribe(access, "a/+/x")
    assert may_subscribe(access, "a/b/#")
    assert may_subscribe(access, "a/+") is False, "a/secret is below a/secret/# too"


def test_what_was_allowed_before_is_not_denied_by_a_later_rule() -> None:
    access = access_of(allow("a/b"), deny("a/b"), allow("a/#"))
    assert may_subscribe(access, "a/b")
    assert may_subscribe(access, "a/#"), "the denied part was allowed already"
    assert not may_subscribe(access_of(allow("a/b"), deny("a/+"), allow("a/#")), "a/#")


def test_several_rules_cover_together() -> None:
    access = access_of(allow("a", where="x < 5"), allow("a", where="x >= 5"))
    assert access.may_subscribe(parse("topic MATCHES 'a' AND x > 0"))
    assert not may_subscribe(access, "a"), "what has no x is not allowed"
    both = access_of(allow("a"), allow("b"))
    assert both.may_subscribe(parse("topic IN ('a', 'b')"))
    assert not both.may_subscribe(parse("topic IN ('a', 'b', 'c')"))


def test_a_subscription_must_stay_within_the_condition() -> None:
    access = access_of(allow("cars/#", where="speed < 200"))
    assert may_subscribe(access, "cars/+?speed<100")
    assert not may_subscribe(access, "cars/+?speed<300")
    assert not may_subscribe(access, "cars/+")


def test_a_condition_on_the_clients_own_state_opens_nothing() -> None:
    access = access_of(allow("a/#"))
    assert access.may_subscribe(parse("topic MATCHES 'a/b' AND place IN myloc"))
    assert not access.may_subscribe(parse("topic MATCHES 'b' AND place IN myloc"))
    assert not access.may_subscribe(parse("topic MATCHES 'a/b' OR place IN myloc"))
    limited = access_of(allow("a", where="x < 5"))
    assert not limited.may_subscribe(parse("topic = 'a' AND x < my.limit"))


def test_with_default_allow_only_what_is_denied_is_refused() -> None:
    access = access_of(deny("secret/#"), default="allow")
    assert may_subscribe(access, "open/#")
    assert not may_subscribe(access, "#")
    assert not may_subscribe(access, "+/x")


# Memory.


def test_memories_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECISIONS_KEPT_MAX", 8)
    rules = Access(AccessRules((allow("own/%c"),), "deny"))
    for number in range(50):
        access = rules.of(Identity(f"client-{number}"))
        for topic in range(50):
            assert not access.publish(f"t/{topic}").allowed
            assert not may_subscribe(access, f"t/{topic}")
        assert access.publish(f"own/client-{number}").allowed
        assert len(access._decisions) <= 8
        assert len(access._subscriptions) <= 8
    assert len(rules._known) <= 8


def test_clients_for_which_the_rules_say_the_same_share_what_was_decided() -> None:
    by_user = Access(AccessRules((allow("%u"),), "deny"))
    assert by_user.of(Identity("a", user="u")) is by_user.of(Identity("b", user="u"))
    by_client = Access(AccessRules((allow("%c"),), "deny"))
    assert by_client.of(Identity("a", user="u")) is not by_client.of(Identity("b", user="u"))


# Errors.


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (allow("a+"), "access.rule.1: topic filter 'a+', position 2: '+' must be a whole level"),
        (allow("%u#"), "access.rule.1: topic filter 'x#', position 2: '#' must be the whole last level"),
        (allow(("a", "")), "access.rule.1: topic is empty; leave it out to mean all"),
        (allow(client=""), "access.rule.1: client is empty; leave it out to mean all"),
        (allow(where="x ="), "access.rule.1: selector"),
        (
            deny(where="x IN myloc"),
            "access.rule.1: where = x IN myloc: rules cannot use the state of clients",
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_named(rule: Rule, line: str) -> None:
    with pytest.raises(InputError) as refused:
        Access(AccessRules((allow(), rule)))
    assert str(refused.value).startswith(line)


# Against a naive reading of the rules.

# Every kind of topic and content that these rules can tell apart has one of its kind in here.
LEVELS = ("a", "b", "z", "$s")
TOPICS = ["/".join(levels) for depth in (1, 2, 3) for levels in product(LEVELS, repeat=depth)]
VALUES = (None, 0, 1, "text")
WHERE = ("", "x < 1", "x >= 1", "x IS NULL")

filters = st.sampled_from(["#", "+", "a", "b", "a/#", "a/+", "+/b", "a/b", "+/+", "$s/#", "$s/a"])
rules = st.builds(
    Rule,
    verdict=st.sampled_from(["allow", "deny"]),
    topic=st.one_of(filters, st.lists(filters, min_size=1, max_size=2).map(tuple)),
    where=st.sampled_from(WHERE),
)


def naive_verdict(given_rules: list[Rule], default: str, topic: str, x: int | str | None) -> bool:
    """The first rule that fits, found the slow way; topics are matched as MQTT's text says."""
    attributes = content(x)
    for rule in given_rules:
        topics = (rule.topic,) if isinstance(rule.topic, str) else rule.topic
        if any(naive_match(one, topic) for one in topics) and (
            not rule.where or parse(rule.where).matches(attributes)
        ):
            return rule.verdict == "allow"
    return default == "allow"


def naive_match(filter: str, topic: str) -> bool:
    if topic.startswith("$") and filter[0] in "+#":
        return False
    wanted, levels = filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        want in ("+", level) for want, level in zip(wanted, levels, strict=True)
    )


def content(x: int | str | None) -> dict[str, str | int | float | bool]:
    return {} if x is None else {"x": x}


@settings(max_examples=50)
@given(st.lists(rules, max_size=4), st.sampled_from(["allow", "deny"]))
def test_publishing_agrees_with_a_naive_reading(given_rules: list[Rule], default: Default) -> None:
    access = access_of(*given_rules, default=default)
    for topic, x in product(TOPICS, VALUES):
        # Only a rule opens topics that begin with $.
        otherwise = "deny" if topic.startswith("$") else default
        assert access.may_publish(topic, content(x)) is naive_verdict(given_rules, otherwise, topic, x)


@settings(max_examples=200)
@given(
    st.lists(rules, max_size=4),
    st.sampled_from(["allow", "deny"]),
    filters,
    st.sampled_from(["", "?x<1", "?x>=1"]),
)
def test_a_subscription_is_allowed_if_each_of_its_notifications_is(
    given_rules: list[Rule], default: Default, asked: str, condition: str
) -> None:
    wanted = parse_subscription(asked + condition)
    verdicts = [
        naive_verdict(given_rules, default, topic, x)
        for topic, x in product(TOPICS, VALUES)
        if wanted.matches({"topic": topic, **content(x)})
    ]
    assert access_of(*given_rules, default=default).may_subscribe(wanted) is all(verdicts)


@settings(max_examples=200)
@given(st.lists(rules, max_size=4), st.sampled_from(["allow", "deny"]))
def test_receiving_agrees_with_a_naive_reading(given_rules: list[Rule], default: Default) -> None:
    access = access_of(*given_rules, default=default)
    for topic, x in product(TOPICS, VALUES):
        verdict = access.receive(topic).of({"topic": topic, **content(x)})
        assert verdict is naive_verdict(given_rules, default, topic, x)
        assert verdict or not access.receives_all


# Grants, client ids.


def test_grants_bound_what_rules_allow_and_rules_can_deny_more() -> None:
    grants = Grants(publish=("up/%c", "both"), subscribe=("down/#", "both"))
    granted = msgspec.structs.replace(ALICE, grants=grants)
    for rule_list, expected in (((), True), ((deny("both"),), False), ((allow("nothing"),), True)):
        access = access_of(*rule_list, default="deny", identity=granted)
        assert access.publish("up/phone").allowed
        assert not access.publish("up/other").allowed
        assert not access.publish("down/x").allowed
        assert not access.receives_all
        assert access.receive("down/x").allowed
        assert not access.receive("up/phone").allowed
        assert may_subscribe(access, "down/+")
        assert not may_subscribe(access, "#")
        assert (access.publish("both").allowed, may_subscribe(access, "both")) == (expected, expected)
        assert access.receive("both").allowed is expected


def test_grants_of_nothing_allow_nothing() -> None:
    access = access_of(allow("#"), identity=msgspec.structs.replace(ALICE, grants=Grants()))
    assert not access.publish("a").allowed
    assert not may_subscribe(access, "a")
    assert not access.receive("a").allowed


@pytest.mark.parametrize(
    ("rule", "identity", "expected"),
    [
        (allow(action="connect", client="%u"), Identity("alice", user="alice"), True),
        (allow(action="connect", client="%u"), Identity("alicia", user="alice"), False),
        (allow(action="connect", client="%u-*"), Identity("alice-1", user="alice"), True),
        (allow(action="connect", client="%u-*"), Identity("-1"), False),
        (allow(action="connect", client="%u"), Identity("a.c", certificate="a.c"), True),
        (allow(action="connect", client="%u"), Identity("abc", certificate="a.c"), False),
        (allow(action="connect", client="%u*"), Identity("a*b", certificate="a*"), True),
        (allow(action="connect", user="anonymous"), Identity("x"), True),
        (deny(action="connect", user="eve"), Identity("x", user="eve"), False),
        (allow("a"), Identity("x"), True),
    ],
)
def test_who_may_have_which_client_id(rule: Rule, identity: Identity, expected: bool) -> None:
    assert access_of(rule, identity=identity).may_connect is expected
