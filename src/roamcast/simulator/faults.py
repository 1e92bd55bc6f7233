"""Faults: what can happen to brokers and links, and which assumptions it breaks.

A fault is an event of the network itself; a story contains faults beside the actions of clients. `FAULTS` are
the kinds that a fuzzer can be asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from roamcast.mobility.base import ASSUMPTIONS, MobilityProtocol
from roamcast.protocol.effects import Input

# --- what happens -----------------------------------------------------------------------------------


class Fault(Input, frozen=True):
    """An event at a broker or at one of its links."""


class Crash(Fault, frozen=True):
    """The broker stops; its journal is left, and its clients' connections end.

    With `unsent` that happens within its next step: behind the journal, so that
    the step counts, and ahead of the effects, none of which is performed. With `torn` the step's journal
    entry is lost, too: whoever sent its inputs sends them again.
    With `amnesia` it has no journal and comes back empty, which only brokers that move survive.
    """

    unsent: bool = False
    amnesia: bool = False
    torn: bool = False


class Restart(Fault, frozen=True):
    """The broker comes back, as its journal says it was."""


class Cut(Fault, frozen=True):
    """The link to this peer goes down; messages on it wait."""

    peer: str


class Heal(Fault, frozen=True):
    """The link to this peer is up again, as far as neither end has crashed."""

    peer: str


class Detour(Fault, frozen=True):
    """The link to this peer goes another way from now on, which takes `factor` times as long as the direct.

    What is on the old way is lost, and the link resumes behind what has arrived.
    """

    peer: str
    factor: float


def longest_detour(actions: Iterable[tuple[float, str, Input]]) -> float:
    """The factor of the longest way that a link takes in a story."""
    return max((1.0, *(item.factor for _, _, item in actions if isinstance(item, Detour))))


class Snapshot(Fault, frozen=True):
    """The broker writes its state down, and begins its journal anew."""


class Lie(Fault, frozen=True):
    """The hostile broker sends messages drawn from this number."""

    number: int


class Backup(Fault, frozen=True):
    """Somebody copies the broker's disk; the last copy counts."""


class Impostor(Fault, frozen=True):
    """A process with the broker's id begins with the copy of its disk, or with an empty one.

    While the broker runs that is a clone; after a crash, an old backup or a new disk. Peers refuse it if
    anything is missing there, and then it serves nobody. Otherwise it is the broker from now on.
    """

    is_empty: bool = False


class Relink(Fault, frozen=True):
    """The broker moves: it gives up its link to `old` and makes one to `new`."""

    old: str
    new: str


# --- of sites with replicas: the broker is the site ---


class Kill(Fault, frozen=True):
    """A replica is killed, at once or with the entry of this number that it writes next.

    `is_wiped`: its disk is lost with it, unless no other disk has what was promised.
    """

    replica: str
    entries: int = 0
    is_wiped: bool = False


class Revive(Fault, frozen=True):
    """A replica that was killed starts again."""

    replica: str


class Halt(Fault, frozen=True):
    """A replica is suspended; its clock is not."""

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
    """An operator wants this replica to lead."""

    replica: str


class Repair(Fault, frozen=True):
    """All processes and connections of the site work again."""


# --- kinds of faults --------------------------------------------------------------------------------


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault that can be asked for."""

    breaks: frozenset[str]
    """The assumptions (`mobility.base.ASSUMPTIONS`) that no longer hold under it."""


FAULTS: dict[str, FaultKind] = {
    "crash": FaultKind(breaks=frozenset({"bounded_delay"})),
    "partition": FaultKind(breaks=frozenset({"bounded_delay"})),
    "loss": FaultKind(breaks=frozenset()),
    "detour": FaultKind(breaks=frozenset({"bounded_delay"})),
    "history": FaultKind(breaks=frozenset({"bounded_delay"})),
    "hostile": FaultKind(breaks=frozenset({"honest_peers"})),
    "replication": FaultKind(breaks=frozenset({"bounded_delay"})),
}
"""Brokers crash and restart with a journal; links are down for a while; transmissions are lost; links change
between the direct way and others; brokers are cloned, or come back with an empty disk or an old backup; one
more broker makes up what it says; some brokers have replicas, which are killed, stand still, lose their disks
or do not reach each other."""
NATURAL = tuple(name for name in FAULTS if name not in ("hostile", "replication", "detour"))
"""Faults that occur without replicas, detours or hostile brokers."""


def why_left_out(protocol: type[MobilityProtocol], faults: Iterable[str]) -> str | None:
    """Why the protocol promises nothing under these faults, or None: then it keeps its promise."""
    broken = {fault: protocol.assumes & FAULTS[fault].breaks for fault in faults}
    assumed = [ASSUMPTIONS[name] for name in ASSUMPTIONS if any(name in names for names in broken.values())]
    if not assumed:
        return None
    culprits = [fault for fault, names in broken.items() if names]
    verb = "breaks" if len(culprits) == 1 else "break"
    return f"{protocol.name} relies on {_listed(assumed)}, which {_listed(culprits)} {verb}"


def _listed(words: Collection[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
