"""`roamcast fuzz`: runs stories drawn from seeds until one breaks a protocol's promise, or replays a story
from text."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

from roamcast.bench.interrupts import interrupts_held_back
from roamcast.cli.exhaustive import check_alone, search_exhaustively
from roamcast.cli.output import emit_json, present, progress
from roamcast.cli.sim import EXIT_VIOLATIONS
from roamcast.cli.tables import table_in_parts
from roamcast.cli.usage import AsJson, option, show_examples
from roamcast.errors import InputError, read_text
from roamcast.plugins import load_protocols

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

    from roamcast.protocol.notification import Message
    from roamcast.protocol.records import Row
    from roamcast.simulator.fuzz import FuzzReport, Kind
    from roamcast.simulator.story import Story

SEEDS_PER_CHUNK = 4
"""Seeds per chunk: enough to hide the cost of handing work to another process, few enough for a smooth
progress bar.
"""
CHUNKS_WAITING = 4
"""Chunks waiting for each worker: enough that none is idle, few enough to stop soon after a failure."""
SEEDS_DEFAULT = "0:100"
COLUMNS = (
    *("seeds", "handoffs", "notifications", "deliveries"),
    *("lost", "duplicates", "out_of_order", "violations"),
)
FAULT_COLUMNS = ("crashes", "links_down")
LOCATION_COLUMNS = ("located", "blacked_out")


FRONTS = ("plain", "mqtt", "all")
IN_A_STORY = {
    "seeds": "a story is not drawn from a seed",
    "faults": "a story contains its faults",
    "feature": "a story file already says what it contains",
    "front": "a story has its own line for that (`front mqtt`)",
    "routing": "a story has its own line for that (`routing …`)",
}
"""Why an option for drawing stories excludes a given one."""


def register(app: typer.Typer) -> None:
    app.command(
        "fuzz",
        epilog=show_examples(
            "roamcast fuzz --protocol all --seeds 0:200 --json",
            "roamcast fuzz --protocol multi_hop_handoff --faults crash,partition",
            "roamcast fuzz --front mqtt --faults all --protocol multi_hop_handoff",
            "roamcast fuzz --faults hostile --protocol multi_hop_handoff --seeds 0:500",
            "roamcast fuzz --feature location --seeds 0:200",
            "roamcast fuzz --protocol sub_unsub --seeds 17",
            "roamcast fuzz --protocol relocation --routing covering",
            "roamcast fuzz --exhaustive --protocol roam",
            "roamcast fuzz --story story.txt --trace",
        ),
    )(fuzz)


def fuzz(
    protocol: str | None = option(
        None, "Mobility protocol, or all (the default); with --story, instead of the story's."
    ),
    seeds: str | None = option(
        None, f"Seeds FROM:TO, without TO, or one seed; {SEEDS_DEFAULT} if not given."
    ),
    faults: str | None = option(
        None,
        "Draw faults too: any of crash, partition, loss, separated by commas, or all; hostile adds a"
        " neighbour that sends made-up messages, replication gives brokers followers and breaks them,"
        " detour sends links over other paths.",
    ),
    feature: str | None = option(
        None,
        "Draw stories of this feature: location (filters with myloc). Without --protocol, each seed"
        " draws one of those that promise exactly once.",
    ),
    front: str | None = option(
        None,
        "What clients speak: plain (the lab's own requests, the default, for every protocol), mqtt"
        " (all that brokers do for MQTT clients, for protocols that promise exactly once), or all.",
    ),
    routing: str | None = option(None, "Routing strategy of every story; if not given, each seed draws one."),
    failures_max: int = option(5, "Stop a protocol after this many failing seeds.", min=1),
    workers: int | None = option(None, "Number of processes. [default: one per core]", min=1),
    story: str | None = option(
        None, "Replay the story in this file (- for standard input) instead of seeds."
    ),
    trace: bool = option(False, "With --story: show every message between brokers, and faults.", "--trace"),
    exhaustive: bool = option(
        False,
        "Visit every order of events in small worlds instead of drawing seeds; without --protocol,"
        " for multi_hop_handoff and roam.",
        "--exhaustive",
    ),
    as_json: AsJson = False,
) -> None:
    """Draw networks and moves from seeds, and look for one that breaks a protocol's promise.

    A failing story is shrunk to a short one that can be replayed. Exit code 1 if a promise was broken. With
    --faults, brokers crash and restart with their journal, links fail for a while, or transmissions are lost
    and repeated; protocols without a promise for such faults are skipped. With --front mqtt, MQTT clients use
    wills, retained messages, shared and content subscriptions, expiry and every QoS, while operators drain,
    forget, join and reconfigure brokers. With --feature location, clients have filters that depend on where
    they are. Flooding gives the expected deliveries; the timing of the links gives what clients miss that
    move too fast. Nothing else may be missing.
    """
    if exhaustive:
        check_alone(seeds=seeds, faults=faults, feature=feature, front=front, routing=routing, story=story)
        failed = search_exhaustively(protocol or "all", as_json=as_json)
    elif story is not None:
        given = {"seeds": seeds, "faults": faults, "feature": feature, "front": front, "routing": routing}
        for name, value in given.items():
            if value is not None:
                raise InputError(f"--{name} and --story exclude each other: {IN_A_STORY[name]}")
        failed = replay(story, protocol, trace=trace, as_json=as_json)
    elif trace:
        raise InputError("--trace shows the messages of a story: name one with --story FILE")
    else:
        from roamcast.simulator.fuzz import Kind

        seeds = SEEDS_DEFAULT if seeds is None else seeds
        kind = Kind(
            parse_faults(faults), parse_feature(feature, faults), parse_front(front, feature), routing or ""
        )
        if protocol is None:
            protocol = "any" if kind.feature and not kind.routing else "all"
        failed = search(protocol, parse_seeds(seeds), kind, failures_max, workers, as_json=as_json)
    if failed:
        raise typer.Exit(EXIT_VIOLATIONS)


# --- seeds ---


def search(
    protocol: str,
    seeds: range,
    kind: Kind,
    failures_max: int,
    workers: int | None,
    *,
    as_json: bool,
) -> bool:
    chosen: list[tuple[Kind, list[str]]] = []
    left_out: dict[str, str] = {}
    for one in kinds_with_fronts(kind):
        if one.feature:
            protocols = choose_for_location(protocol)
        elif one.front == "mqtt":
            protocols, left_out = choose_for_mqtt(protocol, is_one_of_two=kind.front == "all")
        else:
            protocols, left_out = choose_protocols(protocol, one.faults)
        if one.routing:
            protocols = choose_for_routing(protocol, protocols, one.routing)
        chosen.append((one, protocols))
    done, total = 0, len(seeds) * sum(len(protocols) for _, protocols in chosen)
    with progress(f"fuzzing {protocol}") as show_progress:

        def on_seed() -> None:
            nonlocal done
            done += 1
            show_progress(done, total)

        reports: list[FuzzReport] = []
        for one, protocols in chosen:
            found = fuzz_protocols(protocols, seeds, failures_max, workers or cores(), on_seed, one)
            for report in found:
                report.protocol += f" ({one.front})" if kind.front == "all" else ""
            reports += found
    result = {**merged(reports), **kind._asdict(), "left_out": left_out}
    present(result, show, as_json)
    return bool(result["failures"])


def parse_seeds(text: str) -> range:
    """Parse seeds: `0:200` is 0 to 199, `17` is 17 alone."""
    if not re.fullmatch(r"[0-9]{1,18}(:[0-9]{1,18})?", text):
        raise InputError(f"--seeds {text!r}: valid is FROM:TO such as 0:200, or one seed such as 17")
    first, colon, end = text.partition(":")
    seeds = range(int(first), int(end) if colon else int(first) + 1)
    if not seeds:
        raise InputError(f"--seeds {text!r}: holds no seed; TO must be above FROM")
    return seeds


def parse_faults(text: str | None) -> tuple[str, ...]:
    """Parse faults: `crash,loss`, or `all`; the result always has the same order."""
    from roamcast.simulator.faults import FAULTS, NATURAL

    if text is None:
        return ()
    names = text.split(",")
    for name in names:
        if name not in FAULTS and name != "all":
            valid = ", ".join(FAULTS)
            raise InputError(f"--faults {text!r}: there is no fault {name!r}; valid are {valid}, and all")
    return tuple(name for name in FAULTS if name in names or ("all" in names and name in NATURAL))


def parse_feature(text: str | None, faults: str | None) -> str:
    if text not in (None, "location"):
        raise InputError(f"--feature {text!r}: valid is location")
    if text is not None and faults is not None:
        raise InputError("--feature and --faults exclude each other: a blackout is predicted without faults")
    return text or ""


def parse_front(text: str | None, feature: str | None) -> str:
    if text not in (None, *FRONTS):
        raise InputError(f"--front {text!r}: valid are {', '.join(FRONTS)}")
    if text is not None and feature is not None:
        raise InputError("--front and --feature exclude each other: the feature has stories of its own")
    return text or "plain"


def kinds_with_fronts(kind: Kind) -> list[Kind]:
    fronts = ("plain", "mqtt") if kind.front == "all" else (kind.front,)
    return [kind._replace(front=front) for front in fronts]


def choose_for_mqtt(text: str, is_one_of_two: bool) -> tuple[list[str], dict[str, str]]:
    """Return the protocols that promise exactly once to MQTT clients, and why the others are skipped."""
    from roamcast.simulator.mqtt_draw import protocols

    names, promising = parse_protocols(text), protocols()
    left_out = {
        name: f"{name} does not promise exactly once, which MQTT clients rely on"
        for name in names
        if name not in promising
    }
    if text == "all":
        return promising, left_out
    if left_out and not is_one_of_two:
        raise InputError(f"--front mqtt --protocol {text}: valid are all, {', '.join(promising)}")
    return [name for name in names if name not in left_out], left_out


def choose_for_location(text: str) -> list[str]:
    """Return the protocols that promise exactly once to clients whose filters depend on their location."""
    from roamcast.simulator.location_fuzz import ANY, protocols

    if text in (ANY, "all"):
        return protocols() if text == "all" else [ANY]
    (name,) = parse_protocols(text)
    if name not in protocols():
        valid = ", ".join((ANY, "all", *protocols()))
        raise InputError(f"--feature location --protocol {name}: valid are {valid}")
    return [name]


def choose_for_routing(text: str, protocols: list[str], routing: str) -> list[str]:
    """Return the protocols that work with the strategy; InputError if a single named one does not."""
    from roamcast.mobility import MOBILE_PROTOCOLS, check_combination, find_protocol
    from roamcast.routing.router import STRATEGIES

    if routing not in STRATEGIES:
        raise InputError(f"--routing {routing!r}: valid are {', '.join(STRATEGIES)}")
    if text == "all":
        known = [name for name in protocols if name not in MOBILE_PROTOCOLS]
        return [name for name in known if routing in find_protocol(name).strategies]
    for name in protocols:
        check_combination(find_protocol(name), routing)
    return protocols


def choose_protocols(text: str, faults: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Return the protocols that promise something under these faults, and why the others do not."""
    from roamcast.mobility import MOBILE_PROTOCOLS, find_protocol
    from roamcast.simulator.faults import why_left_out

    reasons = {
        name: None if name in MOBILE_PROTOCOLS else why_left_out(find_protocol(name), faults)
        for name in parse_protocols(text)
    }
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    if text != "all" and left_out:
        raise InputError(f"--faults {','.join(faults)}: {left_out[text]}")
    return [name for name in reasons if name not in left_out], left_out


