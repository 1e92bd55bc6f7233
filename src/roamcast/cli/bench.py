"""`roamcast bench`: performance of single parts on this machine."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import typer

from roamcast.bench.interrupts import terminations_as_interrupts
from roamcast.bench.report import check_names, split_names
from roamcast.cli.output import emit_json, leaves, prepare_out_folder, present, progress, table
from roamcast.cli.usage import AsJson, new_group, option, show_examples
from roamcast.errors import InputError


class Sync(StrEnum):
    PROCESS = "process"
    GROUP = "group"


ROWS_MIN, ROWS_MAX = 1_000, 1_000_000_000
STEP_PARTS = ("wall_s", "core_s", "shuffle_mb", "spill_mb", "peak_mb")


def register(app: typer.Typer) -> None:
    group = new_group(
        "Measure the performance of single parts on this machine.",
        examples=["roamcast bench match --subscriptions 10000", "roamcast bench sim"],
    )
    app.add_typer(group, name="bench")
    for command, example in (
        (match, "match --subscriptions 100000"),
        (routing, "routing --subscriptions 1000"),
        (sim, "sim --repeat 5"),
        (broker, "broker --against mosquitto,amqtt --out figures"),
        (handoff, "handoff --rtt 1,10,50,100 --loss 0,1 --out figures"),
        (storm, "storm --clients 10000 --way drain"),
        (workers, "workers --workers 1,2,4,8 --share 0.1"),
        (chaos, "chaos --seconds 60 --seed 7"),
        (replicas, "replicas --out figures"),
        (attack, "attack --only silent-tls --only non-readers-qos-0"),
        (location, "location --subscriptions 10000"),
        (pipeline, "pipeline --records 1e6,1e7"),
        (radio, "radio --brokers 32"),
        (proxy, "proxy --against nats"),
        (journal, "journal --dir /var/tmp"),
    ):
        group.command(command.__name__, epilog=show_examples(f"roamcast bench {example} --json"))(command)


def match(
    subscriptions: int = option(100_000, "Number of subscriptions in the index.", min=1),
    attributes: int = option(20, "Number of attributes of a notification.", min=1),
    events: int = option(1_000, "Number of notifications to match.", min=1),
    seed: int = option(1, "Seed of the subscriptions and notifications."),
    as_json: AsJson = False,
) -> None:
    """Find the subscriptions that match a notification: with the index, and one by one."""
    from roamcast.bench import match as benchmark

    with progress("matching") as report:
        result = benchmark.run(
            subscriptions=subscriptions, attributes=attributes, events=events, seed=seed, progress=report
        )
    show(result, "bench match", as_json)


def routing(
    subscriptions: list[int] | None = option(
        None, "Number of subscriptions. Repeatable. [default: 100, 1000, 10000]", min=1
    ),
    strategy: list[str] | None = option(None, "A routing strategy. Repeatable. [default: all that forward]"),
    seed: int = option(1, "Seed of the subscriptions."),
    as_json: AsJson = False,
) -> None:
    """Subscribe, hand over and unsubscribe at one of two brokers: cost of each routing strategy at both."""
    from roamcast.bench import routing as benchmark
    from roamcast.routing.aggregation import AGGREGATES

    with progress("routing") as report:
        result = benchmark.run(
            sizes=sorted(subscriptions or benchmark.SIZES),
            strategies=check_names("--strategy", strategy or AGGREGATES, AGGREGATES),
            seed=seed,
            progress=report,
        )
    show_cases(result, "bench routing", as_json)


def sim(
    side: list[int] | None = option(
        None, "Side of a grid of brokers. Repeatable. [default: 5, 14]", min=1, max=100
    ),
    duration: float = option(
        600.0, "Seconds of virtual time for the first size; shorter for larger ones.", min=1.0
    ),
    repeat: int = option(3, "Measurements of each case.", min=1),
    seed: int = option(7, "Seed of topologies, moves and publications."),
    as_json: AsJson = False,
) -> None:
    """Simulate networks: message hops per second, scaling, and SimPy for comparison."""
    from roamcast.bench import sim as benchmark

    with progress("simulating") as report:
        result = benchmark.run(
            sizes=side or (5, 14), duration_s=duration, repeat=repeat, seed=seed, progress=report
        )
    columns = [
        "engine", "brokers", "clients", "mobile", "protocol", "records", "hops", "link_hops", "access_hops",
        "core_s_median", "hops_per_s_median", "hops_per_s_best",
    ]  # fmt: skip
    show_cases(result, "bench sim", as_json, columns)


def location(
    subscriptions: int = option(
        10_000, "Number of clients, each with a location-dependent subscription.", min=1, max=1_000_000
    ),
    moves: int = option(5_000, "Moves measured in each case.", min=2),
    seed: int = option(1, "Seed of locations and moves."),
    as_json: AsJson = False,
) -> None:
    """Measure how long near and far brokers take for one move of a client on a grid of streets."""
    from roamcast.bench import location as benchmark

    with progress("moving clients") as report:
        result = benchmark.run(subscriptions, moves, seed, progress=report)
    show(result, "bench location", as_json)


def pipeline(
    records: list[str] | None = option(
        None, "Rows of each log, as in 1e6,1e7. Repeatable. [default: 1e6,1e7]"
    ),
    subscribers: int = option(1_000, "Number of subscribers.", min=10, max=10_000),
    memory_mb: int | None = option(
        None, "Memory of an audit, in MB. [default: 3072, beyond 1e7 8192]", "--memory-mb", min=1_024
    ),
    folder: Path | None = option(
        None, "A folder with room for the logs. [default: a temporary one]", "--dir"
    ),
    as_json: AsJson = False,
) -> None:
    """Audit logs of a generated network with Spark on two cores, and with DuckDB.

    Shows wall time, CPU time, shuffle and spill of each step. Exit code 1 if either engine does not find
    exactly the errors planted in the logs.
    """
    from roamcast.bench import pipeline as benchmark
    from roamcast.cli.spark import need_spark

    need_spark()
    check_folder(folder)
    with progress("auditing") as report, failing_plainly():
        result = benchmark.run(
            sizes_of(records or []) or benchmark.SIZES, subscribers, memory_mb, folder, progress=report
        )
    present(result, show_pipeline, as_json)
    if not result["holds"]["finds_what_was_planted"]:
        raise typer.Exit(1)


def sizes_of(texts: list[str]) -> list[int]:
    """Return the numbers of rows, the smallest first."""
    sizes = []
    for text in ",".join(texts).split(",") if texts else ():
        try:
            size = int(float(text))
        except (ValueError, OverflowError):
            raise InputError(
                f"--records {text!r}: not a number of rows; valid is a list such as 1e6,1e7"
            ) from None
        if not ROWS_MIN <= size <= ROWS_MAX:
            raise InputError(f"--records {text}: valid is {ROWS_MIN:,} to {ROWS_MAX:,}")
        sizes.append(size)
    return sorted(sizes)


def show_pipeline(result: dict[str, Any]) -> None:
    shown = ("wall_s", "core_s", "start_core_s", "peak_mb", "us_per_record", "finds_what_was_planted")
    rows = [
        [case["records"], name, *(case[name][part] for part in shown), case.get("ratio", "")]
        for case in result["cases"]
        for name in ("spark", "duckdb")
        if name in case
    ]
    columns = ["records", "by", *(name.replace("_", " ") for name in shown), "Spark to DuckDB"]
    table(columns, rows, title="bench pipeline: two cores, seconds without start-up")
    steps = [
        [case["records"], name, step, *(taken.get(part, "") for part in STEP_PARTS)]
        for case in result["cases"]
        for name in ("spark", "duckdb")
        if name in case
        for step, taken in case[name]["steps"].items()
    ]
    table(["records", "by", "step", *(part.replace("_", " ") for part in STEP_PARTS)], steps)
    if "growth" in result:
        growth, of_cores = result["growth"], result["growth_core"]
        print(
            f"a record of the largest log costs {growth} times as much as in the next smaller log"
            f" (cores: {of_cores})"
        )
    for name, holds in result["holds"].items():
        print(f"{name.replace('_', ' ')}: {verdict(holds)}")
    show_skipped(result)


def radio(
    brokers: int = option(32, "The network C2, C4, C8, C16 or C32 by its number of brokers."),
    speed: float = option(8.0, "Metres per second.", min=0.0, max=1000.0),
    duration: float = option(700.0, "Seconds of virtual time.", min=1.0),
    seed: int = option(1, "Seed of movement, shadowing and back-offs.", min=0),
    as_json: AsJson = False,
) -> None:
    """Simulate moving brokers on a radio channel, with MFT-PubSub and AODV: seconds per run."""
    from roamcast.bench import radio as benchmark

    with progress("simulating") as report:
        result = benchmark.run(brokers, speed, duration, seed=seed, progress=report)
    show_cases(result, "bench radio", as_json)


def workers(
    counts: str = option(
        "1,2", "Numbers of workers, separated by commas; the first is the baseline.", "--workers"
    ),
    share: float | None = option(
        None, "Share of a core for each worker; needs root. [default: all]", min=0.01, max=1.0
    ),
    seconds: float = option(1.0, "How long messages are sent in each run.", min=0.05),
    rounds: int = option(3, "Runs of each case.", min=1),
    as_json: AsJson = False,
) -> None:
    """Measure deliveries of a site with several workers: per second, and per CPU second."""
    from roamcast.bench import workers as benchmark

    try:
        numbers = [int(one) for one in counts.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= one <= 64 for one in numbers):
        raise InputError(
            f"--workers {counts}: valid are numbers from 1 to 64, separated by commas, as in 1,2,4"
        )
    with progress("measuring sites") as report, failing_plainly():
        result = benchmark.run(workers=numbers, share=share, seconds=seconds, rounds=rounds, progress=report)
    if as_json:
        emit_json(result)
        return
    columns = ["case", "QoS", "workers", "messages/s", "times", "per core s", "times", "cores"]
    names = ("case", "qos", "workers", "messages_per_s", "times", "messages_per_core_s", "times_per_core_s")
    table(
        columns,
        [[*(row[name] for name in names), row["cores"]] for row in result["cases"]],
        title="bench workers",
    )


def journal(
    folder: Path | None = option(
        None, "A folder on the disk to measure. [default: a temporary one]", "--dir"
    ),
    seconds: float = option(2.0, "Seconds per case.", min=0.1),
    as_json: AsJson = False,
) -> None:
    """Commit to a journal on this disk: commits per second, with and without sync, small and large
    entries."""
    from roamcast.bench import journal as benchmark

    check_folder(folder)
    with progress("committing") as report:
        result = benchmark.run(folder, seconds, progress=report)
    show(result, "bench journal", as_json)


def broker(
    against: str = option(
        "mosquitto,amqtt", "Brokers to compare with: mosquitto, amqtt, nats, separated by commas, or none."
    ),
    before: Path | None = option(
        None, "A folder with an earlier Roamcast's source (src) to compare with.", file_okay=False
    ),
    seconds: float = option(1.0, "How long messages are sent in each run.", min=0.05),
    rounds: int = option(5, "Runs of each case with each broker, in turn.", min=1),
    idle: int = option(10_000, "Idle connections to open.", min=1),
    quick: bool = option(False, "One very short run of each case.", "--quick"),
    out: Path | None = option(None, "A folder for the figure, broker.png."),
    as_json: AsJson = False,
) -> None:
    """Compare broker processes under the same load: messages per second. Exit code 1 if a message is lost."""
    from roamcast.bench import broker as benchmark
    from roamcast.bench.contestants import OTHERS

    if out is not None:
        prepare_out_folder(out)
    if before is not None and not (before / "roamcast" / "__init__.py").is_file():
        raise InputError(f"--before {before}: no folder with a roamcast package in it; name a tree's src")
    names = [] if against == "none" else split_names("--against", against, OTHERS)
    if quick:
        seconds, rounds, idle = 0.1, 1, 200
    with progress("measuring brokers") as report, failing_plainly():
        result = benchmark.run(
            against=names, earlier=before, seconds=seconds, rounds=rounds, idle=idle, progress=report
        )
    if out is not None:
        from roamcast.bench.broker_figure import write_figure

        result["figure"] = str(out / "broker.png") if write_figure(result, out / "broker.png") else None
    present(result, show_broker, as_json)
    if any("roamcast" in failure for failure in result["failures"]):
        raise typer.Exit(1)


def show_broker(result: dict[str, Any]) -> None:
    columns = ["case", "QoS", "journal", "messages/s", "per core s"]
    names = list(dict.fromkeys(name for row in result["cases"] for name in row["against"]))
    for name in names:
        columns += [name, "times", "per core s", "asked for", "holds"]
    rows = []
    for row in result["cases"]:
        cells = [row["case"], row["qos"], row["journal"], row["messages_per_s"], row["messages_per_core_s"]]
        for name in names:
            other = row["against"].get(name, {})
            parts = ("messages_per_s", "ratio", "ratio_per_core_s", "target", "holds")
            cells += [other.get(part) for part in parts]
        if "times_before" in row:
            cells += [row["times_before"][part] for part in ("messages_per_s", "messages_per_core_s")]
        rows.append(cells)
    if any("times_before" in row for row in result["cases"]):
        columns += ["times before", "per core s"]
    shapes = []
    for row in result["shapes"]:
        shown = dict(row)
        shown.pop("limits", None)
        for other in ("mosquitto", "before"):
            times = shown.pop(f"times_{other}", {})
            shown |= {f"{part} times {other}": ratio for part, ratio in times.items()}
        shapes.append(shown)
    table_of(shapes, "shapes of the field: CPU time per delivery or connection, and latency")
    table(columns, rows, title="messages per second")
    table_of(result["idle"], "memory with idle connections")
    for row in result["cases"]:
        if "target_per_s" in row:
            print(
                f"{row['case']}: {row['target_per_s']:,.0f}per second is the target, {verdict(row['holds'])}"
            )
    for name, settings in result["settings"].items():
        print(f"{name}: {settings}")
    show_skipped(result)
    for failure in result["failures"]:
        print(f"failed: {failure}")


def handoff(
    rounds: int | None = option(
        None, "Resumes and handoffs with each queue. [default: 30; with --rtt 5]", min=1
    ),
    queued: list[int] | None = option(
        None, "Queue lengths to measure. Repeatable. [default: 0, 100, 10000]", min=0, max=100_000
    ),
    rtt: str = option(
        "", "Round trips of links in ms, separated by commas: compare protocols over such links."
    ),
    loss: str = option("0", "With --rtt: percent of packets lost on links."),
    hops: str = option("1,2,4", "With --rtt: links that a client moves over."),
    only: str = option(
        "", "With --rtt: any of resume, multi_hop_handoff, roam_hit, roam_miss, proactive, relocation."
    ),
    out: Path | None = option(None, "With --rtt: a folder for handoff.svg."),
    sync: Sync = option(Sync.GROUP, "How the journals are synced."),
    workers: bool = option(False, "Between two workers of one site.", "--workers"),
    as_json: AsJson = False,
) -> None:
    """Measure handoffs between broker processes, compared with a reconnect at one broker.

    With --rtt the brokers form a chain of slow links, and every way to reconnect is measured. A lost packet
    arrives later by a round trip and 200 ms, and delays all later packets.
    """
    from roamcast.bench import handoff as benchmark

    if rtt:
        far_handoffs(rtt, loss, hops, only, rounds, queued, sync, out, as_json)
        return
    with progress("handing off") as report, failing_plainly():
        result = benchmark.run(
            sync=sync.value, rounds=rounds or benchmark.ROUNDS, queued=queued or benchmark.QUEUED,
            within=workers, progress=report,
        )  # fmt: skip
    if as_json:
        emit_json(result)
        return
    columns = ["queued", "until", "resume p50", "p99", "handoff p50", "p99"]
    columns += ["sync", "round trip", "allowed p50", "p99", "holds"]
    rows = []
    for row in result["cases"]:
        for what in ("connack", "first_message", "all_messages"):
            plain, handed = row["resume"][what], row["handoff"][what]
            if plain is not None:
                figures = [part[key] for part in (plain, handed) for key in ("p50_ms", "p99_ms")]
                if "bound_p50_ms" in handed:
                    figures += [row["journal_sync_ms"], row["round_trip_ms"]]
                    figures += [handed["bound_p50_ms"], handed["bound_p99_ms"]]
                    figures.append(handed["holds_p50"] and handed["holds_p99"])
                else:
                    figures += [""] * 5
                rows.append([row["queued"], what.replace("_", " "), *figures])
    table(columns, rows, title="bench handoff: milliseconds")
    table(
        ["what", "value"], [(k.replace("_", " "), v) for k, v in result.items() if isinstance(v, float | str)]
    )


def far_handoffs(
    rtt: str,
    loss: str,
    hops: str,
    only: str,
    rounds: int | None,
    queued: Sequence[int] | None,
    sync: Sync,
    out: Path | None,
    as_json: bool,
) -> None:
    from roamcast.bench import handoff_far as benchmark
    from roamcast.bench.handoff import QUEUED

    rtts_ms = split_numbers("--rtt", rtt, 0.0, 10_000.0)
    losses = [percent / 100 for percent in split_numbers("--loss", loss, 0.0, 50.0)]
    ways = [int(one) for one in split_numbers("--hops", hops, 1.0, 8.0)]
    kinds = split_names("--only", only, benchmark.KINDS) if only else tuple(benchmark.KINDS)
    if out is not None:
        prepare_out_folder(out)
    with progress("handing off") as report, failing_plainly():
        result = benchmark.run(
            rtts_ms=rtts_ms, losses=losses, hops=ways, queued=queued or QUEUED, kinds=kinds,
            rounds=rounds or benchmark.ROUNDS, sync=sync.value, progress=report,
        )  # fmt: skip
    if out is not None:
        from roamcast.bench.handoff_figure import write_figure

        write_figure(result, out / "handoff.svg")
    if as_json:
        emit_json(result)
        return
    until = ("connack", "first_message", "all_messages")
    rows = [
        [
            case["kind"], case["rtt_ms"], 100 * case["loss"], case["queued"], case["hops"],
            *(case[what]["p50_ms"] if case[what] else "" for what in until),
        ]
        for case in result["cases"]
    ]  # fmt: skip
    columns = ["kind", "round trip ms", "lost %", "queued", "hops", "connack p50 ms", "first message", "all"]
    table(columns, rows, title="bench handoff over slow links")
    if result["asked"]:
        table_of(result["asked"], "targets for a round trip of 50 ms without loss")
    print(result["settings"])


def split_numbers(option: str, text: str, least: float, most: float) -> list[float]:
    """Parse numbers separated by commas, each within the bounds."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text}: expected numbers separated by commas") from None
    for number in numbers:
        if not least <= number <= most:
            raise InputError(f"{option} {number:g}: between {least:g} and {most:g} is allowed")
    return numbers


