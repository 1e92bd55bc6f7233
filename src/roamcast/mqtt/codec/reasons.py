"""The reason codes of MQTT 5.0, by the names the standard gives them (section 2.4)."""

from enum import IntEnum


class Reason(IntEnum):
    """Why something was done or refused; codes from 0x80 on mean failure."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def failed(self) -> bool:
        return self >= 0x80


def _reasons(*codes: int) -> dict[int, Reason]:
    return {code: Reason(code) for code in codes}


# Which codes each packet may carry, by the tables of chapter 3 of the standard.

IN_CONNACK = _reasons(0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F)
IN_PUBACK_AND_PUBREC = _reasons(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
IN_PUBREL_AND_PUBCOMP = _reasons(0x00, 0x92)
IN_SUBACK = _reasons(0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
IN_UNSUBACK = _reasons(0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)
IN_CLIENT_DISCONNECT = _reasons(0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A))
IN_SERVER_DISCONNECT = _reasons(
    *(0x00, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)),
)
IN_CLIENT_AUTH = _reasons(0x18, 0x19)
IN_SERVER_AUTH = _reasons(0x00, 0x18)


# CONNACK return codes of 3.1.1 (its table 3.1). Reasons without a code become "server unavailable".

_FROM_3_1_1 = (
    Reason.SUCCESS,
    Reason.UNSUPPORTED_PROTOCOL_VERSION,
    Reason.CLIENT_IDENTIFIER_NOT_VALID,
    Reason.SERVER_UNAVAILABLE,
    Reason.BAD_USER_NAME_OR_PASSWORD,
    Reason.NOT_AUTHORIZED,
)
_TO_3_1_1 = {reason: code for code, reason in enumerate(_FROM_3_1_1)} | {
    Reason.BANNED: 5,
    Reason.BAD_AUTHENTICATION_METHOD: 5,
}


def connack_3_1_1(reason: Reason) -> int:
    """Return the MQTT 3.1.1 return code closest to the reason."""
    return _TO_3_1_1.get(reason, 3)


def from_connack_3_1_1(code: int) -> Reason | None:
    """The reason behind a return code of MQTT 3.1.1; None if there is no such code."""
    return _FROM_3_1_1[code] if code < len(_FROM_3_1_1) else None
