"""Faults: what can happen to brokers and links, and which assumptions it breaks.

A fault is an event of the network itself; a story contains faults besides the actions of clients. `FAULTS`
holds the kinds that a fuzzer can add.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated

import msgspec

from roamcast.mobility.base import ASSUMPTIONS, MobilityProtocol
from roamcast.protocol.effects import Input

# --- what happens -----------------------------------------------------------------------------------


class Fault(Input, frozen=True):
    """An event at a broker or at one of its links."""


class Crash(Fault, frozen=True):
    """The broker stops; its journal remains, and its clients' connections end.

    With `unsent` it stops within its next step: after writing the journal, so that the step counts, and
    before performing any of its effects. With `torn` the step's journal entry is lost, too, and the senders
    of its inputs repeat them. With `amnesia` it has no journal and restarts empty, which only brokers that
    move survive.
    """

    unsent: bool = False
    amnesia: bool = False
    torn: bool = False


class Restart(Fault, frozen=True):
    """The broker restarts with the state in its journal."""


class Cut(Fault, frozen=True):
    """The link to this peer goes down; its messages wait."""

    peer: str


class Heal(Fault, frozen=True):
    """The link to this peer comes up again, unless an end has crashed."""

    peer: str


class Detour(Fault, frozen=True):
    """The link to this peer takes another path from now on, with `factor` times the delay of the direct path.

    Frames in transit on the old path are lost, and the link resumes after the last one that arrived.
    """

    peer: str
    factor: Annotated[float, msgspec.Meta(gt=0, lt=1000)]


def longest_detour(actions: Iterable[tuple[float, str, Input]]) -> float:
    """Return the factor of the longest path that a link takes in a story."""
    return max((1.0, *(item.factor for _, _, item in actions if isinstance(item, Detour))))


class Snapshot(Fault, frozen=True):
    """The broker writes a snapshot, and begins a new journal."""


class Lie(Fault, frozen=True):
    """The hostile broker sends random messages, drawn from this seed."""

    number: int


class Backup(Fault, frozen=True):
    """The broker's disk is copied; the last copy counts."""


class Impostor(Fault, frozen=True):
    """A process with the broker's id starts on the copy of its disk, or on an empty one.

    While the broker runs, this process is a clone; after a crash, it is an old backup or a new disk. Peers
    refuse it if its disk lacks anything, and then it serves no client. Otherwise it is the broker from now
    on.
    """

    is_empty: bool = False


class Relink(Fault, frozen=True):
    """The broker moves: it gives up its link to `old` and creates one to `new`."""

    old: str
    new: str


# --- of sites with replicas: the broker is the site ---


class Kill(Fault, frozen=True):
    """A replica is killed, at once or when it next writes the entry with this number.

    `is_wiped`: its disk is lost, too, unless no other disk has what was promised.
    """

    replica: str
    entries: int = 0
    is_wiped: bool = False


class Revive(Fault, frozen=True):
    """A killed replica starts again."""

    replica: str


class Halt(Fault, frozen=True):
    """A replica is suspended; its clock goes on."""

    replica: str


class Proceed(Fault, frozen=True):
    replica: str


class Part(Fault, frozen=True):
    """Two replicas, or a replica and etcd, cannot reach each other."""

    one: str
    other: str


class Mend(Fault, frozen=True):
    """All parts of the site reach each other again."""


class Clone(Fault, frozen=True):
    """A second process begins with a copy of a follower's disk."""

    replica: str


class Promote(Fault, frozen=True):
    """An operator makes this replica the leader."""

    replica: str


class Repair(Fault, frozen=True):
    """All processes and connections of the site work again."""


# --- kinds of faults --------------------------------------------------------------------------------


FAULTS: dict[str, str] = {
    "crash": "bounded_delay",
    "partition": "bounded_delay",
    "loss": "",
    "detour": "bounded_delay",
    "history": "bounded_delay",
    "hostile": "honest_peers",
    "replication": "bounded_delay",
}
"""Kinds of faults by name, with the assumption (`mobility.base.ASSUMPTIONS`) that each violates, if any.

Brokers crash and restart with a journal; links are down for a while; transmissions are lost; links change
between the direct path and others; brokers are cloned, or restart with an empty disk or an old backup; an
additional broker sends random messages; some brokers have replicas that are killed, suspended, lose their
disks or cannot reach each other.
"""
NATURAL = tuple(name for name in FAULTS if name not in ("hostile", "replication", "detour"))
"""Faults that occur without replicas, detours or hostile brokers."""


def why_left_out(protocol: type[MobilityProtocol], faults: Iterable[str]) -> str | None:
    """Return why the protocol promises nothing under these faults, or None if it keeps its promise."""
    culprits = [fault for fault in faults if FAULTS[fault] in protocol.assumes]
    assumed = [text for name, text in ASSUMPTIONS.items() if name in map(FAULTS.__getitem__, culprits)]
    if not culprits:
        return None
    verb = "breaks" if len(culprits) == 1 else "break"
    return f"{protocol.name} relies on {_listed(assumed)}, which {_listed(culprits)} {verb}"


def _listed(words: Collection[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
