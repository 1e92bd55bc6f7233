"""Cars look for parking spaces on a street map: location-dependent subscriptions from start to end.

A town with a river and three bridges, divided among ten brokers. Cars drive from crossing to crossing,
change broker when they cross a district's border, and all have the same subscription: parking spaces
that are at most one crossing away and not too expensive. Car parks publish whenever a space gets free.
Nobody sends a car's position to an application: the car says where it is, brokers do the rest.

    python examples/parking.py --out parking.png

The picture shows the way of one car and what it received along it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from roamcast.lab.figures import STYLE
from roamcast.protocol.effects import AttachTo, LeaveFor, MoveTo, PublishThis, SubscribeTo
from roamcast.protocol.notification import encode_attributes
from roamcast.routing.location.movement_graph import MovementGraph
from roamcast.routing.location.settings import LocationSettings
from roamcast.simulator.links import Delay
from roamcast.simulator.location_checks import LocationChecker
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.run import Run, run_checked
from roamcast.simulator.topology import from_edges

WANTED = "service = 'parking' AND location WITHIN 1 OF myloc AND cost <= 3"
COLUMNS, ROWS = 10, 7
RIVER_BELOW_ROW = 4
BRIDGES = (1, 5, 8)
BROKERS = tuple(f"{bank}{district}" for bank in "NS" for district in range(1, 6))
"""Five districts on each bank of the river, west to east."""
LINKS = [(f"{bank}{one}", f"{bank}{one + 1}") for bank in "NS" for one in range(1, 5)] + [("N3", "S3")]
MINUTES = 12
START_S = 20.0
HANDOFF_S = 1.5
"""How long a car is without any broker at a border."""

Point = tuple[float, float]


@dataclass
class Town:
    """Crossings by name (column and row, as on a chess board), where they are, and the streets."""

    places: dict[str, Point]
    streets: list[tuple[str, str]]

    @property
    def graph(self) -> MovementGraph:
        return MovementGraph(self.streets, self.places)

    def broker_of(self, crossing: str) -> str:
        x, y = self.places[crossing]
        bank = "N" if y > RIVER_BELOW_ROW - 0.5 else "S"
        return f"{bank}{min(max(int((x + 0.5) / 2), 0), 4) + 1}"


def build_town(rng: random.Random) -> Town:
    """Streets in a rough rectangle; some are missing, and only bridges lead over the river."""
    at = {
        (column, row): f"{'ABCDEFGHIJ'[column]}{row + 1}" for column in range(COLUMNS) for row in range(ROWS)
    }
    places = {
        name: (column + rng.uniform(-0.22, 0.22), row + rng.uniform(-0.22, 0.22))
        for (column, row), name in at.items()
    }
    streets = []
    for (column, row), name in at.items():
        if column + 1 < COLUMNS and rng.random() < 0.88:
            streets.append((name, at[column + 1, row]))
        if row + 1 < ROWS:
            over_the_river = row + 1 == RIVER_BELOW_ROW
            if column in BRIDGES if over_the_river else rng.random() < 0.88:
                streets.append((name, at[column, row + 1]))
    return Town(places, streets)


@dataclass
class Drive:
    """A car's way: when it comes to which crossing."""

    car: str
    stops: list[tuple[float, str]]

    def where(self, time_s: float) -> str:
        return [crossing for at, crossing in self.stops if at <= time_s][-1]


def draw_drive(car: str, town: Town, rng: random.Random) -> Drive:
    """From crossing to crossing, never back if there is another way."""
    graph = town.graph
    here = before = rng.choice([one for one in town.places if len(graph.neighbours(one)) > 2])
    stops = [(0.0, here)]
    now_s = START_S
    while now_s < START_S + 60 * MINUTES:
        onward = [one for one in graph.neighbours(here) if one != before] or list(graph.neighbours(here))
        here, before = str(rng.choice(onward)), here
        stops.append((now_s, here))
        now_s += rng.uniform(12, 30)
    return Drive(car, stops)


