"""Exhaustive exploration of a small world: every order in which messages, moves and a crash can happen.

It drives the machine that ships, with its links and their encoded frames, and the plain client of the lab.
Time stands still, so no timer expires: only the order of events differs. A fuzzer draws some orders of large
worlds; this search visits all orders of a small world.

**States.** The state of a world consists of the states of all brokers and clients, the messages in transit on
each link and connection, and the position in each script. A broker's state is its snapshot. The effect of an
input on a broker in a given state is computed once and remembered, because most interleavings repeat the same
local steps. No state is visited twice.

**Partial order reduction.** A step is taken at once, without alternatives, if its order relative to all other
steps makes no difference. This applies to input of a client that has nothing left to do, or that only
publishes at its present broker: such input comes from the client's connection alone. It applies to the
publishes of such a client and to the next attach of a client that has left: their transit to the broker is a
separate step. It applies to frames for a broker with a single link and no clients. None of this applies while
a crash is still possible, because a crash loses what is in transit.

**Links** do not acknowledge what they receive before a crash. Otherwise states would differ by nothing but
the numbers of acknowledgements. What links buffer for their peers is part of a state only while a crash is
possible: later nobody requests it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

from roamcast.broker.core import CoreSettings
from roamcast.broker.history import Start, ToldHistory
from roamcast.broker.inputs import LinkDown, LinkFrames, LinkUp, MachineInput, OverlayGiven, Started
from roamcast.broker.links.links import GivenLink
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.plain_client import Client
from roamcast.broker.session import Holding
from roamcast.broker.settings import MachineSettings
from roamcast.mobility import Settings
from roamcast.protocol.effects import (
    Attached,
    AttachTo,
    Detached,
    Input,
    LeaveFor,
    PublishThis,
    Said,
    Submitted,
    SubscribeTo,
    Told,
)
from roamcast.protocol.messages import Hello
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.snapshot import freeze, hash_of, thaw
from roamcast.simulator.topology import from_edges

NOW = 0.0
STATES_MAX = 5_000_000
INVARIANTS = (
    "no step raises an error, closes a connection or breaks a link",
    "no client receives a notification twice, or one before an earlier one of its publisher",
    "no two brokers hold the session of one client",
    "at rest every client has received everything, one broker holds its session, and no queue is left",
)

Do = tuple[str, str]
"""Next action of a client: ("attach", broker), ("leave", "" or a proclaimed destination), ("publish", "")."""


@dataclass(frozen=True)
class World:
    """A small world: its brokers, clients, and each client's script, whose actions happen in order but at any
    time.
    """

    name: str
    protocol: str
    overlay: Sequence[tuple[str, str]]
    starts: Mapping[str, str]
    """Clients and the brokers where they are attached when the exploration begins."""
    scripts: Mapping[str, Sequence[Do]]
    subscribers: Sequence[str]
    crashes: Sequence[str] = ()
    """Brokers of which any one may crash once, at any time."""
    mobility: Settings = field(default_factory=Settings)


class Connection(NamedTuple):
    """Messages in transit between one client and its broker, by their numbers."""

    number: int = 0
    broker: int = -1
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()


class Leaving(NamedTuple):
    """A connection that the client has left and whose end the broker has not noticed."""

    client: int
    number: int
    broker: int
    up: tuple[int, ...] = ()
    """Messages still on their way to the broker; empty if the broker only notices the end."""


class Moment(NamedTuple):
    """One state of the whole world."""

    brokers: tuple[int, ...]
    clients: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]
    connections: tuple[Connection, ...]
    leaving: tuple[Leaving, ...]
    done: tuple[int, ...]
    """Position in each client's script."""
    received: tuple[tuple[tuple[str, int], ...], ...]
    """Messages that each client has received: publisher and number, in order."""
    crashes_left: int


Step = tuple[Any, ...]
"""The next event: its kind and place."""


class Broken(Exception):
    """Raised when an invariant does not hold."""


