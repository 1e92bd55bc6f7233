"""Messages between the replicas of a site, and requests to etcd."""

from __future__ import annotations

import msgspec

from roamcast.replication.terms import Term


class SiteView(msgspec.Struct, frozen=True):
    """State of a site in etcd."""

    in_sync: dict[str, str] = {}
    """Replicas that have everything that was acknowledged: name, and the id of the disk."""
    epoch: int = 0
    """Epoch of the last promotion."""
    revision: int = 0
    """Revision of the fields above, for compare-and-swap; 0: etcd does not know the site."""
    promoted: str = ""
    """Replica that was promoted last."""
    successor: str = ""
    """Replica that a leader which stepped down wants as its successor."""
    barred: tuple[str, ...] = ()
    """Replicas that an operator removed."""
    leader: str = ""
    """Replica that holds the lease; "" if none."""
    boot: str = ""
    """Process that holds the lease."""
    address: str = ""
    """Address of that process for followers."""
    reference: str = ""
    """Address of that process for clients."""


# --- requests to etcd ---


class Look(msgspec.Struct, frozen=True):
    """Read the view."""


class Campaign(msgspec.Struct, frozen=True):
    """Take a lease and become leader, if there is none and the site still has this revision."""

    view: SiteView
    """The view after the change."""
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
    """A follower connects, and reports its state."""

    name: str
    disk: str
    epoch: int
    """Epoch of its last entry."""
    last: int
    """Number of its last entry."""
    known: int
    """Highest epoch that it knows."""
    replay: int = 1
    """Version of the rules for replaying entries (`broker.inputs.REPLAY`)."""
    version: str = ""
    """Version of the package, for people."""


class Welcome(Message, frozen=True):
    """The leader accepts the follower."""

    epoch: int
    terms: list[Term]
    last: int
    """Entries after this one follow."""
    snapshot_bytes: int = -1
    """Size in bytes of a snapshot that comes before the entries; -1: no snapshot."""


class Unwelcome(Message, frozen=True):
    why: str


class SnapshotPart(Message, frozen=True):
    data: bytes


class Records(Message, frozen=True):
    """Entries in the form in which the leader writes them."""

    first: int
    entries: list[bytes]


class Acknowledged(Message, frozen=True):
    """The follower has written and synced all entries up to this one."""

    sequence: int


class Released(Message, frozen=True):
    """Heartbeat of the leader: the last entry whose effects were released."""

    sequence: int
    settled: dict[str, int] = {}
    """What each peer has acknowledged: the follower may delete that."""


AnyMessage = Joining | Welcome | Unwelcome | SnapshotPart | Records | Acknowledged | Released

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AnyMessage).decode
