"""How a session's subscriptions decide in which way a notification is sent."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roamcast.errors import InputError
from roamcast.filters.filter import Attributes
from roamcast.filters.patterns import TopicPattern
from roamcast.mqtt.codec.packets import PublishProperties, Will
from roamcast.mqtt.codec.topics import subscription_filter
from roamcast.mqtt.server.access import Grants, Identity
from roamcast.mqtt.server.in_flight import PackedInFlight
from roamcast.mqtt.server.sessions import (
    LEAVING_BYTES,
    LEAVING_BYTES_MAX,
    Capsule,
    MqttSession,
    NamedCapsule,
    Options,
    Recall,
    Subscription,
)
from roamcast.protocol.notification import encode_attributes

HOT: Attributes = {"topic": "t", "x": 9}
COLD: Attributes = {"topic": "t", "x": 1}


def session(*subscriptions: Subscription) -> MqttSession:
    made = MqttSession("c")
    for subscription in subscriptions:
        made.subscribe(subscription)
    return made


def ranged(bound: int, **options: object) -> Subscription:
    name = f"t?x>{bound}"
    chosen = {"qos": 1, "no_local": False, "retain_as_published": False, "identifier": None} | options
    return Subscription(name, f"topic = 't' AND x > {bound}", **chosen)  # type: ignore[arg-type]


def test_where_all_ask_alike_contents_do_not_matter() -> None:
    alike = session(ranged(0), ranged(5))
    assert alike.options(encode_attributes({"topic": "t"}), False) == Options(1, False, ())


@pytest.mark.parametrize("other", [{"qos": 2}, {"retain_as_published": True}, {"identifier": 7}])
def test_where_they_differ_each_notification_is_looked_at(other: dict[str, object]) -> None:
    differing = session(ranged(0), ranged(5, **other))
    assert differing.options(encode_attributes({"topic": "t"}), False) is None
    assert differing.options_of(COLD, False) == Options(1, False, ())
    assert differing.options_of(HOT, False) != Options(1, False, ())


def test_identifiers_tell_how_many_matched() -> None:
    named = session(ranged(0, identifier=7), ranged(5, identifier=7))
    assert named.options(encode_attributes({"topic": "t"}), False) is None
    assert named.options_of(HOT, False).identifiers == (7, 7)


def test_ones_own_are_left_out_where_all_say_so() -> None:
    local = session(ranged(0, no_local=True), ranged(5, no_local=True))
    assert local.options(encode_attributes({"topic": "t"}), False) == Options(1, False, ())
    assert local.options(encode_attributes({"topic": "t"}), True) is None
    assert local.options_of(HOT, True).qos == -1


def test_what_is_remembered_is_forgotten_with_a_new_subscription() -> None:
    growing = session(ranged(0))
    assert growing.options(encode_attributes({"topic": "t"}), False) == Options(1, False, ())
    growing.subscribe(ranged(5, qos=2))
    assert growing.options(encode_attributes({"topic": "t"}), False) is None


FILTERS = ("a/b", "a/+", "a/#", "+/b", "#", "a/b/c")
asked = st.none() | st.tuples(st.integers(0, 2), st.booleans(), st.booleans())
changes = st.lists(st.tuples(st.sampled_from(FILTERS), asked), max_size=12)


@given(changes, st.sampled_from(["a/b", "a", "a/b/c", "x/b", "$x/b"]), st.booleans())
def test_options_are_those_of_the_subscriptions_that_match(
    changes: list[tuple[str, tuple[int, bool, bool] | None]], topic: str, own: bool
) -> None:
    """Asked after every change: what is compiled follows the changes."""
    made = MqttSession("c")
    for number, (name, asked) in enumerate(changes):
        if asked is None:
            made.unsubscribe(name)
        else:
            qos, no_local, is_named = asked
            identifier = number + 1 if is_named else None
            text = subscription_filter(name, None).text
            made.subscribe(Subscription(name, text, qos, no_local, False, identifier))
        held = made.subscriptions.values()
        matching = [one for one in held if TopicPattern(one.name).accepts(topic)]
        wanting = [one for one in matching if not (own and one.no_local)]
        found = made.options(encode_attributes({"topic": topic}), own)
        assert made.common_options() in (None, found)
        if wanting:
            identifiers = sorted(one.identifier for one in wanting if one.identifier is not None)
            assert found == Options(max(one.qos for one in wanting), False, tuple(identifiers))
        elif own and any(one.no_local for one in matching):
            assert found is not None
            assert found.qos == -1


def test_what_is_being_withdrawn_is_remembered_by_its_topic_filter() -> None:
    changing = session(ranged(0))
    again = Subscription("t?x>0", "topic = 't' AND x > 9", 1, False, False, None)
    changing.subscribe(again)
    changing.unsubscribe(again.name)
    assert changing.leaving == {"t?x>0": ["topic = 't' AND x > 0", "topic = 't' AND x > 9"]}
    changing.subscribe(ranged(0))
    assert changing.leaving == {"t?x>0": ["topic = 't' AND x > 9"]}
    changing.has_left("t?x>0", "topic = 't' AND x > 9")
    assert changing.leaving == {}


def test_what_another_topic_filter_holds_is_not_withdrawn() -> None:
    twice = session(ranged(0), Subscription("t", ranged(0).filter, 1, False, False, None))
    twice.unsubscribe("t")
    assert twice.leaving == {}


def test_a_client_that_never_waits_for_an_answer_takes_no_memory() -> None:
    hasty = session()
    for bound in range(LEAVING_BYTES_MAX // LEAVING_BYTES):
        hasty.subscribe(ranged(bound))
        hasty.unsubscribe(ranged(bound).name)
    kept = [filter for filters in hasty.leaving.values() for filter in filters]
    assert 1000 < len(kept) < LEAVING_BYTES_MAX // LEAVING_BYTES
    assert kept[-1] == ranged(bound).filter
    unpacked, _ = MqttSession.unpack("c", hasty.pack())
    assert unpacked.leaving == hasty.leaving


# --- capsules of other brokers ---

MATCHES = "topic MATCHES 'a/#'"
CAPSULE = NamedCapsule(
    3600,
    [
        Subscription("a/#", MATCHES, 1, False, False, 7),
        Subscription("$share/g/a/#", MATCHES, 1, False, False, None, "g"),
    ],
    PackedInFlight(5, [("p", 1, 1, 0, 3, 1), ("p", 1, 2, 0, 0, 0)], [3], [4]),
    [1],
    will=Will("w", b"gone", 1, True, 5, PublishProperties(content_type="text/plain")),
    leaving={"b": ["topic = 'b'"]},
    silent={"topic = 'c'": 3},
    identity=Identity("c", "ann", site="a", grants=Grants(("a/#",), ("#",))),
    recalls=[Recall("a/#", MATCHES, 1, None, False)],
)  # fmt: skip
SHARED = CAPSULE.subscriptions[1]


def test_a_capsule_of_a_session_is_read() -> None:
    session, recalls = MqttSession.unpack("c", msgspec.msgpack.encode(CAPSULE))
    assert session.pack(CAPSULE.will, recalls=recalls) == msgspec.msgpack.encode(
        Capsule(**{name: getattr(CAPSULE, name) for name in Capsule.__struct_fields__})
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"expiry_s": -1},
        {"expiry_s": 1 << 32},
        {"since": float("nan")},
        {"will_at": float("inf")},
        {"received": [0]},
        {"received": [70_000]},
        {"subscriptions": [replace(SHARED, filter="topic MATCHES '")]},
        {"subscriptions": [replace(SHARED, filter="area = myloc")]},
        {"subscriptions": [replace(SHARED, qos=3)]},
        {"subscriptions": [replace(SHARED, identifier=0)]},
        {"in_flight": PackedInFlight(0)},
        {"in_flight": PackedInFlight(resend=[("p", 1, 1, 0, 70_000, 1)])},
        {"in_flight": PackedInFlight(resend=[("p", 1, 1, 0, 7, 4)])},
        {"in_flight": PackedInFlight(early=[-1])},
        {"in_flight": PackedInFlight(released=[1 << 40])},
        {"leaving": {"b": ["("]}},
        {"silent": {"(": 1}},
        {"recalls": [Recall("a", "(", 1, None, False)]},
        {"recalls": [Recall("a", MATCHES, 1, None, False, clock=(float("nan"), 0))]},
        {"identity": Identity("c", "ann", grants=Grants(("a#",)))},
        {"will": Will("a/#", b"")},
        {"will": Will("w" * 70_000, b"")},
        {"will": Will("w", b"", qos=3)},
        {"will": Will("w", b"", delay=-1)},
        {"will": Will("w", b"", properties=PublishProperties(payload_format=300))},
        {"will": Will("w", b"", properties=PublishProperties(message_expiry=1 << 40))},
        {"will": Will("w", b"", properties=PublishProperties(content_type="\0"))},
    ],
)
def test_a_capsule_with_a_value_that_no_session_has_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="malformed capsule"):
        MqttSession.unpack("c", msgspec.msgpack.encode(replace(CAPSULE, **changed)))