def storm(
    clients: int = option(10_000, "Number of clients that move.", min=1, max=50_000),
    seconds: float = option(1.0, "Seconds within which all of them leave.", min=0.0, max=600.0),
    way: str = option(
        "move,drain", "How clients leave: move (each by itself), drain (broker drain), or both."
    ),
    protocol: str = option("multi_hop_handoff", "The mobility protocol."),
    sync: Sync = option(Sync.GROUP, "How the journals are synced."),
    set_: list[str] | None = option(
        None, "Any setting of the brokers, KEY=VALUE. Repeatable.", "--set", metavar="KEY=VALUE"
    ),
    seed: int = option(1, "Seed of the messages.", min=0),
    as_json: AsJson = False,
) -> None:
    """Move thousands of clients from one broker process to another at once: handoffs per second, and the
    latency of other clients.

    Exit code 1 if a message was lost, duplicated or reordered, if fewer than 5,000 sessions were handed over
    per second, or if pings of other clients took more than 100 ms.
    """
    from roamcast.bench import storm as benchmark

    ways = split_names("--way", way, benchmark.WAYS)
    with progress("moving") as report, failing_plainly():
        result = benchmark.run(
            clients=clients, seconds=seconds, ways=ways, protocol=protocol, sync=sync.value, seed=seed,
            settings=set_ or (), progress=report,
        )  # fmt: skip
    present(result, show_storm, as_json)
    if not result["holds"]:
        raise typer.Exit(1)