def drive_actions(drive: Drive, town: Town) -> Iterator[Action]:
    """Attach and subscribe; then say at each crossing where one is, and change broker at a border."""
    broker = town.broker_of(drive.stops[0][1])
    yield 0.0, drive.car, AttachTo(broker, 0)
    yield 1.0, drive.car, SubscribeTo(WANTED)
    for at, crossing in drive.stops:
        if town.broker_of(crossing) != broker:
            broker = town.broker_of(crossing)
            yield at - HANDOFF_S, drive.car, LeaveFor("")
            yield at, drive.car, AttachTo(broker, 0)
        yield max(at, 2.0), drive.car, MoveTo({"location": crossing})


def car_park_actions(town: Town, rng: random.Random) -> Iterator[Action]:
    for number, crossing in enumerate(rng.sample(list(town.places), 40)):
        name = f"car park {number}"
        yield 0.0, name, AttachTo(town.broker_of(crossing), 0)
        now_s = START_S + rng.expovariate(1 / 10)
        while now_s < START_S + 60 * MINUTES:
            space: dict[str, str | int] = {
                "service": "parking", "location": crossing, "cost": rng.randint(1, 5),
            }  # fmt: skip
            yield now_s, name, PublishThis(encode_attributes(space))
            now_s += rng.expovariate(1 / 10)


def simulate(town: Town, actions: list[Action], routing: str) -> Run:
    settings = NetworkSettings(
        protocol="multi_hop_handoff",
        routing=routing,
        link_delay=Delay(0.04, 0.04),
        location=LocationSettings({"location": town.graph}, stay_first_s=10.0),
    )
    return run_checked(from_edges("town", BROKERS, LINKS), settings, actions)


# --- the picture ---

STREET, RIVER, WAY, GOT, OTHER = "#c3ccd4", "#bcd9ef", "#22303c", "#1f6fb2", "#d9b38c"


def draw(town: Town, drive: Drive, checker: LocationChecker) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(14, 6.8), dpi=130, facecolor="white")
        FigureCanvasAgg(figure)
        draw_map(figure.add_axes((0.03, 0.12, 0.55, 0.72)), town, drive, checker)
        draw_times(figure.add_axes((0.64, 0.17, 0.345, 0.66)), town, drive, checker)
        figure.text(0.03, 0.95, f"What {drive.car} received along its way", fontsize=15, fontweight="bold")
        figure.text(0.03, 0.91, f"subscribed once, at the start, to  {WANTED}", fontsize=10)
    return figure


def draw_map(axes: Axes, town: Town, drive: Drive, checker: LocationChecker) -> None:
    axes.axhspan(RIVER_BELOW_ROW - 0.68, RIVER_BELOW_ROW - 0.32, color=RIVER, zorder=0)
    for street in town.streets:
        ends = [town.places[crossing] for crossing in street]
        axes.plot(*zip(*ends, strict=True), color=STREET, linewidth=3, zorder=1)
    way = [town.places[crossing] for _, crossing in drive.stops]
    for start, end in pairwise(way):
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": WAY, "lw": 1.6}, zorder=3)
    axes.scatter(*way[0], s=90, color=WAY, zorder=4, marker="s", label=f"{drive.car}: start, and its way")
    draw_car_parks(axes, town, drive, checker)
    axes.set_xticks(range(COLUMNS), "ABCDEFGHIJ"[:COLUMNS])
    axes.set_yticks(range(ROWS), [str(row + 1) for row in range(ROWS)])
    axes.set_aspect("equal")
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.07), "ncols": 3}
    axes.legend(frameon=False, fontsize=9.5, columnspacing=1.2, **below)
    axes.set_title("the town: streets, a river, three bridges", loc="left", fontsize=11)


