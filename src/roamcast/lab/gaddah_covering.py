"""Gaddah 2008, equations 3.3 and 3.4: covering across subscribers, done by covering routing. Claim R29.

A copy that is activated at a neighbour subscribes there for its client. Covering routing does not propagate
the subscription where one of any other client covers it, and the buffer stores a message once for all
subscribers. So pro-active needs no covering of its own: this experiment makes the same moves under simple and
under covering routing. Contexts still go to each neighbour, because a copy belongs to one client; they are
counted apart.

The equations subtract Covering, defined as 1 where propagation is *necessary*; they must mean the opposite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.gaddah import PROACTIVE
from roamcast.lab.rows import Row, distinct, sums_of, where
from roamcast.lab.sweep import Job, Sweep, grid, seeds
from roamcast.mobility.proactive_messages import ActivateCopy, PassiveCopy
from roamcast.protocol.messages import Message, Relayed, Update, cause_of
from roamcast.protocol.notification import Burst
from roamcast.simulator.network import Network, NetworkSettings
from roamcast.simulator.run import run_checked
from roamcast.simulator.scenario import Scenario

R29 = claim("R29")

ROUTINGS = ("simple", "covering")
WORKLOADS = ("nested", "groups")
SAMPLE_EVERY = 200
"""Number of messages between two samples of what is stored."""


@dataclass(frozen=True)
class CoveringJob(Job):
    routing: str
    workload: str
    side: int
    seed: int

    def scenario(self) -> Scenario:
        return Scenario(
            topology=f"grid:{self.side}", clients=6 * self.side**2, mobile=0.5, connect_s=60.0,
            disconnect_s=30.0, workload=self.workload, selectivity=0.1, publish_every_s=60.0,
            duration_s=900.0,
            network=NetworkSettings(protocol=PROACTIVE, routing=self.routing, seed=self.seed),
        )  # fmt: skip


class _Watch:
    def __init__(self) -> None:
        self.hops: Counter[str] = Counter()
        self.context_filters = 0
        self.stored = self.stored_once = self._messages = 0
        self._network: Network | None = None

    def prepare(self, network: Network) -> None:
        self._network = network

    def on_message(self, now: float, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, Update) and cause_of(message) == "handoff":
            self.hops["updates"] += 1
        inner = message.message if isinstance(message, Relayed) else message
        if isinstance(inner, PassiveCopy | ActivateCopy):
            self.hops["contexts"] += 1
            self.context_filters += len(inner.subscriptions or ())
        self._messages += 1
        if self._messages % SAMPLE_EVERY == 0:
            self._look()

    def _look(self) -> None:
        for broker in self._network.brokers.values() if self._network is not None else ():
            held = [burst for _, queue in broker.protocol.stored() for burst in queue.bursts()]
            self.stored += sum(burst.count for burst in held)
            self.stored_once += len({identity for burst in held for identity in _identities(burst)})


def _identities(burst: Burst) -> list[tuple[str, int, int]]:
    return [(burst.publisher, burst.incarnation, burst.number + place) for place in range(burst.count)]


def measure(job: CoveringJob) -> Row:
    scenario, watch = job.scenario(), _Watch()
    topology = scenario.make_topology()
    run = run_checked(
        topology, scenario.network, scenario.actions(topology), lambda rows: None,
        trace=watch.on_message, prepare=watch.prepare,
    )  # fmt: skip
    result = run.result
    return {
        "routing": job.routing, "workload": job.workload, "seed": job.seed, "handoffs": result.handoffs,
        "updates": watch.hops["updates"], "contexts": watch.hops["contexts"],
        "context_filters": watch.context_filters, "stored": watch.stored, "stored_once": watch.stored_once,
        "delivered": result.delivered, "lost": result.lost, "violations": result.violations_total,
    }  # fmt: skip


@checks("gaddah-covering", "Gaddah, 3.3.3: covering across subscribers", R29)
def experiment(quick: bool, sweep: Sweep) -> Findings:
    side, count = (3, 2) if quick else (5, 5)
    one = partial(CoveringJob, side=side)
    rows = sweep.run(measure, grid(one, routing=ROUTINGS, workload=WORKLOADS, seed=seeds(count)))
    return Findings([judge(rows)], {"covering": rows})


def judge(rows: Sequence[Row]) -> Outcome:
    counted = ("handoffs", "updates", "contexts", "stored", "stored_once", "delivered", "lost", "violations")
    parts: dict[str, bool | None] = {}
    figures: dict[str, object] = {}
    for workload in distinct(rows, "workload"):
        simple, covering = (
            sums_of(where(rows, workload=workload, routing=routing), counted) for routing in ROUTINGS
        )
        parts |= {
            f"{workload}: covering does not propagate fewer": covering["updates"] < simple["updates"],
            f"{workload}: other deliveries": covering["delivered"] == simple["delivered"],
            f"{workload}: losses or violations": not any(
                one[name] for one in (simple, covering) for name in ("lost", "violations")
            ),
            f"{workload}: sharing takes as much memory": covering["stored_once"] < covering["stored"],
        }
        figures[f"{workload}: updates per handoff"] = {
            name: round(one["updates"] / max(one["handoffs"], 1), 2)
            for name, one in zip(ROUTINGS, (simple, covering), strict=True)
        }
        figures[f"{workload}: contexts per handoff"] = round(
            covering["contexts"] / max(covering["handoffs"], 1), 2
        )
        figures[f"{workload}: stored once / for each subscriber"] = round(
            covering["stored_once"] / max(covering["stored"], 1), 3
        )
    return R29.judge(parts, figures)