def show_storm(result: dict[str, Any]) -> None:
    columns = [
        "way", "handoffs_per_s", "p50_ms", "p99_ms", "old_us_per_handoff", "new_us_per_handoff",
        "old_memory_mb_peak", "new_memory_mb_peak", "ping_p50_ms", "ping_p99_ms", "is_exact", "holds",
    ]  # fmt: skip
    table_of(result["cases"], "bench storm", columns)
    for case in result["cases"]:
        for why in case["why"]:
            print(f"{case['way']} failed: {why}")
    print(result["settings"])
    print(f"asked: {result['asked']}")


def proxy(
    against: str = option(
        "mosquitto,nats,activemq",
        "Foreign brokers: mosquitto, nats, activemq, roamcast, separated by commas.",
    ),
    messages: int = option(10_000, "Messages stored for the client at its move-in.", min=1, max=1_000_000),
    rounds: int = option(9, "Measurements of each case; the median is shown.", min=1),
    sync: str = option("process", "buffers.sync of the proxies: process, group, or process,group."),
    as_json: AsJson = False,
) -> None:
    """Measure handoffs between sites with foreign brokers and proxies."""
    from roamcast.bench import proxy as benchmark

    kinds = split_names("--against", against, benchmark.KINDS)
    syncs = split_names("--sync", sync, benchmark.SYNCS)
    with progress("moving in") as report, failing_plainly():
        result = benchmark.run(kinds, syncs=syncs, messages=messages, rounds=rounds, progress=report)
    if as_json:
        emit_json(result)
        return
    columns = ["broker", "sync", "messages", "broker_s", "move_in_s", "messages_per_s", "ratio", "holds"]
    table_of(result["cases"], "bench proxy", [*columns, "through_per_s"])
    show_skipped(result)


