"""The testbed of Gaddah 2008, section 4.4, as a simulation; it measures what section 4.4.2 defines.

Six brokers in a building, one fixed publisher, subscribers that move. Where the thesis leaves something open,
one choice is made here for all protocols and figures:

- The publisher is synchronised, as in the thesis: it sends a message when the last one was accepted, and a
  pause later. So "pause 0" is as fast as its link and the brokers let it, and a loaded broker slows it down.
- A broker works 2 ms on each message or acknowledgement it gets, and on each of the notifications that a
  transfer carries. Wireless access takes 15 ms each way; two crossings and some service are then the 35 ms of
  a lightly loaded durable handoff. Wired links take 1 ms; 100 Mbps would never be the bottleneck, and is left
  out. Nothing is lost on the air.
- A broker stores a message once, for however many subscribers (his JMS store does, section 5.3). It notices
  within a second (a ping period) that a subscriber is gone. The neighbour graph begins empty and forgets
  nothing within a run.
- His brokers flood over a general graph; here they flood over a spanning tree of it, rooted at b6, where the
  publisher is.
- What happens in the warm-up is not counted: edges are learnt, and buffers filled. Durable subscriptions are
  made at all brokers before the start: in the long run everyone has been everywhere.

There are two settings. `OURS` was chosen before anything was compared with the thesis's figures: messages of
2,000 bytes, so that 1 MB holds about as much as is published while a subscriber is disconnected; bandwidth
for each subscriber by itself; nobody but the publisher's own broker slows it down; storing costs nothing.
`THESIS` is what chapter 4 and the discussion of chapter 5 imply: all subscribers of a broker share its
wireless medium, the publisher waits for all brokers (4.4.1: synchronised), a broker works on every entry that
it puts into a subscriber's queue (5.2.1: caching has a cost) and on every message that it hands over to
another broker, and the reactive protocol stores a copy for each subscriber (5.3: it does not benefit from
similar interests). The cost of an entry and the size of a message are fitted: `CALIBRATED` has the pair that
comes nearest to the durable column of table 5.3; the experiment `gaddah-calibration` shows all pairs. Nothing
else was fitted. (With 200 subscribers the durable brokers are then loaded to 90 %, above the 75 % that the
thesis says of its own.)

Lost is what was published in the window and has not arrived by the end, when everyone has come home.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from roamcast.broker.inputs import MachineInput
from roamcast.lab.measure import Window
from roamcast.lab.rows import Row
from roamcast.lab.summary import neighbour_figures, percentile
from roamcast.lab.sweep import Job
from roamcast.mobility.base import Settings
from roamcast.mobility.proactive import Proactive
from roamcast.mobility.reactive import ForwardBuffered
from roamcast.mobility.shared_buffer import SharedBuffer
from roamcast.protocol import records
from roamcast.protocol.effects import AttachTo, Input, LeaveFor, PublishThis, Received, Submitted, SubscribeTo
from roamcast.protocol.messages import Grant, Message, Relayed
from roamcast.protocol.notification import Burst, count_of, decode_attributes, encode_attributes
from roamcast.protocol.queues import QueueLimits
from roamcast.simulator.links import Delay
from roamcast.simulator.movement import Visit, plan
from roamcast.simulator.network import Action, Network, NetworkSettings
from roamcast.simulator.topology import BUILDING_EDGES, Topology, parse_topology
from roamcast.simulator.workload import Workload, make_workload

SERVICE_S = 0.002
ACCESS_S = 0.015
WIRED_S = 0.001
NOTICE_S = 1.0
MB = 1_000_000
PUBLISHER, PUBLISHER_AT = "publisher", "b6"
TOUR_EVERY_S = 1.5
"""How long a subscriber stays where it makes a durable subscription before the start."""
BROKERS = ("b1", "b2", "b3", "b4", "b5", "b6")
NEIGHBOURS = {
    broker: tuple(sorted(b if a == broker else a for a, b in BUILDING_EDGES if broker in (a, b)))
    for broker in BROKERS
}
START_S = 10.0
"""All clients are attached and subscribed by this time; other times are counted from here."""
TICK_S = 0.01
"""Interval at which the script checks the publisher: shorter than a message takes to be accepted."""
HOME_AFTER_S = 1.0
SAMPLE_EVERY_S = 1.0
GRAPH_EVERY_S = 30.0
"""Sampling interval of the neighbour graph, and the interval of eq. 3.5."""
GRAPH_SPAN_S = 300.0
"""The interval of eq. 3.6."""
CHANGING = "RND, then NBR"
"""Movement for the neighbour graph: random for a third of the time, then along the building's edges."""
GRAPH_HITS = ("hit", "hit_activating", "miss")
PERCENTS = range(2, 101, 2)


