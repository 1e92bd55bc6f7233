"""What brokers say to each other about shared subscriptions (see shared.py)."""

from __future__ import annotations

from typing import ClassVar

from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Area, Burst, Command, Fleeting, Message


class GroupJoin(Message, frozen=True):
    """A client joins a group; its session is at this broker."""

    group: str
    filter: str
    client: str
    broker: str
    is_there: bool
    """True if the client is connected."""
    asks: bool
    """True if the client wants to be told when the group has settled everywhere."""
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "groups"


class GroupJoined(Message, frozen=True):
    """Confirms that notifications published from now on reach the client's group."""

    group: str
    filter: str
    client: str
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "groups"


class GroupLeave(Message, frozen=True):
    group: str
    filter: str
    client: str
    broker: str
    """Broker of the session at that time: a later join from elsewhere stays."""
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "groups"


class GroupDeliver(Message, frozen=True):
    """Carries a notification from the owner of the group to a member."""

    group: str
    filter: str
    client: str
    burst: Burst | Fleeting
    cause: ClassVar[Cause] = "publish"
    area: ClassVar[Area] = "groups"

    @property
    def weight(self) -> int:
        return self.burst.count

    @property
    def is_fleeting(self) -> bool:  # type: ignore[override]
        return self.burst.is_fleeting


class GroupReturn(Message, frozen=True):
    """Returns a notification to the group's owner: the member was not there any more."""

    group: str
    filter: str
    client: str
    broker: str
    burst: Burst
    is_over: bool = False
    """True if the session has ended, rather than moved."""
    cause: ClassVar[Cause] = "publish"
    area: ClassVar[Area] = "groups"

    @property
    def weight(self) -> int:
        return self.burst.count


class GroupOffer(Message, frozen=True):
    """The sender owns this group and offers it to the receiver, which has to own it now."""

    group: str
    filter: str
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "groups"


class GroupReady(Message, frozen=True):
    """Notifications for this group reach the sender now, wherever they are published."""

    group: str
    filter: str
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "groups"


class GroupOver(Message, frozen=True):
    """The sender no longer owns the group; these are its members and undelivered notifications."""

    group: str
    filter: str
    members: dict[str, str]
    there: tuple[str, ...]
    last: dict[str, tuple[int, int]]
    """Last notification handed out, by publisher: incarnation and number."""
    waiting: tuple[Burst, ...]
    moving: tuple[str, ...] = ()
    """Members whose sessions are on their way."""
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "groups"


# --- commands of a broker to itself ---


class Takes(Command, frozen=True):
    """A client of this broker joins or leaves a group."""

    group: str
    filter: str
    client: str
    joins: bool
    is_there: bool = False
    asks: bool = False


class GivesBack(Command, frozen=True):
    """The session of a member ends here without having received this notification."""

    group: str
    filter: str
    client: str
    burst: Burst


class MembersChanged(Command, frozen=True):
    """Brokers have come within reach, or are gone for good."""
