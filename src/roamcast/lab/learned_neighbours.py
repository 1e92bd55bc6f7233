"""Benefit of a learned neighbour graph, compared with the graph that brokers learn online. Claim N1 is ours.

A trace is cut in two. The graph is learned from the first part, as `roamcast pipeline neighbours` does it. In
the second part, `proactive` keeps copies of contexts at the brokers that the graph names. The same part is
replayed with the graph of Gaddah 3.3, which begins empty and holds the last used destinations. Both graphs
are bounded: by the number of neighbours, and the learned one also by the total probability of its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.axes import Axes

from roamcast.lab.charts import Chart, Panel, Pen
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET
from roamcast.lab.measure import GivenTrace, visits_before
from roamcast.lab.rows import Row, distinct, grouped, where
from roamcast.lab.summary import neighbour_figures
from roamcast.lab.sweep import Job, Sweep
from roamcast.mobility import Settings
from roamcast.models.intervals import share_interval
from roamcast.models.next_broker import bounded_graph, count_moves, graph_document, learned_document
from roamcast.simulator.movement import from_file
from roamcast.simulator.network import NetworkSettings
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.topology import Topology, parse_topology
from roamcast.simulator.trace_generator import TraceSettings, generate_trace, write_trace

N1 = claim("N1")


ONLINE, DIRECTED, LEARNED = "online", "online, directed", "learned"
WAYS, OVERLAY = "learned, third order", "overlay"
"""Not part of the claim: predictions by each client's last brokers, and the neighbours in the overlay."""
GRAPHS = {
    ONLINE: Pen("online (section 3.3)", LOST, "^"),
    DIRECTED: Pen("online, directed", QUIET, "x"),
    LEARNED: Pen("learned before", ARRIVED, "o"),
    WAYS: Pen("learned before, third order", INK, "s"),
    OVERLAY: Pen("neighbours in the overlay", QUIET, "d"),
}
DEGREES = (1, 2, 3, 4)
DEGREES_OF_GIVEN = (1, 2, 4, 8)
MASSES = (0.4, 0.5, 0.6, 0.75, 0.9)
"""Probability bounds of the learned graph, besides its degrees: a variant, see `judge`."""
PART_S = 21_600.0
SAME = 0.005
"""Hit rates count as equal if they differ by less."""
LEARN_SHARE = 0.7
"""Share of a given trace from which the graph is learned."""
CLIENTS_MAX = 100_000
PUBLISHES = 2_000
"""Publications of all clients in the replay of a given trace: enough to show that nothing is lost."""


def given_trace(file: Path, overlay: Path) -> GivenTrace:
    visits = from_file(file, parse_topology(f"file:{overlay}", Random(0)))
    end_s = max(one.leave_s or one.attach_s for of_client in visits.values() for one in of_client)
    cut_s = LEARN_SHARE * end_s
    return GivenTrace(
        str(file.absolute()), str(overlay.absolute()), cut_s, end_s - cut_s, CLIENTS_MAX, 0.005,
        len(visits) * (end_s - cut_s) / PUBLISHES,
    )  # fmt: skip


@dataclass(frozen=True)
class GraphJob(Job):
    graph: str
    degree: int
    seed: int
    quick: bool
    mass: float = 1.0
    given: GivenTrace | None = None

    @property
    def cost(self) -> float:
        return float(self.degree)

    def trace(self) -> TraceSettings:
        return TraceSettings(
            side=5, clients=20 if self.quick else 60, duration_s=2 * self.part_s, stay_s=1800.0,
            seed=self.seed,
        )  # fmt: skip

    @property
    def part_s(self) -> float:
        return PART_S / 2 if self.quick else PART_S

    @property
    def cut_s(self) -> float:
        """Return when learning ends and the replay begins."""
        return self.given.from_s if self.given is not None else self.part_s

    def made_up(self, file: Path) -> Scenario:
        """Return a scenario with a generated trace, which is written to the file."""
        write_trace(file, generate_trace(self.trace()))
        return Scenario(
            topology=f"grid:{self.trace().side}",
            clients=self.trace().clients,
            movement=f"trace:{file}",
            trace_from_s=self.part_s,
            duration_s=self.part_s,
            publish_every_s=600.0,
        )


def replay(job: GraphJob) -> Row:
    """Replay the later part of a trace under `proactive` with one of the graphs."""
    with TemporaryDirectory(prefix="roamcast-trace-") as folder:
        scenario = job.given.scenario() if job.given else job.made_up(Path(folder) / "trace.csv")
        trace, topology = Path(scenario.movement.removeprefix("trace:")), scenario.make_topology()
        mobility = settings(job, trace, topology)
        network = NetworkSettings(protocol="proactive", mobility=mobility, seed=job.seed)
        run = replace(scenario, network=network).run()
    found = neighbour_figures(run.network)
    hits = found["hit"] + found["hit_activating"]
    moves = hits + found["miss"]
    return {
        "graph": job.graph, "degree": job.degree, "mass": job.mass, "seed": job.seed, "moves": moves,
        "hit_rate": hits / moves, "hit_rate_bounds": list(share_interval(hits, moves)),
        "copies_per_move": found["copies"] / moves, "activated_per_move": found["activated"] / moves,
        "overhead_hops_per_handoff": run.traffic.overhead_hops / max(run.result.handoffs, 1),
        "lost": run.result.lost, "violations": run.result.violations_total,
    }  # fmt: skip


def settings(job: GraphJob, trace: Path, topology: Topology) -> Settings:
    if job.graph in (ONLINE, DIRECTED):
        return Settings(neighbours_max=job.degree, neighbours_directed=job.graph == DIRECTED)
    return Settings(
        neighbour_graph=json.dumps(model(job, trace, topology)),
        neighbours_max=job.degree,
        neighbours_mass=job.mass,
        neighbours_directed=True,
        neighbours_online=False,
    )


