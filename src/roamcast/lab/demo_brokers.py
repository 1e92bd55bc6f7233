"""The demo's main scene: real broker processes, real MQTT clients, a car that roams, and a `kill -9`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from roamcast.bench.broker_network import BrokerNetwork
from roamcast.bench.processes import HOST, wait_until
from roamcast.client import connect
from roamcast.lab.figures import ARRIVED, AWAY, LOST

EDGES = ((0, 1), (2, 1))
"""Three brokers in a line; the publisher is at the middle one."""
SETTINGS = (
    "journal.sync=process", "link.reconnect_max_s=0.5", "link.heartbeat_s=0.5", "link.timeout_s=3",
    "events.level=full", "events.attributes=true",
)  # fmt: skip
RUN = "brokers"
"""Name of the run in event logs."""
TOPIC = "road/parking"
PUBLISH_EVERY_S = 0.02
STAY_S = 0.7
ROUTE = (2, 0, 2, 0, 2, 0)
KILL_AFTER = 3
"""Moves after which the broker in the middle is killed and started again."""
DRAIN_S = 30.0
PROMISED = ("lost", "duplicates", "out_of_order")
TITLE = "A car roams between broker processes"


@dataclass
class Trip:
    """Record of the trip; times in seconds since it began."""

    published: dict[int, float] = field(default_factory=dict)
    """Publishes that a broker has acknowledged."""
    arrived: list[tuple[int, float]] = field(default_factory=list)
    moves: list[tuple[float, float, int]] = field(default_factory=list)
    """For each move: when the car left, when it was attached, and at which broker."""
    killed_s: float = 0.0
    back_s: float = 0.0
    began_s: float = field(default_factory=time.monotonic)

    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def figures(self) -> dict[str, Any]:
        counts = Counter(number for number, _ in self.arrived)
        order = list(dict.fromkeys(number for number, _ in self.arrived))
        handoff_s = sorted(attached - left for left, attached, _ in self.moves)
        return {
            "published": len(self.published),
            "delivered": len(counts),
            "lost": len([number for number in self.published if number not in counts]),
            "duplicates": sum(count - 1 for count in counts.values()),
            "out_of_order": sum(one > other for one, other in itertools.pairwise(order)),
            "handoffs": len(self.moves),
            "handoff_median_ms": round(1000 * handoff_s[len(handoff_s) // 2], 1),
            "brokers_killed": 1,
        }


async def travel(folder: Path, log: Path, progress: Callable[[float], None]) -> Trip:
    """A car roams between the ends of a line of brokers while a garage publishes with QoS 2.

    Brokers and car write their event logs, each its own.
    """
    network = BrokerNetwork(folder, EDGES, (*SETTINGS, f"network={RUN}", f"events.folder={log.absolute()}"))
    await network.start()
    addresses = [f"b{number}={HOST}:{broker.port}" for number, broker in enumerate(network.brokers)]
    try:
        async with (
            connect(
                addresses[:1], client_id="car", clean=False, session_expiry=600, records=log / "car", run=RUN
            ) as car,
            connect(addresses[1:2], client_id="garage", clean=False, session_expiry=600) as garage,
        ):
            await car.subscribe(TOPIC, qos=2)
            trip = Trip()
            is_over = asyncio.Event()

            async def publish_one(number: int) -> None:
                sent_s = trip.now_s()
                await garage.publish(TOPIC, str(number), qos=2)
                trip.published[number] = sent_s

            async def publish() -> None:
                async with asyncio.TaskGroup() as group:
                    for number in itertools.count(1):
                        group.create_task(publish_one(number))
                        await asyncio.sleep(PUBLISH_EVERY_S)
                        if is_over.is_set():
                            break

            async def receive() -> None:
                async for notification in car:
                    trip.arrived.append((int(notification.payload), trip.now_s()))

            publishing, receiving = asyncio.create_task(publish()), asyncio.create_task(receive())
            for done, place in enumerate(ROUTE, start=1):
                await asyncio.sleep(STAY_S)
                left_s = trip.now_s()
                await car.move_to(addresses[place])
                trip.moves.append((left_s, trip.now_s(), place))
                if done == KILL_AFTER:
                    await _kill(network, trip)
                progress(done / (len(ROUTE) + 1))
            await asyncio.sleep(STAY_S)
            is_over.set()
            await asyncio.wait_for(publishing, DRAIN_S)
            # What is missing then is counted as lost.
            await asyncio.to_thread(
                wait_until, lambda: len({n for n, _ in trip.arrived}) >= len(trip.published), DRAIN_S
            )
            receiving.cancel()
        for broker in network.brokers:
            await asyncio.to_thread(broker.stop)  # It closes its log.
    finally:
        await network.stop()
    return trip


async def _kill(network: BrokerNetwork, trip: Trip) -> None:
    middle = network.brokers[1]
    trip.killed_s = trip.now_s()
    await asyncio.to_thread(middle.kill)
    network.restart(1)
    await asyncio.to_thread(middle.wait_listening)
    trip.back_s = trip.now_s()


def violations_of(figures: dict[str, Any]) -> list[str]:
    """Return broken promises of QoS 2."""
    return [f"{figures[what]} {what.replace('_', ' ')}" for what in PROMISED if figures[what]]


def draw(figure: Figure, trip: Trip) -> None:
    """Draw the delay of each notification against the time at which it was published."""
    figure.set_size_inches(11, 5.2)
    figure.subplots_adjust(left=0.075, right=0.985, top=0.8, bottom=0.13)
    axes = figure.subplots()
    for left_s, attached_s, place in trip.moves:
        axes.axvspan(left_s, max(attached_s, left_s + 0.02), color=AWAY, zorder=0)
        axes.annotate(
            f"to b{place}", (left_s, 1), (0, 4), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", va="bottom", fontsize=9,
        )  # fmt: skip
    axes.axvspan(trip.killed_s, trip.back_s, color=LOST, alpha=0.15, zorder=0)
    axes.annotate(
        "kill -9 b1, and its restart", ((trip.killed_s + trip.back_s) / 2, 0.03),
        xycoords=("data", "axes fraction"), ha="center", fontsize=9, color=LOST,
    )  # fmt: skip
    known = [(trip.published[n], at) for n, at in trip.arrived if n in trip.published]
    delays_ms = [1000 * (at - sent) for sent, at in known]
    axes.plot([sent for sent, _ in known], delays_ms, ".", markersize=4, color=ARRIVED)
    axes.set_yscale("log")
    axes.set_xlabel("published, time in s")
    axes.set_ylabel("until it reached the car, in ms")
    figure.text(0.075, 0.95, TITLE, fontsize=15, fontweight="bold", va="center")
    figure.text(0.075, 0.895, _told(trip), fontsize=10, color="#5b6975", va="center")


def _told(trip: Trip) -> str:
    figures = trip.figures()
    return (
        f"Three broker processes in a line, MQTT 5, QoS 2. {figures['published']} published, "
        f"{figures['delivered']} delivered, {figures['handoffs']} handoffs, lost {figures['lost']}, "
        f"twice {figures['duplicates']}, out of order {figures['out_of_order']}."
    )
