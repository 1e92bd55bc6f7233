"""Inspecting running brokers, and operators' actions: `roamcast where`, `explain`, `broker
status|drain|…`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.cli.output import emit_json
from roamcast.cli.usage import AsJson, argument, option, show_examples
from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.protocol.records import Row
    from roamcast.records.explaining import Identity

ANSWER_S = 15.0
DRAIN_S = 60.0
EXIT_NOT_FOUND = 1
EXIT_FAILING = 1

WHERE = "roamcast where car-7 --data site-a"
EXPLAIN = "roamcast explain car-7 sensor-1:42 --log site-a --log site-b"
STATUS = "roamcast broker status --data site-a"
DRAIN = "roamcast broker drain --data site-a --to b --reference b.example.org:1883"
FORGET = "roamcast broker forget c --data site-a"
ACCEPT = "roamcast broker accept-history b --data site-a"
PROMOTE = "roamcast broker promote site-a-2 --data site-a"
ADD_REPLICA = "roamcast broker add-replica site-a-2 --data site-a"
REMOVE_REPLICA = "roamcast broker remove-replica site-a-2 --data site-a"
READMIT = "roamcast broker readmit car-7 --data site-a"

Answer = dict[str, Any]

Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="The data folder of a broker that is running.")
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Its configuration, instead of --data.")]


def register(app: typer.Typer, broker: typer.Typer) -> None:
    app.command("where", epilog=show_examples(WHERE))(where)
    app.command("explain", epilog=show_examples(EXPLAIN))(explain)
    broker.command("status", epilog=show_examples(STATUS))(status)
    broker.command("drain", epilog=show_examples(DRAIN))(drain)
    broker.command("forget", epilog=show_examples(FORGET))(forget)
    broker.command("readmit", epilog=show_examples(READMIT))(readmit)
    broker.command("accept-history", epilog=show_examples(ACCEPT))(accept_history)
    broker.command("promote", epilog=show_examples(PROMOTE))(promote)
    broker.command("add-replica", epilog=show_examples(ADD_REPLICA))(add_replica)
    broker.command("remove-replica", epilog=show_examples(REMOVE_REPLICA))(remove_replica)


def where(
    client: str = argument(..., "The client id."),
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show which broker holds a client's session, and its queue. Exit code 1 if no broker does."""

    def said(answer: Answer) -> str:
        if answer["found"]:
            since = spoken_time(answer["since"])
            size = f"{answer['queued']:,} notifications ({answer['queued_bytes']:,} bytes) queued"
            return f"{client} is {answer['state']} at broker {answer['broker']} since {since}, {size}"
        down = ", ".join(f"{peer} ({why or 'not connected'})" for peer, why in answer["links_down"].items())
        asked = f"; these links are down: {down}" if down else ""
        if answer["away"]:
            asked += f"; these brokers did not answer, and may hold the session: {', '.join(answer['away'])}"
        return f"no reachable broker holds a session of {client}{asked}"

    if not ask_once(data, config, as_json, said, command="where", client=client)["found"]:
        raise typer.Exit(EXIT_NOT_FOUND)


