"""What can go wrong for a client. The text of each is one line that says what, where and why."""

from __future__ import annotations

from roamcast.mqtt.codec.reasons import Reason


class ClientError(Exception):
    """Something that a broker or the network refused."""


class ConnectError(ClientError):
    """No connection: nobody answers there, or the broker refuses. `reason` is set if a broker said no."""

    def __init__(
        self, text: str, reason: Reason | None = None, *, is_final: bool = False, reference: str = ""
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.reference = reference
        """Where the broker sends the client; "" if it does not."""
        self.is_final = is_final
        """Whether trying again cannot help."""


class ClientClosed(ClientError):
    """The client is closed, or was never opened."""


class _Refused(ClientError):
    def __init__(self, text: str, reason: Reason) -> None:
        super().__init__(text)
        self.reason = reason


class PublishError(_Refused):
    """A broker refused a publish, or it is not known whether it has it."""


class SubscribeError(_Refused):
    """A broker refused a subscription, or its end."""


# With these, the same client gets the same answer everywhere and always.
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
    """A reason code as a person reads it, with what the broker adds to it."""
    words = reason.name.lower().replace("_", " ").replace("qos", "QoS")
    words = words.replace("not authorized", "not authorised")
    return f"{words} ({text})" if text else words
