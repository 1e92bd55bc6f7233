"""One packet of every kind with every property it may carry, and a bare one: seeds for damage and tables."""

from __future__ import annotations

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
from roamcast.mqtt.codec.reasons import Reason

USER = (("kind", "tram"), ("kind", "bus"), ("ü", ""))
ABOUT = AcknowledgementProperties("because", USER)
MESSAGE = PublishProperties(1, 60, "application/json", "answers/here", b"\0\1", user_properties=USER)
WITH_ALIAS = PublishProperties(0, 0, "", "a", b"", topic_alias=7, user_properties=USER)
TO_CLIENT = PublishProperties(subscription_identifiers=(1, 128, 268_435_455), topic_alias=65_535)
WILL = Will("last/words", b"gone", 2, True, 5, MESSAGE)

BOTH_5: list[Packet] = [
    *(made(9, reason, about) for made in (Puback, Pubrec) for reason, about in ((Reason(0), None),
      (Reason(0), ABOUT), (Reason.QUOTA_EXCEEDED, None), (Reason.QUOTA_EXCEEDED, ABOUT))),
    *(made(9, Reason.PACKET_IDENTIFIER_NOT_FOUND, about) for made in (Pubrel, Pubcomp)
      for about in (None, ABOUT)),
]  # fmt: skip
BOTH_4: list[Packet] = [Puback(1), Pubrec(65_535), Pubrel(256), Pubcomp(255)]

FROM_CLIENT_4: list[Packet] = [
    Connect(4, "bare"),
    Connect(4, "full", False, 60, "me", b"secret", Will("last/words", b"gone", 1, True)),
    Publish("a/b", b"payload"),
    Publish("a/b", b"x" * 130, 2, True, True, 9),
    Subscribe(9, (SubscriptionEntry("a/+/#", 1), SubscriptionEntry("$share/any", 2))),
    Unsubscribe(9, ("a/+/#", "b")),
    Pingreq(),
    Disconnect(),
    *BOTH_4,
]
FROM_SERVER_4: list[Packet] = [
    Connack(True),
    Connack(False, Reason.NOT_AUTHORIZED),
    Publish("a/b", b"payload", 1, packet_id=9),
    Suback(9, (Reason.GRANTED_QOS_1, Reason.UNSPECIFIED_ERROR)),
    Unsuback(9),
    Pingresp(),
    *BOTH_4,
]
FROM_CLIENT_5: list[Packet] = [
    Connect(5, ""),
    Connect(5, "full", False, 60, "me", b"secret", WILL, 3600, 10, 1000, 20, True, False, USER, "m", b"data"),
    Publish("a/b", b"payload"),
    Publish("", b"payload", 1, packet_id=9, properties=WITH_ALIAS),
    Publish("a/b", b"x" * 130, 2, True, True, 9, MESSAGE),
    Subscribe(9, (SubscriptionEntry("a/+/#", 1), SubscriptionEntry("b", 2, True, True, 2)), 128, USER),
    Subscribe(9, (SubscriptionEntry("$share/group/a?x>1"),)),
    Unsubscribe(9, ("a/+/#", "$share/group/b"), USER),
    Pingreq(),
    Disconnect(),
    Disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE),
    Disconnect(Reason.UNSPECIFIED_ERROR, 0, "because", None, USER),
    Auth(Reason.RE_AUTHENTICATE, "m", b"data", "because", USER),
    *BOTH_5,
]
FROM_SERVER_5: list[Packet] = [
    Connack(True),
    Connack(False, Reason.BANNED),
    Connack(
        False, Reason.SUCCESS, 3600, 10, 1, False, 1000, "given", 20, "because", USER, False, False, False,
        30, "answers/", "elsewhere", "m", b"data",
    ),
    Publish("a/b", b"payload", 1, packet_id=9, properties=TO_CLIENT),
    Suback(9, (Reason.GRANTED_QOS_2, Reason.NOT_AUTHORIZED), ABOUT),
    Unsuback(9, (Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED), ABOUT),
    Pingresp(),
    Disconnect(Reason.SESSION_TAKEN_OVER),
    Disconnect(Reason.SERVER_MOVED, None, "because", "elsewhere", USER),
    Auth(),
    Auth(Reason.CONTINUE_AUTHENTICATION, "m", b"data", "because", USER),
    *BOTH_5,
]  # fmt: skip

CORPUS: list[tuple[int, bool, Packet]] = [
    (version, from_client, packet)
    for version, from_client, some in (
        (4, True, FROM_CLIENT_4),
        (4, False, FROM_SERVER_4),
        (5, True, FROM_CLIENT_5),
        (5, False, FROM_SERVER_5),
    )
    for packet in some
]
