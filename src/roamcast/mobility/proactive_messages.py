"""The messages of `proactive.py`: what brokers say to each other about the copies of a context.

`number` is the attach number of the session at its holder when it speaks, the
control attribute of Gaddah 3.2. `activation` is a number that the sender of an
activation gives it, so that an answer to an earlier one is not taken for this.
The last ones, from `Ping` on, are about the failure of brokers (`proactive_failure.py`).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from roamcast.mobility.base import STREAM
from roamcast.protocol.messages import Cause, Message
from roamcast.protocol.notification import Burst

Subscriptions = dict[str, float]
"""A client's context: filter text to the time of issue."""


class PassiveCopy(Message, frozen=True):
    """Keep this context: the client may come to you next."""

    client: str
    number: int
    subscriptions: Subscriptions
    cause: ClassVar[Cause] = "handoff"


class ActivateCopy(Message, frozen=True):
    """Store for the client what follows the sequence `base`.

    `subscriptions` is None where the receiver has the context already. With `late`
    the client is there by now, and `bursts` is what was stored for it so far: the
    reactive fallback.
    """

    client: str
    number: int
    activation: int
    base: int
    subscriptions: Subscriptions | None
    bursts: tuple[Burst, ...]
    late: bool
    moves: int = -1
    """The client's own count of attaches at the holder."""
    owner: str = ""
    stream: str = STREAM
    """The stream to which the sequences belong."""

    @property
    def cause(self) -> Cause:
        return "transfer" if self.bursts else "handoff"


class CopyActivated(Message, frozen=True):
    """Whatever is published from now on comes here, too."""

    client: str
    activation: int
    cause: ClassVar[Cause] = "handoff"


class ForwardStored(Message, frozen=True):
    """What came after the activation was sent; `last` answers its acknowledgement."""

    client: str
    activation: int
    bursts: tuple[Burst, ...]
    last: bool

    @property
    def cause(self) -> Cause:
        return "transfer" if self.bursts else "handoff"


class StoredBefore(Message, frozen=True):
    """The client is with you now: this follows `base` and comes before what you store for it.

    With the number of an activation: say whether you have that copy, for I keep mine until then.
    """

    client: str
    base: int
    bursts: tuple[Burst, ...]
    activation: int = 0
    cause: ClassVar[Cause] = "transfer"


class DeactivateCopy(Message, frozen=True):
    """Stop storing, forget what is stored, keep the context.

    A copy that serves the client obeys only if the holder has heard of a later attach than that (`moves`).
    """

    client: str
    number: int
    moves: int = -1
    cause: ClassVar[Cause] = "handoff"


class DeleteCopy(Message, frozen=True):
    """Forget the context and what is stored; `moves` as in `DeactivateCopy`."""

    client: str
    number: int
    moves: int = -1
    cause: ClassVar[Cause] = "handoff"


class ServeFromCopy(Message, frozen=True):
    """As `StoredBefore`, but the client is at the destination, to which you are nearer: serve it there."""

    client: str
    destination: str
    base: int
    bursts: tuple[Burst, ...]
    activation: int = 0
    cause: ClassVar[Cause] = "transfer"


class StoredAside(Message, frozen=True):
    """Your copy serves the client. These notifications came to the holder alone; their order is free."""

    client: str
    bursts: tuple[Burst, ...]
    cause: ClassVar[Cause] = "transfer"


class SendServed(Message, frozen=True):
    """Your copy served the client, which is at the destination now and has received this much of it.

    Send the rest there. `bursts` came to the holder alone.
    """

    client: str
    destination: str
    number: int
    received: int
    bursts: tuple[Burst, ...]
    cause: ClassVar[Cause] = "handoff"


class NeighbourList(Message, frozen=True):
    """The sender's neighbours, for those of them who decide which copies it can use."""

    neighbours: tuple[str, ...]
    cause: ClassVar[Cause] = "handoff"


class ClientGone(Message, frozen=True):
    """From a broker to itself: if the client is not elsewhere by then, its copies are activated."""

    client: str
    number: int
    cause: ClassVar[Cause] = "handoff"


class Ping(Message, frozen=True):
    """Are you there? With `given_up` the sender thought not, and wants to hear what you hold."""

    given_up: bool = False
    cause: ClassVar[Cause] = "handoff"


class PingReply(Message, frozen=True):
    """Yes."""

    cause: ClassVar[Cause] = "handoff"


class HeldCopy(msgspec.Struct, frozen=True, array_like=True):
    """A copy as the broker knows it where it is; `activation` is 0 while it is passive."""

    number: int
    activation: int
    subscriptions: Subscriptions


class Announcement(Message, frozen=True):
    """The sender is back, and holds these copies, by client, over which the receiver has the control.

    It is answered with the receiver's own list.
    """

    copies: dict[str, HeldCopy]
    is_answer: bool
    cause: ClassVar[Cause] = "handoff"


class CopyTaken(Message, frozen=True):
    """The copy that you counted on when the client departed is here: you need not keep yours."""

    client: str
    activation: int
    cause: ClassVar[Cause] = "handoff"


class ContextMissing(Message, frozen=True):
    """The copy that you want activated, or that you count on, is not here: send the context."""

    client: str
    activation: int
    cause: ClassVar[Cause] = "handoff"