@dataclass(frozen=True)
class Costs:
    """Costs that the thesis does not give."""

    message_bytes: int = 2_000
    entry_s: float = 0.0
    """Work to store a notification that cannot be sent at once, for each of its subscribers."""
    transfer_s: float = 0.0
    """Work to hand a notification over to another broker, besides receiving it."""
    is_shared: bool = False
    """True if the subscribers of a broker share its bandwidth."""
    waits_for_all: bool = False
    """True if the publisher waits for all brokers."""
    reactive_shares: bool = True
    """True if the reactive protocol also stores a message once for all subscribers."""


OURS = Costs()
CALIBRATED = [
    Costs(message_bytes, entry_s, SERVICE_S, is_shared=True, waits_for_all=True, reactive_shares=False)
    for message_bytes in (4_000, 6_000, 8_000)
    for entry_s in (0.0, 0.0005, 0.001)
]
THESIS = Costs(6_000, 0.001, SERVICE_S, is_shared=True, waits_for_all=True, reactive_shares=False)
SETTINGS = {"the thesis's": THESIS, "ours": OURS}


@dataclass(frozen=True)
class Choices:
    """Choices that variants change (`gaddah_variants`); both settings have these values."""

    own_queues: bool = False
    """True if each virtual subscriber of pro-active has the whole buffer size for itself."""
    stores_aside: bool = False
    """True if caching and transfer slow down only the publisher."""
    neighbours_max: int | None = None
    """The upper bound on a broker's degree (3.3.3)."""


@dataclass(frozen=True)
class BuildingJob(Job):
    """One run; the defaults are those of table 4.1."""

    protocol: str
    movement: str = "RND"
    subscribers: int = 200
    pause_s: float = 0.0
    buffer_mb: int = 1
    wireless_mbps: float = 11.0
    connect_s: float = 60.0
    disconnect_s: float = 12.0
    handoff_s: float = 3.0
    publishing: bool = True
    neighbour_timeout_s: float = 3600.0
    warm_up_s: float = 300.0
    window_s: float = 300.0
    seed: int = 1
    costs: Costs = OURS
    selects: bool = False
    """True if an arriving subscriber takes the least occupied of the broker and its neighbours (7.2.1)."""

    @property
    def choices(self) -> Choices:
        return Choices()

    @property
    def cost(self) -> float:
        rate = 1 / (0.04 + self.pause_s) if self.publishing else 0.5
        return self.subscribers * self.end_s * rate

    @property
    def end_s(self) -> float:
        return self.warm_up_s + self.window_s

    @property
    def setting(self) -> str:
        return next((name for name, costs in SETTINGS.items() if costs == self.costs), "neither")

    def network(self) -> NetworkSettings:
        return NetworkSettings(
            protocol=self.protocol,
            routing="flooding",
            link_delay=Delay(WIRED_S, WIRED_S),
            access_delay=Delay(ACCESS_S, ACCESS_S),
            access_bits_per_s=self.wireless_mbps * 1e6,
            access_shared=self.costs.is_shared,
            notice_delay=Delay(0.0, NOTICE_S),
            service_s=SERVICE_S,
            buffer_bytes=self.buffer_mb * MB,
            records="counters",
            mobility=Settings(
                neighbour_timeout_s=self.neighbour_timeout_s, neighbours_max=self.choices.neighbours_max
            ),
            seed=self.seed,
        )

    def rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{purpose}")


def is_published(item: MachineInput | Input) -> bool:
    """Return whether a broker receives a message of the publisher, from it or from another broker."""
    if isinstance(item, Submitted):
        return item.client == PUBLISHER
    return isinstance(item, Received) and isinstance(item.message, Burst)


