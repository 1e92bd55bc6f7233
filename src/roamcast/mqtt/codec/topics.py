"""Topic names and topic filters (MQTT 5.0 section 4.7), shared subscriptions (4.8) and content filters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.fields import decoded
from roamcast.mqtt.codec.reasons import Reason

if TYPE_CHECKING:
    from roamcast.filters.filter import Filter

# The selector language takes longer to load than a client takes to publish: it is loaded only for content
# filters.

SHARE = "$share/"

_PART_OF_A_LEVEL = re.compile(r"[^/]\+|\+[^/]")


def _shortened(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def _invalid_name(topic: str, why: str) -> PacketError:
    return PacketError(Reason.TOPIC_NAME_INVALID, f"topic name {_shortened(topic)}: {why}")


def _invalid_filter(text: str, why: str) -> PacketError:
    return PacketError(Reason.TOPIC_FILTER_INVALID, f"topic filter {_shortened(text)}: {why}")


def check_topic(topic: str) -> None:
    """Check that a message may be published under this name; otherwise PacketError."""
    if not topic:
        raise PacketError(Reason.PROTOCOL_ERROR, "a topic name is empty")
    if "+" in topic or "#" in topic:
        raise _invalid_name(topic, "wildcards belong in topic filters only")
    if "\0" in topic:
        raise _invalid_name(topic, "the null character is not allowed")


def decode_topic(raw: bytes) -> str:
    """Decode and check the topic name of a PUBLISH."""
    topic = decoded(raw)
    check_topic(topic)
    return topic


def check_filter(text: str) -> None:
    """Check a topic filter by the wildcard rules; PacketError if invalid."""
    if not text:
        raise _invalid_filter(text, "at least one character is needed")
    if "\0" in text:
        raise _invalid_filter(text, "the null character is not allowed")
    if "#" in text and ("#" in text[:-1] or text[-2:] not in ("#", "/#")):
        raise _invalid_filter(text, "'#' must be the whole last level")
    if "+" in text and _PART_OF_A_LEVEL.search(text):
        raise _invalid_filter(text, "'+' must be a whole level")


def split_shared(text: str) -> tuple[str, str] | None:
    """The group and the filter of a shared subscription; None if it is not shared."""
    if not text.startswith(SHARE):
        return None
    group, slash, inner = text[len(SHARE) :].partition("/")
    if not group or "+" in group or "#" in group:
        raise _invalid_filter(text, "a share name is needed, without wildcards")
    if not slash or not inner:
        raise _invalid_filter(text, "the share name must be followed by '/' and a topic filter")
    return group, inner


def check_subscription(text: str, version: int) -> bool:
    """Check a filter of a SUBSCRIBE or UNSUBSCRIBE; True if it is a shared subscription.

    MQTT 3.1.1 has no shared subscriptions: there `$share` is a level like any other. An invalid share name is
    refused in the answer (see `split_shared`), because the rest of the packet may be valid.
    """
    try:
        shared = split_shared(text) if version == 5 else None
    except PacketError:
        return True
    topic_filter = text if shared is None else shared[1]
    if "?" in topic_filter:
        from roamcast.filters.selector import topic_part

        topic_filter = topic_part(topic_filter)
    check_filter(topic_filter)
    return shared is not None


def matches(topic_filter: str, topic: str) -> bool:
    """True if a checked topic filter matches a topic name."""
    if topic[:1] == "$" and topic_filter[:1] in ("+", "#"):
        return False
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for position, level in enumerate(wanted):
        if level == "#":  # `a/#` also matches `a` itself.
            return True
        if position == len(levels) or level not in ("+", levels[position]):
            return False
    return len(wanted) == len(levels)


def subscription_filter(text: str, where: str | None = None) -> Filter:
    """Convert a topic filter, with an optional content tail, and a selector to a filter.

    `site/+/temperature?value>20&unit=C` carries two conditions; if the tail is not a list of conditions, the
    question mark belongs to the topic. Invalid text raises InputError.
    """
    from roamcast.filters.expression import conjunction
    from roamcast.filters.filter import Filter
    from roamcast.filters.selector import parse, parse_subscription

    found = parse_subscription(text)
    return found if where is None else Filter(conjunction((found.expression, parse(where).expression)))
