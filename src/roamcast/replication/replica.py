"""One replica of a site: when to campaign, what may be released, when to stop.

A site is a leader and its followers. The leader streams its journal; an entry's effects leave once every
replica that may be promoted has the entry. Who may be promoted is the in-sync set, one value in etcd:

- **Only the leader changes the set, and only by compare-and-swap** that also asks whether it still leads.
  While an answer is missing, both the old and the wanted set count: every replica in either must acknowledge.
- **Only a replica of the set is promoted**, by a transaction that compares the revision of the set. So a
  leader that leaves a follower out and a follower that campaigns exclude each other.
- **A replica is one disk used by one process.** The set holds an id for each replica. Every process draws a
  new one, writes it to its disk and uses it from then on, so an older copy of the disk is not in the set once
  the original was started again. An empty disk has no id of the set.
- **The lease ends at the leader first.** Its end is counted from the moment at which the renewal was sent, on
  the leader's own monotonic clock, less a margin for clocks that run at different speeds.

Released effects are on every disk of the set, so a misjudged lease loses nothing; the lease keeps two
processes from serving clients at the same time.

The driver calls the `on_…` methods, performs the requests of `advance`, and asks `releasable`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from roamcast.replication.messages import (
    Campaign,
    Change,
    Joining,
    Look,
    Renew,
    Request,
    Resign,
    SiteView,
)
from roamcast.replication.terms import Terms

Role = Literal["follower", "leader", "stopped"]

MARGIN = 0.1
"""Share of the lease by which the leader stops earlier, as a margin for differing clocks."""


class Timing(msgspec.Struct, frozen=True):
    lease_s: float = 3.0
    patience_s: float = 1.0
    """Seconds that an in-sync follower may delay effects before it is removed from the set."""

    @property
    def look_s(self) -> float:
        """Interval at which a follower reads who leads."""
        return self.lease_s / 15

    @property
    def renew_s(self) -> float:
        return self.lease_s / 4

    @property
    def retry_s(self) -> float:
        """Pause after a request without answer."""
        return self.lease_s / 20


class Follower:
    """The leader's state of one follower that is or was connected."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = ""
        self.is_joined = False
        self.acknowledged = -1
        """Last entry that the follower has; -1: no report since this leader was promoted."""
        self.owed: deque[tuple[int, float]] = deque()
        """Entries that it has not acknowledged, with the time of writing."""

    def late_s(self, now: float) -> float:
        return now - self.owed[0][1] if self.owed else 0.0