def chaos(
    seconds: float = option(60.0, "Duration of the failures.", min=1.0),
    seed: int | None = option(None, "Seed of the run. [default: random]", min=0),
    clients: int = option(50, "Clients that roam.", min=1),
    brokers: int = option(5, "Broker processes.", min=2, max=20),
    sync: Sync = option(Sync.PROCESS, "How the journals are synced."),
    keep: Path | None = option(None, "Folder for logs and journals, which are kept."),
    upgrade_from: Path | None = option(
        None, "Upgrade all brokers from the build in this source tree or virtual environment."
    ),
    replicas: int = option(0, "Followers of each broker; needs etcd.", min=0, max=2),
    wipe: bool = option(False, "Killed replicas also lose their disks.", "--wipe"),
    workers: int = option(1, "Worker processes of each broker.", min=1, max=8),
    as_json: AsJson = False,
) -> None:
    """Let clients roam while brokers are killed and links fail; then audit. Exit code 1 if a promise was
    broken."""
    from roamcast.bench import chaos as benchmark
    from roamcast.bench.builds import find_build
    from roamcast.bench.chaos_replicated import ReplicatedChaos
    from roamcast.bench.chaos_workers import WorkersChaos

    if keep is not None:
        prepare_out_folder(keep, option="--keep")
    if wipe and not replicas:
        raise InputError("--wipe: only with --replicas; a single broker has no other copy of its data")
    if replicas and upgrade_from is not None:
        raise InputError("--upgrade-from: not with --replicas")
    if workers > 1 and (replicas or upgrade_from is not None):
        raise InputError("--workers: not with --replicas or --upgrade-from")
    earlier = find_build(upgrade_from) if upgrade_from is not None else None
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    print(f"seed {seed}", file=sys.stderr)
    make: Callable[..., benchmark.Chaos] | None = None
    if replicas:
        make = partial(ReplicatedChaos, followers=replicas, wipe=wipe)
    elif workers > 1:
        make = partial(WorkersChaos, workers=workers)
    with progress("chaos"), failing_plainly():
        result = benchmark.run(
            seconds=seconds, seed=seed, clients=clients, brokers=brokers, sync=sync.value, keep=keep,
            upgrade_from=earlier, make=make,
        )  # fmt: skip
    if as_json:
        emit_json(result)
    else:
        told = [*result["troubles"], *result["examples"]]
        shown = {key: value for key, value in result.items() if key not in ("troubles", "examples", "links")}
        show(shown | {"links": ", ".join(result["links"])}, "bench chaos", as_json=False)
        print(*told, sep="\n", end="\n" if told else "")
    if not result["kept"]:
        where = f"logs and journals are in {result['folder']}"
        print(f"a promise was broken with seed {seed}; {where}", file=sys.stderr)
        raise typer.Exit(1)