class EntriesCounted(SharedBuffer):
    """Counts what enters the queues of a broker."""

    def __init__(self, limit_bytes: int, *, is_shared: bool, limits: QueueLimits | None = None) -> None:
        super().__init__(limit_bytes)
        self.limits = limits
        self.entries = 0
        self._is_shared = is_shared

    def _take_room(self, burst: Burst) -> int:
        self.entries += burst.count
        return super()._take_room(burst) if self._is_shared else burst.size

    def _give_room(self, burst: Burst) -> int:
        return super()._give_room(burst) if self._is_shared else burst.size


class LoadedNetwork(Network):
    """A network whose brokers spend time on every notification of a message, every queue entry, and every
    notification that they hand over.
    """

    def __init__(self, testbed: Testbed) -> None:
        job = testbed.job
        self.costs, self.meter = job.costs, testbed.meter
        self._on_taken = testbed.on_taken
        self._entered: Counter[str] = Counter()
        self._arrived_s: defaultdict[str, deque[float]] = defaultdict(deque)
        """Arrival times of the messages that wait to be processed."""
        self._stores_aside = job.choices.stores_aside
        self._stored_at: defaultdict[str, float] = defaultdict(float)
        """Time at which a broker has finished its caching, if that is separate."""
        super().__init__(testbed.topology, job.network(), testbed.observe, testbed.meter.on_message)
        for broker in self.brokers.values():
            is_shared = job.costs.reactive_shares or job.protocol != "reactive"
            broker.buffer = EntriesCounted(job.buffer_mb * MB, is_shared=is_shared)
            if isinstance(broker.protocol, Proactive):
                # It has a buffer of its own, in which a message is stored once.
                broker.protocol.buffer = broker.buffer = _buffer_of_copies(job)

    def store(self, broker: str, duration_s: float) -> None:
        """Account for the work of caching and transfer: the broker is busy, or with `stores_aside` only the
        publisher waits.
        """
        if not self._stores_aside:
            self.work(broker, duration_s)
            return
        self.meter.worked_s[broker] += duration_s
        self._stored_at[broker] = max(self.now, self._stored_at[broker]) + duration_s

    def work(self, broker: str, duration_s: float) -> None:
        """Keep a broker busy for this additional time."""
        self.meter.worked_s[broker] += duration_s
        self._busy_until[broker] = max(self.now, self._busy_until.get(broker, 0.0)) + duration_s

    def _service_s(self, broker: str, inputs: Sequence[MachineInput | Input]) -> float:
        work = sum(item.message.weight if isinstance(item, Received) else 1 for item in inputs)
        duration_s = work * self.settings.service_s
        self.meter.worked_s[broker] += duration_s
        if any(is_published(item) for item in inputs):
            self._arrived_s[broker].append(self.now)
        return duration_s

    def step(self, broker: str, inputs: Sequence[MachineInput | Input]) -> None:
        super().step(broker, inputs)
        buffer, entering_s = self.brokers[broker].buffer, 0.0
        if self.costs.entry_s and isinstance(buffer, EntriesCounted):
            entering_s = self.costs.entry_s * (buffer.entries - self._entered[broker])
            self.store(broker, entering_s)
            self._entered[broker] = buffer.entries
        if any(is_published(item) for item in inputs):
            arrived_s = self._arrived_s[broker].popleft()
            self.meter.on_processed(arrived_s, broker, self.now - arrived_s + entering_s)
        if self.costs.transfer_s and (handed := self.meter.handed_over.pop(broker, 0)):
            self.store(broker, self.costs.transfer_s * handed)
        for item in inputs:
            if isinstance(item, Received) and isinstance(item.message, Burst):
                self._on_taken(item.message.number, max(self.now, self._stored_at[broker]))


def _buffer_of_copies(job: BuildingJob) -> EntriesCounted:
    size = job.buffer_mb * MB
    if not job.choices.own_queues:
        return EntriesCounted(size, is_shared=True)
    limits = QueueLimits(notifications_max=10**9, bytes_max=size)
    return EntriesCounted(size * job.subscribers, is_shared=True, limits=limits)


def simulate(job: BuildingJob) -> Row:
    """Run the testbed; the row has the job's fields, and what was measured in its window."""
    return {**asdict(job), "setting": job.setting, **Testbed(job, building()).run()}