def draw_car_parks(axes: Axes, town: Town, drive: Drive, checker: LocationChecker) -> None:
    got = received(drive.car, checker)
    spaces: dict[str, list[int]] = {}
    for published in checker.published:
        counts = spaces.setdefault(str(published.attributes["location"]), [0, 0])
        counts[published.identity in got] += 1
    ring: dict[str, Any] = {"facecolors": "none", "edgecolors": GOT, "linewidths": 2.2}
    for crossing, (others, mine) in spaces.items():
        x, y = town.places[crossing]
        axes.scatter(x, y, s=16 * (others + mine) ** 0.5, color=OTHER, zorder=2, alpha=0.75)
        if mine:
            axes.scatter(x, y, s=70 * mine**0.5, zorder=5, **ring)
            axes.annotate(str(mine), (x, y), (7, 7), textcoords="offset points", color=GOT, fontweight="bold")
    axes.scatter([], [], s=80, color=OTHER, label="car park (larger: more spaces got free)")
    axes.scatter([], [], s=80, label="received, and how many", **ring)


def draw_times(axes: Axes, town: Town, drive: Drive, checker: LocationChecker) -> None:
    """Each notification: when it was published, and how far away from the car that was."""
    graph, got = town.graph, received(drive.car, checker)
    jitter = random.Random(1)
    for state, colour, label in (
        (False, OTHER, "too far or too expensive"),
        (True, GOT, "received"),
    ):
        shown = [one for one in checker.published if (one.identity in got) is state]
        steps = [steps_between(graph, drive.where(one.at), str(one.attributes["location"])) for one in shown]
        axes.scatter(
            [(one.at - START_S) / 60 for one in shown],
            [step + jitter.uniform(-0.28, 0.28) for step in steps],
            s=16 if state else 4, color=colour, label=f"{label} ({len(shown):,})", zorder=3 if state else 2,
        )  # fmt: skip
    borders = [
        (at - START_S) / 60
        for (_, before), (at, crossing) in pairwise(drive.stops)
        if town.broker_of(before) != town.broker_of(crossing)
    ]
    for index, minute in enumerate(borders):
        label = "changes broker" if index == 0 else "_"
        axes.axvline(minute, color=WAY, linewidth=0.9, linestyle=(0, (4, 3)), label=label, zorder=1)
    axes.set_xlabel("published, minutes after the start")
    axes.set_ylabel("crossings between the car and the space")
    axes.legend(
        frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.47, -0.12), ncols=3,
        columnspacing=1.0, handletextpad=0.4,
    )  # fmt: skip
    axes.grid(color="#e3e8ec", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title("every space that got free in the town", loc="left", fontsize=11)


def received(car: str, checker: LocationChecker) -> set[tuple[str, int, int]]:
    return set(checker.deliveries[car])


def steps_between(graph: MovementGraph, start: str, end: str) -> int:
    return next((steps for steps in range(len(graph)) if end in graph.ball(start, steps)), len(graph))


def main() -> None:
    parser = argparse.ArgumentParser(description="Cars and parking spaces on a street map.")
    parser.add_argument("--out", type=Path, default=Path("parking.png"), help="where the picture goes")
    parser.add_argument("--seed", type=int, default=11, help="what the town and the drives are drawn from")
    parser.add_argument("--cars", type=int, default=8, help="how many cars there are")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    town = build_town(rng)
    drives = [draw_drive(f"car {number + 1}", town, rng) for number in range(max(options.cars, 1))]
    actions = [action for drive in drives for action in drive_actions(drive, town)]
    actions += car_park_actions(town, rng)
    actions.sort(key=lambda action: action[0])
    run, flooding = simulate(town, actions, "covering"), simulate(town, actions, "flooding")
    assert run.location is not None
    wrong = list(run.location.judge(0.3))
    figure = draw(town, drives[0], run.location)
    figure.savefig(options.out)
    print(f"{run.result.published:,} spaces got free; {len(drives)} cars moved {run.result.handoffs} times")
    print(f"to another broker and received {run.result.delivered:,}, {len(wrong)} missing or not wanted")
    print(f"hops between brokers: {run.traffic.total_hops:,}; with flooding {flooding.traffic.total_hops:,}")
    print(f"the way of {drives[0].car} is in {options.out}")


if __name__ == "__main__":
    main()
