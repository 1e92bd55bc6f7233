"""A leader, elected with heartbeats, and the tree that follows from them (Amozarrain 2.5).

The leader starts a round in every period: it broadcasts a heartbeat to all brokers in reach, and every broker
forwards it once. The neighbour from which a round comes first is the parent: the way to the leader. So all
parents together are a tree, which follows the brokers as they move. A broker that has received no new round
for a while becomes leader. Thus every partition has a leader, and when two meet, the leader with the lower id
remains.

There is never a cycle of parents. A broker passes a heartbeat on only after settling its parent for that
round. So all ancestors of a settled broker settled earlier for that round, and of two brokers in a chain
the one nearer to the leader is never behind in rounds.

Two things are not in the document. `patience_s` is how long a broker waits in a new round for the parent
that it has, before it takes another: 0 is the plain rule, by which every fluctuation of the radio causes a
migration. With `balanced`, a broker without parent collects candidates for that time and chooses one with
few children (the future work of section 5.2); without it, the first sender of the round.

With `backbone`, brokers know how fast they are and say so, which section 5.2 hopes for as well: the slowest
broker leads, and a broker whose parent is late takes the slowest of the candidates about as near to the
leader.

The driver performs the broadcasts, calls `on_heartbeat` and `on_timer`, and `on_link_lost` if it
learns by itself that a neighbour is gone. Nothing here knows what the tree is for.
"""

from __future__ import annotations

from typing import Literal
from zlib import crc32

import msgspec

from roamcast.errors import InputError

TURNS, TURNS_MAX = 8, 1024
"""In balanced trees a broker looks for a less burdened parent in one of `TURNS` rounds, so that not all do at
once; the interval doubles after each change, up to `TURNS_MAX`, so that the tree comes to rest."""
CHILDREN_SPARED_MIN = 2
"""How many children fewer another parent must have after the change."""

LEADERS_REMEMBERED_MAX = 64
"""Leaders whose last round is remembered, so that a late heartbeat wakes no dead leader."""


class ElectionSettings(msgspec.Struct, frozen=True):
    """Settings of the election, by which brokers that move find a leader and form a tree."""

    period_s: float = 1.0
    """Seconds between two rounds of a leader."""
    missed_max: int = 3
    """Missed rounds after which the leader, or a child, counts as gone."""
    patience_s: float = 0.25
    """Seconds that a broker waits in a round for its parent, or collects candidates; 0: the first sender
    wins."""
    margin_hops: int = 1
    """A broker changes its parent only for one that is nearer to the leader by more than this."""
    balanced: bool = False
    """True to prefer candidates with fewer children."""
    backbone: bool = False
    """True to prefer slower leaders and candidates."""

    def check(self) -> None:
        if not self.period_s > 0 or self.missed_max < 1 or not 0 <= self.patience_s < self.period_s:
            raise InputError(
                f"election with period {self.period_s} s, {self.missed_max} missed rounds, patience "
                f"{self.patience_s} s: valid are a period above 0, 1 or more rounds, and less patience "
                "than the period"
            )


TreeRule = Literal["plain", "stable", "balanced", "backbone"]
"""Plain: the first heartbeat of a round wins. Stable: a parent is kept. Balanced and backbone: few children,
or slow parents, are preferred."""


def settings_of(rule: TreeRule, period_s: float, patience_s: float) -> ElectionSettings:
    """Return the settings of a rule; the plain rule has no patience."""
    return ElectionSettings(
        period_s=period_s,
        patience_s=0.0 if rule == "plain" else patience_s,
        balanced=rule == "balanced",
        backbone=rule == "backbone",
    )


Round = tuple[int, int]
"""Incarnation of the leader and number of the round; a leader that restarts counts from 1 again."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A round of the leader, passed on by a broker `hops` away from the leader."""

    leader: str
    round: Round
    hops: int
    parent: str = ""
    """Parent of the sender; "" for the leader."""
    children: int = 0
    """Number of children of the sender."""
    speed: float = 0.0
    """Speed of the sender, in metres per second."""
    leader_speed: float = 0.0
    """Speed of the leader, in metres per second."""


class Broadcast(msgspec.Struct, frozen=True):
    """Send this to every broker in reach."""

    heartbeat: Heartbeat


class ParentChanged(msgspec.Struct, frozen=True):
    """The parent has changed; None: there is none, this broker leads."""

    old: str | None
    new: str | None
    leader: str


class ChildGained(msgspec.Struct, frozen=True):
    child: str


class ChildLost(msgspec.Struct, frozen=True):
    child: str


ElectionEffect = Broadcast | ParentChanged | ChildGained | ChildLost