def parse_protocols(text: str) -> list[str]:
    from roamcast.mobility import MOBILE_PROTOCOLS, PROTOCOLS, find_protocol

    if text in MOBILE_PROTOCOLS:
        if not MOBILE_PROTOCOLS[text].keeps_promises:
            raise InputError(f"--protocol {text}: it promises nothing; use --story to see what it does")
        return [text]
    if text != "all":
        return [find_protocol(text).name]
    # Names with a colon are rules as published, known to fail and kept for comparison.
    return [name for name in sorted(PROTOCOLS) if ":" not in name]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fuzz_protocols(
    protocols: Iterable[str],
    seeds: range,
    failures_max: int,
    workers: int,
    on_seed: Callable[[], None],
    kind: Kind,
) -> list[FuzzReport]:
    """Return one report for each protocol, independent of the number of workers."""
    from roamcast.simulator.fuzz import collect

    if workers == 1 or len(seeds) == 1:
        return [
            collect(name, in_this_process(name, seeds, kind), failures_max, on_seed) for name in protocols
        ]
    waiting_max = workers * CHUNKS_WAITING
    with process_pool(workers) as pool:
        return [
            collect(name, in_processes(pool, name, seeds, kind, waiting_max), failures_max, on_seed)
            for name in protocols
        ]


