"""Parts of a simulated site with replicas: disks, processes, streams between them, and an etcd."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from roamcast.broker.inputs import Entry, MachineEffects
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.site_copy import SiteCopy
from roamcast.protocol.records import Row
from roamcast.replication.messages import Campaign, Change, Look, Renew, Request, Resign, SiteView
from roamcast.replication.replica import Replica
from roamcast.replication.terms import Term


class Disk:
    """What is on the disk of one replica."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        """Ids of the processes that have used it."""
        self.snapshot: bytes | None = None
        self.first = 1
        """Number of the first entry."""
        self.entries: list[bytes] = []
        self.synced = 0
        """Number of the last entry that survives a power loss."""
        self.terms: list[Term] = []
        self.log: list[bytes] = []
        """Everything that was ever written, for observers."""
        self.rows: list[list[Row]] = []
        """Rows that the machine recorded with each entry of the log. They are published when the entry is
        released; a snapshot does not contain them.
        """

    @property
    def last(self) -> int:
        return self.first - 1 + len(self.entries)

    def append(self, entry: bytes, rows: list[Row]) -> None:
        self.entries.append(entry)
        self.log.append(entry)
        self.rows.append(rows)

    def cut(self, last: int) -> None:
        """Drop all entries after this one."""
        del self.entries[max(0, last - self.first + 1) :]
        del self.log[last:], self.rows[last:]

    def install(self, snapshot: bytes, other: Disk) -> None:
        """Start with a snapshot of everything on another disk."""
        self.snapshot, self.first, self.entries = snapshot, other.last + 1, []
        self.synced, self.log, self.rows = other.last, list(other.log), list(other.rows)

    def copy(self) -> Disk:
        copy = Disk()
        copy.ids = list(self.ids)
        copy.snapshot, copy.first, copy.entries = self.snapshot, self.first, list(self.entries)
        copy.synced, copy.terms = self.synced, list(self.terms)
        copy.log, copy.rows = list(self.log), list(self.rows)
        copy.cut(copy.synced)
        return copy


class Held:
    """Effects of a turn, and the entry that must be on certain disks before they leave."""

    def __init__(
        self, sequence: int, effects: MachineEffects, promised: dict[str, tuple[int, int]], position: int
    ) -> None:
        self.sequence = sequence
        self.effects = effects
        self.promised = promised
        self.position = position


class Node:
    """A process of one replica."""

    def __init__(
        self, name: str, disk: Disk, replica: Replica, rate: float, make: Callable[[Entry], BrokerMachine]
    ) -> None:
        self.name = name
        self.disk = disk
        self.replica = replica
        self.rate = rate
        """Speed of its clock."""
        self._make = make
        self.machine = None
        self.is_copying = False
        """True if the copy is about to step what it is behind."""
        self.is_dead = False
        self.is_halted = False
        self.waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """Calls that arrive while it is suspended."""
        self.held: deque[Held] = deque()
        self.serves = False
        self.stream: Stream | None = None
        """The stream to the leader."""
        self.streams: dict[str, Stream] = {}
        """On a leader: its streams to followers."""
        self.requests: dict[type[Request], int] = {}
        self.astray_until = 0.0
        """Time until which its requests to etcd are very slow."""
        self.is_clone = False
        self.is_promoted = False
        self.tick_at = -1.0
        self.deadline: float | None = None

    @property
    def machine(self) -> BrokerMachine | None:
        """The site; as a follower's copy, it may be behind the disk."""
        return self.copy.machine

    @machine.setter
    def machine(self, machine: BrokerMachine | None) -> None:
        self.copy = SiteCopy(machine, self.disk.last, self._make)

    def catch_up(self) -> None:
        """Let the copy step all entries on the disk."""
        while self.copy.behind:
            number, rows = self.copy.step()
            self.disk.rows[number - 1] = rows


class Stream:
    """A connection between a follower and a leader."""

    def __init__(self, follower: Node, leader: Node) -> None:
        self.follower = follower
        self.leader = leader
        self.is_open = True
        self.is_joined = False
        self.arrivals = {True: 0.0, False: 0.0}
        """Time at which the last message of each direction arrives; True is the leader's direction."""


class Etcd:
    """One value and a lease."""

    def __init__(self) -> None:
        self.view = SiteView()
        self.expires = 0.0

    def look(self, now: float) -> SiteView:
        if self.view.leader and now >= self.expires:
            self.view = msgspec.structs.replace(self.view, leader="", boot="", address="", reference="")
        return self.view

    def ask(self, now: float, boot: str, request: Request, lease_s: float) -> tuple[Any, ...]:
        view = self.look(now)
        match request:
            case Look():
                return (view,)
            case Campaign(wanted, revision):
                is_won = not view.leader and view.revision == revision
                if is_won:
                    self.view = msgspec.structs.replace(wanted, revision=revision + 1)
                    self.expires = now + lease_s
                return (self.view, is_won)
            case Renew():
                is_held = view.boot == boot
                if is_held:
                    self.expires = now + lease_s
                return (is_held,)
            case Change(wanted, revision):
                is_made = view.boot == boot and view.revision == revision
                if is_made:
                    self.view = msgspec.structs.replace(wanted, revision=revision + 1)
                return (self.view, is_made)
            case Resign():
                if view.boot == boot:
                    self.expires = now
                    self.look(now)
                return (True,)