def replicas(
    seconds: float = option(1.0, "Seconds of load in each run.", min=0.05),
    rounds: int = option(5, "Number of runs with and without a follower, alternating.", min=1),
    out: Path | None = option(None, "A folder for the figure, failover.png."),
    as_json: AsJson = False,
) -> None:
    """Measure the cost of a follower, and a failover as clients see it. Needs etcd."""
    from roamcast.bench import replicas as benchmark

    if out is not None:
        prepare_out_folder(out)
    with progress("measuring replicas") as report, failing_plainly():
        result = benchmark.run(seconds=seconds, rounds=rounds, progress=report)
    if out is not None:
        benchmark.write_figure(result["failover"], out / "failover.png")
        result["figure"] = str(out / "failover.png")
    if as_json:
        emit_json(result)
        return
    costs = ["alone", "with_follower", "ratio", "added", "target", "holds", "ratio_per_core_s"]
    table_of(result["cases"], "bench replicas", ["case", "sync", *costs])
    spent = ["case", "sync", "alone_us", "leader_us", "follower_us", "load_us", "follower_cores"]
    throughput = [row for row in result["cases"] if "ratio" in row]
    table_of(throughput, "bench replicas, microseconds of a core per message", spent)
    failover = result["failover"]
    print(
        f"failover: {failover['messages']} messages, all arrived once and in order, the slowest after"
        f" {failover['longest_delay_s']:.1f} s; the lease is {failover['lease_s']} s"
    )