def in_this_process(protocol: str, seeds: Iterable[int], kind: Kind) -> Iterator[FuzzReport]:
    from roamcast.simulator.fuzz import fuzz_seed

    for seed in seeds:
        try:
            yield fuzz_seed(protocol, seed, kind)
        except Exception as error:
            # Name the seed, so that the author of a protocol can reproduce the error.
            what = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"protocol {protocol} with seed {seed}: {what}") from error


def run_chunk(protocol: str, seeds: range, kind: Kind) -> list[FuzzReport]:
    """Run a chunk of seeds; called in a worker process."""
    return list(in_this_process(protocol, seeds, kind))


def in_processes(
    pool: ProcessPoolExecutor, protocol: str, seeds: range, kind: Kind, waiting_max: int
) -> Iterator[FuzzReport]:
    """Yield reports of single seeds in order, whichever worker is done first."""
    chunks = (seeds[start : start + SEEDS_PER_CHUNK] for start in range(0, len(seeds), SEEDS_PER_CHUNK))
    waiting: deque[Future[list[FuzzReport]]] = deque()
    try:
        while True:
            for chunk in islice(chunks, waiting_max - len(waiting)):
                with interrupts_held_back():
                    waiting.append(pool.submit(run_chunk, protocol, chunk, kind))
            if not waiting:
                return
            yield from waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Pool of worker processes, which all end with the block, also after an interruption."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Spawned, not forked: the progress bar has a thread, and a fork would copy its locks as they are.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=load_protocols)
    others = set(multiprocessing.active_children())
    try:
        yield pool
    finally:
        # A worker may still be shrinking a story that is no longer needed, after enough failures or Ctrl-C.
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown(cancel_futures=True)


