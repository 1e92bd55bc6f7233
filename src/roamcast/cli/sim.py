"""`roamcast sim`: simulated networks; one seed determines every event."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from roamcast.cli.output import Report, emit_json, leaves, prepare_new_folder, progress, table
from roamcast.cli.usage import AsJson, new_group, option, show_examples
from roamcast.errors import InputError, read_text

if TYPE_CHECKING:
    from roamcast.simulator.links import Delay
    from roamcast.simulator.network import Action
    from roamcast.simulator.scenario import Scenario
    from roamcast.simulator.topology import Topology

EXIT_VIOLATIONS = 1
"""Exit code if the protocol broke its promise."""

SMALL = "roamcast sim run --protocol none --topology grid:3 --clients 40 --duration 60"
WANG = (
    "roamcast sim run --protocol sub_unsub --topology grid:5 --clients 250 --mobile 0.2 --connect 30 "
    "--disconnect 30 --publish-every 20 --selectivity 0.0625 --duration 600 --seed 7 --json"
)


def register(app: typer.Typer) -> None:
    group = new_group("Simulate networks of brokers and roaming clients.", examples=[SMALL])
    app.add_typer(group, name="sim")
    group.command("run", epilog=show_examples(SMALL, WANG))(run)


# The defaults are those of Scenario and NetworkSettings, written out because importing these takes
# longer than a start may; a test compares them.
def run(
    protocol: str = option("sub_unsub", "Mobility protocol."),
    routing: str = option("", "Routing strategy; the protocol's own if not given."),
    advertisements: bool = option(False, "Route by advertisements.", "--advertisements"),
    topology: str = option("grid:5", "grid:K, tree:B:H, line:N, star:N, random:N, building or file:PATH."),
    clients: int = option(250, "Number of clients; each publishes and subscribes."),
    mobile: float = option(0.2, "Share of the clients that roam, 0 to 1."),
    movement: str = option(
        "uniform",
        "Movement pattern: uniform, RND, NBR, fixed; file:PATH with visits of c0, c1 …; or "
        "trace:PATH with visits of any clients, at most --clients of them.",
    ),
    trace_from: float = option(0.0, "Start of the replayed part of a trace, in seconds of the trace."),
    connect: float = option(30.0, "Mean time attached, in seconds."),
    disconnect: float = option(30.0, "Mean time away, in seconds."),
    handoff: float = option(
        3.0, "Mean time away between two brokers in the patterns RND and NBR, in seconds."
    ),
    proclaimed: float = option(0.0, "Share of the moves that the client announces, 0 to 1."),
    workload: str = option("groups", "Kind of subscriptions: groups, ranges, nested, gaddah or mixed."),
    selectivity: float = option(0.0625, "Share of the clients that a notification matches."),
    publish_every: float = option(20.0, "Mean time between two notifications of a client, in seconds."),
    payload_bytes: int = option(0, "Bytes of payload in each notification."),
    duration: float = option(600.0, "Simulated time, in seconds."),
    link_delay: str = option(
        "0.01", "Delay of links between brokers in seconds: 0.01, or a range 0.001..0.03."
    ),
    access_delay: str = option("0.02", "Delay between client and broker in seconds, or a range."),
    access_bits_per_s: float | None = option(
        None, "Bandwidth between client and broker; unlimited if not given."
    ),
    notice_delay: str = option(
        "0", "Time until a broker notices that a client left, in seconds, or a range."
    ),
    service: float = option(0.0, "Processing time of one message, in seconds."),
    buffer_bytes: int | None = option(
        None, "Maximum number of bytes that a broker stores; unlimited if not given.", min=0
    ),
    window: int = option(256, "Maximum number of unacknowledged notifications sent to a client.", min=1),
    unknown_last_broker: bool = option(
        False, "Clients do not name their previous broker.", "--unknown-last-broker"
    ),
    neighbours: Path | None = option(
        None, "Neighbour graph that proactive begins with, from 'roamcast pipeline neighbours'."
    ),
    neighbours_max: int = option(8, "Maximum number of neighbours of a broker, for proactive.", min=1),
    neighbours_fixed: bool = option(
        False, "Keep the graph as given, with its directions.", "--neighbours-fixed"
    ),
    seed: int = option(0, "Seed of the simulation."),
    records: str | None = option(
        None, "counters or full: whether every hop is in the log; full if --out is given."
    ),
    out: Path | None = option(None, "New folder for the event log (log/) and the figures (summary.json)."),
    as_json: AsJson = False,
) -> None:
    """Run one network and compare the deliveries with the promise of the mobility protocol.

    Exit code 1 if the promise was broken.
    """
    from roamcast.mobility import Settings
    from roamcast.simulator.network import NetworkSettings
    from roamcast.simulator.scenario import Scenario

    if records not in (None, "counters", "full"):
        raise InputError(f"--records {records!r}: valid are counters and full")
    check_number("--service", service, least=0)
    if access_bits_per_s is not None:
        check_number("--access-bits-per-s", access_bits_per_s, above=0)
    scenario = Scenario(
        topology=topology,
        clients=clients,
        mobile=mobile,
        movement=movement,
        trace_from_s=trace_from,
        connect_s=connect,
        disconnect_s=disconnect,
        handoff_s=handoff,
        proclaimed=proclaimed,
        workload=workload,
        selectivity=selectivity,
        publish_every_s=publish_every,
        payload_bytes=payload_bytes,
        duration_s=duration,
        network=NetworkSettings(
            protocol=protocol,
            routing=routing,
            advertisements=advertisements,
            link_delay=parse_delay("--link-delay", link_delay),
            access_delay=parse_delay("--access-delay", access_delay),
            access_bits_per_s=access_bits_per_s,
            notice_delay=parse_delay("--notice-delay", notice_delay),
            service_s=service,
            buffer_bytes=buffer_bytes,
            window=window,
            names_last_broker=not unknown_last_broker,
            records="full" if records == "full" or (records is None and out is not None) else "counters",
            mobility=Settings(
                neighbour_graph=read_graph(neighbours),
                neighbours_max=neighbours_max,
                neighbours_online=not neighbours_fixed,
                neighbours_directed=neighbours_fixed,
            ),
            seed=seed,
        ),
    )
    scenario = without_foreign_model(scenario)
    network, actions = prepare(scenario)
    if out is not None:
        prepare_new_folder(out, "summary.json", "log")
    with progress(f"simulating {protocol}") as report:
        summary = simulate(scenario, network, actions, out, report)
    show(summary, as_json=as_json)
    if summary["violations"]:
        raise typer.Exit(EXIT_VIOLATIONS)


def without_foreign_model(scenario: Scenario) -> Scenario:
    """Drop a neighbour graph of other brokers with a warning; brokers then learn from moves alone."""
    from roamcast.mobility.prediction import why_unusable

    network = scenario.network
    model = network.mobility.neighbour_graph
    brokers = scenario.make_topology().brokers if model else ()
    if not model or not all(why_unusable(model, broker, 0.0, None) for broker in brokers):
        return scenario
    typer.echo("ignoring --neighbours, which names other brokers: brokers learn from moves alone", err=True)
    mobility = msgspec.structs.replace(network.mobility, neighbour_graph="")
    return replace(scenario, network=replace(network, mobility=mobility))


def read_graph(file: Path | None) -> str:
    """Read a neighbour graph; errors name the file."""
    from roamcast.mobility.neighbour_graph import parse_graph

    if file is None:
        return ""
    text = read_text(file, "--neighbours")
    parse_graph(text, f"--neighbours {file}")
    return text


def check_number(option: str, value: float, *, least: float = -math.inf, above: float = -math.inf) -> None:
    """Refuse NaN and infinity, which Typer accepts."""
    if not (math.isfinite(value) and value >= least and value > above):
        bound = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        raise InputError(f"{option} {value}: valid is a number, {bound}")


def parse_delay(option: str, text: str) -> Delay:
    from roamcast.simulator.links import Delay

    try:
        return Delay.parse(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def prepare(scenario: Scenario) -> tuple[Topology, Iterator[Action]]:
    """Build the network and its scenario; errors are raised here, before any work."""
    from roamcast.simulator.run import check_settings
    from roamcast.simulator.workload import publish_times

    scenario.check()
    topology = scenario.make_topology()
    check_settings(topology, scenario.network)
    # Checks the settings early: drawing the first action draws workload and movement, and one publisher's
    # times represent all.
    publish_times(scenario.publish_every_s, scenario.duration_s, random.Random(0))
    actions = scenario.actions(topology)
    return topology, chain([next(actions)], actions)


def simulate(
    scenario: Scenario, topology: Topology, actions: Iterator[Action], out: Path | None, report: Report
) -> dict[str, Any]:
    """Run the scenario, write its log if a folder is given, and return its figures."""
    from roamcast.lab.summary import summarise, write_json
    from roamcast.records.parquet import LogWriter
    from roamcast.simulator.run import run_checked

    end_s = math.ceil(scenario.duration_s)

    def on_time(now_s: float) -> None:
        report(min(int(now_s), end_s), end_s)

    started = time.perf_counter()
    if out is None:
        done = run_checked(topology, scenario.network, actions, progress=on_time)
        return summarise(scenario, done, time.perf_counter() - started)
    try:
        with LogWriter(out / "log", run_name(scenario)) as log:
            done = run_checked(topology, scenario.network, actions, log.write, on_time)
    except OSError as error:
        raise InputError(f"--out {out}: the log cannot be written ({error.strerror or error})") from None
    summary = summarise(scenario, done, time.perf_counter() - started, log.rows)
    write_json(out / "summary.json", summary)
    return summary


def run_name(scenario: Scenario) -> str:
    """Return the name of the run in its log; the same scenario always has the same name."""
    return f"{scenario.network.protocol}-{scenario.network.seed}"


def show(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(summary)
        return
    title = f"{summary['protocol']} on {summary['topology']}, seed {summary['seed']}"
    table(["what", "value"], leaves({**summary, "violations": len(summary["violations"])}), title=title)
    for violation in summary["violations"]:
        print(f"violation: {violation}")