class Replica:
    def __init__(
        self, name: str, disks: Sequence[str], boot: str, terms: Terms, last: int, timing: Timing, now: float
    ) -> None:
        """`last` is the last entry in the journal; `boot` distinguishes this process from others of the same
        name.

        `disks` are the ids on the disk: those of earlier processes, and finally the own one.
        """
        self.name = name
        self.disks = list(disks)
        self.disk = disks[-1]
        self.boot = boot
        self.terms = terms
        self.timing = timing
        self.role: Role = "follower"
        self.why = ""
        """Why this replica stopped."""
        self.view = SiteView()
        """Last known state in etcd."""
        self.seen_at: float | None = None
        """Time of the request for that state; None: no answer yet."""
        self._first_revision: int | None = None
        """The first one that this process has seen."""
        self.last = last
        """Last entry in the own journal."""
        self.epoch = 0
        """Epoch of this leader."""
        self.lease_until = 0.0
        """End of the lease, on this process's clock."""
        self.released = 0
        """Last entry whose effects may have been released."""
        self.followers: dict[str, Follower] = {}
        self.address = ""
        self.reference = ""
        self._asked: dict[type[Request], float] = {}
        """Requests under way, with the time when they were sent."""
        self._not_before: dict[type[Request], float] = {}
        self.in_doubt: list[SiteView] = []
        """Changes without an answer, which etcd may have made or may still make."""
        self._leaderless_since: float | None = None
        self._began = now
        self._campaigned_at = 0.0
        self._campaigns_from: float | None = None
        """Start of the first campaign without an answer: one of them may have won."""
        self._floor = 0
        """Last entry at the promotion. How much of it was released before is unknown."""
        self.asked_to_lead = ""
        """Follower that an operator wants as the leader, until it gives a sign of life."""
        self._steps_down_for = ""
        self._resigns = False
        self._barred: tuple[str, ...] | None = None
        """Replicas removed by operators, once that has changed under this leader."""

    # --- answers of etcd ---

    def advance(self, now: float) -> list[Request]:
        """Return the requests to send to etcd now. The method for each request takes its answer, or None
        without one."""
        if self.role == "stopped":
            return []
        requests: list[Request] = []
        if self.role == "leader":
            if now >= self.lease_until:
                self._stop("the lease has ended, and etcd did not renew it")
                return []
            if self._resigns:
                self._ask(now, requests, Resign())
            self._ask(now, requests, Renew())
            change = self._change(now)
            if change is not None:
                self._ask(now, requests, change)
            if self.in_doubt:
                self._ask(now, requests, Look())
            return requests
        self._ask(now, requests, Look())
        if self._may_campaign(now):
            self._ask(now, requests, self._campaign(now))
        return requests

    def _ask(self, now: float, requests: list[Request], request: Request) -> None:
        kind = type(request)
        if kind not in self._asked and now >= self._not_before.get(kind, now):
            self._asked[kind] = now
            requests.append(request)

    def deadline(self) -> float | None:
        """Return when `advance` must be called again, if nothing happens."""
        if self.role == "stopped":
            return None
        if self.role == "follower":
            return self._not_before.get(Look, 0.0)
        times = [self._not_before.get(Renew, 0.0), self.lease_until]
        times += [
            one.owed[0][1] + self.timing.patience_s
            for one in self.followers.values()
            if one.owed and one.name in self.view.in_sync
        ]
        return min(times)

    def on_view(self, now: float, view: SiteView | None) -> None:
        """Handle the answer to `Look`."""
        sent = self._answered(Look, now, self.timing.look_s)
        if view is None or sent is None:
            return
        self.seen_at = sent
        if self.role == "leader":
            self._on_view_as_leader(view)
            return
        self.view = view
        if self._first_revision is None:
            self._first_revision = view.revision
        elif view.revision > self._first_revision:
            # Requests of earlier processes, which compare an earlier revision, can no longer put an id in the
            # set.
            self.disks = [id for id in self.disks if id in (self.disk, view.in_sync.get(self.name))]
        if view.leader:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = now
        if view.leader == self.name and view.boot == self.boot:
            # A campaign was won, but its answer was lost.
            self.lead(view, self._campaigns_from or now)

    def _on_view_as_leader(self, view: SiteView) -> None:
        if view.revision < self.view.revision:
            return  # Read before a change whose answer was quicker.
        if view.epoch != self.epoch or view.boot != self.boot:
            self._stop(f"{view.leader or 'nobody'} leads with epoch {view.epoch}")
        elif view.revision > self.view.revision:
            # One of the changes was made. The others compare an outdated revision.
            self.view, self.in_doubt = view, []

    def on_campaigned(self, now: float, view: SiteView | None, is_won: bool) -> None:
        """Handle the answer to `Campaign`: the view afterwards, or None without an answer."""
        sent = self._answered(Campaign, now, self.timing.retry_s)
        if view is None or sent is None or self.role != "follower":
            return
        self.view = view
        if is_won:
            self.lead(view, self._campaigns_from or sent)
        self._campaigns_from, self.in_doubt = None, []

    def on_renewed(self, now: float, is_renewed: bool | None) -> None:
        sent = self._answered(Renew, now, self.timing.renew_s if is_renewed else self.timing.retry_s)
        if self.role != "leader" or sent is None:
            return
        if is_renewed:
            self.lease_until = max(self.lease_until, self.lease_from(sent))
        elif is_renewed is False:
            self._stop("the lease is over")

    def on_changed(self, now: float, view: SiteView | None, is_made: bool) -> None:
        """Handle the answer to `Change`: the view afterwards, or None without an answer."""
        sent = self._answered(Change, now, 0.0 if view is not None else self.timing.retry_s)
        if self.role != "leader" or view is None or sent is None:
            return
        if is_made:
            self.view, self.in_doubt = view, []
        else:
            self._on_view_as_leader(view)
        if self._steps_down_for and self.view.successor == self._steps_down_for:
            self._resigns = True

    def on_resigned(self, now: float, is_done: bool | None) -> None:
        self._answered(Resign, now, self.timing.retry_s)
        if is_done:
            self._stop(f"{self._steps_down_for} takes over")

    def _answered(self, kind: type[Request], now: float, pause_s: float) -> float | None:
        """Return when the request was sent; None if it was given up. The next of its kind follows after a
        pause."""
        sent = self._asked.pop(kind, None)
        if sent is not None:
            self._not_before[kind] = now + pause_s
        return sent

    # --- becoming leader ---

    def _may_campaign(self, now: float) -> bool:
        view, lease_s = self.view, self.timing.lease_s
        if self.seen_at is None or view.leader or self._leaderless_since is None:
            return False
        if self.name in view.barred or self.seen_at < self._campaigned_at:
            return False
        if view.revision == 0:
            # A site unknown to etcd: a broker with a journal founds it, an empty one waits a while.
            return self.terms.epoch == 0 and (self.last > 0 or now - self._began >= lease_s)
        is_wanted = view.successor in ("", self.name) or now - self._leaderless_since >= lease_s
        return self.is_in_sync and is_wanted

    @property
    def is_in_sync(self) -> bool:
        """True if according to etcd this disk has everything that was promised."""
        return self.view.in_sync.get(self.name) in self.disks

    def _campaign(self, now: float) -> Campaign:
        view = self.view
        self._campaigned_at = now
        if self._campaigns_from is None:
            self._campaigns_from = now
        # The last leader has stopped. Entries that only it has were promised to nobody.
        in_sync = {name: disk for name, disk in view.in_sync.items() if name in (self.name, *self._others())}
        in_sync[self.name] = self.disk
        wanted = msgspec.structs.replace(
            view, in_sync=in_sync, epoch=max(view.epoch, self.terms.epoch) + 1, successor="",
            promoted=self.name, leader=self.name, boot=self.boot, address=self.address,
            reference=self.reference,
        )  # fmt: skip
        self.in_doubt.append(wanted)
        return Campaign(wanted, view.revision)

    def _others(self) -> list[str]:
        """Return the replicas except the one that led last."""
        return [name for name in self.view.in_sync if name != self.view.promoted]

    def lead(self, view: SiteView, sent: float) -> None:
        self.role = "leader"
        self.view, self.epoch = view, view.epoch
        self.lease_until = self.lease_from(sent)
        self._asked.clear()
        self._not_before = {Renew: sent + self.timing.renew_s}
        self.in_doubt = []
        self.followers = {}
        self._floor = self.last
        self.terms.begin(self.epoch, self.last + 1)

    def lease_from(self, sent: float) -> float:
        return sent + self.timing.lease_s * (1 - MARGIN)

    def _stop(self, why: str) -> None:
        self.role, self.why = "stopped", why

    def stop(self, why: str) -> None:
        """Stop, because the driver cannot continue."""
        self._stop(why)

    # --- leading ---

    @property
    def required(self) -> dict[str, None]:
        """Followers whose acknowledgements are required before effects are released."""
        names = dict.fromkeys(self.view.in_sync)
        for view in self.in_doubt:
            names.update(dict.fromkeys(view.in_sync))
        names.pop(self.name, None)
        return names

    def on_written(self, now: float, sequence: int) -> None:
        """Note that the own journal has this entry; followers are measured from now on."""
        self.last = sequence
        for name in self.required:
            self._follower(name).owed.append((sequence, now))

    def _follower(self, name: str) -> Follower:
        return self.followers.setdefault(name, Follower(name))

    def on_joining(self, joining: Joining) -> str:
        """Return why a follower is refused, or ""."""
        if self.role != "leader":
            return f"{self.name} does not lead"
        if joining.known > self.epoch:
            return (
                f"{self.name} leads with epoch {self.epoch}, but {joining.name} knows epoch {joining.known}"
            )
        if joining.name == self.name:
            return f"{joining.name} leads: its folder was copied, or two replicas have one name"
        if joining.name in self.view.barred:
            return f"{joining.name} was removed; 'roamcast broker add-replica {joining.name}' takes it back"
        return ""

    def on_joined(self, now: float, name: str, disk: str, sequence: int) -> None:
        """Note a connected follower whose journal equals the beginning of the own one, up to this entry."""
        follower = self._follower(name)
        follower.disk, follower.is_joined = disk, True
        follower.acknowledged = -1
        self.on_acknowledged(name, sequence)
        if not follower.owed and sequence < self.last and name in self.required:
            follower.owed.append((self.last, now))

    def on_acknowledged(self, name: str, sequence: int) -> None:
        follower = self._follower(name)
        follower.acknowledged = max(follower.acknowledged, sequence)
        if name == self.asked_to_lead:
            self.asked_to_lead, self._steps_down_for = "", name
        while follower.owed and follower.owed[0][0] <= sequence:
            follower.owed.popleft()

    def on_left(self, name: str) -> None:
        if name == self.asked_to_lead:
            self.asked_to_lead = ""
        if name in self.followers:
            self.followers[name].is_joined = False

    def releasable(self, now: float) -> int:
        """Return the last entry whose effects may be released now."""
        if self.may_speak(now):
            released = self.last
            for name in self.required:
                follower = self.followers.get(name)
                has = follower.acknowledged if follower is not None and self._counts(follower) else -1
                released = min(released, has)
            self.released = max(self.released, released)
        return self.released

    def may_speak(self, now: float) -> bool:
        """True if effects may be released. Once this replica has resigned, another one may lead."""
        return self.role == "leader" and now < self.lease_until and not self._resigns

    def _counts(self, follower: Follower) -> bool:
        """False if the set names another disk of this follower."""
        name, disk = follower.name, follower.disk
        if self.view.in_sync.get(name, disk) != disk:
            return False
        return not self.in_doubt or all(view.in_sync.get(name, disk) == disk for view in self.in_doubt)

    def _change(self, now: float) -> Change | None:
        """Return the change of the in-sync set, or of its named replicas, that is needed now."""
        if Change in self._asked:
            return None
        view = self.view
        in_sync = {self.name: self.disk}
        for name, disk in view.in_sync.items():
            if name != self.name and not self._is_to_leave(now, name, disk):
                in_sync[name] = disk
        for follower in self.followers.values():
            if self._is_to_enter(now, follower):
                in_sync[follower.name] = follower.disk
        if self.asked_to_lead not in in_sync:
            self.asked_to_lead = ""
        if self._steps_down_for not in in_sync:
            self._steps_down_for = ""
        wanted = msgspec.structs.replace(
            view, in_sync=in_sync, successor=self._steps_down_for, barred=self.barred
        )
        if wanted == view and not self.in_doubt:
            return None
        if now < self._not_before.get(Change, 0.0):
            return None
        if wanted not in self.in_doubt:
            self.in_doubt.append(wanted)
        for name in self.required:
            follower = self._follower(name)
            if not follower.owed and follower.acknowledged < self.last:
                follower.owed.append((self.last, now))
        return Change(wanted, view.revision)

    @property
    def barred(self) -> tuple[str, ...]:
        return self._barred if self._barred is not None else self.view.barred

    def bar(self, name: str) -> None:
        """Remove a replica on an operator's order."""
        self._barred = tuple(dict.fromkeys((*self.barred, name)))

    def unbar(self, name: str) -> None:
        self._barred = tuple(one for one in self.barred if one != name)

    @property
    def steps_down(self) -> bool:
        return bool(self._steps_down_for)

    def step_down(self, successor: str) -> str:
        """Step down for another leader on an operator's order; returns why that is impossible, or "".

        The follower must answer first. Otherwise the site would have no leader while it waits for a follower
        that is suspended.
        """
        follower = self.followers.get(successor)
        if successor not in self.view.in_sync or follower is None or not follower.is_joined:
            return f"{successor} is not an in-sync follower; in sync are {', '.join(self.view.in_sync)}"
        self.asked_to_lead = successor
        return ""

    def _is_to_leave(self, now: float, name: str, disk: str) -> bool:
        follower = self._follower(name)
        if name in self.barred:
            return True
        if follower.is_joined and (follower.disk != disk or follower.acknowledged < self.released):
            return True  # Another disk, or an older copy of the same one.
        return follower.late_s(now) >= self.timing.patience_s

    def _is_to_enter(self, now: float, follower: Follower) -> bool:
        return (
            follower.is_joined
            and bool(follower.disk)
            and follower.name not in self.barred
            and not self._steps_down_for
            and follower.acknowledged >= max(self.released, self._floor)
            and follower.late_s(now) < self.timing.patience_s
            and follower.name not in self.view.in_sync
        )