def attack(
    only: list[str] | None = option(None, "An attack. Repeatable. [default: all; --list shows them]"),
    seconds: float = option(5.0, "Seconds per attack.", min=0.5, max=600.0),
    config: Path | None = option(
        None, "The broker's configuration; its listeners, peers and users are replaced."
    ),
    set_: list[str] | None = option(
        None, "Any setting of the broker, KEY=VALUE. Repeatable.", "--set", metavar="KEY=VALUE"
    ),
    sync: Sync = option(Sync.PROCESS, "How the journal is synced."),
    seed: int = option(1, "Seed of random bytes.", min=0),
    list_: bool = option(False, "Show the attacks and exit.", "--list"),
    as_json: AsJson = False,
) -> None:
    """Attack a broker process on loopback, and show the effect on honest clients.

    Exit code 1 if an honest client lost a message, waited for more than 100 ms or was refused, or if the
    broker took more memory than 1.5 times its quotas.
    """
    from roamcast.bench.attack import run as benchmark
    from roamcast.bench.attack.table import ATTACKS

    if list_:
        rows = [{"attack": one.name, "what": one.what} for one in ATTACKS.values()]
        show_cases({"cases": rows}, "bench attack", as_json)
        return
    names = check_names("--only", only or ATTACKS, ATTACKS)
    with progress("attacking") as report, failing_plainly():
        result = benchmark.run(
            names, seconds=seconds, sync=sync.value, config=config, settings=set_ or (), seed=seed,
            progress=report,
        )  # fmt: skip
    present(result, show_attacks, as_json)
    if not result["holds"]:
        raise typer.Exit(1)