class Local(NamedTuple):
    """Effect of one input on one broker."""

    state: int
    frames: tuple[tuple[int, tuple[int, ...]], ...]
    """Link and the frames that are sent over it."""
    said: tuple[tuple[str, int, int], ...]
    """Client, connection and message."""
    closed: tuple[tuple[str, int, str], ...]
    """Client, connection, and why the broker closes it."""


@dataclass
class Outcome:
    """Result of a search."""

    world: str
    protocol: str
    states: int = 0
    steps: int = 0
    depth: int = 0
    ends: int = 0
    """States in which nothing is left to happen."""
    local_steps: int = 0
    """Different steps of single brokers, each taken by the machine once."""
    is_complete: bool = True
    violation: str = ""
    schedule: list[str] = field(default_factory=list)
    """Steps that lead to the violation."""


class Interned:
    """Numbers for values that are compared often."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self.values: list[Any] = []

    def number(self, key: Any, value: Any) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(value)
        return found


class Explorer:
    """Searches one world depth first."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._topology = from_edges(world.name, _brokers_of(world), world.overlay)
        self._brokers = list(self._topology.brokers)
        self._clients = list(world.scripts)
        self._ways = [
            (self._brokers.index(one), self._brokers.index(other))
            for edge in world.overlay
            for one, other in (edge, edge[::-1])
        ]
        self._way_of = {way: index for index, way in enumerate(self._ways)}
        self._states = Interned()
        self._client_states = Interned()
        self._frames = Interned()
        self._messages = Interned()
        self._locals: dict[tuple[int, Any], Local] = {}
        self._client_locals: dict[
            tuple[int, Any], tuple[int, tuple[int, ...], tuple[tuple[str, int], ...]]
        ] = {}
        self._handshakes: dict[tuple[int, int], tuple[Local, Local]] = {}
        self._holders: dict[int, tuple[str, ...]] = {}
        self._unfinished: dict[int, str] = {}
        self._published = {
            client: sum(what == "publish" for what, _ in script) for client, script in world.scripts.items()
        }

    # --- the search ---

    def search(self, states_max: int = STATES_MAX) -> Outcome:
        outcome = Outcome(self.world.name, self.world.protocol)
        path: list[Step] = []
        try:
            self._search(outcome, path, states_max)
        except Broken as broken:
            outcome.violation = str(broken)
            outcome.schedule = [self._told(step) for step in path]
        outcome.local_steps = len(self._locals)
        return outcome

    def _search(self, outcome: Outcome, path: list[Step], states_max: int) -> None:
        first = self._settled()
        seen = {hash(first)}
        outcome.states = 1
        stack: list[tuple[Moment, Iterator[Step]]] = [(first, iter(self._next_steps(first)))]
        while stack:
            moment, steps = stack[-1]
            step = next(steps, None)
            if step is None:
                stack.pop()
                if path:
                    path.pop()
                continue
            path.append(step)
            outcome.steps += 1
            after = self._after(moment, step)
            key = hash(after)
            if key in seen:
                path.pop()
                continue
            seen.add(key)
            outcome.states += 1
            outcome.depth = max(outcome.depth, len(path))
            self._check_holders(after)
            following = self._next_steps(after)
            if not following:
                outcome.ends += 1
                self._check_rest(after)
            if outcome.states >= states_max:
                outcome.is_complete = False
                return
            stack.append((after, iter(following)))

    def _next_steps(self, moment: Moment) -> list[Step]:
        """Return every step possible now, or one step whose order makes no difference."""
        may_crash = moment.crashes_left > 0
        alone = None if may_crash else self._alone(moment)
        if alone is not None:
            return [alone]
        steps = self._all_steps(moment)
        if may_crash and steps:
            # A crash alone is no reason to go on: nothing is left that it could harm.
            steps += [("crash", self._brokers.index(broker)) for broker in self.world.crashes]
        return steps

    def _all_steps(self, moment: Moment) -> list[Step]:
        """Return every step possible now, except crashes."""
        steps: list[Step] = []
        for index, client in enumerate(self._clients):
            if moment.connections[index].down:
                steps.append(("down", index))
            if moment.connections[index].up:
                steps.append(("up", index))
            if moment.done[index] < len(self.world.scripts[client]):
                steps.append(("do", index))
        steps += [("link", way) for way, frames in enumerate(moment.links) if frames]
        return steps + [("leaving", number) for number in range(len(moment.leaving))]

    def _alone(self, moment: Moment) -> Step | None:
        """Return a step that can be taken at once, whatever else can happen now."""
        for index, client in enumerate(self._clients):
            connection, left = moment.connections[index], self.world.scripts[client][moment.done[index] :]
            stays = all(what == "publish" for what, _ in left)
            if connection.down and stays and (not left or client not in self.world.subscribers):
                return "down", index
            # Where a client both publishes and acknowledges, the order of what it says is to be explored.
            if left and (connection.broker < 0 or (stays and client not in self.world.subscribers)):
                return "do", index
        for way, frames in enumerate(moment.links):
            if frames and self._hears_one_link(self._ways[way][1], moment):
                return "link", way
        return None

    def _hears_one_link(self, broker: int, moment: Moment) -> bool:
        """Return true if the broker will only receive frames of one link from now on."""
        id = self._brokers[broker]
        return (
            sum(other == broker for _, other in self._ways) == 1
            and all(connection.broker != broker for connection in moment.connections)
            and all(one.broker != broker for one in moment.leaving)
            and all(
                where != id
                for client, done in zip(self._clients, moment.done, strict=True)
                for what, where in self.world.scripts[client][done:]
                if what == "attach"
            )
        )

    # --- what happens ---

    def _after(self, moment: Moment, step: Step) -> Moment:
        kind, where = step
        match kind:
            case "link":
                frames = moment.links[where]
                links = _with(moment.links, where, frames[1:])
                source, target = self._ways[where]
                frame = self._frames.values[frames[0]]
                return self._step(
                    moment._replace(links=links), target, ("f", where, frames[0]),
                    lambda: LinkFrames(self._brokers[source], frame),
                )  # fmt: skip
            case "up":
                connection = moment.connections[where]
                changed = connection._replace(up=connection.up[1:])
                moment = moment._replace(connections=_with(moment.connections, where, changed))
                return self._say(moment, where, connection.number, connection.broker, connection.up[0])
            case "down":
                connection = moment.connections[where]
                changed = connection._replace(down=connection.down[1:])
                moment = moment._replace(connections=_with(moment.connections, where, changed))
                message = connection.down[0]
                told = Told(self._brokers[connection.broker], self._messages.values[message])
                return self._client_step(moment, where, ("d", connection.broker, message), told)
            case "leaving":
                return self._on_leaving(moment, where)
            case "crash":
                return self._crash(moment, where)
            case _:
                return self._do(moment, where)

    def _do(self, moment: Moment, index: int) -> Moment:
        client = self._clients[index]
        what, where = self.world.scripts[client][moment.done[index]]
        moment = moment._replace(done=_with(moment.done, index, moment.done[index] + 1))
        match what:
            case "attach":
                return self._attach(moment, index, where)
            case "leave":
                return self._leave(moment, index, where)
            case _:
                return self._client_step(moment, index, "publish", PublishThis(encode_attributes({"x": 1})))

    def _attach(self, moment: Moment, index: int, broker: str) -> Moment:
        # The number says whose connection it is and which of them, whatever others do meanwhile.
        number = (moment.connections[index].number or index + 1) + len(self._clients)
        fresh = Connection(number, self._brokers.index(broker))
        moment = moment._replace(connections=_with(moment.connections, index, fresh))
        return self._client_step(moment, index, ("a", broker, number), AttachTo(broker, number))

    def _leave(self, moment: Moment, index: int, destination: str) -> Moment:
        connection = moment.connections[index]
        if connection.broker < 0:
            return moment
        moment = self._client_step(moment, index, ("l", destination), LeaveFor(destination))
        up = moment.connections[index].up if destination else ()
        left = Leaving(index, connection.number, connection.broker, up)
        gone = Connection(connection.number)
        return moment._replace(
            connections=_with(moment.connections, index, gone), leaving=(*moment.leaving, left)
        )

    def _on_leaving(self, moment: Moment, place: int) -> Moment:
        one = moment.leaving[place]
        rest = moment.leaving[:place] + moment.leaving[place + 1 :]
        if not one.up:
            item = Detached(self._clients[one.client], one.number)
            return self._step(
                moment._replace(leaving=rest), one.broker, ("x", one.client, one.number), lambda: item
            )
        left = one._replace(up=one.up[1:])
        # A proclaimed leave is the last word: the connection ends with it.
        leaving = (*moment.leaving[:place], left, *moment.leaving[place + 1 :]) if left.up else rest
        return self._say(moment._replace(leaving=leaving), one.client, one.number, one.broker, one.up[0])

    def _say(self, moment: Moment, index: int, number: int, broker: int, message: int) -> Moment:
        def item() -> Input:
            said = self._messages.values[message]
            client = self._clients[index]
            return Attached(client, number, said) if type(said) is Hello else Submitted(client, number, said)

        return self._step(moment, broker, ("u", index, number, message), item)

    def _client_step(self, moment: Moment, index: int, key: Any, item: Input) -> Moment:
        state = moment.clients[index]
        found = self._client_locals.get((state, key))
        if found is None:
            client: Client = pickle.loads(self._client_states.values[state])
            effects = client.step(NOW, (item,))
            sends = tuple(self._message(message) for _, message in effects.sends)
            delivered = tuple(
                (row.publisher or "", row.number + place)
                for row in effects.records
                if row.kind == "delivered" and row.number is not None
                for place in range(row.notifications or 1)
            )
            found = self._client_locals[state, key] = self._client_state(client), sends, delivered
        after, sends, delivered = found
        if sends:
            connection = moment.connections[index]
            said = connection._replace(up=connection.up + sends)
            moment = moment._replace(connections=_with(moment.connections, index, said))
        if delivered:
            received = self._checked(index, moment.received[index], delivered)
            moment = moment._replace(received=_with(moment.received, index, received))
        return moment._replace(clients=_with(moment.clients, index, after))

    def _step(
        self, moment: Moment, broker: int, key: Any, item: Callable[[], MachineInput | Input]
    ) -> Moment:
        """Let a broker process an input; equal keys mean equal inputs, whatever the order of events."""
        state = moment.brokers[broker]
        found = self._locals.get((state, key))
        if found is None:
            machine = thaw(self._states.values[state])
            found = self._local(broker, machine, item(), may_crash=moment.crashes_left > 0)
            self._locals[state, key] = found
        return self._performed(moment, broker, found)

    def _performed(self, moment: Moment, broker: int, local: Local) -> Moment:
        links = moment.links
        for way, frames in local.frames:
            links = _with(links, way, links[way] + frames)
        connections = moment.connections
        for client, number, message in local.said:
            index = self._clients.index(client)
            connection = connections[index]
            if connection.number == number and connection.broker == broker:
                changed = connection._replace(down=(*connection.down, message))
                connections = _with(connections, index, changed)
        for client, number, why in local.closed:
            if (number, broker) == connections[self._clients.index(client)][:2]:
                raise Broken(f"{self._brokers[broker]} closes the connection of {client}: {why}")
        brokers = _with(moment.brokers, broker, local.state)
        return moment._replace(brokers=brokers, links=links, connections=connections)

    def _local(
        self, broker: int, machine: BrokerMachine, *items: MachineInput | Input, may_crash: bool
    ) -> Local:
        """Let the machine process the inputs."""
        id = self._brokers[broker]
        try:
            effects = machine.step(NOW, items)
        except Exception as error:
            raise Broken(f"{id} raised {type(error).__name__}: {error}") from error
        for peer, why in effects.link_closes:
            raise Broken(f"{id} closes the link to {peer}: {why}")
        frames = []
        for peer, end in machine.links.ends.items():
            sent = []
            while end.has_more:
                frame = end.take(1, apart=True)
                sent.append(self._frames.number(frame, frame))
            if sent:
                frames.append((self._way_of[broker, self._brokers.index(peer)], tuple(sent)))
        said = tuple(
            (client, number, self._message(message)) for client, number, message in effects.to_clients
        )
        return Local(self._state(machine, may_crash), tuple(frames), said, tuple(effects.client_closes))

    def _message(self, message: Said) -> int:
        return self._messages.number(repr(message), message)

    def _state(self, machine: BrokerMachine, may_crash: bool) -> int:
        frozen = freeze(machine)
        # The hash leaves out what links keep for their peers, which matters only where a crash may come.
        number = self._states.number(frozen if may_crash else hash_of(frozen), frozen)
        if number not in self._holders:
            self._holders[number] = tuple(
                client
                for client, here in machine.broker.clients.here.items()
                if here.holding is Holding.HELD and here.session is not None
            )
        return number

    def _client_state(self, client: Client) -> int:
        slots = {name: getattr(client, name) for name in Client.__slots__ if name != "_out"}
        return self._client_states.number(repr(slots), pickle.dumps(client))

    # --- a crash ---

    def _crash(self, moment: Moment, broker: int) -> Moment:
        """Crash a broker and restart it from its journal at once; what was in transit to and from
        it is lost.
        """
        id = self._brokers[broker]
        links = tuple(
            () if broker in way else frames for way, frames in zip(self._ways, moment.links, strict=True)
        )
        leaving = tuple(one for one in moment.leaving if one.broker != broker)
        moment = moment._replace(links=links, leaving=leaving)
        attached = [index for index, one in enumerate(moment.connections) if one.broker == broker]
        for index in attached:
            gone = Connection(moment.connections[index].number)
            moment = moment._replace(connections=_with(moment.connections, index, gone))
            moment = self._client_step(moment, index, ("l", ""), LeaveFor())
        # It has started once before, when the world began.
        start = Started(self._settings_of(id), _start_id(id, 2))
        moment = self._step(moment, broker, "start", lambda: start)
        for peer in self._topology.peers(id):
            moment = self._shake_hands(moment, broker, self._brokers.index(peer))
        for index in attached:
            moment = self._attach(moment, index, id)
        frozen = [self._states.values[state] for state in moment.brokers]
        brokers = tuple(self._states.number(hash_of(one), one) for one in frozen)
        for state, before in zip(brokers, moment.brokers, strict=True):
            self._holders.setdefault(state, self._holders[before])
        return moment._replace(brokers=brokers, crashes_left=moment.crashes_left - 1)

    def _shake_hands(self, moment: Moment, broker: int, peer: int) -> Moment:
        ids = self._brokers[broker], self._brokers[peer]
        moment = self._step(moment, peer, ("down", broker), lambda: LinkDown(ids[0]))
        states = moment.brokers[broker], moment.brokers[peer]
        if states not in self._handshakes:
            machines = [thaw(self._states.values[state]) for state in states]
            offers = machines[1].offer(ids[0]), machines[0].offer(ids[1])
            for machine, other, offer in zip(machines, reversed(ids), offers, strict=True):
                refusal = machine.doubt(other, offer) or machine.refusal(other, offer)
                if refusal:
                    raise Broken(f"{machine.id} refuses the link to {other}: {refusal}")
            ups = [LinkUp(other, offer, 0) for other, offer in zip(reversed(ids), offers, strict=True)]
            self._handshakes[states] = (
                self._local(broker, machines[0], ups[0], may_crash=True),
                self._local(peer, machines[1], ups[1], may_crash=True),
            )
        for one, local in zip((broker, peer), self._handshakes[states], strict=True):
            moment = self._performed(moment, one, local)
        return moment

    # --- the beginning ---

    def _settled(self) -> Moment:
        """Return the settled world: all clients are attached at their first broker, and every broker knows
        every subscription.
        """
        brokers = []
        sent: list[Local] = []
        for index, id in enumerate(self._brokers):
            machine = BrokerMachine(self._settings_of(id))
            started = Started(machine.settings, _start_id(id, 1))
            sent.append(self._local(index, machine, started, self._given(id), may_crash=True))
            brokers.append(sent[-1].state)
        clients = tuple(self._client_state(Client(id)) for id in self._clients)
        nothing = ((),) * len(self._clients)
        moment = Moment(
            tuple(brokers), clients, ((),) * len(self._ways), (Connection(),) * len(clients), (),
            (0,) * len(clients), nothing, len(self.world.crashes) and 1,
        )  # fmt: skip
        for index, local in enumerate(sent):
            moment = self._performed(moment, index, local)
        for index, client in enumerate(self._clients):
            moment = self._at_rest(self._attach(moment, index, self.world.starts[client]))
            if client in self.world.subscribers:
                moment = self._at_rest(self._client_step(moment, index, "subscribe", SubscribeTo("x = 1")))
        return moment

    def _at_rest(self, moment: Moment) -> Moment:
        while True:
            steps = [step for step in self._all_steps(moment) if step[0] != "do"]
            if not steps:
                return moment
            moment = self._after(moment, steps[0])

    def _settings_of(self, id: str) -> MachineSettings:
        core = CoreSettings(records="counters", protocol=self.world.mobility)
        return MachineSettings(id, self.world.protocol, front="plain", broker=core)

    def _given(self, id: str) -> OverlayGiven:
        hops = self._topology.next_hops(id)
        links = []
        for peer in self._topology.peers(id):
            behind = tuple(broker for broker, hop in hops.items() if hop == peer)
            start = _start_id(peer, 1)
            history = ToldHistory(start, 1, (Start(start, 0),))
            links.append(
                GivenLink(peer, _start_id(id + peer, 0), _start_id(peer + id, 0), behind, history, ())
            )
        return OverlayGiven(tuple(links))

    # --- invariants ---

    def _checked(
        self, index: int, before: tuple[tuple[str, int], ...], delivered: Sequence[tuple[str, int]]
    ) -> tuple[tuple[str, int], ...]:
        for publisher, number in delivered:
            newest = max((one for name, one in before if name == publisher), default=0)
            if number != newest + 1:
                kind = "again" if number <= newest else f"before {newest + 1}"
                raise Broken(f"{self._clients[index]} receives {publisher}/{number} {kind}")
            before = (*before, (publisher, number))
        return before

    def _check_holders(self, moment: Moment) -> None:
        held = [client for state in moment.brokers for client in self._holders[state]]
        if len(held) != len(set(held)):
            raise Broken(f"two brokers hold the session of {max(held, key=held.count)}")

    def _check_rest(self, moment: Moment) -> None:
        for client, received in zip(self._clients, moment.received, strict=True):
            if client in self.world.subscribers:
                owed = sum(self._published.values())
                if len(received) != owed:
                    raise Broken(f"{client} has received {len(received)} of {owed} notifications")
        for state in moment.brokers:
            if state not in self._unfinished:
                self._unfinished[state] = self._left_at(thaw(self._states.values[state]))
            if self._unfinished[state]:
                raise Broken(f"at rest, {self._unfinished[state]}")
        held = [client for state in moment.brokers for client in self._holders[state]]
        if sorted(held) != sorted(self._clients):
            raise Broken(f"at rest, the sessions that are held are {', '.join(held)}")

    def _left_at(self, machine: BrokerMachine) -> str:
        """Describe what is still in transit or stored at a broker when no step is possible."""
        core = machine.broker
        for text in core.unfinished():
            if not text.startswith("timers at"):  # Time stands still, so no timer runs out.
                return text
        for client, queue in core.protocol.stored():
            if queue:
                return f"{len(queue)} notifications for {client} are left at {machine.id}"
        return ""

    # --- words ---

    def _told(self, step: Step) -> str:
        kind, where = step
        match kind:
            case "link":
                source, target = self._ways[where]
                return f"{self._brokers[target]} takes a frame of {self._brokers[source]}"
            case "crash":
                return f"{self._brokers[where]} crashes and comes back"
            case "leaving":
                return f"a broker learns of ended connection {where}"
            case "up":
                return f"its broker hears {self._clients[where]}"
            case "down":
                return f"{self._clients[where]} hears its broker"
            case _:
                return f"{self._clients[where]} does what is next in its script"


def _brokers_of(world: World) -> tuple[str, ...]:
    return tuple(dict.fromkeys(broker for edge in world.overlay for broker in edge))


def _start_id(name: str, number: int) -> int:
    return crc32(f"{name}/{number}".encode()) + 1


def _with(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])
