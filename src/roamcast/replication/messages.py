"""What the replicas of a site say to each other, and what they ask of etcd."""

from __future__ import annotations

import msgspec

from roamcast.replication.terms import Term


class SiteView(msgspec.Struct, frozen=True):
    """What etcd says of a site."""

    in_sync: dict[str, str] = {}
    """Replicas that have everything that was promised: name, and the id of the disk that has it."""
    epoch: int = 0
    """Epoch of the last promotion."""
    revision: int = 0
    """Of what is above, for compare-and-swap; 0: etcd knows no such site."""
    promoted: str = ""
    """Who was promoted last."""
    successor: str = ""
    """Whom a leader wants that stepped down."""
    barred: tuple[str, ...] = ()
    """Replicas that an operator removed."""
    leader: str = ""
    """Who has the lease; "" if nobody has."""
    boot: str = ""
    """The process that has it."""
    address: str = ""
    """Where followers reach that process …"""
    reference: str = ""
    """… and where clients do."""


# --- requests to etcd ---


class Look(msgspec.Struct, frozen=True):
    """Read the view."""


class Campaign(msgspec.Struct, frozen=True):
    """Take a lease and become leader, if nobody is and the site still has this revision."""

    view: SiteView
    """As it will be."""
    revision: int


class Renew(msgspec.Struct, frozen=True):
    """Keep the lease."""


class Change(msgspec.Struct, frozen=True):
    """Change the site, if this process still leads and the site still has this revision."""

    view: SiteView
    revision: int


class Resign(msgspec.Struct, frozen=True):
    """Give the lease back."""


Request = Look | Campaign | Renew | Change | Resign


# --- between replicas ---


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One frame. New fields come last and have defaults."""


class Joining(Message, frozen=True):
    """A follower connects, and says what it has."""

    name: str
    disk: str
    epoch: int
    """Epoch of its last entry."""
    last: int
    """The number of its last entry."""
    known: int
    """The highest epoch that it has heard of."""
    replay: int = 1
    """By which rules it replays entries (`broker.inputs.REPLAY`)."""
    version: str = ""
    """Version of the package, for people."""


class Welcome(Message, frozen=True):
    """The leader takes the follower."""

    epoch: int
    terms: list[Term]
    last: int
    """Entries from the one after this follow, …"""
    snapshot_bytes: int = -1
    """… after a snapshot of this size in bytes; -1: no snapshot."""


class Unwelcome(Message, frozen=True):
    why: str


class SnapshotPart(Message, frozen=True):
    data: bytes


class Records(Message, frozen=True):
    """Entries, as the leader writes them itself."""

    first: int
    entries: list[bytes]


class Acknowledged(Message, frozen=True):
    """The follower has written and synced everything up to this entry."""

    sequence: int


class Released(Message, frozen=True):
    """A sign of life of the leader: how far its effects have left."""

    sequence: int
    settled: dict[str, int] = {}
    """What each peer has acknowledged: the follower need not keep that any longer."""


AnyMessage = Joining | Welcome | Unwelcome | SnapshotPart | Records | Acknowledged | Released

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AnyMessage).decode
