"""The demo: a few scenes, each a short piece of work with a result that a newcomer can look at.

A scene is a title and a function. It receives the settings, the folder for its files and a function that
shows progress, and returns its figures as plain data.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from roamcast.lab.summary import summarise, write_json
from roamcast.mobility import PROTOCOLS, find_protocol
from roamcast.protocol.effects import AttachTo, LeaveFor, PublishThis, SubscribeTo
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.records import Row
from roamcast.records.parquet import LogWriter
from roamcast.simulator.links import Delay
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.run import run_checked
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.topology import parse_topology

MARK = ".roamcast-demo"
"""Marker file of a folder that a demo made; the next demo may replace its content."""

PICTURES = ("departure_arrival", "roaming_brokers", "audit")

Progress = Callable[[float], None]
"""Called with the share of a scene's work that is done, 0 to 1."""
Watch = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Given a scene's title, shows its progress: the amount done and the total."""


@dataclass(frozen=True)
class DemoSettings:
    """Size of the demo; times in seconds."""

    topology: str = "grid:4"
    clients: int = 80
    mobile: float = 0.25
    connect_s: float = 15.0
    disconnect_s: float = 5.0
    publish_every_s: float = 4.0
    selectivity: float = 0.125
    duration_s: float = 120.0
    seed: int = 7
    brokers: bool = True
    """Whether to include real broker processes."""

    def scenario(self, protocol: str) -> Scenario:
        return Scenario(
            topology=self.topology,
            clients=self.clients,
            mobile=self.mobile,
            connect_s=self.connect_s,
            disconnect_s=self.disconnect_s,
            publish_every_s=self.publish_every_s,
            selectivity=self.selectivity,
            duration_s=self.duration_s,
            network=NetworkSettings(protocol=protocol, records="full", seed=self.seed),
        )


@dataclass(frozen=True)
class Scene:
    name: str
    """Key of its figures in the summary."""
    title: str
    play: Callable[[DemoSettings, Path, Progress], dict[str, Any]]


def demo_protocols() -> list[str]:
    """Every mobility protocol but the rules as published, which are kept for comparison."""
    # No support first, so that a reader meets the problem before the remedies.
    return sorted((name for name in PROTOCOLS if ":" not in name), key=lambda name: (name != "none", name))


# --- real brokers and a real client that roams between them ---


def play_brokers(settings: DemoSettings, folder: Path, progress: Progress) -> dict[str, Any]:
    from roamcast.lab.demo_brokers import RUN, draw, travel, violations_of
    from roamcast.lab.figures import save
    from roamcast.lab.report import drawn

    with tempfile.TemporaryDirectory(prefix="roamcast-demo-") as data:
        trip = asyncio.run(travel(Path(data), folder / "log" / RUN, progress))
    figures = trip.figures()
    pictures = save(drawn(partial(draw, trip=trip)), folder / "roaming_brokers")
    progress(1.0)
    return {
        "multi_hop_handoff": {**figures, "violations": violations_of(figures)},
        "pictures": [picture.name for picture in pictures],
    }


# --- a network with roaming clients, once for each mobility protocol ---


