"""A replicated site in the simulator: replicas with their own disks and clocks, and an etcd.

The replica that ships (`roamcast.replication`) makes the decisions. This module is its driver, with the
faults: killed and suspended processes, lost disks, cut connections, missing answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.broker.inputs import MachineInput, Tick, encode_entry
from roamcast.broker.machine import BrokerMachine
from roamcast.protocol.effects import Input
from roamcast.protocol.snapshot import freeze, state_hash, thaw
from roamcast.replication.messages import (
    Acknowledged,
    Campaign,
    Change,
    Joining,
    Look,
    Records,
    Released,
    Renew,
    Request,
    Resign,
    SiteView,
    Unwelcome,
    Welcome,
)
from roamcast.replication.replica import Replica, Timing
from roamcast.replication.terms import Terms
from roamcast.simulator.faults import (
    Clone,
    Crash,
    Fault,
    Halt,
    Kill,
    Mend,
    Part,
    Proceed,
    Promote,
    Repair,
    Restart,
    Revive,
    Snapshot,
)
from roamcast.simulator.replicas import Disk, Etcd, Held, Node, Stream

if TYPE_CHECKING:
    from roamcast.simulator.replicated_network import ReplicatedNetwork

ETCD = "etcd"
LEADER = "leader"
"""The replica that leads when a fault happens."""
ASTRAY = 0.05
"""Share of the requests to etcd with which a replica's requests begin to arrive late, for one lease."""


