"""What a learned neighbour graph is good for, beside the one that brokers learn online. Claim N1 is ours.

A trace is cut in two. From the first part the graph is learned, as `roamcast pipeline neighbours` does it;
in the second, which it has not seen, `proactive` keeps copies of contexts at the brokers that the graph
names. The same part is replayed with the graph of Gaddah 3.3, which begins empty and has the last used
destinations. Both are bounded: by the number of brokers that they name, and the learned one also by the
probability that these must make up together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from matplotlib.figure import Figure

from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome, failed, register
from roamcast.lab.figures import ARRIVED, LOST, QUIET
from roamcast.lab.summary import neighbour_figures
from roamcast.lab.sweep import Row, Sweep
from roamcast.mobility import Settings
from roamcast.models.next_broker import bounded_graph, count_moves, graph_document
from roamcast.simulator.movement import from_file
from roamcast.simulator.network import NetworkSettings
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.trace_generator import TraceSettings, generate_trace, write_trace

N1 = Claim(
    "N1", "order",
    "(ours) on moves that it has not seen, a learned neighbour graph of bounded degree has the same hit rate "
    "as the online graph, or a better one, with fewer copies: whatever the bound of the online one",
)  # fmt: skip

ONLINE, DIRECTED, LEARNED = "online", "online, directed", "learned"
GRAPHS = {
    ONLINE: ("online (section 3.3)", LOST, "^"),
    DIRECTED: ("online, directed", QUIET, "x"),
    LEARNED: ("learned before", ARRIVED, "o"),
}
DEGREES = (1, 2, 3, 4)
MASSES = (0.4, 0.5, 0.6, 0.75, 0.9)
"""Of the learned graph, besides its degrees."""
PART_S = 21_600.0
SAME = 0.005
"""Hit rates that differ by less are the same."""


@dataclass(frozen=True)
class GraphJob:
    graph: str
    degree: int
    seed: int
    quick: bool
    mass: float = 1.0

    @property
    def name(self) -> str:
        return f"learned-neighbours {self.graph} {self.degree} {self.mass} seed={self.seed}"

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


def replay(job: GraphJob) -> Row:
    """The later part of a trace under `proactive` with one of the graphs."""
    with TemporaryDirectory(prefix="roamcast-trace-") as folder:
        trace = Path(folder) / "trace.csv"
        write_trace(trace, generate_trace(job.trace()))
        scenario = Scenario(
            topology=f"grid:{job.trace().side}",
            clients=job.trace().clients,
            movement=f"trace:{trace}",
            trace_from_s=job.part_s,
            duration_s=job.part_s,
            publish_every_s=600.0,
            network=NetworkSettings(protocol="proactive", mobility=settings(job, trace), seed=job.seed),
        )
        run = scenario.run()
    found = neighbour_figures(run.network)
    moves = found["hit"] + found["hit_activating"] + found["miss"]
    return {
        "graph": job.graph, "degree": job.degree, "mass": job.mass, "seed": job.seed, "moves": moves,
        "hit_rate": (found["hit"] + found["hit_activating"]) / moves,
        "copies_per_move": found["copies"] / moves, "activated_per_move": found["activated"] / moves,
        "overhead_hops_per_handoff": run.traffic.overhead_hops / max(run.result.handoffs, 1),
        "lost": run.result.lost, "violations": run.result.violations_total,
    }  # fmt: skip


def settings(job: GraphJob, trace: Path) -> Settings:
    if job.graph != LEARNED:
        return Settings(neighbours_max=job.degree, neighbours_directed=job.graph == DIRECTED)
    earlier = (
        [(visit.broker, visit.attach_s) for visit in visits if visit.attach_s < job.part_s]
        for visits in from_file(trace).values()
    )
    graph = bounded_graph(count_moves(earlier), job.part_s, job.degree, job.mass)
    return Settings(
        neighbour_graph=json.dumps(graph_document(graph)),
        neighbours_max=job.degree,
        neighbours_directed=True,
        neighbours_online=False,
    )


def jobs(quick: bool) -> list[GraphJob]:
    seeds = range(1, 2 if quick else 4)
    bounds = [(graph, degree, 1.0) for graph in GRAPHS for degree in DEGREES]
    bounds += [(LEARNED, DEGREES[-1], mass) for mass in MASSES]
    return [GraphJob(graph, degree, seed, quick, mass) for graph, degree, mass in bounds for seed in seeds]


FIGURES = ("hit_rate", "copies_per_move", "activated_per_move", "overhead_hops_per_handoff")


def experiment(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(replay, jobs(quick))
    means = mean_rows(rows)
    return Findings(
        [judge(means)],
        {"runs": rows, "means": means},
        {"learned_neighbours": lambda figure: draw(figure, means)},
    )


def mean_rows(rows: Sequence[Row]) -> list[Row]:
    """Over the seeds; each graph's by what they cost."""
    groups: dict[tuple[str, int, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["graph"], row["degree"], row["mass"]), []).append(row)
    means: list[Row] = [
        {
            "graph": graph, "degree": degree, "mass": mass, "runs": len(runs),
            **{name: fmean(run[name] for run in runs) for name in FIGURES},
        }
        for (graph, degree, mass), runs in groups.items()
    ]  # fmt: skip
    return sorted(means, key=lambda row: (row["graph"], row["copies_per_move"]))


