"""What brokers say to each other about shared subscriptions (see shared.py)."""

from __future__ import annotations

from typing import ClassVar

from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Area, Burst, Command, Fleeting, Message


class GroupJoin(Message, frozen=True):
    """A client takes part; its session is at this broker."""

    group: str
    filter: str
    client: str
    broker: str
    is_there: bool
    """Whether it is connected."""
    asks: bool
    """Whether it wants to be told when that is known everywhere."""
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "groups"


class GroupJoined(Message, frozen=True):
    """What is published from now on is for this client's group, too."""

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
    """Where its session was: a later join from elsewhere stays."""
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
    def is_fleeting(self) -> bool:
        return self.burst.is_fleeting


class GroupReturn(Message, frozen=True):
    """The member was not there any more."""

    group: str
    filter: str
    client: str
    broker: str
    burst: Burst
    is_over: bool = False
    """Whether its session has ended, rather than moved."""
    cause: ClassVar[Cause] = "publish"
    area: ClassVar[Area] = "groups"

    @property
    def weight(self) -> int:
        return self.burst.count


class GroupOffer(Message, frozen=True):
    """The sender owns this group, and the receiver has to."""

    group: str
    filter: str
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "groups"


class GroupReady(Message, frozen=True):
    """What is for this group comes to the sender now, wherever it is published."""

    group: str
    filter: str
    cause: ClassVar[Cause] = "subscribe"
    area: ClassVar[Area] = "groups"


class GroupOver(Message, frozen=True):
    """The sender owns this group no more; these are its members, and what they are owed."""

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


# --- of a broker to itself ---


class Takes(Command, frozen=True):
    """A client of this broker takes part in a group, or takes part no more."""

    group: str
    filter: str
    client: str
    joins: bool
    is_there: bool = False
    asks: bool = False


class GivesBack(Command, frozen=True):
    """The session of a member ends here, and it did not get this."""

    group: str
    filter: str
    client: str
    burst: Burst


class MembersChanged(Command, frozen=True):
    """Brokers have come within reach, or are gone for good."""
