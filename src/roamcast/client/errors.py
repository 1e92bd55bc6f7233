"""Errors of the client. Each text is one line that says what, where and why."""

from __future__ import annotations

from roamcast.mqtt.codec.reasons import Reason


class ClientError(Exception):
    """A failure at a broker or in the network."""


class ConnectError(ClientError):
    """No connection: no answer, or the broker refused; then `reason` is set."""

    def __init__(
        self, text: str, reason: Reason | None = None, *, is_final: bool = False, reference: str = ""
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.reference = reference
        """Server reference of the broker: where to connect instead; "" if none."""
        self.is_final = is_final
        """True if a retry cannot succeed."""


class ClientClosed(ClientError):
    """The client is closed, or was never opened."""


class _Refused(ClientError):
    def __init__(self, text: str, reason: Reason) -> None:
        super().__init__(text)
        self.reason = reason


class PublishError(_Refused):
    """A broker refused a publish, or the connection ended before its acknowledgement."""


class SubscribeError(_Refused):
    """A broker refused a subscription, or its end."""


# For these reasons the client gets the same answer everywhere and always.
FINAL = frozenset(
    {
        Reason.MALFORMED_PACKET,
        Reason.PROTOCOL_ERROR,
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
        Reason.CLIENT_IDENTIFIER_NOT_VALID,
        Reason.BAD_USER_NAME_OR_PASSWORD,
        Reason.NOT_AUTHORIZED,
        Reason.BANNED,
        Reason.BAD_AUTHENTICATION_METHOD,
        Reason.TOPIC_NAME_INVALID,
        Reason.PAYLOAD_FORMAT_INVALID,
        Reason.RETAIN_NOT_SUPPORTED,
        Reason.QOS_NOT_SUPPORTED,
    }
)


def in_words(reason: Reason, text: str = "") -> str:
    """Text of a reason code, with the broker's reason string."""
    words = reason.name.lower().replace("_", " ").replace("qos", "QoS")
    words = words.replace("not authorized", "not authorised")
    return f"{words} ({text})" if text else words
