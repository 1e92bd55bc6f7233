"""A leader, elected with heartbeats, and the tree that follows from them (Amozarrain 2.5).

The leader starts a round in every period: it broadcasts a heartbeat to whoever is in reach, and everyone
passes it on once. The neighbour from which a round comes first is the parent: the way to the leader. So all
parents together are a tree, which follows the brokers as they move. Who has heard no new round for a while
leads by itself. Thus every partition has a leader, and when two meet, the leader with the lower id remains.

There is never a cycle of parents. A heartbeat is passed on after its parent has been settled for its round,
so whoever is settled for a round has an unbroken chain of ancestors who are too, each before the next; and
of two brokers in a chain the one nearer to the leader is never behind in rounds.

Two things are not in the document. `patience_s` is how long a broker waits in a new round for the parent
that it has, before it takes another: 0 is the plain rule, by which every whim of the air is a migration.
With `balanced`, who needs a parent collects for that time whom it could have, and takes one with few
children (the future work of section 5.2); without it, the one from which the round came first.

With `backbone`, brokers know how fast they are and say so, which section 5.2 hopes for as well: the slowest
leads, and whose parent does not come in time takes the slowest of those that are about as near to the leader.

The driver broadcasts what it is told to, calls `on_heartbeat` and `on_timer`, and `on_link_lost` if it
learns by itself that a neighbour is gone. Nothing here knows what the tree is for.
"""

from __future__ import annotations

from typing import Literal
from zlib import crc32

import msgspec

from roamcast.errors import InputError

TURNS, TURNS_MAX = 8, 1024
"""With balanced trees a broker looks for a less burdened parent in one of so many rounds: not all at once,
and half as often after each change, so that the tree comes to rest."""
CHILDREN_SPARED_MIN = 2
"""How many children fewer another parent must have after the change."""

LEADERS_REMEMBERED_MAX = 64
"""Leaders whose last round is remembered, so that a late heartbeat wakes no dead leader."""


class ElectionSettings(msgspec.Struct, frozen=True):
    """Of brokers that move: how they find a leader, and the tree that follows from it."""

    period_s: float = 1.0
    """Between two rounds of a leader."""
    missed_max: int = 3
    """Rounds that may fail to come before the leader, or a child, counts as gone."""
    patience_s: float = 0.25
    """How long a broker waits in a round for the parent it has, or collects candidates; 0: the first wins."""
    margin_hops: int = 1
    """A parent is given up for another only if that one is nearer to the leader by more than this."""
    balanced: bool = False
    """Whether candidates with fewer children are preferred."""
    backbone: bool = False
    """Whether slower leaders and candidates are preferred."""

    def check(self) -> None:
        if not self.period_s > 0 or self.missed_max < 1 or not 0 <= self.patience_s < self.period_s:
            raise InputError(
                f"election with period {self.period_s} s, {self.missed_max} missed rounds, patience "
                f"{self.patience_s} s: valid are a period above 0, 1 or more rounds, and less patience "
                "than the period"
            )


TreeRule = Literal["plain", "stable", "balanced", "backbone"]
"""The first heartbeat of a round wins; a parent is kept; and few children, or slow parents, are preferred."""


def settings_of(rule: TreeRule, period_s: float, patience_s: float) -> ElectionSettings:
    """The patience is for the two rules that have some."""
    return ElectionSettings(
        period_s=period_s,
        patience_s=0.0 if rule == "plain" else patience_s,
        balanced=rule == "balanced",
        backbone=rule == "backbone",
    )


Round = tuple[int, int]
"""The incarnation of the leader, and which of its rounds: a leader that comes back counts from 1 again."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A round of the leader, as passed on by somebody who is `hops` away from it."""

    leader: str
    round: Round
    hops: int
    parent: str = ""
    """Of whoever passes it on; "" is the leader."""
    children: int = 0
    """How many it has."""
    speed: float = 0.0
    """In metres per second, of whoever passes it on …"""
    leader_speed: float = 0.0
    """… and of the leader."""


class Broadcast(msgspec.Struct, frozen=True):
    """Send this to everyone in reach."""

    heartbeat: Heartbeat


class ParentChanged(msgspec.Struct, frozen=True):
    """The way to the leader is another; None: there is none, this broker leads."""

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
    """One broker's part in it."""

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
        """Child to when it was last heard."""
        self._candidates: list[Candidate] = []
        """From whom the round has come that is not settled yet."""
        self._begun_at = 0.0
        self._settle_at: float | None = None
        self._next_round_at: float | None = None
        """For a leader."""
        self._silent_at: float | None = None
        """For all others: when the leader counts as gone."""
        self._rounds: dict[str, Round] = {me: self.round}
        self._turns = TURNS
        self._out: list[ElectionEffect] = []

    # --- the ways in ---

    def start(self, now: float) -> list[ElectionEffect]:
        """Everyone begins as its own leader, and knows nobody."""
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
        """The driver has found that this neighbour is out of reach."""
        self._out = []
        self._lose_child(neighbour)
        self._candidates = [one for one in self._candidates if one.neighbour != neighbour]
        if neighbour == self.parent:
            # The next round comes from somebody else, if there is a way; until then the tree ends here.
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
        """Of two leaders the lower one counts, or the slower one; of one leader a newer round."""
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
        """Settle the parent of this round if that is possible already."""
        if self._settle_at is None:
            return
        ours = next((one for one in self._candidates if one.neighbour == self.parent), None)
        if ours is not None and self._is_my_turn():
            # Not for as long as one would wait for the parent, because the children wait for this broker.
            self._settle_at = min(self._settle_at, self._begun_at + self.settings.patience_s / 4)
        elif ours is not None and self._best() == ours:
            self._settle_at = now
        if now >= self._settle_at:
            self._settle(now)

    def _is_my_turn(self) -> bool:
        return self.settings.balanced and (self.round[1] + crc32(self.me.encode())) % self._turns == 0

    def _best(self) -> Candidate:
        """The parent that there is, unless another is nearer by more than the margin."""
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
        """Equal ones are told apart in another way by each broker, or all would take the same."""
        return candidate.children + candidate.hops, crc32(f"{self.me}/{candidate.neighbour}".encode())

    def _settle(self, now: float) -> None:
        if not self._candidates:  # Whoever brought the round is gone: the next one will tell.
            self._settle_at = None
            return
        best = self._best()
        if any(one.neighbour == self.parent for one in self._candidates) and best.neighbour != self.parent:
            self._turns = min(2 * self._turns, TURNS_MAX)
        self._settle_at, self._candidates = None, []
        self.hops = best.hops + 1
        settings = self.settings
        # Those near the leader notice first, so one of them leads before the others have to.
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
        """Nothing has been heard of the leader for too long."""
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
        """A child is who says that this broker is its parent; it may not have heard of a new leader yet."""
        if heartbeat.parent == self.me and sender != self.parent:
            if sender not in self.children:
                self._out.append(ChildGained(sender))
            self.children[sender] = now
        elif sender in self.children:
            self._lose_child(sender)

    def _lose_child(self, child: str) -> None:
        if self.children.pop(child, None) is not None:
            self._out.append(ChildLost(child))