def building() -> Topology:
    return parse_topology("building", random.Random(0))


class Testbed:
    """One run: the actions of its clients, and its counters."""

    __test__ = False

    def __init__(self, job: BuildingJob, topology: Topology) -> None:
        self.job = job
        self.topology = topology
        digits = len(str(job.subscribers - 1))
        self.subscribers = [f"s{number:0{digits}}" for number in range(job.subscribers)]
        self.meter = Meter(job)
        self._awaited = self._taken = 0
        """Number of the last message, and the number of brokers that have accepted it."""
        self._taken_at = 0.0
        self.network = LoadedNetwork(self)
        self.publish_at_s: float | None = START_S if job.publishing else None
        """Time of the next publish; None while the publisher waits for its last message to be accepted."""

    def run(self) -> Row:
        self.network.run(self.actions())
        return self.meter.figures()

    def observe(self, rows: list[records.Row]) -> None:
        for row in rows:
            if row.kind == "published":
                self._awaited, self._taken, self._taken_at = row.number or 0, 0, 0.0
                self.on_taken(self._awaited, self.network.now)
        self.meter.observe(rows)

    def on_taken(self, number: int, at: float) -> None:
        """Note that a broker has accepted a message. The publisher sends the next one when all brokers it
        waits for have.
        """
        if number != self._awaited:
            return
        self._taken += 1
        self._taken_at = max(self._taken_at, at)
        if self._taken == (len(self.topology.brokers) if self.job.costs.waits_for_all else 1):
            self.publish_at_s = self._taken_at + ACCESS_S + self.job.pause_s

    # --- what clients do ---

    def actions(self) -> Iterator[Action]:
        workload = make_workload("gaddah", self.subscribers, 0.2, self.job.rng("workload"))
        self.meter.wants(workload)
        yield (0.0, PUBLISHER, AttachTo(PUBLISHER_AT, 0))
        brokers = self.topology.brokers
        homes = {client: brokers[i % len(brokers)] for i, client in enumerate(self.subscribers)}
        for client in self.subscribers:
            yield (0.0, client, AttachTo(homes[client], 0))
            for filter in workload.filters[client]:
                yield (0.0, client, SubscribeTo(filter.text))
        if self.job.protocol == "durable":
            yield from self.tour(homes)
        moves = heapq.merge(
            *(self.moves(client, home) for client, home in homes.items()), key=lambda action: action[0]
        )
        messages = [encode_attributes(one) for one in workload.universe]
        yield from self.with_publisher(moves, messages)

    def tour(self, homes: Mapping[str, str]) -> Iterator[Action]:
        """Send every subscriber round all brokers, and home."""
        brokers = self.topology.brokers
        for step in range(1, len(brokers) + 1):
            for client, home in homes.items():
                place = (brokers.index(home) + step) % len(brokers)
                yield (step * TOUR_EVERY_S, client, AttachTo(brokers[place], 0))

    def moves(self, client: str, home: str) -> Iterator[Action]:
        end_s = START_S + self.job.end_s
        visits = self.visits(home, self.job.rng(f"movement/{client}"))
        for index, visit in enumerate(visits):
            if index:
                yield (START_S + visit.attach_s, client, AttachTo(self.chosen(visit.broker), 0))
            if visit.leave_s is not None:
                yield (START_S + visit.leave_s, client, LeaveFor())
                if index + 1 == len(visits):
                    yield (end_s + HOME_AFTER_S, client, AttachTo(visit.broker, 0))

    def chosen(self, broker: str) -> str:
        """Return the broker that serves an arriving subscriber."""
        if not self.job.selects:
            return broker
        attached = Counter(node.broker for node in self.network.clients.values())
        return min((broker, *NEIGHBOURS[broker]), key=lambda one: attached[one])

    def visits(self, home: str, rng: random.Random) -> list[Visit]:
        job = self.job
        means = (job.connect_s, job.disconnect_s, job.handoff_s)
        if job.movement != CHANGING:
            return plan(job.movement, self.topology, home, job.end_s, rng, *means)
        change_s = job.end_s / 3
        before = plan("RND", self.topology, home, change_s, rng, *means)
        after = plan("NBR", self.topology, before[-1].broker, job.end_s - change_s, rng, *means)
        after = [Visit(one.broker, change_s + one.attach_s, one.leave_s and change_s + one.leave_s)
                 for one in after]  # fmt: skip
        if before[-1].leave_s is None:
            # It is there when the pattern changes, and stays.
            last = before.pop()
            after[0] = Visit(last.broker, last.attach_s, after[0].leave_s)
        return before + after

    def with_publisher(self, moves: Iterator[Action], messages: list[bytes]) -> Iterator[Action]:
        """Yield moves, the publisher's messages when it may send them, and samples."""
        rng, bodies = self.job.rng("publish"), (bytes(self.job.costs.message_bytes),)
        end_s = START_S + self.job.end_s
        move, ticks, sample_s = next(moves, None), 0, START_S
        every_s = TICK_S if self.job.publishing else SAMPLE_EVERY_S
        while True:
            tick_s = START_S + ticks * every_s
            publish_s = self.publish_at_s if self.publish_at_s is not None else end_s
            if move is not None and move[0] <= min(tick_s, publish_s, end_s):
                yield move
                move = next(moves, None)
            elif min(publish_s, tick_s) >= end_s:
                break
            elif publish_s <= tick_s:
                self.publish_at_s = None
                yield (publish_s, PUBLISHER, PublishThis(rng.choice(messages), bodies))
            else:
                ticks += 1
                # Nobody of that name is attached, so nothing happens; but by now it is this time.
                yield (tick_s, "clock", LeaveFor())
                if tick_s >= sample_s:
                    self.meter.sample(self.network)
                    sample_s += SAMPLE_EVERY_S
        while move is not None:
            yield move
            move = next(moves, None)