def judge(means: Sequence[Row]) -> Outcome:
    paper = "(ours) same or better hit rate, fewer copies"
    learned = [row for row in means if row["graph"] == LEARNED]
    online = [row for row in means if row["graph"] != LEARNED]
    if not learned or not online:
        return N1.outcome(None, paper=paper, figures={}, note="no runs")
    parts: dict[str, bool] = {}
    figures: dict[str, object] = {}
    for row in online:
        cheaper = [one for one in learned if one["copies_per_move"] < row["copies_per_move"]]
        best = max(cheaper, key=lambda one: one["hit_rate"], default=None)
        name = f"{row['graph']}, at most {row['degree']}"
        parts[f"{name}: no learned graph is as good with fewer copies"] = (
            best is not None and best["hit_rate"] >= row["hit_rate"] - SAME
        )
        figures[name] = f"{_point(row)}; {_point(best) if best is not None else 'none is cheaper'}"
    return N1.outcome(all(parts.values()), paper=paper, figures=figures, note=failed(parts))


def _point(row: Row) -> str:
    bound = f" ({row['degree']}, mass {row['mass']:g})" if row["graph"] == LEARNED else ""
    figures = f"hit rate {row['hit_rate']:.3f}, copies per move {row['copies_per_move']:.2f}"
    return f"{row['graph']}{bound} {figures}"


def draw(figure: Figure, means: Sequence[Row]) -> None:
    figure.set_size_inches(10, 4.6)
    hits, copies = figure.subplots(1, 2)
    for graph, (label, colour, marker) in GRAPHS.items():
        rows = [row for row in means if row["graph"] == graph]
        by_degree = [row for row in rows if row["mass"] == 1]
        hits.plot(
            [row["degree"] for row in by_degree], [100 * row["hit_rate"] for row in by_degree],
            color=colour, marker=marker, label=label,
        )  # fmt: skip
        copies.plot(
            [row["copies_per_move"] for row in rows], [100 * row["hit_rate"] for row in rows],
            color=colour, marker=marker, label=label,
        )  # fmt: skip
    hits.set_xticks(DEGREES)
    hits.set_xlabel("neighbours of a broker, at most")
    copies.set_xlabel("copies of contexts made per move")
    for axes in (hits, copies):
        axes.set_ylabel("context is there when the client comes, % of moves")
        axes.set_ylim(0, 102)
        axes.grid(color="#e3e8ec", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    hits.set_title("Hit rate by degree", loc="left", fontweight="bold")
    copies.set_title("Hit rate by cost", loc="left", fontweight="bold")
    figure.tight_layout()


register(Experiment("learned-neighbours", "A learned neighbour graph in proactive", (N1,), experiment))
