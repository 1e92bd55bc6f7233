"""Topic names, topic filters, shared subscriptions and content filters."""

from __future__ import annotations

import itertools

import pytest

from roamcast.errors import InputError
from roamcast.filters.patterns import TopicPattern
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.topics import (
    check_filter,
    check_subscription,
    check_topic,
    decode_topic,
    matches,
    split_shared,
    subscription_filter,
)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        # Sections 4.7.1.2, 4.7.1.3 and 4.7.2, with their examples.
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "/", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/#", "a/$b", True),
        ("a/+", "a/$b", True),
        # 4.7.3-4: no normalisation, and case matters.
        ("ACCOUNTS", "Accounts", False),
        ("a", "a/", False),
        ("a//b", "a/b", False),
        ("\u00e9", "e\u0301", False),
        ("a?x=1", "a?x=1", True),
    ],
)
def test_the_standards_examples(topic_filter: str, topic: str, expected: bool) -> None:
    check_filter(topic_filter)
    check_topic(topic)
    assert matches(topic_filter, topic) is expected


def test_matching_agrees_with_the_patterns_of_filters() -> None:
    levels = ("a", "b", "", "$x")
    topics = ["/".join(some) for size in (1, 2, 3) for some in itertools.product(levels, repeat=size)]
    wild = (*levels, "+")
    filters = ["/".join(some) for size in (1, 2, 3) for some in itertools.product(wild, repeat=size)]
    filters += [f"{one}/#" for one in filters] + ["#"]
    for topic_filter in filter(None, filters):
        accepts = TopicPattern(topic_filter).accepts
        for topic in filter(None, topics):
            assert matches(topic_filter, topic) == accepts(topic), (topic_filter, topic)


@pytest.mark.parametrize("text", ["#", "+", "/", "a", "+/+/#", "a b/ü/#", "//", "$SYS/#", "?", "a?b"])
def test_filters_that_are_right(text: str) -> None:
    check_filter(text)
    assert check_subscription(text, 4) is False
    assert check_subscription(text, 5) is False


@pytest.mark.parametrize("text", ["", "a#", "#a", "#/a", "##", "a/#b", "+a", "a+", "a/b+/c", "++", "a\0"])
def test_filters_that_are_wrong(text: str) -> None:
    with pytest.raises(PacketError) as refused:
        check_filter(text)
    assert refused.value.reason == Reason.TOPIC_FILTER_INVALID
    assert refused.value.text.isprintable()


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", Reason.PROTOCOL_ERROR),
        ("a/+", Reason.TOPIC_NAME_INVALID),
        ("a#", Reason.TOPIC_NAME_INVALID),
        ("a\0", Reason.TOPIC_NAME_INVALID),
        ("+" * 500, Reason.TOPIC_NAME_INVALID),
    ],
)
def test_topic_names_that_are_wrong(topic: str, reason: Reason) -> None:
    with pytest.raises(PacketError) as refused:
        check_topic(topic)
    assert refused.value.reason == reason
    assert len(refused.value.text) < 150


def test_topic_names_are_decoded_strictly() -> None:
    assert decode_topic("a/ü".encode()) == "a/ü"
    for raw, reason in ((b"\xff", Reason.MALFORMED_PACKET), (b"a/#", Reason.TOPIC_NAME_INVALID)):
        with pytest.raises(PacketError) as refused:
            decode_topic(raw)
        assert refused.value.reason == reason


def test_shared_subscriptions_are_split() -> None:
    assert split_shared("$share/group/a/+/#") == ("group", "a/+/#")
    assert split_shared("$share/g//") == ("g", "/")
    assert split_shared("$share/g/a?x>1") == ("g", "a?x>1")
    assert split_shared("$shared/g/a") is None
    assert split_shared("$share") is None
    assert split_shared("a/$share/g/a") is None


@pytest.mark.parametrize("text", ["$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/#"])
def test_shared_subscriptions_that_are_wrong(text: str) -> None:
    """[MQTT-4.8.2-1] and [MQTT-4.8.2-2]; in 3.1.1 most of them are ordinary filters."""
    with pytest.raises(PacketError) as refused:
        split_shared(text)
    assert refused.value.reason == Reason.TOPIC_FILTER_INVALID
    assert "share name" in refused.value.text
    assert check_subscription(text, 5) is True, "it is refused in the answer"
    assert check_subscription(text, 4) is False


def test_the_filter_within_a_shared_subscription_is_checked() -> None:
    assert check_subscription("$share/g/a/+", 5) is True
    with pytest.raises(PacketError, match="whole level"):
        check_subscription("$share/g/a+", 5)


@pytest.mark.parametrize(
    ("text", "where", "wanted"),
    [
        ("site/7/tram", None, "topic = 'site/7/tram'"),
        ("site/+/tram/#", None, "topic MATCHES 'site/+/tram/#'"),
        ("a/+?speed>5", None, "speed > 5 AND topic MATCHES 'a/+'"),
        ("a?speed>5&line=A&late=true", None, "late = TRUE AND line = 'A' AND speed > 5 AND topic = 'a'"),
        ("a?b", None, "topic = 'a?b'"),
        ("a?b?x=1", None, "topic = 'a?b' AND x = 1"),
        ("a", "speed > 5 OR NOT late", "(late = FALSE OR speed > 5) AND topic = 'a'"),
        ("a?x=1", "y = 2", "topic = 'a' AND x = 1 AND y = 2"),
        ("a", "TRUE", "topic = 'a'"),
    ],
)
def test_subscriptions_become_filters(text: str, where: str | None, wanted: str) -> None:
    check_subscription(text, 5)
    assert subscription_filter(text, where).text == wanted


@pytest.mark.parametrize(
    ("text", "where"),
    [("a", "speed >"), ("a", ""), ("a#", None), ("a", "x = " + "1" * 9_000), ("a" * 9_000, None)],
)
def test_what_no_filter_can_be_made_of(text: str, where: str | None) -> None:
    with pytest.raises(InputError):
        subscription_filter(text, where)


def test_a_tail_does_not_hide_a_wrong_filter() -> None:
    for text in ("a+?x=1", "#/a?x=1", "$share/g/a#?x=1"):
        with pytest.raises(PacketError):
            check_subscription(text, 5)


def test_long_filters_are_legal_and_read_quickly() -> None:
    """MQTT allows 65,535 bytes, and question marks in all of them."""
    assert check_subscription("a?" * 30_000, 5) is False
    assert check_subscription("a?x=1&" * 10_000, 5) is False
    assert check_subscription("?x=1" * 2_000, 5) is False