def show_attacks(result: dict[str, Any]) -> None:
    columns = [
        "attack", "ping_p99_ms", "ping_worst_ms", "own_late_ms", "broker_waited_ms", "lost",
        "connect_worst_ms", "connect_failed", "healthz_worst_ms", "healthz_failed", "memory_mb_before",
        "memory_mb_peak", "memory_mb_max", "holds",
    ]  # fmt: skip
    table_of(result["cases"], "bench attack: effect on honest clients", columns)
    for case in result["cases"]:
        did = ", ".join(f"{count} {what}" for what, count in case["did"].items())
        print(f"{case['attack']}: {case['what']} ({did})")
        for line in case["said"]:
            print(f"  log of the broker: {line}")
        for why in case["why"]:
            print(f"  failed: {why}")
    show_skipped(result)


@contextmanager
def failing_plainly() -> Iterator[None]:
    """Turn a failed run into one line and exit code 1, and stop its processes on interruption."""
    from roamcast.bench.processes import BenchFailed

    try:
        with terminations_as_interrupts():
            yield
    except BenchFailed as error:
        print(f"roamcast: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def check_folder(folder: Path | None) -> None:
    if folder is not None and not folder.is_dir():
        raise InputError(f"--dir {folder}: there is no such folder")


def verdict(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def show_skipped(result: dict[str, Any]) -> None:
    for name, reason in result["skipped"].items():
        print(f"{name} is skipped: {reason}")


def show(result: dict[str, Any], title: str, as_json: bool) -> None:
    """Print a result whose leaves are the rows of one table."""
    if as_json:
        emit_json(result)
    else:
        table(["what", "value"], leaves(result), title=title)


def show_cases(result: Any, title: str, as_json: bool, columns: Sequence[str] = ()) -> None:
    """Print a result with a row for each case, then everything else."""
    if as_json:
        emit_json(result)
        return
    table_of(result["cases"], title, columns)
    show({name: value for name, value in result.items() if name != "cases"}, "", as_json=False)


def table_of(rows: Sequence[dict[str, Any]], title: str, columns: Sequence[str] = ()) -> None:
    """Print rows as a table; without `columns`, with all columns."""
    names = list(columns) or list(dict.fromkeys(name for row in rows for name in row))
    if names:
        cells = [[row.get(name) for name in names] for row in rows]
        table([name.replace("_", " ") for name in names], cells, title=title)