def model(job: GraphJob, trace: Path, topology: Topology) -> dict[str, Any]:
    """Return the model that brokers have at the start."""
    if job.graph == OVERLAY:
        rows = {one: topology.neighbours[one] for one in topology.brokers}
        return graph_document(
            {one: {to: {"probability": 1 / len(row)} for to in row} for one, row in rows.items()}
        )
    earlier = visits_before(trace, job.cut_s)
    if job.graph == WAYS:
        return learned_document(earlier, job.cut_s)
    return graph_document(bounded_graph(count_moves(earlier), job.cut_s, job.degree, job.mass))


def jobs(quick: bool, given: GivenTrace | None = None) -> list[GraphJob]:
    # Of a given trace there is but one; chance decides only who publishes what.
    seeds = range(1, 2 if quick or given else 4)
    degrees = DEGREES_OF_GIVEN if given else DEGREES
    bounds = [(graph, degree, 1.0) for graph in GRAPHS for degree in degrees]
    bounds += [(graph, degrees[-1], mass) for graph in (LEARNED, WAYS) for mass in MASSES]
    return [
        GraphJob(graph, degree, seed, quick, mass, given) for graph, degree, mass in bounds for seed in seeds
    ]


FIGURES = ("hit_rate", "copies_per_move", "activated_per_move", "overhead_hops_per_handoff")


def experiment_on(sweep: Sweep, trace: Path, overlay: Path) -> Findings:
    return experiment(False, sweep, given_trace(trace, overlay))


@checks("learned-neighbours", "A learned neighbour graph in proactive", N1, on_trace=experiment_on)
def experiment(quick: bool, sweep: Sweep, given: GivenTrace | None = None) -> Findings:
    rows = sweep.run(replay, jobs(quick, given))
    means = mean_rows(rows)
    return Findings([judge(means)], {"runs": rows, "means": means}, {"learned_neighbours": chart(means)})


def mean_rows(rows: Sequence[Row]) -> list[Row]:
    """Return means over the seeds, for each graph in the order of its cost."""
    means: list[Row] = [
        {
            "graph": graph, "degree": degree, "mass": mass, "runs": len(runs),
            **{name: fmean(run[name] for run in runs) for name in FIGURES},
        }
        for (graph, degree, mass), runs in grouped(rows, "graph", "degree", "mass").items()
    ]  # fmt: skip
    return sorted(means, key=lambda row: (row["graph"], row["copies_per_move"]))


def judge(means: Sequence[Row]) -> Outcome:
    """Judge N1 by degrees alone, as the claim was first stated. Bounds by probability were added when it did
    not hold: they are shown as a variant and decide nothing.
    """
    learned = where(means, graph=LEARNED)
    online = [row for row in means if row["graph"] in (ONLINE, DIRECTED)]
    if not learned or not online:
        return N1.open("no runs")
    parts: dict[str, bool] = {}
    figures: dict[str, object] = {}
    turned = []
    for row in online:
        name = f"{row['graph']}, at most {row['degree']}"
        best = as_good(row, where(learned, mass=1.0))
        other = as_good(row, learned)
        parts[f"{name}: no learned graph is as good with fewer copies"] = best is not None
        shown = best or other
        figures[name] = f"{_point(row)}; {'none is as good' if shown is None else _point(shown)}"
        if best is None and other is not None:
            turned.append(name)
    note = f"graphs bounded by probability, tried later, are as good: {'; '.join(turned)}" if turned else ""
    return N1.judge(parts, figures, notes=[note])


def as_good(row: Row, learned: Sequence[Row]) -> Row | None:
    """Return the learned graph with the best hit rate among those with fewer copies, if its hit rate is not
    lower.
    """
    cheaper = [one for one in learned if one["copies_per_move"] < row["copies_per_move"]]
    best = max(cheaper, key=lambda one: float(one["hit_rate"]), default=None)
    return best if best is not None and best["hit_rate"] >= row["hit_rate"] - SAME else None


def _point(row: Row) -> str:
    bound = f" ({row['degree']}, mass {row['mass']:g})" if row["graph"] == LEARNED else ""
    figures = f"hit rate {row['hit_rate']:.3f}, copies per move {row['copies_per_move']:.2f}"
    return f"{row['graph']}{bound} {figures}"


def chart(means: Sequence[Row]) -> Chart:
    def panel(title: str, x: str, label: str, rows: Sequence[Row]) -> Panel:
        def draw(axes: Axes) -> None:
            for graph, pen in GRAPHS.items():
                found = where(rows, graph=graph)
                axes.plot(
                    [row[x] for row in found], [100 * row["hit_rate"] for row in found],
                    color=pen.colour, marker=pen.marker, label=pen.label,
                )  # fmt: skip

        there = "context is present when the client arrives, % of moves"
        ticks = {value: str(value) for value in sorted(distinct(rows, x))} if x == "degree" else {}
        said = {"xlabel": label, "ylabel": there, "ylim": (0, 102)}
        return Panel(draw, said, title, ticks, {"loc": "best", "fontsize": 9})

    by_degree = "Hit rate by degree", "degree", "maximum of neighbours of a broker"
    by_cost = "Hit rate by cost", "copies_per_move", "copies of contexts made per move"
    panels = [panel(*by_degree, where(means, mass=1)), panel(*by_cost, means)]
    return Chart(
        "Benefit of a learned neighbour graph", "proactive, on moves that were not learned from", panels
    )
