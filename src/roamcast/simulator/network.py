"""The simulator's engine: a heap of timed inputs, virtual time, one seed decides everything.

It is a driver: it turns what happens into inputs, feeds them to brokers and
clients, and performs their effects over links with delay. It knows no protocol.
"""

from __future__ import annotations

import gc
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import Any

import msgspec

from roamcast.broker.core import BrokerCore, CoreSettings
from roamcast.broker.plain_client import Client
from roamcast.mobility import Settings, find_protocol
from roamcast.mobility.moving.election import TreeRule
from roamcast.protocol.effects import (
    Attached,
    AttachTo,
    Deadline,
    Detached,
    Input,
    LeaveFor,
    OverlayChanged,
    Received,
    Submitted,
)
from roamcast.protocol.messages import Deliver, Hello, Leave, Message, cause_of
from roamcast.protocol.notification import Burst
from roamcast.protocol.records import Level, Row
from roamcast.routing.location.settings import LocationSettings
from roamcast.simulator.links import Delay, Link, LossyLink, longest_s
from roamcast.simulator.topology import Topology

Action = tuple[float, str, Input]
"""At this time, this client's application does this."""

Event = tuple[float, int, Callable[[Any, Any], None], Any, Any, "deque[Event] | None"]
"""When, a number that keeps the order of equal times, what to call with what, and its lane."""

LINK_DELAY = Delay(0.010, 0.010)
ACCESS_DELAY = Delay(0.020, 0.020)
NO_DELAY = Delay(0.0, 0.0)

CONTROL_BYTES = 64
"""What a message without content counts for on a link with limited bandwidth."""


@dataclass(frozen=True)
class NetworkSettings:
    """Everything about a simulated network but its topology and what its clients do."""

    protocol: str = "sub_unsub"
    routing: str = ""
    advertisements: bool = False
    link_delay: Delay = LINK_DELAY
    link_delays: tuple[tuple[str, str, Delay], ...] = ()
    """Links that take another time: between which brokers, in both directions."""
    access_delay: Delay = ACCESS_DELAY
    access_bits_per_s: float | None = None
    notice_delay: Delay = NO_DELAY
    """How long after a silent leave the broker notices it."""
    service_s: float = 0.0
    """How long a broker works on one message."""
    buffer_bytes: int | None = None
    window: int = 256
    names_last_broker: bool = True
    loss: float = 0.0
    """Share of the transmissions over links that are lost. They are sent again: loss shows as delay."""
    reach: tuple[tuple[str, str], ...] = ()
    """Of brokers that move: who could have a link besides those who have one. Then they elect a leader, and
    links follow; without it links change only as the story says."""
    tree: TreeRule = "stable"
    """How they choose their parents then."""
    records: Level = "counters"
    mobility: Settings = field(default_factory=Settings)
    """What can be set for the protocol; the bound on the delay is filled in."""
    # Its mapping has no hash, and jobs of a sweep, which hold these settings, need one.
    location: LocationSettings = field(default_factory=LocationSettings, hash=False)
    seed: int = 0

    def delay_between(self, one: str, other: str) -> Delay:
        """Of the link between two neighbours."""
        for first, second, delay in self.link_delays:
            if {first, second} == {one, other}:
                return delay
        return self.link_delay

    def mobility_settings(self, topology: Topology) -> Settings:
        return msgspec.structs.replace(self.mobility, delay_bound_s=self.delay_bound_s(topology))

    def delay_bound_s(self, topology: Topology) -> float:
        """No message takes longer between any two brokers that do not queue, while none is down."""
        delays = (self.link_delay, *(one[2] for one in self.link_delays))
        link_s = max(longest_s(delay, self.loss) for delay in delays)
        return topology.diameter * (link_s + self.service_s) + self.service_s


@dataclass
class Traffic:
    """Hops over the links between brokers and over access links, by cause."""

    hops: Counter[str] = field(default_factory=Counter)
    """By cause; a message that carries several notifications counts once for each."""
    access_hops: int = 0
    messages: int = 0
    """Messages over links between brokers, whatever they carry."""

    @property
    def total_hops(self) -> int:
        return self.hops.total()

    @property
    def overhead_hops(self) -> int:
        """Hops caused by mobility."""
        return self.hops["handoff"] + self.hops["transfer"]


