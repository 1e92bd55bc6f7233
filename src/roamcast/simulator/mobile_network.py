"""A network of brokers that move: the tree changes during the run, and links are lost with their messages.

Links are determined in one of two ways. A plain story states them (`relink`, `cut`, `heal`): when a link
joins two trees, the tree whose lowest broker name is higher migrates into the other, beginning with the
broker at the new link. If the settings list possible links (`reach`), the brokers elect a leader, and a
broker that changes its parent gives up the link to the old one. Either way brokers learn of it by the same
inputs: `Migrated`, `SendFailed`, `Received`.

A broker that crashes with a journal restarts by replaying its inputs. With amnesia it restarts empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from roamcast.broker.moving.broker import MobileBroker
from roamcast.broker.moving.client import MobileClient
from roamcast.mobility import find_mobile_protocol
from roamcast.mobility.moving.election import (
    Broadcast,
    ChildLost,
    Election,
    ElectionEffect,
    ElectionSettings,
    Heartbeat,
    ParentChanged,
    settings_of,
)
from roamcast.protocol.effects import (
    AttachTo,
    Detached,
    Input,
    LeaveFor,
    Migrated,
    PublishThis,
    Received,
    SendFailed,
)
from roamcast.protocol.messages import Message
from roamcast.protocol.records import Row
from roamcast.simulator.access import CONTROL_BYTES, PlainAccess
from roamcast.simulator.faults import Crash, Cut, Fault, Heal, Relink, Restart
from roamcast.simulator.links import Link
from roamcast.simulator.mobile_links import Direction, TreeLink
from roamcast.simulator.network import Action, NetworkBase, NetworkSettings
from roamcast.simulator.topology import Topology

REST_PERIODS = 40
"""Rounds of the election at the end during which the network is left alone."""
EVENTS_MIN, EVENTS_PER_ACTION = 20_000, 150
"""Event limits: a network with more events than this does not come to rest."""
ROUND_LINKS = 30
"""Length of one round of the election, as a multiple of the longest link delay."""


class MobileAccess(PlainAccess):
    """Clients that speak the protocol of brokers that move; none announces where it goes."""

    def __init__(self, network: MobileNetwork) -> None:
        super().__init__(network)
        self._rng = network.rng
        # One input in each step: the checker looks at what a broker knows between any two of them.
        self._lane = None
        self._on_change = network.note_change

    def act(self, client: str, item: Input) -> None:
        if isinstance(item, AttachTo):
            self._attach(client, item.broker)
        elif isinstance(item, LeaveFor):
            self._leave(client, "")
        else:
            self._step(client, item)
            if not isinstance(item, PublishThis):
                self._on_change(client)

    def _make_client(self, id: str) -> MobileClient:
        return MobileClient(id)

    def _attach(self, client: str, broker: str) -> None:
        super()._attach(client, broker)
        if self.is_attached(client):
            self._on_change(client)


class MobileNetwork(NetworkBase):
    """Brokers, clients and the links between them; one seed determines everything."""

    def __init__(
        self,
        topology: Topology,
        settings: NetworkSettings,
        observe: Callable[[list[Row]], None] | None = None,
        trace: Callable[[float, str, str, Message], None] | None = None,
    ) -> None:
        super().__init__(topology, settings, observe or (lambda rows: None), trace)
        self.crashes = 0
        self.links_lost = 0
        self.is_restless = False
        """True if the run was aborted because events did not end."""
        self.on_step: Callable[[str, Sequence[Input]], None] | None = None
        """Called for observers after each step of a broker."""
        self.on_amnesia: Callable[[str], None] | None = None
        """Called before a broker loses its memory."""
        self.on_change: Callable[[str], None] | None = None
        """Called after each action of a client."""
        self.changed_at: dict[str, float] = {}
        """Time at which a client last attached or acted."""
        self.arrive = self._step_broker
        self.rng = self.rng_for("mobile network")
        self.brokers = {id: self._make_broker(id) for id in topology.brokers}
        self.down: dict[str, bool] = {}
        """By crashed broker: true if it crashed with amnesia."""
        self._journals: dict[str, list[tuple[float, Sequence[Input]]]] = {id: [] for id in topology.brokers}
        self.links: dict[str, dict[str, TreeLink]] = {id: {} for id in topology.brokers}
        """By broker and peer: the links that the broker believes to have."""
        self.migrations = 0
        """Number of links that a child created to a parent."""
        self.access = MobileAccess(self)
        edges = [*topology.overlay, *settings.reach]
        self.reach: dict[frozenset[str], bool] = {frozenset(edge): True for edge in edges}
        """By pair that could have a link: whether it can have one now."""
        self.elections: dict[str, Election] = {}
        self._parents: dict[str, str] = {}
        """In a plain story: the last parent of each broker, even if the link to it is lost."""
        self._heartbeats: dict[tuple[str, str], Link] = {}
        self._incarnations: Counter[str] = Counter()
        if settings.reach:
            for id in topology.brokers:
                self._elect(id)
        else:
            for edge in topology.overlay:
                self._join(*edge)

    def _make_broker(self, id: str) -> MobileBroker:
        return MobileBroker(id, find_mobile_protocol(self.settings.protocol), self.settings.records)

    # --- running ---

    def run(self, actions: Iterable[Action], events_max: int | None = None) -> None:
        """Perform the actions, repair everything, and go on until nothing is left to do."""
        script = list(actions)
        for action in script:
            self.push(action[0], self._act, action)
        end_s = max([action[0] for action in script], default=0.0)
        self.push(end_s, self._repair)
        stop_s = float("inf")
        if self.settings.reach:
            stop_s = end_s + REST_PERIODS * self._election_settings().period_s
        steps_max = events_max or EVENTS_MIN + EVENTS_PER_ACTION * len(script)
        self.go(until_s=stop_s, steps_max=steps_max)
        self.is_restless = self.steps >= steps_max

    def _act(self, action: Action, _: None) -> None:
        node, item = action[1:]
        if isinstance(item, Fault):
            self._happen(node, item)
        else:
            self.access.act(node, item)

    def note_change(self, client: str) -> None:
        self.changed_at[client] = self.now
        if self.on_change is not None:
            self.on_change(client)

    def is_down(self, broker: str) -> bool:
        return broker in self.down

    @property
    def clients(self) -> dict[str, MobileClient]:
        return self.access.clients  # type: ignore[return-value]

    def _happen(self, broker: str, fault: Fault) -> None:
        match fault:
            case Crash(_, amnesia):
                self._crash(broker, amnesia)
            case Restart():
                self._restart(broker)
            case Cut(peer):
                self._cut(broker, peer)
            case Heal(peer):
                self._heal(broker, peer)
            case Relink(old, new):
                self._cut(broker, old)
                self._heal(broker, new)

    def _repair(self, *_: None) -> None:
        """Repair everything that is down, and make missing links that the story requires."""
        for broker in list(self.down):
            self._restart(broker)
        for pair in list(self.reach):
            self._heal(*sorted(pair))
        for edge in self.topology.overlay:
            self._heal(*edge)

    # --- brokers ---

    def _step_broker(self, broker: str, inputs: Sequence[Input]) -> None:
        if broker in self.down:
            return
        self._journals[broker].append((self.now, inputs))
        effects = self.brokers[broker].step(self.now, inputs)
        if effects.records:
            self.observe(effects.records)
        for peer, message in effects.sends:
            self._send(broker, peer, message)
        self.access.take(broker, effects)
        if self.on_step is not None:
            self.on_step(broker, inputs)

    def _crash(self, broker: str, amnesia: bool) -> None:
        if broker in self.down:
            return
        self.crashes += 1
        self._witness("crashed", broker, "amnesia" if amnesia else None)
        if amnesia and self.on_amnesia is not None:
            self.on_amnesia(broker)
        self.down[broker] = amnesia
        every = [link for links in self.links.values() for link in links.values()]
        for link in dict.fromkeys(one for one in every if broker in one.edge):
            self._lose(link)  # Also one that this broker had not heard of yet.
        self.elections.pop(broker, None)
        self.access.broker_crashed(broker)

    def _restart(self, broker: str) -> None:
        if broker not in self.down:
            return
        amnesia = self.down.pop(broker)
        self._witness("started", broker)
        node = self.brokers[broker] = self._make_broker(broker)
        links = list(self.links[broker].values())
        if amnesia:
            self._journals[broker] = []
            self._parents.pop(broker, None)
            self.links[broker] = {}
            for link in links:
                link.closed[broker] = None
        else:
            for now, inputs in self._journals[broker]:
                node.step(now, inputs)
            for client, visit in list(node.visits.items()):
                self._step_broker(broker, (Detached(client, visit.connection),))
            for link in links:
                self._close(link, broker)
        if self.settings.reach:
            self._elect(broker)
        else:
            for link in links:
                self._heal(broker, link.other(broker))
        self.access.broker_started(broker)

    # --- links ---

    def _open(self, child: str, parent: str, old: str | None) -> None:
        """Create the link of a child to its parent, with the child's first message."""
        self.migrations += 1
        names = {child: parent, parent: child}
        directions = {
            one: Direction(self._make_link(one), self._make_link(other)) for one, other in names.items()
        }
        before = self.links[child].get(parent)
        if before is not None:
            self._close(before, child)
        link = self.links[child][parent] = TreeLink(self.migrations, child, parent, directions)
        if not self.reach.get(link.edge, True):
            self._lose(link)  # It was heard, and is out of reach by now.
        self._step_broker(child, (Migrated(old, parent),))

    def _make_link(self, name: str) -> Link:
        return self._link_with(self.settings.link_delay, str(self.migrations), name)

    def _send(self, broker: str, peer: str, message: Message) -> None:
        self._count(broker, ((peer, message),))
        link = self.links[broker][peer]
        direction = link.directions[broker]
        direction.unacknowledged.append(message)
        at = direction.link.arrival_s(self.now, CONTROL_BYTES)
        self.push(at, self._arrive, (link, broker), message)

    def _arrive(self, way: tuple[TreeLink, str], message: Message) -> None:
        link, sender = way
        receiver = link.other(sender)
        if receiver in self.down and not link.is_cut:
            self._lose(link)  # Nobody acknowledges.
        if link.is_cut or receiver in link.closed:
            return
        known = self.links[receiver].get(sender)
        if known is not link:
            if known is not None and known.number > link.number:
                return
            if known is not None:
                self._close(known, receiver)
            self.links[receiver][sender] = link
        at = link.directions[sender].acknowledging.arrival_s(self.now, CONTROL_BYTES)
        self.push(at, self._acknowledge, link, sender)
        self._step_broker(receiver, (Received(sender, message),))

    def _acknowledge(self, link: TreeLink, sender: str) -> None:
        if not link.is_cut and sender not in link.closed:
            link.directions[sender].unacknowledged.popleft()

    def _close(self, link: TreeLink, end: str) -> None:
        """End a link at one end; the other end learns of it if it is in reach."""
        if end in link.closed or end in self.down:
            return
        link.closed[end] = None
        peer = link.other(end)
        if not link.is_cut:
            at = link.directions[end].link.arrival_s(self.now, CONTROL_BYTES)
            self.push(at, self._find_lost, link, peer)
        if self.links[end].get(peer) is not link:
            return  # This end never heard of it, or has another since.
        self.links_lost += 1
        del self.links[end][peer]
        failed = tuple(link.directions[end].unacknowledged)
        self._step_broker(end, (SendFailed(peer, failed),))

    def _lose(self, link: TreeLink) -> None:
        """Handle a link that is out of reach: its messages are lost, and both ends notice."""
        link.is_cut = True
        for end in link.directions:
            notice_s = self.rng.uniform(0, 3 * self.settings.link_delay.high_s)
            self.push(self.now + notice_s, self._find_lost, link, end)

    def _find_lost(self, link: TreeLink, end: str) -> None:
        if end in link.closed or end in self.down:
            return
        peer = link.other(end)
        is_current = self.links[end].get(peer) is link
        self._close(link, end)
        if is_current and end in self.elections:
            self._do_election(end, self.elections[end].on_link_lost(self.now, peer))

    def _cut(self, one: str, other: str) -> None:
        self.reach[frozenset((one, other))] = False
        links = (self.links[one].get(other), self.links[other].get(one))
        for link in dict.fromkeys(link for link in links if link is not None):
            self._lose(link)
            if not self.settings.reach:
                # Whoever moves knows it; and the story's next link must find both ends without this one.
                self._close(link, one)
                self._close(link, other)

    def _heal(self, one: str, other: str) -> None:
        self.reach[frozenset((one, other))] = True
        if not self.settings.reach:
            self._join(one, other)

    # --- the tree of a plain story ---

    def _join(self, one: str, other: str) -> None:
        """Create a link between two trees; within one tree it would close a cycle, and is not created."""
        if one in self.down or other in self.down:
            return
        mine, theirs = self.tree_of(one), self.tree_of(other)
        if other in mine:
            return
        child, parent = (one, other) if min(mine) > min(theirs) else (other, one)
        last = self._parents.get(child)
        self._turn_parents(child)
        self._parents[child] = parent
        if self._parents.get(parent) == child:
            del self._parents[parent]
        self._open(child, parent, last if last is not None and last not in self.links[child] else None)

    def _turn_parents(self, broker: str) -> None:
        """Make the broker the root of its tree."""
        chain = [broker]
        while self._parents.get(chain[-1]) in self.links[chain[-1]]:
            chain.append(self._parents[chain[-1]])
        for child, parent in pairwise(chain):
            self._parents[parent] = child

    def tree_of(self, broker: str) -> list[str]:
        """Return the brokers connected with a broker, including itself."""
        peers: dict[str, list[str]] = {id: [] for id in self.brokers}
        for id, links in self.links.items():
            for peer, link in links.items():
                if not (link.is_cut or link.closed or id in self.down or peer in self.down):
                    peers[id].append(peer)
                    peers[peer].append(id)  # It may not have heard of it yet.
        seen, border = {broker: None}, [broker]
        while border:
            for peer in peers[border.pop()]:
                if peer not in seen:
                    seen[peer] = None
                    border.append(peer)
        return list(seen)

    # --- the tree of the election ---

    def _election_settings(self) -> ElectionSettings:
        period_s = ROUND_LINKS * max(self.settings.link_delay.high_s, 0.005)
        return settings_of(self.settings.tree, period_s, period_s / 10)

    def _elect(self, broker: str) -> None:
        self._incarnations[broker] += 1
        election = Election(broker, self._election_settings(), self._incarnations[broker])
        self.elections[broker] = election
        self._do_election(broker, election.start(self.now))

    def _do_election(self, broker: str, effects: list[ElectionEffect]) -> None:
        for effect in effects:
            match effect:
                case Broadcast(heartbeat):
                    self._broadcast(broker, heartbeat)
                case ParentChanged(old, new, _):
                    if old is not None and old in self.links[broker]:
                        self._close(self.links[broker][old], broker)
                    last = old if old is not None else self._parents.get(broker)
                    last = last if last not in self.links[broker] else None
                    if new is not None:
                        self._parents[broker] = new
                        self._open(broker, new, last)
                case ChildLost(child):
                    link = self.links[broker].get(child)
                    if link is not None and link.parent == broker:
                        self._close(link, broker)
        deadline = self.elections[broker].deadline()
        if deadline is not None:
            self.push(max(deadline, self.now), self._on_election_timer, broker, self.elections[broker])

    def _broadcast(self, broker: str, heartbeat: Heartbeat) -> None:
        for edge, is_up in self.reach.items():
            if is_up and broker in edge:
                (other,) = edge - {broker}
                delay = self.settings.link_delay
                link = self._heartbeats.setdefault((broker, other), Link(delay, self.rng))
                at = link.arrival_s(self.now, CONTROL_BYTES)
                self.push(at, self._hear, (broker, other), heartbeat)

    def _hear(self, way: tuple[str, str], heartbeat: Heartbeat) -> None:
        sender, receiver = way
        election = self.elections.get(receiver)
        if election is not None and self.reach[frozenset((sender, receiver))]:
            self._do_election(receiver, election.on_heartbeat(self.now, sender, heartbeat))

    def _on_election_timer(self, broker: str, election: Election) -> None:
        if self.elections.get(broker) is election:
            deadline = election.deadline()
            if deadline is not None and deadline <= self.now:
                self._do_election(broker, election.on_timer(self.now))

    # --- for those who look on ---

    def waiting(self) -> Iterator[str]:
        """Describe what is still in transit."""
        if self.is_restless:
            yield "messages without end"
        for broker, links in self.links.items():
            for peer, link in links.items():
                count = len(link.directions[broker].unacknowledged)
                if count and not self.settings.reach:
                    yield f"{count} messages from {broker} to {peer}"
        for _, text in self.access.wrongs():
            yield text
