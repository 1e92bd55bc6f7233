"""The one exception that parsing raises, whatever the bytes."""

from roamcast.mqtt.codec.reasons import Reason


class PacketError(Exception):
    """A packet that the standard forbids, and the reason code to answer it with.

    `version` is set for a refused CONNECT: the protocol level it named, so that
    the answer can be written in that version (see writing.refusal).
    """

    def __init__(self, reason: Reason, text: str, version: int | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.version = version

    def __str__(self) -> str:
        return f"{self.text} ({self.reason.name.lower().replace('_', ' ')}, 0x{self.reason:02X})"


def malformed(text: str) -> PacketError:
    return PacketError(Reason.MALFORMED_PACKET, text)


def protocol_error(text: str) -> PacketError:
    return PacketError(Reason.PROTOCOL_ERROR, text)
