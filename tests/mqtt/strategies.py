"""Packets of every kind, drawn: what one side may send in one version."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from roamcast.mqtt.codec import reasons
from roamcast.mqtt.codec.packets import (
    AcknowledgementProperties,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionEntry,
    Unsuback,
    Unsubscribe,
    Will,
)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=12)
levels = st.sampled_from(("a", "b", "+", "", "$x", "ü"))
filters = st.one_of(
    st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool),
    st.lists(levels, max_size=3).map(lambda some: "/".join([*some, "#"])),
    st.sampled_from(("a/+?x=1", "$SYS/#", "a?b")),
)
blobs = st.binary(max_size=200)
twos = st.integers(0, 2**16 - 1)
fours = st.integers(0, 2**32 - 1)
packet_ids = st.integers(1, 2**16 - 1)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
qos = st.integers(0, 2)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def described(version: int, *, identifiers: bool, alias: bool) -> st.SearchStrategy[PublishProperties | None]:
    if version == 4:
        return st.none()
    return st.builds(
        PublishProperties,
        payload_format=maybe(st.integers(0, 255)),
        message_expiry=maybe(fours),
        content_type=maybe(texts),
        response_topic=maybe(topics),
        correlation_data=maybe(blobs),
        subscription_identifiers=st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple)
        if identifiers
        else st.just(()),
        topic_alias=maybe(packet_ids) if alias else st.none(),
        user_properties=pairs,
        # A block without a property is written as one of length 0, which reads as none.
    ).map(lambda one: None if one == PublishProperties() else one)


def acknowledged(version: int) -> st.SearchStrategy[AcknowledgementProperties | None]:
    if version == 4:
        return st.none()
    return st.builds(AcknowledgementProperties, maybe(texts), pairs).map(
        lambda one: None if one == AcknowledgementProperties() else one
    )


def connects(version: int) -> st.SearchStrategy[Connect]:
    will = st.builds(
        Will,
        topics,
        blobs,
        qos,
        st.booleans(),
        fours if version == 5 else st.just(0),
        described(version, identifiers=False, alias=False),
    )
    if version == 4:
        return st.one_of(
            st.builds(
                Connect, st.just(4), texts.filter(bool), st.booleans(), twos, texts, maybe(blobs), maybe(will)
            ),
            st.builds(Connect, st.just(4), texts, st.just(True), twos, will=maybe(will)),
        )
    plain: dict[str, Any] = {
        "session_expiry": maybe(fours),
        "receive_maximum": packet_ids,
        "maximum_packet_size": maybe(st.integers(1, 2**32 - 1)),
        "topic_alias_maximum": twos,
        "request_response_information": st.booleans(),
        "request_problem_information": st.booleans(),
        "user_properties": pairs,
    }
    start = (st.just(5), texts, st.booleans(), twos, maybe(texts), maybe(blobs), maybe(will))
    return st.one_of(
        st.builds(Connect, *start, **plain),
        st.builds(Connect, *start, **plain, authentication_method=texts, authentication_data=maybe(blobs)),
    )


def connacks(version: int) -> st.SearchStrategy[Connack]:
    if version == 4:
        answers = [one for one in map(reasons.from_connack_3_1_1, range(6)) if one is not None]
        return st.one_of(
            st.builds(Connack, st.booleans()), st.builds(Connack, st.just(False), st.sampled_from(answers))
        )
    plain: dict[str, Any] = {
        "session_expiry": maybe(fours),
        "receive_maximum": packet_ids,
        "maximum_qos": qos,
        "retain_available": st.booleans(),
        "maximum_packet_size": maybe(st.integers(1, 2**32 - 1)),
        "assigned_client_id": maybe(texts),
        "topic_alias_maximum": twos,
        "reason_string": maybe(texts),
        "user_properties": pairs,
        "wildcard_subscription_available": st.booleans(),
        "subscription_identifiers_available": st.booleans(),
        "shared_subscription_available": st.booleans(),
        "server_keep_alive": maybe(twos),
        "response_information": maybe(texts),
        "server_reference": maybe(texts),
        "authentication_method": maybe(texts),
    }
    refused = st.sampled_from(sorted(reasons.IN_CONNACK.values()))
    return st.one_of(
        st.builds(Connack, st.booleans(), **plain), st.builds(Connack, st.just(False), refused, **plain)
    )


def publishes(version: int, from_client: bool) -> st.SearchStrategy[Publish]:
    about = described(version, identifiers=not from_client, alias=True)
    return st.one_of(
        st.builds(Publish, topics, blobs, st.just(0), st.booleans(), properties=about),
        st.builds(Publish, topics, blobs, st.integers(1, 2), st.booleans(), st.booleans(), packet_ids, about),
    )


def acknowledgements(version: int) -> st.SearchStrategy[Packet]:
    first = st.sampled_from(sorted(reasons.IN_PUBACK_AND_PUBREC.values()))
    second = st.sampled_from(sorted(reasons.IN_PUBREL_AND_PUBCOMP.values()))
    if version == 4:
        first = second = st.just(reasons.Reason.SUCCESS)
    about = acknowledged(version)
    return st.one_of(
        st.builds(Puback, packet_ids, first, about),
        st.builds(Pubrec, packet_ids, first, about),
        st.builds(Pubrel, packet_ids, second, about),
        st.builds(Pubcomp, packet_ids, second, about),
    )


def subscribes(version: int) -> st.SearchStrategy[Subscribe]:
    if version == 4:
        entries = st.lists(st.builds(SubscriptionEntry, filters, qos), min_size=1, max_size=4).map(tuple)
        return st.builds(Subscribe, packet_ids, entries)
    shared = st.builds("$share/{}/{}".format, st.sampled_from(("g", "ü", "a b")), filters)
    entry = st.one_of(
        st.builds(SubscriptionEntry, filters, qos, st.booleans(), st.booleans(), qos),
        st.builds(SubscriptionEntry, shared, qos, st.just(False), st.booleans(), qos),
    )
    identifier = maybe(st.integers(1, 268_435_455))
    entries = st.lists(entry, min_size=1, max_size=4).map(tuple)
    return st.builds(Subscribe, packet_ids, entries, identifier, pairs)


def from_clients(version: int) -> st.SearchStrategy[Packet]:
    leaving: st.SearchStrategy[Any] = st.builds(Disconnect)
    about = st.just(()) if version == 4 else pairs
    some = [
        connects(version),
        publishes(version, True),
        acknowledgements(version),
        subscribes(version),
        st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=3).map(tuple), about),
        st.builds(Pingreq),
    ]
    if version == 5:
        codes = st.sampled_from(sorted(reasons.IN_CLIENT_DISCONNECT.values()))
        leaving = st.builds(Disconnect, codes, maybe(fours), maybe(texts), st.none(), pairs)
        codes = st.sampled_from(sorted(reasons.IN_CLIENT_AUTH.values()))
        some.append(st.builds(Auth, codes, texts, maybe(blobs), maybe(texts), pairs))
    return st.one_of(*some, leaving)


def from_servers(version: int) -> st.SearchStrategy[Packet]:
    allowed = reasons.IN_SUBACK.values() if version == 5 else [reasons.Reason(n) for n in (0, 1, 2, 128)]
    subscribed = st.lists(st.sampled_from(sorted(allowed)), min_size=1, max_size=4).map(tuple)
    codes = st.sampled_from(sorted(reasons.IN_UNSUBACK.values()))
    unsubscribed = st.just(()) if version == 4 else st.lists(codes, min_size=1, max_size=3).map(tuple)
    some: list[st.SearchStrategy[Any]] = [
        connacks(version),
        publishes(version, False),
        acknowledgements(version),
        st.builds(Suback, packet_ids, subscribed, acknowledged(version)),
        st.builds(Unsuback, packet_ids, unsubscribed, acknowledged(version)),
        st.builds(Pingresp),
    ]
    if version == 5:
        codes = st.sampled_from(sorted(reasons.IN_SERVER_DISCONNECT.values()))
        some.append(st.builds(Disconnect, codes, st.none(), maybe(texts), maybe(texts), pairs))
        codes = st.sampled_from(sorted(reasons.IN_SERVER_AUTH.values()))
        some.append(st.builds(Auth, codes, texts, maybe(blobs), maybe(texts), pairs))
        some.append(st.just(Auth()))
    return st.one_of(*some)


def packets(version: int, from_client: bool) -> st.SearchStrategy[Packet]:
    return from_clients(version) if from_client else from_servers(version)