def merged(reports: list[FuzzReport]) -> dict[str, Any]:
    """Return the result of all protocols as plain data."""
    protocols = {}
    for report in reports:
        figures = asdict(report)
        name, failures = figures.pop("protocol"), figures.pop("failures")
        figures["excused"] = dict(sorted(figures["excused"].items()))
        protocols[name] = {**figures, "failing_seeds": [failure["seed"] for failure in failures]}
    return {
        "seeds": max(report.seeds for report in reports),
        "runs": sum(report.seeds for report in reports),
        "handoffs": sum(report.handoffs for report in reports),
        "notifications": sum(report.notifications for report in reports),
        "violations": sum(report.violations for report in reports),
        "failures": [
            {"protocol": report.protocol, **asdict(failure)}
            for report in reports
            for failure in report.failures
        ],
        "protocols": protocols,
    }


def show(result: dict[str, Any]) -> None:
    columns = (*COLUMNS, *(FAULT_COLUMNS if result["faults"] else ()))
    columns = (*columns, *(LOCATION_COLUMNS if result["feature"] else ()))
    table_in_parts(
        ["mobility protocol", *(name.replace("_", " ") for name in columns)],
        [
            [protocol, *(figures[name] for name in columns)]
            for protocol, figures in result["protocols"].items()
        ],
        title="promises kept" if not result["failures"] else "promises broken: see below",
    )
    if result["left_out"]:
        print(f"skipped: {'; '.join(result['left_out'].values())}")
    for failure in result["failures"]:
        print(f"\n{failure['protocol']}, seed {failure['seed']}, shrunk to a short story:")
        for violation in failure["violations"]:
            print(f"  violation: {violation}")
        print("Replay it with")
        print(f"roamcast fuzz --trace --story - <<'END'\n{failure['story'].rstrip()}\nEND")