def play_protocols(settings: DemoSettings, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run the same clients with the same moves and publications under each protocol."""
    protocols = demo_protocols()
    result = {}
    for index, protocol in enumerate(protocols):
        scenario = settings.scenario(protocol)

        def on_time(now_s: float, index: int = index) -> None:
            progress((index + min(now_s / settings.duration_s, 1.0)) / len(protocols))

        started = time.perf_counter()
        with LogWriter(folder / "log" / protocol, f"{protocol}-{settings.seed}") as log:
            run = scenario.run(log.write, on_time)
        summary = summarise(scenario, run, time.perf_counter() - started, log.rows)
        result[protocol] = {"summary": find_protocol(protocol).summary, **summary}
    return result


# --- one client's trip, without and with mobility support ---

TRIP = {"none": "without mobility support (none)", "sub_unsub": "with mobility support (sub_unsub)"}
TRIP_TITLE = "Ten seconds away: departure/arrival trace of a roaming client"
TRIP_SETTING = (
    "Three brokers in a line, a publisher at the middle one, 2 notifications per second. "
    "The client leaves one end and attaches at the other."
)
TRIP_END_S, LEAVE_S, ATTACH_S, PUBLISH_EVERY_S = 30.0, 10.0, 20.0, 0.5
# A slow wireless link, as in the paper: what was stored takes its time to come down.
TRIP_ACCESS_DELAY, TRIP_ACCESS_BITS_PER_S, TRIP_BODY_BYTES = Delay(0.25, 0.25), 40_000.0, 200
SETTLED_S = 5.0
"""The trip begins this long after its first attach, when every subscription has settled."""


def play_trip(settings: DemoSettings, folder: Path, progress: Progress) -> dict[str, Any]:
    from roamcast.lab.figures import draw_departure_arrival, save, trace_of

    traces, result = [], {}
    for index, (protocol, label) in enumerate(TRIP.items()):
        rows: list[Row] = []
        network = NetworkSettings(
            protocol=protocol,
            access_delay=TRIP_ACCESS_DELAY,
            access_bits_per_s=TRIP_ACCESS_BITS_PER_S,
            seed=settings.seed,
        )
        topology = parse_topology("line:3", random.Random(settings.seed))
        run = run_checked(topology, network, trip_actions(*topology.brokers), rows.extend)
        trace = trace_of(rows, "subscriber", label, SETTLED_S)
        traces.append(trace)
        result[protocol] = {
            "published": run.result.published,
            "delivered": run.result.delivered,
            "lost": run.result.lost,
            "duplicates": run.result.duplicates,
            "out_of_order": run.result.out_of_order,
            "away_s": trace.attached_s - trace.left_s,
            "violations": [str(violation) for violation in run.result.violations],
        }
        progress((index + 1) / (len(TRIP) + 1))
    pictures = save(draw_departure_arrival(traces, TRIP_TITLE, TRIP_SETTING), folder / "departure_arrival")
    progress(1.0)
    return {**result, "pictures": [picture.name for picture in pictures]}


def trip_actions(first: str, middle: str, last: str) -> list[Action]:
    """Everything that the publisher and the roaming subscriber do, in order of time."""
    body = bytes(TRIP_BODY_BYTES)
    attributes = encode_attributes({"kind": "reading"})
    publishes: list[Action] = [
        (SETTLED_S + number * PUBLISH_EVERY_S, "publisher", PublishThis(attributes, (body,)))
        for number in range(round(TRIP_END_S / PUBLISH_EVERY_S))
    ]
    moves: list[Action] = [
        (0.0, "publisher", AttachTo(middle, 0)),
        (0.0, "subscriber", AttachTo(first, 0)),
        (0.0, "subscriber", SubscribeTo("TRUE")),
        (SETTLED_S + LEAVE_S, "subscriber", LeaveFor()),
        (SETTLED_S + ATTACH_S, "subscriber", AttachTo(last, 0)),
    ]
    return sorted([*moves, *publishes], key=lambda action: action[0])


# --- the whole demo ---

SCENES = (
    Scene("brokers", "A car roams between real brokers, and one of them is killed", play_brokers),
    Scene("protocols", "Roaming under each mobility protocol", play_protocols),
    Scene("departure_arrival", "One trip, without and with support", play_trip),
)


def scenes_of(settings: DemoSettings) -> list[Scene]:
    return [scene for scene in SCENES if settings.brokers or scene.play is not play_brokers]


def is_free(folder: Path) -> bool:
    """Return whether a demo may write there: the folder is missing, empty, or made by an earlier demo."""
    return not folder.is_dir() or not any(folder.iterdir()) or (folder / MARK).is_file()


def clear(folder: Path) -> None:
    """Mark the folder as a demo's, and remove files of an earlier demo, but no files of the user."""
    (folder / MARK).write_text("Made by `roamcast demo`, which may replace the files that it wrote here.\n")
    pictures = [file for name in PICTURES for file in folder.glob(f"{name}.*")]
    for file in (folder / "summary.json", folder / "report.html", *pictures):
        file.unlink(missing_ok=True)
    for name in ("log", "audit"):
        if (folder / name).exists():
            shutil.rmtree(folder / name)


@contextmanager
def unwatched(title: str) -> Iterator[Callable[[int, int], None]]:
    """Ignore progress."""
    yield lambda done, total: None


def play(folder: Path, settings: DemoSettings, watch: Watch = unwatched) -> dict[str, Any]:
    """Play all scenes; afterwards their files and `summary.json` are in the folder."""
    # Invalid settings are reported before an earlier demo is removed.
    settings.scenario("none").check()
    clear(folder)
    started = time.perf_counter()
    result: dict[str, Any] = {"settings": asdict(settings)}
    for scene in scenes_of(settings):
        with watch(scene.title) as report:
            result[scene.name] = scene.play(settings, folder, _in_percent(report))
    result["wall_s"] = round(time.perf_counter() - started, 3)
    write_json(folder / "summary.json", result)
    return {**result, "folder": str(folder)}


def _in_percent(report: Callable[[int, int], None]) -> Progress:
    return lambda share: report(round(100 * share), 100)


def violations_in(result: dict[str, Any]) -> list[str]:
    """Every violation of every scene, with the protocol it belongs to."""
    return [
        f"{protocol}: {violation}"
        for scene in SCENES
        for protocol, figures in result.get(scene.name, {}).items()
        if isinstance(figures, dict)
        for violation in figures.get("violations", ())
    ]