# --- what is counted ---


class Meter(Window):
    """Counts events in the window of a run."""

    def __init__(self, job: BuildingJob) -> None:
        super().__init__(START_S + job.warm_up_s, START_S + job.end_s)
        self.job = job
        self.worked_s: defaultdict[str, float] = defaultdict(float)
        """Working time of each broker."""
        self._worked_before: Mapping[str, float] = {}
        self.handed_over: Counter[str] = Counter()
        """Messages that each broker has handed over and that are not yet processed."""
        self._processed: Counter[str] = Counter()
        self._processing_s: defaultdict[str, float] = defaultdict(float)
        self._wanted_by: dict[int, list[str]] = {}
        """By selector value: the subscribers whose range includes it."""
        self._first, self._last = 1, 0
        """Range of the messages published in the window."""
        self._had: dict[str, bytearray] = {}
        """By subscriber: which messages it has received, by number."""
        self.expected = 0
        self.received: Counter[str] = Counter()
        """Received messages by broker, including duplicates."""
        self.duplicates = 0
        self.latency_s = 0.0
        self.transferred = 0
        self._attached: Counter[str] = Counter()
        self._samples = 0
        self.graph: list[Row] = []
        self._found: dict[str, int] = {}
        self._found_before: dict[str, int] = {}
        """Counts of pro-active's handoffs by result in the neighbour graph."""

    def wants(self, workload: Workload) -> None:
        for client, filters in workload.filters.items():
            self._had[client] = bytearray()
            for attributes in workload.universe:
                if any(filter.matches(attributes) for filter in filters):
                    self._wanted_by.setdefault(int(attributes["selector"]), []).append(client)

    # --- as it happens ---

    def observe(self, rows: list[records.Row]) -> None:
        for row in rows:
            if row.kind == "delivered":
                self._on_delivered(row)
            elif row.kind == "published":
                self._on_published(row)
            elif row.kind == "moved":
                self._on_moved(row)

    def _on_published(self, row: records.Row) -> None:
        number = row.number or 0
        if row.time < self.from_s:
            self._first = number + 1
        elif row.time < self.until_s:
            self._last = number
            value = int(decode_attributes(row.attributes or b"")["selector"])
            self.expected += len(self._wanted_by.get(value, ()))

    def _on_delivered(self, row: records.Row) -> None:
        client, number = row.client or "", row.number or 0
        had = self._had[client]
        if number >= len(had):
            had.extend(bytes(number + 1000 - len(had)))
        again, had[number] = had[number], 1
        published_s = row.published_at or 0.0
        if self.from_s <= row.time < self.until_s:
            self.received[row.broker or ""] += 1
            self.duplicates += again
            self.latency_s += row.time - published_s
        super()._on_delivered(row)

    def on_message(self, now: float, sender: str, receiver: str, message: Message) -> None:
        """Count a transfer of the old broker where it starts, not at every hop."""
        if isinstance(message, Relayed):
            if message.source != sender:
                return
            message = message.message
        count = 0
        if isinstance(message, Grant):
            count = count_of(message.session.owed)
        elif isinstance(message, ForwardBuffered):
            count = count_of(message.bursts)
        self.handed_over[sender] += count
        if self.from_s <= now < self.until_s:
            self.transferred += count

    def on_processed(self, now: float, broker: str, duration_s: float) -> None:
        """Note that a message which arrived at this time is processed: it waited for the broker, and was
        worked on.
        """
        if self.from_s <= now < self.until_s:
            self._processed[broker] += 1
            self._processing_s[broker] += duration_s

    def sample(self, network: Network) -> None:
        """Sample where subscribers are by their own account, and the quality of the neighbour graph."""
        if network.now < self.from_s:
            self._worked_before, self._found_before = dict(self.worked_s), neighbour_figures(network)
        else:
            self._found = neighbour_figures(network)
            self._samples += 1
            self._attached.update(node.broker for id, node in network.clients.items() if id != PUBLISHER)
        elapsed_s = round(network.now - START_S, 6)
        if self.job.protocol == "proactive" and elapsed_s and elapsed_s % GRAPH_EVERY_S == 0:
            self.graph.append({"seed": self.job.seed, "time_s": elapsed_s, **graph_figures(network)})

    # --- at the end ---

    def figures(self) -> Row:
        job, received = self.job, self.received.total()
        had = sum(sum(had[self._first : self._last + 1]) for had in self._had.values())
        brokers = sorted(broker for broker in self._attached if broker)
        delays_s = sorted(self.delays_s)
        return {
            "published_per_s": (self._last - self._first + 1) / job.window_s,
            "expected": self.expected,
            "loss_percent": 100 * (1 - had / self.expected) if self.expected else None,
            "duplicate_percent": 100 * self.duplicates / received if received else None,
            "throughput_per_s": received / job.window_s,
            "useful_per_s": (received - self.duplicates) / job.window_s,
            "latency_s": self.latency_s / received if received else None,
            "transferred_percent": 100 * self.transferred / received if received else None,
            "handoffs": self.handoffs,
            "handoffs_nothing_waiting": self.nothing_waiting,
            "miss_percent": self._miss_percent(),
            "handoff_mean_s": fmean(delays_s) if delays_s else None,
            "handoff_percentiles_s": [percentile(delays_s, share / 100) for share in PERCENTS],
            "load_percent": {
                broker: 100 * (self.worked_s[broker] - self._worked_before.get(broker, 0.0)) / job.window_s
                for broker in brokers
            },
            "processing_ms": {
                broker: 1000 * self._processing_s[broker] / max(self._processed[broker], 1)
                for broker in brokers
            },
            "broker_per_s": {broker: self.received[broker] / job.window_s for broker in brokers},
            "attached": {broker: self._attached[broker] / self._samples for broker in brokers},
            "graph": self.graph,
        }

    def _miss_percent(self) -> float | None:
        found = {name: self._found.get(name, 0) - self._found_before.get(name, 0) for name in GRAPH_HITS}
        return 100 * found["miss"] / total if (total := sum(found.values())) else None


def graph_figures(network: Network) -> Row:
    """Return means over the brokers; a broker without moves has an unknown share of misses."""
    graphs = [one.protocol.graph for one in network.brokers.values() if isinstance(one.protocol, Proactive)]
    now = network.now
    misses = [graph.false_negative(now, GRAPH_EVERY_S) for graph in graphs]
    waste = [graph.false_positive(now, GRAPH_SPAN_S) for graph in graphs]
    return {
        "f_neg": fmean(known) if (known := [one for one in misses if one is not None]) else None,
        "f_pos": fmean(known) if (known := [one for one in waste if one is not None]) else None,
        "neighbours": fmean(len(graph.neighbours(now)) for graph in graphs),
        "removals": sum(graph.removals for graph in graphs),
    }