# --- stories ---


def replay(place: str, protocol: str | None, *, trace: bool, as_json: bool) -> bool:
    """Run one story and print its violations."""
    from roamcast.mobility import MOBILE_PROTOCOLS, find_protocol
    from roamcast.simulator.story import format_story, parse_story

    name = "standard input" if place == "-" else place
    story = parse_story(read_text(place, "--story"), name)
    if protocol is not None:
        known = protocol if protocol in MOBILE_PROTOCOLS else find_protocol(protocol).name
        settings = replace(story.settings, protocol=known)
        story = replace(story, settings=settings)
    seen = Trace()
    try:
        result = story.judge(seen.on_rows, seen.on_message) if trace else story.judge()
    finally:
        if not as_json:
            print(*seen.lines(), sep="\n", end="\n" if trace else "")
    violations = [str(violation) for violation in result.violations]
    if as_json:
        emit_json(
            {
                "story": format_story(story),
                "protocol": story.settings.protocol,
                "notifications": result.published,
                "expected": result.expected,
                "deliveries": result.delivered,
                "lost": result.lost,
                "duplicates": result.duplicates,
                "out_of_order": result.out_of_order,
                "handoffs": result.handoffs,
                "excused": dict(sorted(result.excused.items())),
                "violations": violations,
                **({"messages": seen.lines()} if trace else {}),
            }
        )
    else:
        show_replay(story, name, violations)
    return bool(violations)


class Trace:
    """Collects messages between brokers, and crashes and restarts of brokers and links."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, bool, str]] = []
        """(time, is a message, text); at equal times faults sort first."""

    def on_message(self, now_s: float, broker: str, peer: str, message: Message) -> None:
        self._seen.append((now_s, True, f"{broker} -> {peer}  {describe(message)}"))

    def on_rows(self, rows: list[Row]) -> None:
        for row in rows:
            match row.kind:
                case "crashed":
                    before = ", before it sends anything of its last step" if row.reason else ""
                    self._seen.append((row.time, False, f"{row.broker} crashes{before}"))
                case "started":
                    self._seen.append((row.time, False, f"{row.broker} is back"))
                case "link_down" | "link_up":
                    state = row.kind.removeprefix("link_")
                    self._seen.append(
                        (row.time, False, f"{row.node} notices that its link to {row.peer} is {state}")
                    )

    def lines(self) -> list[str]:
        return [f"{time_s:12.6f}  {what}" for time_s, _, what in sorted(self._seen, key=lambda one: one[:2])]


def show_replay(story: Story, name: str, violations: list[str]) -> None:
    for violation in violations:
        print(f"violation: {violation}")
    verdict = "is broken" if violations else "is kept"
    print(f"{name}: the promise of {story.settings.protocol} {verdict}")


def describe(value: Any) -> str:
    """Text of a message: its name and the fields that differ from their defaults."""
    import msgspec

    from roamcast.filters.filter import Filter
    from roamcast.protocol.messages import Relayed
    from roamcast.protocol.notification import Burst, decode_attributes

    if isinstance(value, Relayed):
        return f"{describe(value.message)} (from {value.source} to {value.destination})"
    if isinstance(value, Burst):
        numbers = f"{value.number}" if value.count == 1 else f"{value.number}..{value.last}"
        attributes = json.dumps(decode_attributes(value.attributes), ensure_ascii=False)
        return f"{value.publisher}/{numbers} {attributes}"
    if isinstance(value, Filter):
        return value.text
    if isinstance(value, msgspec.Struct):
        parts = [type(value).__name__]
        for field in msgspec.structs.fields(value):
            content = getattr(value, field.name)
            if content is True:
                parts.append(field.name)
            elif content != field.default and content not in ((), [], {}, "", b"", None, False):
                parts.append(f"{field.name}={describe(content)}")
        return " ".join(parts)
    if isinstance(value, dict):
        return "{" + "; ".join(f"{describe(key)}: {describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        if len(value) == 2 and isinstance(value[0], Filter):  # an entry: whose filter, if that is known
            return f"{value[0].text} of {value[1]}" if value[1] else value[0].text
        return "[" + "; ".join(map(describe, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