class AccessConnection:
    """One attach of one client, from its hello until it goes away."""

    __slots__ = ("broker", "client", "down", "id", "is_heard", "is_open", "up")

    def __init__(self, id: int, client: Client, broker: str, up: Link, down: Link) -> None:
        self.id = id
        self.client = client
        self.broker = broker
        self.up = up
        self.down = down
        self.is_open = True
        self.is_heard = True
        """Whether the client still hears the broker; no more, once it has said that it leaves."""

    def close(self) -> None:
        self.is_open = self.is_heard = False


class Network:
    """Brokers, clients and links, and the heap that drives them.

    What travels with a delay that is always the same arrives in the order in which
    it was sent. So it waits in a lane, a plain queue of which only the first event
    is in the heap too: the heap stays small, however much is under way. And what
    one step sends arrives together, as one event.
    """

    def __init__(
        self,
        topology: Topology,
        settings: NetworkSettings,
        observe: Callable[[list[Row]], None],
        trace: Callable[[float, str, str, Message], None] | None = None,
    ) -> None:
        self.topology = topology
        self.settings = settings
        self.now = 0.0
        self.traffic = Traffic()
        self.closed_by_broker: list[str] = []
        self.steps = 0
        self._observe = observe
        self._trace = trace
        self._heap: list[Event] = []
        self._pushed = 0
        self._rng = random.Random(f"{settings.seed}/network")
        is_plain = not (settings.loss or settings.link_delays)
        self._link_lane = _lane(settings.link_delay) if is_plain else None
        self._access_link = Link(settings.access_delay, self._rng)
        self._access_lane = _lane(settings.access_delay, settings.access_bits_per_s)
        self._arrive = self._wait_for_service if settings.service_s else self._step_broker
        self.clients: dict[str, Client] = {}
        self._connections: dict[str, AccessConnection] = {}
        self._connections_made = 0
        self._busy_until: dict[str, float] = {}
        self._deadlines: dict[str, float] = {}
        self.brokers = {id: self._make_broker(id) for id in topology.brokers}
        self._links = {
            id: {peer: self._make_link(id, peer) for peer in topology.peers(id)} for id in topology.brokers
        }
        for id in topology.brokers:
            self._step_broker(id, (OverlayChanged(topology.peers(id), topology.next_hops(id)),))

    def _make_broker(self, id: str) -> BrokerCore:
        settings = self.settings
        return BrokerCore(
            id,
            find_protocol(settings.protocol),
            CoreSettings(
                routing=settings.routing,
                advertisements=settings.advertisements,
                window=settings.window,
                buffer_bytes=settings.buffer_bytes,
                records=settings.records,
                protocol=settings.mobility_settings(self.topology),
                location=settings.location,
            ),
        )

    def _make_link(self, broker: str, peer: str) -> Link:
        settings, rng = self.settings, self._rng_for(broker, peer)
        delay = settings.delay_between(broker, peer)
        return LossyLink(delay, rng, settings.loss) if settings.loss else Link(delay, rng)

    def _rng_for(self, *names: str) -> random.Random:
        """A source of its own for each link, so that one link's draws do not move another's."""
        return random.Random(f"{self.settings.seed}/{'/'.join(names)}")

    # --- running ---

    def run(self, actions: Iterable[Action] = (), progress: Callable[[float], None] | None = None) -> None:
        """Perform the actions, which are in order of time, and go on until nothing is left to do."""
        script = iter(actions)
        self._push_action(script)
        with _without_collector():
            heap, steps = self._heap, self.steps
            report_at = steps if progress is not None else float("inf")
            while heap:
                self.now, _, handle, first, second, lane = heap[0]
                if lane is None:
                    heappop(heap)
                else:
                    lane.popleft()
                    if lane:
                        heapreplace(heap, lane[0])
                    else:
                        heappop(heap)
                handle(first, second)
                steps += 1
                if steps >= report_at and progress is not None:
                    progress(self.now)
                    report_at = steps + 5_000
            self.steps = steps

    def _push(self, at: float, handle: Callable[[Any, Any], None], first: Any, second: Any) -> None:
        self._pushed += 1
        heappush(self._heap, (at, self._pushed, handle, first, second, None))

    def _push_lane(
        self, lane: deque[Event], at: float, handle: Callable[[Any, Any], None], first: Any, second: Any
    ) -> None:
        self._pushed += 1
        event = (at, self._pushed, handle, first, second, lane)
        if not lane:
            heappush(self._heap, event)
        lane.append(event)

    def _push_action(self, script: Iterator[Action]) -> None:
        action = next(script, None)
        if action is not None:
            self._push(max(action[0], self.now), self._act, action, script)

    def _act(self, action: Action, script: Iterator[Action]) -> None:
        _, client, item = action
        if type(item) is AttachTo:
            self._attach(client, item.broker)
        elif type(item) is LeaveFor:
            self._leave(client, item.destination)
        else:
            self._step_client(client, item)
        self._push_action(script)

    # --- brokers ---

    def _wait_for_service(self, broker: str, inputs: tuple[Input, ...]) -> None:
        """Something reaches a broker, which works on one message at a time."""
        done_s = max(self.now, self._busy_until.get(broker, 0.0)) + self.settings.service_s
        self._busy_until[broker] = done_s
        self._push(done_s, self._step_broker, broker, inputs)

    def _step_broker(self, broker: str, inputs: tuple[Input, ...]) -> None:
        node = self.brokers[broker]
        effects = node.step(self.now, inputs)
        if effects.sends:
            self._send_peers(broker, effects.sends)
        if effects.to_clients:
            self._send_clients(effects.to_clients)
        if effects.closes:
            self._close(effects.closes)
        if effects.records:
            self._observe(effects.records)
        deadline = node.deadline()
        if deadline is not None and self._deadlines.get(broker) != deadline:
            self._deadlines[broker] = deadline
            self._push(max(deadline, self.now), self._on_deadline, broker, deadline)

    def _on_deadline(self, broker: str, deadline: float) -> None:
        if self._deadlines.get(broker) == deadline:
            del self._deadlines[broker]
            self._step_broker(broker, (Deadline(),))

    def _send_peers(self, broker: str, sends: list[tuple[str, Message]]) -> None:
        self._count(broker, sends)
        lane = self._link_lane
        if lane is not None:
            at = self.now + self.settings.link_delay.low_s
            self._push_lane(lane, at, self._arrive_at_peers, broker, sends)
            return
        for send in sends:
            at = self._links[broker][send[0]].arrival_s(self.now, CONTROL_BYTES)
            self._push(at, self._arrive_at_peers, broker, (send,))

    def _count(self, broker: str, sends: list[tuple[str, Message]]) -> None:
        if self._trace is not None:
            for peer, message in sends:
                self._trace(self.now, broker, peer, message)
        traffic = self.traffic
        traffic.messages += len(sends)
        hops = traffic.hops
        for _, message in sends:
            if type(message) is Burst:
                hops["publish"] += message.count
            else:
                hops[cause_of(message)] += message.weight

    def _arrive_at_peers(self, broker: str, sends: Sequence[tuple[str, Message]]) -> None:
        arrive = self._arrive
        for peer, message in sends:
            arrive(peer, (Received(broker, message),))

    # --- clients ---

    def _client(self, id: str) -> Client:
        client = self.clients.get(id)
        if client is None:
            client = self.clients[id] = Client(id, self.settings.names_last_broker)
        return client

    def _step_client(self, id: str, item: Input) -> None:
        effects = self._client(id).step(self.now, (item,))
        if effects.sends:
            self._send_up(self._connections[id], effects.sends)
        if effects.records:
            self._observe(effects.records)

    def _attach(self, client: str, broker: str) -> None:
        self._leave(client, "")
        self._connections_made += 1
        number = self._connections_made
        up, down = self._access_links(client, number)
        self._connections[client] = AccessConnection(number, self._client(client), broker, up, down)
        self._step_client(client, AttachTo(broker, number))

    def _access_links(self, client: str, number: int) -> tuple[Link, Link]:
        """One each way. Where nothing is drawn, all are the same: a source of chance takes 2,500 bytes."""
        if self._access_lane is not None:
            return self._access_link, self._access_link
        settings = self.settings
        up, down = (
            Link(settings.access_delay, self._rng_for(client, str(number), way), settings.access_bits_per_s)
            for way in ("up", "down")
        )
        return up, down

    def _leave(self, client: str, destination: str) -> None:
        connection = self._connections.get(client)
        if connection is None or not connection.is_open:
            return
        self._step_client(client, LeaveFor(destination))
        if destination:
            return  # The connection ends when the broker has heard of it.
        connection.close()
        delay = self.settings.notice_delay
        notice_s = delay.low_s + (delay.high_s - delay.low_s) * self._rng.random()
        item = Detached(client, connection.id)
        self._push(self.now + notice_s, self._arrive, connection.broker, (item,))

    def _send_up(self, connection: AccessConnection, sends: list[tuple[str, Message]]) -> None:
        now, lane = self.now, self._access_lane
        self.traffic.access_hops += len(sends)
        for _, message in sends:
            handle = self._arrive_up
            if type(message) is Leave:
                # What it already sent arrives, but nothing reaches it any more.
                handle = self._arrive_leave
                connection.is_heard = False
                del self._connections[connection.client.id]
            if lane is not None:
                at = now + self.settings.access_delay.low_s
                self._push_lane(lane, at, handle, connection, message)
            else:
                self._push(connection.up.arrival_s(now, CONTROL_BYTES), handle, connection, message)

    def _arrive_up(self, connection: AccessConnection, message: Message) -> None:
        if not connection.is_open:
            return
        client, number = connection.client.id, connection.id
        if type(message) is Hello:
            self._arrive(connection.broker, (Attached(client, number, message),))
        else:
            self._arrive(connection.broker, (Submitted(client, number, message),))  # type: ignore[arg-type]

    def _arrive_leave(self, connection: AccessConnection, message: Message) -> None:
        self._arrive_up(connection, message)
        connection.close()

    def _send_clients(self, sends: list[tuple[str, int, Message]]) -> None:
        now, connections, lane = self.now, self._connections, self._access_lane
        together = []
        for client, number, message in sends:
            connection = connections.get(client)
            if connection is None or connection.id != number or not connection.is_open:
                continue
            self.traffic.access_hops += message.burst.count if type(message) is Deliver else message.weight
            if lane is not None:
                together.append((connection, message))
            else:
                content = message.burst.size if type(message) is Deliver else 0
                at = connection.down.arrival_s(now, CONTROL_BYTES + content)
                self._push(at, self._arrive_at_clients, ((connection, message),), None)
        if together and lane is not None:
            at = now + self.settings.access_delay.low_s
            self._push_lane(lane, at, self._arrive_at_clients, together, None)

    def _arrive_at_clients(self, deliveries: Sequence[tuple[AccessConnection, Message]], _: None) -> None:
        now = self.now
        for connection, message in deliveries:
            if not connection.is_heard:
                continue
            effects = connection.client.step(now, (Received(connection.broker, message),))
            if effects.sends:
                self._send_up(connection, effects.sends)
            if effects.records:
                self._observe(effects.records)

    def _close(self, closes: list[tuple[str, int, str]]) -> None:
        """A broker ends a connection; a client that is still on it has been wronged."""
        for client, number, reason in closes:
            connection = self._connections.get(client)
            if connection is not None and connection.id == number and connection.is_open:
                connection.close()
                self.closed_by_broker.append(f"{client} at {connection.broker} at {self.now:.6f}: {reason}")

    def is_attached(self, client: str) -> bool:
        connection = self._connections.get(client)
        return connection is not None and connection.is_open

    def asked(self) -> Mapping[str, int]:
        """How many notifications the application of a client wanted published, where that is counted."""
        return {}

    def wrongs(self) -> Iterator[tuple[str, str]]:
        """What went wrong with the network itself: kind and text of each violation."""
        for reason in self.closed_by_broker:
            yield "closed", reason


def _lane(delay: Delay, bits_per_s: float | None = None) -> deque[Event] | None:
    """A lane for everything with this delay, if it is always the same."""
    return deque() if delay.is_fixed and bits_per_s is None else None


@contextmanager
def _without_collector() -> Iterator[None]:
    """The hot loop makes many small objects and hardly a cycle: collecting would cost a tenth of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