class Site:
    """A broker and its replicas."""

    def __init__(self, network: ReplicatedNetwork, broker: str, followers: int, lease_s: float) -> None:
        self.network = network
        self.broker = broker
        self.rng = network.rng_for("replicas", broker)
        self.catching_up = network.rng_for("catching up", broker)
        self.copying = network.rng_for("copying", broker)
        self.going_astray = network.rng_for("going astray", broker)
        self.timing = Timing(lease_s, lease_s / 3)
        self.etcd = Etcd()
        self.names = [f"r{number}" for number in range(followers + 1)]
        self.parted: dict[frozenset[str], None] = {}
        self.nodes: dict[str, Node] = {}
        self.clones: list[Node] = []
        self.disks: dict[str, Disk] = {}
        self.boots = 0
        self.wrongs: list[tuple[str, str]] = []
        self.released: list[bytes] = []
        """All entries whose effects have left."""
        self.under_way: list[SiteView] = []
        """Changes that have not reached etcd."""
        self.kill_after: list[Kill] = []
        self.promotions = 0
        self.is_repaired = False
        self.busy_at = 0.0
        """Time of its last input."""
        in_sync = {}
        for name in self.names:
            self.disks[name] = Disk()
            self.disks[name].ids.append(f"{name}-0")
            in_sync[name] = f"{name}-0"
        first = self.names[0]
        self.etcd.view = SiteView(in_sync, 1, 1, first)
        for name in self.names:
            self.start(name)
        node = self.nodes[first]
        view = msgspec.structs.replace(self.etcd.view, leader=first, boot=node.replica.boot)
        self.etcd.view, self.etcd.expires = view, lease_s
        node.replica.view = view
        node.replica.lead(view, 0.0)
        node.disk.terms = node.replica.terms.terms
        node.machine = network.machines[broker]
        node.serves = node.is_promoted = True

    # --- processes ---

    @property
    def all_nodes(self) -> list[Node]:
        return [*self.nodes.values(), *self.clones]

    @property
    def leader(self) -> Node | None:
        """Return the replica that speaks to clients and peers."""
        return next((node for node in self.all_nodes if node.serves), None)

    def start(self, name: str, disk: Disk | None = None) -> Node:
        self.boots += 1
        own = disk or self.disks[name]
        boot = f"boot-{self.boots}"
        rate = 1 + self.rng.uniform(-0.02, 0.02)
        now = self.network.now * rate
        own.ids.append(f"{name}-{self.boots}")
        replica = Replica(name, own.ids, boot, Terms(own.terms), own.last, self.timing, now)
        node = Node(name, own, replica, rate, lambda entry: self.network.new_machine(self.broker))
        if own.snapshot is not None or own.entries:
            node.machine = self.network.replayed_disk(self.broker, own)
        if disk is None:
            self.nodes[name] = node
        else:
            node.is_clone = True
            self.clones.append(node)
        self.tick(node, None)
        return node

    def clock(self, node: Node) -> float:
        return self.network.now * node.rate

    def resolve(self, name: str) -> Node | None:
        node = self.leader if name == LEADER else self.nodes.get(name)
        return None if node is None or node.is_dead else node

    def kill(self, node: Node, is_wiped: bool = False) -> None:
        if node.is_dead:
            return
        node.is_dead = True
        disk = node.disk
        disk.cut(self.rng.randint(disk.synced, disk.last))
        for stream in [*node.streams.values(), *([node.stream] if node.stream is not None else [])]:
            self.close(stream)
        if node.serves:
            node.serves = False
            self.network.site_stopped(self.broker)
        if node.is_clone:
            self.clones.remove(node)
        elif is_wiped and self._may_be_lost(node):
            self.disks[node.name] = Disk()
        self.wake()

    def _may_be_lost(self, node: Node) -> bool:
        """Return whether the replica's disk may be lost: losing the last good disk of a site would lose the
        site, which nothing promises to survive.
        """
        # A change that is under way to etcd is made even if whoever asked for it is gone.
        doubted = (view for one in self.all_nodes for view in one.replica.in_doubt)
        views = (self.etcd.view, *doubted, *self.under_way)
        return all(
            any(disk in self.disks[name].ids for name, disk in view.in_sync.items() if name != node.name)
            for view in views
        )

    def deliver(self, node: Node, call: Callable[..., None], *about: Any) -> None:
        """Deliver a call to a process; it waits if the process is suspended."""
        if node.is_dead:
            return
        if node.is_halted:
            node.waiting.append((call, about))
        else:
            call(*about)

    def proceed(self, node: Node) -> None:
        node.is_halted = False
        waiting, node.waiting = node.waiting, []
        for call, about in waiting:
            if not node.is_dead:
                call(*about)
        if not node.is_dead:
            self.tick(node, None)

    # --- time ---

    def tick(self, node: Node, at: float | None) -> None:
        if node.is_dead or node.is_halted or (at is not None and at != node.tick_at):
            return
        self._advance(node)
        if node.is_dead or not self.network.goes_on(self):
            node.tick_at = -1.0
            return
        wanted = node.replica.deadline()
        pause_s = 0.0 if wanted is None else (wanted - self.clock(node)) / node.rate
        node.tick_at = self.network.now + max(pause_s, self.timing.lease_s / 100)
        self.network.push(node.tick_at, self.network.tick_replica, (self, node), node.tick_at)
        if node.replica.role == "leader":
            self._tell_released(node)

    def wake(self) -> None:
        """Resume ticking after everything had come to rest."""
        self._renew_resting()
        for node in self.all_nodes:
            if node.tick_at < 0 and not node.is_halted and not node.is_dead:
                self.tick(node, None)

    def _renew_resting(self) -> None:
        """Renew the lease of a leader at rest: nothing has happened meanwhile but renewals."""
        for node in self.all_nodes:
            is_resting = node.tick_at < 0 and not node.is_halted and not node.is_dead
            if is_resting and node.replica.role == "leader" and not self.parted:
                self.etcd.expires = self.network.now + self.timing.lease_s
                node.replica.lease_until = node.replica.lease_from(self.clock(node))

    def _advance(self, node: Node) -> None:
        replica = node.replica
        for request in replica.advance(self.clock(node)):
            self._ask(node, request)
        self._look_at(node)

    def _look_at(self, node: Node) -> None:
        """Carry out what the replica has decided."""
        replica = node.replica
        if replica.role == "stopped":
            name, is_clone = node.name, node.is_clone
            self.kill(node)
            if not is_clone:
                self.start(name)
        elif replica.role == "leader":
            if not node.is_promoted:
                self._promote(node)
            else:
                self.release(node)
        else:
            self._follow(node)

    # --- etcd ---

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.parted

    def _ask(self, node: Node, request: Request) -> None:
        number = node.requests[type(request)] = node.requests.get(type(request), 0) + 1
        network, key = self.network, (node, request, number)
        if isinstance(request, Campaign | Change):
            self.under_way.append(request.view)
        network.push(network.now + self._way_to_etcd_s(node, request), self._reach_etcd, key, None)
        network.push(network.now + self.timing.lease_s / 3, self._hear_etcd, key, None)

    def _delay_s(self) -> float:
        return self.timing.lease_s * self.rng.choice((0.001, 0.005, 0.02))

    def _way_to_etcd_s(self, node: Node, request: Request) -> float:
        """Draw the delay of a request. The answers of slow ones are no longer awaited. At times all requests
        of a replica are so slow that another one may lead when they arrive."""
        now, lease_s = self.network.now, self.timing.lease_s
        if not isinstance(request, Look) and self.going_astray.random() < ASTRAY:
            node.astray_until = now + lease_s
        if now < node.astray_until:
            return lease_s * 1.5
        return lease_s * self.rng.choice((0.001, 0.005, 0.02, 0.02, 0.02, 0.4))

    def _reach_etcd(self, key: tuple[Node, Request, int], _: None) -> None:
        node, request, _number = key
        if isinstance(request, Campaign | Change):
            self.under_way.remove(request.view)
        if self.is_cut(node.name, ETCD):
            return
        self._renew_resting()
        answer = self.etcd.ask(self.network.now, node.replica.boot, request, self.timing.lease_s)
        self.network.push(self.network.now + self._delay_s(), self._hear_etcd, key, answer)

    def _hear_etcd(self, key: tuple[Node, Request, int], answer: tuple[Any, ...] | None) -> None:
        node, request, number = key
        if answer is not None and self.is_cut(node.name, ETCD):
            return
        self.deliver(node, self._take_answer, node, request, number, answer)

    def _take_answer(self, node: Node, request: Request, number: int, answer: tuple[Any, ...] | None) -> None:
        if node.requests.get(type(request)) != number:
            return
        node.requests[type(request)] += 1
        now, replica = self.clock(node), node.replica
        match request:
            case Look():
                replica.on_view(now, answer[0] if answer else None)
                node.disk.ids = list(replica.disks)
                if node.is_clone and answer and not answer[0].leader:
                    self.kill(node)  # Nobody could tell it from the replica that it is a copy of.
            case Campaign():
                replica.on_campaigned(now, *(answer or (None, False)))
            case Renew():
                replica.on_renewed(now, answer[0] if answer else None)
            case Change():
                replica.on_changed(now, *(answer or (None, False)))
            case Resign():
                replica.on_resigned(now, bool(answer))
        if not node.is_dead and node.tick_at >= 0:
            self._advance(node)

    # --- leading ---

    def _promote(self, node: Node) -> None:
        """Promote a warm copy to be the broker."""
        other = self.leader
        if other is not None:
            other.serves = False
            self.network.site_stopped(self.broker)
        self.promotions += 1
        node.is_promoted = True
        node.catch_up()
        node.disk.terms = node.replica.terms.terms
        self._check_promoted(node)
        if node.machine is None:
            self.wrongs.append(("lost", f"{node.name} of {self.broker} was promoted with an empty disk"))
            node.machine = self.network.machines[self.broker]
        self.step(node, (self.network.start_of(node.machine),))

    def _check_promoted(self, node: Node) -> None:
        log = node.disk.log
        if log[: len(self.released)] != self.released:
            lost = len(self.released) - next(
                (
                    place
                    for place, pair in enumerate(zip(log, self.released, strict=False))
                    if pair[0] != pair[1]
                ),
                min(len(log), len(self.released)),
            )
            self.wrongs.append(
                ("lost", f"{node.name} of {self.broker} lacks {lost} entries that were promised")
            )
        elif node.machine is not None:
            again = self.network.replayed_disk(self.broker, node.disk)
            if state_hash(again) != state_hash(node.machine):
                self.wrongs.append(("replay differs", f"{node.name} of {self.broker} has another state"))

    def step(self, node: Node, inputs: Sequence[MachineInput | Input]) -> None:
        """Run a turn of the leader: step, write, stream, release in order."""
        network, machine = self.network, node.machine
        assert machine is not None
        self.busy_at = network.now
        effects = machine.step(network.now, inputs)
        is_doomed = False
        if effects.durable:
            entry = encode_entry(network.now, effects.durable)
            node.disk.append(entry, effects.records)
            node.disk.synced = node.disk.last
            is_doomed = self._counts_down(node)
            if is_doomed and self.rng.random() < 0.5:
                self._doom(node)
                return
            node.replica.on_written(self.clock(node), node.disk.last)
            for stream in node.streams.values():
                if stream.is_joined:
                    self._send(stream, True, Records(node.disk.last, [entry]))
        promised = {peer: end.end_turn(apart=True) for peer, end in machine.links.ends.items()}
        node.held.append(Held(node.disk.last, effects, promised, machine.history.position))
        deadline = machine.deadline()
        if deadline is not None and node.deadline != deadline:
            node.deadline = deadline
            network.push(max(deadline, network.now), self._on_deadline, node, deadline)
        if is_doomed:
            self._doom(node)
        else:
            self.release(node)

    def _tell_released(self, node: Node) -> None:
        """Send a sign of life to the followers."""
        assert node.machine is not None
        settled = {peer: end.settled for peer, end in node.machine.links.ends.items()}
        for stream in node.streams.values():
            if stream.is_joined:
                self._send(stream, True, Released(node.replica.released, settled), self._shortest_s)

    @property
    def _shortest_s(self) -> float:
        return self.timing.lease_s * 0.001

    def share_beginning(self, leader: Node) -> None:
        """Put the entry with the links on every disk, because the network has existed for long."""
        for node in self.nodes.values():
            if node is not leader:
                node.disk.entries, node.disk.log = list(leader.disk.entries), list(leader.disk.log)
                node.disk.rows, node.disk.synced = list(leader.disk.rows), leader.disk.last
                node.machine = self.network.replayed_disk(self.broker, node.disk)
                node.replica.last = node.disk.last
                node.disk.terms = list(leader.replica.terms.terms)
                node.replica.terms = Terms(list(node.disk.terms))

    def _counts_down(self, node: Node) -> bool:
        """Count down to the leader's crash; return true if it crashes with this entry."""
        if not self.kill_after or not node.serves:
            return False
        fate = self.kill_after[0]
        if fate.entries <= 1:
            return True
        self.kill_after[0] = msgspec.structs.replace(fate, entries=fate.entries - 1)
        return False

    def _doom(self, node: Node) -> None:
        self.kill(node, self.kill_after.pop(0).is_wiped)

    def _on_deadline(self, node: Node, deadline: float) -> None:
        if node.deadline == deadline and node.replica.role == "leader" and not node.is_dead:
            node.deadline = None
            self.wake()
            self.deliver(node, self.step, node, (Tick(),))

    def release(self, node: Node) -> None:
        """Release the effects of entries that are on every replica which could be promoted."""
        now = self.clock(node)
        while node.held and node.replica.may_speak(now) and not node.is_dead:
            if node.held[0].sequence > node.replica.releasable(now):
                return
            self._let_out(node, node.held.popleft())

    def _let_out(self, node: Node, held: Held) -> None:
        epoch = self.etcd.look(self.network.now).epoch
        if epoch > node.replica.epoch:
            what = f"{node.name} of {self.broker} speaks with epoch {node.replica.epoch}, after {epoch} began"
            self.wrongs.append(("speaks", what))
            return
        assert node.machine is not None
        for peer, promised in held.promised.items():
            if peer in node.machine.links.ends:
                node.machine.links.ends[peer].promised = promised
        if held.sequence > len(self.released):
            self.released += node.disk.log[len(self.released) : held.sequence]
        if not node.serves:
            # A leader that is lost before this may be followed by one without its last entries.
            for rows in node.disk.rows[: held.sequence]:
                self.network.observe(rows)
        self.network.let_out(self.broker, node.machine, held.effects, held.position)
        if not node.serves and not node.is_dead:
            node.serves = True
            self.network.site_started(self.broker, node.machine)

    # --- following ---

    def _follow(self, node: Node) -> None:
        """Connect to the present leader."""
        view = node.replica.view
        stream = node.stream
        if stream is not None and stream.is_open and stream.leader.replica.boot == view.boot:
            return
        if not view.leader or view.boot == node.replica.boot:
            return
        leader = next((one for one in self.all_nodes if one.replica.boot == view.boot), None)
        if leader is None or leader.is_dead or self.is_cut(node.name, leader.name):
            return
        if stream is not None:
            self.close(stream)
        node.stream = stream = Stream(node, leader)
        disk, terms = node.disk, node.replica.terms
        joining = Joining(node.name, node.replica.disk, terms.epoch_of(disk.last), disk.last, terms.epoch)
        self._send(stream, False, joining)

    def close(self, stream: Stream) -> None:
        """Close a stream; both ends notice after a while."""
        if stream.is_open:
            stream.is_open = False
            at = self.network.now + self.timing.lease_s / 20
            self.network.push(at, self._on_closed, stream, None)

    def _on_closed(self, stream: Stream, _: None) -> None:
        leader, follower = stream.leader, stream.follower
        if leader.streams.get(follower.name) is stream:
            del leader.streams[follower.name]
            self.deliver(leader, leader.replica.on_left, follower.name)
        if follower.stream is stream:
            follower.stream = None

    def _catch_up_s(self) -> float:
        """Draw the time to catch up. In some cases it is so long that the leader is lost or confirmed
        before."""
        return self.timing.lease_s * self.catching_up.choice((0.005, 0.005, 0.02, 0.5, 1.5))

    def _send(self, stream: Stream, of_leader: bool, message: Any, delay_s: float | None = None) -> None:
        delay_s = self._delay_s() if delay_s is None else delay_s
        at = max(stream.arrivals[of_leader], self.network.now + delay_s)
        stream.arrivals[of_leader] = at
        self.network.push(at, self._arrive, (stream, of_leader), message)

    def _arrive(self, way: tuple[Stream, bool], message: Any) -> None:
        stream, of_leader = way
        if stream.is_open:
            if not isinstance(message, Released):
                self.wake()
            receiver = stream.follower if of_leader else stream.leader
            self.deliver(receiver, self._receive, stream, of_leader, message)

    def _receive(self, stream: Stream, of_leader: bool, message: Any) -> None:
        if not stream.is_open:
            return
        if of_leader:
            self._on_leader_said(stream, message)
        elif isinstance(message, Joining):
            self._on_joining(stream, message)
        else:
            leader, follower = stream.leader, stream.follower
            if leader.streams.get(follower.name) is stream:
                if not stream.is_joined:
                    return
                leader.replica.on_acknowledged(follower.name, message.sequence)
                self._advance(leader)

    def _on_joining(self, stream: Stream, joining: Joining) -> None:
        leader = stream.leader
        replica, disk = leader.replica, leader.disk
        why = replica.on_joining(joining)
        old = leader.streams.get(joining.name)
        if old is not None and old.is_open and old is not stream and not why:
            why = f"{joining.name} is connected already"
        if why or leader.machine is None:
            self._send(stream, True, Unwelcome(why))
            return
        leader.streams[joining.name] = stream
        terms = replica.terms
        if terms.includes(disk.last, joining.epoch, joining.last) and joining.last >= disk.first - 1:
            welcome = Welcome(replica.epoch, terms.terms, joining.last)
            self._send(stream, True, (welcome, b"", Disk()))
            entries = disk.entries[joining.last - disk.first + 1 :]
            if entries:
                self._send(stream, True, Records(joining.last + 1, entries), self._catch_up_s())
            replica.on_joined(self.clock(leader), joining.name, joining.disk, joining.last)
            stream.is_joined = True
        else:
            snapshot = freeze(leader.machine)
            welcome = Welcome(replica.epoch, terms.terms, disk.last, len(snapshot))
            self._send(stream, True, (welcome, snapshot, disk.copy()), self._catch_up_s())
            replica.on_joined(self.clock(leader), joining.name, joining.disk, 0)
            stream.is_joined = True
        self._advance(leader)

    def _on_leader_said(self, stream: Stream, message: Any) -> None:
        node = stream.follower
        if node.replica.role != "follower":
            return
        if isinstance(message, Unwelcome):
            self.close(stream)
        elif isinstance(message, Records):
            self._write(node, stream, message)
        elif isinstance(message, Released):
            node.copy.learn_settled(message.settled, node.disk.last)
        else:
            welcome, snapshot, disk = message
            if welcome.epoch < node.replica.terms.epoch:
                self.close(stream)
                return
            node.replica.terms = Terms(welcome.terms)
            node.disk.terms = list(node.replica.terms.terms)
            if welcome.snapshot_bytes >= 0:
                node.disk.install(snapshot, disk)
                machine = thaw(snapshot)
                assert isinstance(machine, BrokerMachine)
                node.machine = machine
            node.replica.last = node.disk.last
            self._acknowledge(node, stream)

    def _write(self, node: Node, stream: Stream, records: Records) -> None:
        """Write entries, sync, acknowledge; the own copy steps them at some time."""
        if records.first != node.disk.last + 1:
            self.wrongs.append(("gap", f"{node.name} of {self.broker} was sent {records.first}"))
            return
        for data in records.entries:
            node.disk.append(data, [])
        node.copy.take(records.entries)
        node.replica.last = node.disk.last
        if not node.is_copying:
            node.is_copying = True
            lag_s = self.timing.lease_s * self.copying.choice((0.0, 0.0, 0.02, 0.5, 1.5))
            self.network.push(self.network.now + lag_s, self._on_copying, node, None)
        self._acknowledge(node, stream)

    def _on_copying(self, node: Node, _: None) -> None:
        self.deliver(node, self._go_on_copying, node)

    def _go_on_copying(self, node: Node) -> None:
        node.is_copying = False
        node.catch_up()

    def _acknowledge(self, node: Node, stream: Stream) -> None:
        """Acknowledge entries once they are synced, which sometimes takes long."""
        lag_s = self._delay_s()
        if self.rng.random() < 0.02:
            lag_s += self.timing.patience_s * self.rng.choice((0.5, 2.0, 4.0))
        self.network.push(self.network.now + lag_s, self._on_synced, (node, stream), node.disk.last)

    def _on_synced(self, who: tuple[Node, Stream], last: int) -> None:
        node, stream = who
        self.deliver(node, self._sync, node, stream, last)

    def _sync(self, node: Node, stream: Stream, last: int) -> None:
        if node.stream is stream:
            node.disk.synced = max(last, node.disk.synced)
            self._send(stream, False, Acknowledged(last))

    # --- faults ---

    def happen(self, fault: Fault) -> None:
        self.wake()
        match fault:
            case Kill(name, entries, is_wiped):
                node = self.resolve(name)
                if node is not None and entries and node.serves:
                    self.kill_after.append(fault)
                elif node is not None:
                    self.kill(node, is_wiped)
            case Revive(name):
                for one in self._named(name):
                    if one.is_dead:
                        self.start(one.name)
            case Halt(name):
                node = self.resolve(name)
                if node is not None:
                    node.is_halted = True
            case Proceed(name):
                for one in self._named(name):
                    if one.is_halted and not one.is_dead:
                        self.proceed(one)
            case Part(one_end, other_end):
                self._part(one_end, other_end)
            case Mend():
                self.parted.clear()
            case Clone(name):
                node = self.resolve(name)
                if node is not None and not node.serves and not self.clones:
                    self.start(node.name, node.disk.copy())
            case Promote(name):
                leader = self.leader
                if leader is not None and not leader.is_halted:
                    leader.replica.step_down(name)
                    stream = leader.streams.get(name)
                    if stream is not None and not stream.follower.is_halted:
                        self._send(stream, False, Acknowledged(stream.follower.disk.synced))
            case Snapshot():
                for node in self.nodes.values():
                    if not node.is_dead and not node.is_halted and node.disk.last:
                        node.catch_up()
                        node.disk.snapshot = freeze(node.machine)
                        node.disk.first, node.disk.entries = node.disk.last + 1, []
                        node.disk.synced = node.disk.last
            case Crash():
                self.happen(Kill(LEADER))
            case Restart():
                self.happen(Revive(LEADER))
            case Repair():
                self._repair()

    def _named(self, name: str) -> list[Node]:
        """Let faults no longer find a killed or suspended leader by the name `leader`."""
        return list(self.nodes.values()) if name == LEADER else [self.nodes[name]]

    def _part(self, one: str, other: str) -> None:
        leader = self.leader
        names = [leader.name if name == LEADER and leader else name for name in (one, other)]
        pair = frozenset(names)
        self.parted[pair] = None
        for node in self.all_nodes:
            stream = node.stream
            if stream is not None and pair == {stream.follower.name, stream.leader.name}:
                self.close(stream)

    def _repair(self) -> None:
        self.parted.clear()
        self.kill_after.clear()
        for clone in list(self.clones):
            self.kill(clone)
        for node in list(self.nodes.values()):
            if node.is_dead:
                self.start(node.name)
            elif node.is_halted:
                self.proceed(node)
        self.is_repaired = True
        self.busy_at = self.network.now

    # --- for those who look on ---

    @property
    def is_at_rest(self) -> bool:
        """Return whether there is a leader, all replicas are in sync with it, and nothing waits."""
        leader = self.leader
        if leader is None or leader.replica.role != "leader" or leader.held or leader.is_halted:
            return False
        if self.clones or self.parted:
            return False
        replica = leader.replica
        return (
            [*sorted(replica.view.in_sync)] == self.names
            and not replica.in_doubt
            and not replica.asked_to_lead
            and not replica.steps_down
            and all(
                not one.is_dead and not one.is_halted and one.disk.last == leader.disk.last
                for one in self.nodes.values()
            )
        )

    def final_wrongs(self) -> Iterator[tuple[str, str]]:
        yield from self.wrongs
        if not self.is_at_rest:
            roles = {node.name: node.replica.role for node in self.all_nodes}
            yield "no progress", f"{self.broker} has not come to rest: {roles}, {self.etcd.view}"
            return
        leader = self.leader
        assert leader is not None
        assert leader.machine is not None
        wanted = state_hash(leader.machine)
        for node in self.nodes.values():
            node.catch_up()
            if node.machine is None or state_hash(node.machine) != wanted:
                yield "replay differs", f"{node.name} of {self.broker} has another state than its leader"
