"""`roamcast sim`: simulated networks; one seed determines every event."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from roamcast.cli.output import Report, emit_json, leaves, prepare_new_folder, progress, table
from roamcast.cli.usage import AsJson, new_group, show_examples
from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.simulator.links import Delay
    from roamcast.simulator.network import Action
    from roamcast.simulator.scenario import Scenario
    from roamcast.simulator.topology import Topology

EXIT_VIOLATIONS = 1
"""The protocol broke its promise."""

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
    protocol: Annotated[str, typer.Option(help="Mobility protocol.")] = "sub_unsub",
    routing: Annotated[str, typer.Option(help="Routing strategy; the protocol's own if not given.")] = "",
    advertisements: Annotated[
        bool, typer.Option("--advertisements", help="Route by advertisements.")
    ] = False,
    topology: Annotated[
        str, typer.Option(help="grid:K, tree:B:H, line:N, star:N, random:N, building or file:PATH.")
    ] = "grid:5",
    clients: Annotated[int, typer.Option(help="Number of clients; each publishes and subscribes.")] = 250,
    mobile: Annotated[float, typer.Option(help="Share of the clients that roam, 0 to 1.")] = 0.2,
    movement: Annotated[
        str,
        typer.Option(
            help="Movement pattern: uniform, RND, NBR, fixed; file:PATH with visits of c0, c1 …; or "
            "trace:PATH with visits of whoever is in it, at most --clients of them."
        ),
    ] = "uniform",
    trace_from: Annotated[
        float, typer.Option(help="Start of the replayed part of a trace, in seconds of the trace.")
    ] = 0.0,
    connect: Annotated[float, typer.Option(help="Mean time attached, in seconds.")] = 30.0,
    disconnect: Annotated[float, typer.Option(help="Mean time away, in seconds.")] = 30.0,
    handoff: Annotated[
        float,
        typer.Option(help="Mean time away between two brokers in the patterns RND and NBR, in seconds."),
    ] = 3.0,
    proclaimed: Annotated[
        float, typer.Option(help="Share of the moves that the client announces, 0 to 1.")
    ] = 0.0,
    workload: Annotated[
        str, typer.Option(help="Kind of subscriptions: groups, ranges, nested, gaddah or mixed.")
    ] = "groups",
    selectivity: Annotated[
        float, typer.Option(help="Share of the clients that a notification matches.")
    ] = 0.0625,
    publish_every: Annotated[
        float, typer.Option(help="Mean time between two notifications of a client, in seconds.")
    ] = 20.0,
    payload_bytes: Annotated[int, typer.Option(help="Bytes of payload in each notification.")] = 0,
    duration: Annotated[float, typer.Option(help="Simulated time, in seconds.")] = 600.0,
    link_delay: Annotated[
        str, typer.Option(help="Delay of links between brokers in seconds: 0.01, or a range 0.001..0.03.")
    ] = "0.01",
    access_delay: Annotated[
        str, typer.Option(help="Delay between client and broker in seconds, or a range.")
    ] = "0.02",
    access_bits_per_s: Annotated[
        float | None, typer.Option(help="Bandwidth between client and broker; unlimited if not given.")
    ] = None,
    notice_delay: Annotated[
        str, typer.Option(help="Time until a broker notices that a client left, in seconds, or a range.")
    ] = "0",
    service: Annotated[float, typer.Option(help="Processing time of one message, in seconds.")] = 0.0,
    buffer_bytes: Annotated[
        int | None,
        typer.Option(min=0, help="Maximum number of bytes that a broker stores; unlimited if not given."),
    ] = None,
    window: Annotated[
        int, typer.Option(min=1, help="Maximum number of unacknowledged notifications sent to a client.")
    ] = 256,
    unknown_last_broker: Annotated[
        bool, typer.Option("--unknown-last-broker", help="Clients do not name their previous broker.")
    ] = False,
    neighbours: Annotated[
        Path | None,
        typer.Option(help="Neighbour graph that proactive begins with, from 'roamcast pipeline neighbours'."),
    ] = None,
    neighbours_max: Annotated[
        int, typer.Option(min=1, help="Maximum number of neighbours of a broker, for proactive.")
    ] = 8,
    neighbours_fixed: Annotated[
        bool, typer.Option("--neighbours-fixed", help="Keep the graph as given, with its directions.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    records: Annotated[
        str | None,
        typer.Option(help="counters or full: whether every hop is in the log; full if --out is given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for the event log (log/) and the figures (summary.json).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one network and check what was delivered against what the mobility protocol promises.

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
    typer.echo("--neighbours is of other brokers and is not used: brokers learn from moves alone", err=True)
    mobility = msgspec.structs.replace(network.mobility, neighbour_graph="")
    return replace(scenario, network=replace(network, mobility=mobility))


def read_graph(file: Path | None) -> str:
    """Read a neighbour graph; errors name the file."""
    from roamcast.mobility.neighbour_graph import parse_graph

    if file is None:
        return ""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--neighbours {file}: cannot be read ({error})") from None
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