class Candidate(msgspec.Struct, frozen=True):
    neighbour: str
    hops: int
    children: int
    speed: float = 0.0


class Election:
    """One broker's part in the election."""

    def __init__(
        self, me: str, settings: ElectionSettings | None = None, incarnation: int = 0, speed: float = 0.0
    ) -> None:
        """`incarnation` must be higher whenever a broker comes back without its memory.

        `speed` is how fast this broker usually is. It must not change, because it decides who leads.
        """
        self.me = me
        self.speed = speed
        self.settings = settings or ElectionSettings()
        self.settings.check()
        self.leader = me
        self.leader_speed = speed
        self.round: Round = (incarnation, 0)
        """The newest round of the leader that was settled or is about to be."""
        self.hops = 0
        self.parent: str | None = None
        self.children: dict[str, float] = {}
        """Child to the time when it was last heard."""
        self._candidates: list[Candidate] = []
        """Senders of the round that is not settled yet."""
        self._begun_at = 0.0
        self._settle_at: float | None = None
        self._next_round_at: float | None = None
        """Time of the next round, if this broker leads."""
        self._silent_at: float | None = None
        """Time when the leader counts as gone, if this broker does not lead."""
        self._rounds: dict[str, Round] = {me: self.round}
        self._turns = TURNS
        self._out: list[ElectionEffect] = []

    # --- entry points ---

    def start(self, now: float) -> list[ElectionEffect]:
        """Begin as own leader, without known neighbours."""
        self._out = []
        self._next_round_at = now
        self._on_time(now)
        return self._out

    def on_heartbeat(self, now: float, sender: str, heartbeat: Heartbeat) -> list[ElectionEffect]:
        self._out = []
        self._note_child(now, sender, heartbeat)
        if self._is_news(heartbeat):
            self._begin_round(now, sender, heartbeat)
        elif self._settle_at is not None and (heartbeat.leader, heartbeat.round) == (self.leader, self.round):
            self._candidates.append(self._candidate(sender, heartbeat))
        self._review(now)
        return self._out

    def on_timer(self, now: float) -> list[ElectionEffect]:
        self._out = []
        self._on_time(now)
        return self._out

    def on_link_lost(self, now: float, neighbour: str) -> list[ElectionEffect]:
        """Handle a neighbour that the driver reports as out of reach."""
        self._out = []
        self._lose_child(neighbour)
        self._candidates = [one for one in self._candidates if one.neighbour != neighbour]
        if neighbour == self.parent:
            # If there is another way, the next round brings a parent; until then the tree ends here.
            self._take_parent(None)
            self._review(now)
        return self._out

    def deadline(self) -> float | None:
        times = [self._settle_at, self._next_round_at, self._silent_at]
        patience_s = self.settings.missed_max * self.settings.period_s
        if self.children:
            times.append(min(self.children.values()) + patience_s)
        return min((at for at in times if at is not None), default=None)

    @property
    def is_leader(self) -> bool:
        return self.leader == self.me

    @property
    def peers(self) -> list[str]:
        """The neighbours in the tree."""
        above = [self.parent] if self.parent is not None else []
        return [*above, *self.children]

    # --- rounds ---

    def _is_news(self, heartbeat: Heartbeat) -> bool:
        """True if the heartbeat is news: a lower (or slower) leader, or a newer round of the known leader."""
        if heartbeat.leader == self.me or heartbeat.round <= self._rounds.get(heartbeat.leader, (-1, 0)):
            return False
        theirs, ours = (heartbeat.leader_speed, heartbeat.leader), (self.leader_speed, self.leader)
        return theirs <= ours if self.settings.backbone else heartbeat.leader <= self.leader

    def _candidate(self, sender: str, heartbeat: Heartbeat) -> Candidate:
        return Candidate(sender, heartbeat.hops, heartbeat.children, heartbeat.speed)

    def _begin_round(self, now: float, sender: str, heartbeat: Heartbeat) -> None:
        self.leader, self.round = heartbeat.leader, heartbeat.round
        self.leader_speed = heartbeat.leader_speed
        self._remember(heartbeat.leader, heartbeat.round)
        self._next_round_at = None
        self._candidates = [self._candidate(sender, heartbeat)]
        waits = self.settings.balanced or self.parent is not None
        self._begun_at = now
        self._settle_at = now + self.settings.patience_s if waits else now

    def _remember(self, leader: str, round: Round) -> None:
        self._rounds.pop(leader, None)
        self._rounds[leader] = round
        while len(self._rounds) > LEADERS_REMEMBERED_MAX:
            del self._rounds[next(one for one in self._rounds if one != self.me)]

    def _review(self, now: float) -> None:
        """Settle the parent of this round, if that is possible already."""
        if self._settle_at is None:
            return
        ours = next((one for one in self._candidates if one.neighbour == self.parent), None)
        if ours is not None and self._is_my_turn():
            # Shorter than the wait for a known parent, because the children wait for this broker.
            self._settle_at = min(self._settle_at, self._begun_at + self.settings.patience_s / 4)
        elif ours is not None and self._best() == ours:
            self._settle_at = now
        if now >= self._settle_at:
            self._settle(now)

    def _is_my_turn(self) -> bool:
        return self.settings.balanced and (self.round[1] + crc32(self.me.encode())) % self._turns == 0

    def _best(self) -> Candidate:
        """Return the current parent, unless a candidate is nearer by more than the margin."""
        settings, candidates = self.settings, self._candidates
        nearest = min(one.hops for one in candidates)
        ours = next((one for one in candidates if one.neighbour == self.parent), None)
        if settings.backbone:
            close = [one for one in candidates if one.hops <= nearest + settings.margin_hops]
            return ours if ours in close else min(close, key=lambda one: (one.speed, one.hops))
        if not settings.balanced:
            is_kept = ours is not None and settings.patience_s > 0
            return ours if ours and is_kept and ours.hops <= nearest + settings.margin_hops else candidates[0]
        close = [one for one in candidates if one.hops <= nearest + settings.margin_hops]
        lightest = min(close, key=self._burden)
        if ours is None or ours not in close:
            return lightest
        spared = ours.children + ours.hops - (lightest.children + lightest.hops + 1)
        return lightest if self._is_my_turn() and spared >= CHILDREN_SPARED_MIN else ours

    def _burden(self, candidate: Candidate) -> tuple[int, int]:
        """Return the sort key of a candidate; brokers break ties differently, or all would choose the same
        parent."""
        return candidate.children + candidate.hops, crc32(f"{self.me}/{candidate.neighbour}".encode())

    def _settle(self, now: float) -> None:
        if not self._candidates:  # The sender of the round is gone; the next round decides.
            self._settle_at = None
            return
        best = self._best()
        if any(one.neighbour == self.parent for one in self._candidates) and best.neighbour != self.parent:
            self._turns = min(2 * self._turns, TURNS_MAX)
        self._settle_at, self._candidates = None, []
        self.hops = best.hops + 1
        settings = self.settings
        # Brokers near the leader notice first, so one of them leads before the others have to.
        self._silent_at = now + settings.period_s * (settings.missed_max + min(self.hops, 8) / 4)
        self._lose_child(best.neighbour)
        self._take_parent(best.neighbour)
        self._broadcast()

    def _take_parent(self, parent: str | None) -> None:
        old, self.parent = self.parent, parent
        if old != parent:
            self._out.append(ParentChanged(old, parent, self.leader))

    def _broadcast(self) -> None:
        self._out.append(
            Broadcast(
                Heartbeat(
                    self.leader,
                    self.round,
                    self.hops,
                    self.parent or "",
                    len(self.children),
                    self.speed,
                    self.leader_speed,
                )
            )
        )

    # --- time ---

    def _on_time(self, now: float) -> None:
        patience_s = self.settings.missed_max * self.settings.period_s
        for child in [child for child, heard in self.children.items() if heard + patience_s <= now]:
            self._lose_child(child)
        if self._settle_at is not None and self._settle_at <= now:
            self._settle(now)
        if self._silent_at is not None and self._silent_at <= now:
            self._lead(now)
        if self._next_round_at is not None and self._next_round_at <= now:
            self._start_round(now)

    def _lead(self, now: float) -> None:
        """Become leader: nothing has been heard of the former one for too long."""
        self.leader, self.round, self.hops = self.me, self._rounds[self.me], 0
        self.leader_speed = self.speed
        self._silent_at, self._settle_at, self._candidates = None, None, []
        self._next_round_at = now
        self._take_parent(None)

    def _start_round(self, now: float) -> None:
        self.round = (self.round[0], self.round[1] + 1)
        self._remember(self.me, self.round)
        self._next_round_at = now + self.settings.period_s
        self._broadcast()

    # --- children ---

    def _note_child(self, now: float, sender: str, heartbeat: Heartbeat) -> None:
        """Note whether the sender names this broker as parent; it may not know of a new leader yet."""
        if heartbeat.parent == self.me and sender != self.parent:
            if sender not in self.children:
                self._out.append(ChildGained(sender))
            self.children[sender] = now
        elif sender in self.children:
            self._lose_child(sender)

    def _lose_child(self, child: str) -> None:
        if self.children.pop(child, None) is not None:
            self._out.append(ChildLost(child))