def status(data: Data = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show the state of a running broker. Exit code 1 while it cannot acknowledge messages."""
    answer = last_answer(folder_of(data, config), ANSWER_S, command="status")
    if as_json:
        emit_json(without_done(answer))
    else:
        print_status(answer)
    if "journal" not in answer:
        return  # A follower serves no clients.
    if answer["journal"] != "ok" or answer["history"]["refusal"] != "ok":
        raise typer.Exit(EXIT_FAILING)


def print_status(answer: dict[str, Any]) -> None:
    from roamcast.broker.links.guard import REASONS

    if "replication" in answer:
        print_replication(answer["replication"])
    if "journal" not in answer:
        print(f"broker {answer['broker']}, version {answer['version']}: {answer['sessions']:,} sessions")
        return
    print(
        f"broker {answer['broker']}, version {answer['version']}, up for {answer['uptime_s']:,.0f} s: "
        f"{answer['connections']:,} connections, {answer['sessions']:,} sessions, {answer['queued']:,} queued"
    )
    print(f"journal: {answer['journal']}")
    history = answer["history"]
    print(f"history: epoch {history['epoch']}, position {history['position']:,}: {history['refusal']}")
    for peer, why in history["refused"].items():
        print(f"history of {peer} refused: {why}")
    if answer["unmet"]:
        names = ", ".join(answer["unmet"])
        print(
            f"never met: {names}; clients without a session here are refused until it has met them "
            "(mobility.unmet)"
        )
    if "tree" in answer:
        tree = answer["tree"]
        parent = f"parent {tree['parent']}" if tree["parent"] else "no parent"
        print(f"tree: leader {tree['leader']}, {parent}, children: {', '.join(tree['children']) or 'none'}")
    workers = answer.get("workers", ())
    for worker in workers:
        print_worker(worker)
    for link in answer["links"]:
        if any(worker["worker"] == link["peer"] for worker in workers):
            continue  # The worker's row says whether it is up.
        state = "up" if link["is_up"] else f"down ({link['why'] or 'not connected'})"
        if link.get("over"):
            state = f"up, carried by {link['over']} ({link['why'] or 'the direct way is silent'})"
        print(f"link to {link['peer']}: {state}, {link['kept_bytes']:,} bytes kept")
        for reason, count in link["refused"].items():
            print(f"  refused {count:,}: {REASONS.get(reason, reason)}")
    for pair in answer.get("carries", ()):
        print(f"carries the link between {' and '.join(pair)}")
    if answer["fail_stops"]:
        print(f"fail-stops: {answer['fail_stops']:,}")
    for one in answer["kept_out"]:
        print(f"kept out: {one['kind']} {one['name']} until {spoken_time(one['until'])}: {one['why']}")


def print_worker(worker: dict[str, Any]) -> None:
    if not worker["up"]:
        print(f"worker {worker['worker']}: away ({worker['why']})")
        return
    print(
        f"worker {worker['worker']}: process {worker['process']}, up for {worker['uptime_s']:,.0f} s: "
        f"{worker['connections']:,} connections, {worker['sessions']:,} sessions, {worker['queued']:,} queued"
    )


def print_replication(replication: dict[str, Any]) -> None:
    role, epoch = replication["role"], replication["epoch"]
    leader = "" if role == "leader" else f", the leader is {replication['leader'] or 'nobody'}"
    print(f"replica {replication['replica']}: {role}, epoch {epoch}{leader}")
    in_sync = ", ".join(replication["in_sync"]) or "none"
    print(f"in sync: {in_sync}; entry {replication['last']:,}, {replication['lag']:,} behind")
    for name, one in replication["followers"].items():
        state = "connected" if one["connected"] else "away"
        state = f"{state}, {'in sync' if one['in_sync'] else 'not in sync'}"
        print(f"follower {name}: {state}, {one['lag']:,} entries behind")
    if replication["removed"]:
        print(f"removed: {', '.join(replication['removed'])}")
    print(f"etcd: {replication['etcd']}")


ReplicaName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the replica.")]


def promote(
    replica: ReplicaName, data: Data = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Make another replica of a replicated broker the leader; the present leader becomes a follower."""
    ask_once(data, config, as_json, lambda _: f"{replica} takes over", command="promote", replica=replica)


def add_replica(
    replica: ReplicaName, data: Data = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Add a replica that was removed before. A new replica only needs to be started."""
    ask_once(data, config, as_json, lambda _: f"{replica} may join", command="add-replica", replica=replica)


def remove_replica(
    replica: ReplicaName, data: Data = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Remove a replica for good: the leader stops waiting for it and refuses it."""
    removed = f"{replica} is removed"
    ask_once(data, config, as_json, lambda _: removed, command="remove-replica", replica=replica)


def drain(
    to: str = option("", "Broker that takes the sessions. [default: a connected peer]"),
    reference: str = option("", "Address that MQTT 5 clients are referred to.", metavar="HOST:PORT"),
    data: Data = None,
    config: ConfigFile = None,
    timeout: float = option(DRAIN_S, "Give up after this many seconds.", min=1),
    as_json: AsJson = False,
) -> None:
    """Hand every session to another broker before maintenance, and report when this broker is empty.

    Clients are closed with "use another server". The broker serves no client until it is restarted.
    """
    from roamcast.daemon.control import ask

    folder, end, moved = folder_of(data, config), time.monotonic() + timeout, 0
    for answer in ask(folder, ANSWER_S, command="drain", to=to, reference=reference):
        moved = max(moved, answer["sessions"])
        if answer["done"]:
            result = {"to": answer["to"], "sessions": moved, "empty": True}
            if as_json:
                emit_json(result)
            else:
                print(f"empty: {moved:,} sessions have gone to {answer['to']}; the broker can be stopped")
            return
        if time.monotonic() > end:
            raise InputError(
                f"after {timeout:g} s {answer['sessions']} sessions are still here; the drain continues"
            )
        print(f"{answer['sessions']:,} sessions left", file=sys.stderr)


def forget(
    broker: str = argument(..., "The broker that is gone for good.", metavar="ID"),
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Forget a broker whose disk is lost: its sessions are given up, and no broker waits for it.

    Tell one broker; it tells all others. A forgotten broker must never return with its old disk.
    """
    forgotten = f"{broker} is forgotten"
    answer = ask_once(data, config, as_json, lambda _: forgotten, command="forget", broker=broker)
    if answer["configured"] and not as_json:
        print("it is still a [[peer]] in the configuration: remove it and reload (SIGHUP)", file=sys.stderr)


def readmit(
    name: str = argument(..., "The banned client or peer.", metavar="ID"),
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Readmit a client or peer that is banned because its input stopped the broker.

    Its record is cleared: the next ban is the shortest again.
    """

    def said(answer: Answer) -> str:
        return "\n".join(f"{one['kind']} {one['name']} is readmitted" for one in answer["readmitted"])

    ask_once(data, config, as_json, said, command="readmit", name=name)


def accept_history(
    broker: str = argument(..., "The peer whose history is refused, or the broker itself.", metavar="ID"),
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Accept an older history: a peer lost its disk, or was restored from an old backup.

    At a broker that refuses a peer: link with the peer in its present state; data missing in the peer's
    folder is lost. With the broker's own ID: serve clients although a peer refuses this broker, or none of
    its peers was met.
    """
    accepted = f"the history of {broker} is accepted"
    answer = ask_once(data, config, as_json, lambda _: accepted, command="accept-history", broker=broker)
    if answer["begins_anew"] and not as_json:
        print(f"the link to {broker} restarts: unacknowledged messages on it are given up", file=sys.stderr)


def explain(
    client: str = argument("", "The client that should have received the notification."),
    notification: str = argument(
        "",
        "The notification; PUBLISHER:INCARNATION:NUMBER if the publisher has several.",
        metavar="PUBLISHER:NUMBER",
    ),
    logs: list[Path] | None = option(
        None, "A folder of event logs, or a data folder. Repeatable.", "--log", metavar="DIR"
    ),
    key_file: Path | None = option(None, "The pseudonym key of the logs (events.pseudonym_key_file)."),
    otlp: str = option("", "Also write an OpenTelemetry trace (OTLP, JSON).", metavar="FILE|URL"),
    sampled: bool = option(
        False, "With --otlp: all that their publishers sampled (traceparent).", "--sampled"
    ),
    as_json: AsJson = False,
) -> None:
    """Show how a notification reached a client, from the event logs of all brokers.

    --otlp appends a trace to a file, one line of JSON each, or sends it to a collector, as in
    http://127.0.0.1:4318/v1/traces.
    """
    if not logs:
        raise InputError("no logs: name their folders with --log, once for each broker")
    if sampled:
        if client or not otlp:
            raise InputError("--sampled: valid with --otlp, and without a client and a notification")
        write_sampled(otlp, logs)
        return
    if not notification:
        raise InputError("name a client and a notification (PUBLISHER:NUMBER), or --sampled --otlp FILE|URL")
    from roamcast.records.explaining import Identity
    from roamcast.records.explaining import explain as explain_rows
    from roamcast.records.pseudonyms import pseudonyms

    wanted = parse_notification(notification)
    names = (client, wanted.publisher)
    if key_file is not None:
        from roamcast.config.private_files import read_secret

        pseudonym = pseudonyms(read_secret(str(key_file), "--key-file"))
        names = (pseudonym(client), pseudonym(wanted.publisher))
    rows = [row for row in rows_in(logs) if row.client == names[0] or row.publisher == names[1]]
    wanted = Identity(names[1], wanted.number, wanted.incarnation)
    found = explain_rows(rows, names[0], wanted)
    if otlp:
        write_trace(otlp, rows, names[0], wanted)
    if as_json:
        emit_json({"steps": [step._asdict() for step in found.steps], "outcome": found.outcome})
        return
    for step in found.steps:
        print(f"{spoken_time(step.time)}  {step.node}: {step.what}")
    print(found.outcome)


def write_trace(where: str, rows: list[Row], client: str, wanted: Identity) -> None:
    """Append a trace to a file, or send it to a collector."""
    from roamcast.records.spans import as_otlp, trace_of

    trace = trace_of(rows, client, wanted)
    if not trace.spans:
        raise InputError(f"--otlp {where}: the logs do not contain this notification")
    send_trace(where, as_otlp(trace))


def write_sampled(where: str, logs: list[Path]) -> None:
    from roamcast.records.spans import as_otlp, sampled

    count = 0
    for trace in sampled(lambda: rows_in(logs)):
        send_trace(where, as_otlp(trace))
        count += 1
    print(f"{count} sampled notification{'' if count == 1 else 's'}: {where}")


def send_trace(where: str, trace: dict[str, Any]) -> None:
    import json

    text = json.dumps(trace)
    try:
        if where.startswith(("http://", "https://")):
            from urllib.request import Request, urlopen

            headers = {"Content-Type": "application/json"}
            urlopen(Request(where, text.encode(), headers), timeout=ANSWER_S).close()
        else:
            with open(where, "a", encoding="utf-8") as file:
                file.write(text + "\n")
    except OSError as error:
        raise InputError(f"--otlp {where}: cannot be written ({error})") from None


def rows_in(folders: list[Path]) -> Iterator[Row]:
    from roamcast.records.parquet import read_log

    for folder in folders:
        place = folder / "events" if (folder / "events").is_dir() else folder
        if not place.is_dir():
            raise InputError(f"--log {folder}: there is no such folder")
        yield from read_log(place)


def parse_notification(text: str) -> Identity:
    from roamcast.records.explaining import Identity

    # A client id may contain colons; the numbers are at the end.
    publisher, _, number = text.rpartition(":")
    incarnation = None
    head, _, middle = publisher.rpartition(":")
    if head and middle.isdecimal():
        publisher, incarnation = head, int(middle)
    if not publisher or not number.isdecimal():
        raise InputError(f"notification {text!r}: valid is PUBLISHER:NUMBER, as in sensor-1:42")
    return Identity(publisher, int(number), incarnation)


def folder_of(data: Path | None, config: Path | None) -> Path:
    """Data folder of the broker named by --data or --config."""
    if data is not None and config is not None:
        raise InputError("--data and --config are given; keep one")
    if data is None:
        from roamcast.daemon.config import load

        data = Path(load(config, os.environ, {}, lambda line: None).data)
    if not data.is_dir():
        raise InputError(f"{data}: there is no such folder; name a broker's with --data or --config")
    return data


def last_answer(folder: Path, timeout_s: float, **request: object) -> Answer:
    from roamcast.daemon.control import ask

    *_, answer = ask(folder, timeout_s, **request)
    return answer


def ask_once(
    data: Path | None,
    config: Path | None,
    as_json: bool,
    said: Callable[[Answer], str],
    timeout_s: float = ANSWER_S,
    **request: object,
) -> Answer:
    """Send one request to a running broker, and print its answer: as JSON, or as `said` puts it."""
    answer = last_answer(folder_of(data, config), timeout_s, **request)
    if as_json:
        emit_json(without_done(answer))
    elif text := said(answer):
        print(text)
    return answer


def without_done(answer: Answer) -> Answer:
    return {key: value for key, value in answer.items() if key not in ("done", "number")}


def spoken_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
