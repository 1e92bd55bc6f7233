"""The messages of `proactive.py`: what brokers say to each other about the copies of a context.

`number` is the attach number of the session at its holder when it speaks, the control attribute
of Gaddah 3.2. `activation` is a number that the sender of an activation gives it, so that
answers to earlier activations can be told apart. The messages from `Ping` on are about the
failure of brokers (`proactive_failure.py`).
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

    `subscriptions` is None where the receiver has the context already. `late` marks the reactive fallback:
    the client is at the receiver by now, and `bursts` is what was stored for it so far.
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
    """Acknowledges an activation: notifications published from now on reach this copy, too."""

    client: str
    activation: int
    cause: ClassVar[Cause] = "handoff"


class ForwardStored(Message, frozen=True):
    """Notifications received since the activation was sent; `last` answers its acknowledgement."""

    client: str
    activation: int
    bursts: tuple[Burst, ...]
    last: bool

    @property
    def cause(self) -> Cause:
        return "transfer" if self.bursts else "handoff"


class StoredBefore(Message, frozen=True):
    """Notifications that follow `base` and precede those that the receiver's copy stored; its client is
    there.

    With the number of an activation, the receiver answers whether it has that copy; the sender keeps its own
    store until then.
    """

    client: str
    base: int
    bursts: tuple[Burst, ...]
    activation: int = 0
    cause: ClassVar[Cause] = "transfer"


class DeactivateCopy(Message, frozen=True):
    """Stop storing, forget what is stored, keep the context.

    A copy that serves the client obeys only if the holder knows of a later attach (`moves`).
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
    """As `StoredBefore`, but the client is at the destination: the receiver is nearer and serves it there."""

    client: str
    destination: str
    base: int
    bursts: tuple[Burst, ...]
    activation: int = 0
    cause: ClassVar[Cause] = "transfer"


class StoredAside(Message, frozen=True):
    """Notifications that only the holder received, for a copy that serves the client; they need no order."""

    client: str
    bursts: tuple[Burst, ...]
    cause: ClassVar[Cause] = "transfer"


class SendServed(Message, frozen=True):
    """Asks a copy that served the client to send the rest to the destination, where the client is now.

    The client has read the copy up to `received`; `bursts` reached only the holder.
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
    """Timer of a broker: unless the client is elsewhere by then, its copies are activated."""

    client: str
    number: int
    cause: ClassVar[Cause] = "handoff"


class Ping(Message, frozen=True):
    """Asks whether the receiver is there; `given_up` tells that the sender suspected it and wants its
    list."""

    given_up: bool = False
    cause: ClassVar[Cause] = "handoff"


class PingReply(Message, frozen=True):
    """Answers a `Ping`."""

    cause: ClassVar[Cause] = "handoff"


class HeldCopy(msgspec.Struct, frozen=True, array_like=True):
    """A copy as listed by the broker that holds it; `activation` is 0 while the copy is passive."""

    number: int
    activation: int
    subscriptions: Subscriptions


class Announcement(Message, frozen=True):
    """The sender is back, and holds these copies, by client, over which the receiver has the control.

    The receiver answers with its own list.
    """

    copies: dict[str, HeldCopy]
    is_answer: bool
    cause: ClassVar[Cause] = "handoff"


class CopyTaken(Message, frozen=True):
    """Confirms that the copy which serves the departed client is here: the former holder may end its
    store."""

    client: str
    activation: int
    cause: ClassVar[Cause] = "handoff"


class ContextMissing(Message, frozen=True):
    """Reports that a copy to be activated, or relied on, is missing here; the receiver sends the context."""

    client: str
    activation: int
    cause: ClassVar[Cause] = "handoff"
