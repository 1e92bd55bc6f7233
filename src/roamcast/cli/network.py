"""The whole network, from any of its brokers: `roamcast status|clients|sessions|subscriptions|links|top`,
and `kick`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from roamcast.cli.operate import (
    Answer,
    ConfigFile,
    Data,
    ask_once,
    folder_of,
    last_answer,
    spoken_time,
    without_done,
)
from roamcast.cli.output import emit_json
from roamcast.cli.output import table as print_table
from roamcast.cli.usage import AsJson, argument, option, show_examples
from roamcast.errors import InputError

ANSWER_S = 30.0
EXIT_FAILING = 1
RATES_S = 1.2
"""Time between the two reports of a broker from which rates are computed."""
CLIENTS_IN_TOP = 10
CLEAR = "\x1b[H\x1b[2J"

STATUS = "roamcast status --data site-a"
CLIENTS = "roamcast clients --data site-a --broker b"
SESSIONS = "roamcast sessions --data site-a --away --queued 100"
SUBSCRIPTIONS = "roamcast subscriptions --data site-a --topic cars/7/position"
LINKS = "roamcast links --data site-a --down"
TOP = "roamcast top --data site-a"
KICK = "roamcast kick car-7 --data site-a"

Search = Annotated[str, typer.Option(metavar="TEXT", help="Only clients whose id contains this.")]
Broker = Annotated[str, typer.Option(metavar="ID", help="Only at this broker.")]
Watch = Annotated[bool, typer.Option("--watch", help="Repeat until interrupted.")]
Interval = Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two updates, with --watch.")]


def register(app: typer.Typer) -> None:
    app.command("status", epilog=show_examples(STATUS))(status)
    app.command("clients", epilog=show_examples(CLIENTS))(clients)
    app.command("sessions", epilog=show_examples(SESSIONS))(sessions)
    app.command("subscriptions", epilog=show_examples(SUBSCRIPTIONS))(subscriptions)
    app.command("links", epilog=show_examples(LINKS))(links)
    app.command("top", epilog=show_examples(TOP))(top)
    app.command("kick", epilog=show_examples(KICK))(kick)


def status(
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    workers: bool = option(False, "Show a row for each worker.", "--workers"),
    watch: Watch = False,
    interval: Interval = 2.0,
) -> None:
    """Show all brokers, links and alerts of the network. Exit code 1 if a broker is down or failing."""
    folder = folder_of(data, config)

    def show(network: Answer) -> None:
        print_status(network, workers)

    last = repeat(lambda: asked(folder, "network"), show, as_json, watch, interval)
    if any(alert["level"] == "error" for alert in last["alerts"]):
        raise typer.Exit(EXIT_FAILING)


def rows_of_sites(brokers: list[Answer]) -> list[Answer]:
    """Return a row for each broker, with all workers of a site in one."""
    rows: dict[str, Answer] = {}
    for one in brokers:
        row = rows.setdefault(one["site"] or one["id"], dict(one))
        if row["id"] != one["id"]:
            row |= {name: row[name] + one[name] for name in ("attached", "sessions", "queued")}
            row["up"] = row["up"] and one["up"]
            row["journal"] = one["journal"] if row["journal"] == "ok" else row["journal"]
    return [row | {"id": name} for name, row in rows.items()]


def print_status(network: Answer, with_workers: bool = False) -> None:
    brokers = network["brokers"]
    table(
        ["broker", "state", "version", "up for s", "clients", "sessions", "queued", "journal"],
        [
            [
                one["id"], "up" if one["up"] else "down", one["version"], round(one["uptime_s"]),
                one["attached"], one["sessions"], one["queued"], one["journal"],
            ]
            for one in (brokers if with_workers else rows_of_sites(brokers))
        ],
    )  # fmt: skip
    up = sum(link["up"] for link in network["links"])
    figures = network["figures"]
    print(
        f"links: {up} of {len(network['links'])} are up; delivered: {figures['delivered']:,}, "
        f"queued: {figures['queued']:,}, given up: {figures['lost']:,}"
    )
    for alert in network["alerts"]:
        print(f"{alert['level']}: {printable(alert['text'])} (since {spoken_time(alert['since'])})")


def clients(
    search: Search = "",
    broker: Broker = "",
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = 2.0,
) -> None:
    """List connected clients, of all brokers."""
    folder = folder_of(data, config)
    check_broker(folder, broker)

    def found() -> Answer:
        return sessions_of(folder, search, broker, lambda one: bool(one["attached"]))

    repeat(found, print_clients, as_json, watch, interval)


def sessions(
    search: Search = "",
    broker: Broker = "",
    away: bool = option(False, "Only sessions whose client is disconnected.", "--away"),
    queued: int = option(0, "Only sessions with at least this many queued messages.", min=0),
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = 2.0,
) -> None:
    """List sessions of all brokers, including those of disconnected clients, and their queued messages."""
    folder = folder_of(data, config)
    check_broker(folder, broker)

    def is_wanted(one: Answer) -> bool:
        return not (away and one["attached"]) and int(one["queued"]) >= queued

    repeat(lambda: sessions_of(folder, search, broker, is_wanted), print_clients, as_json, watch, interval)


def check_broker(folder: Path, broker: str) -> None:
    """Refuse an id that no broker of the network has; "" is not checked."""
    if broker:
        brokers = asked(folder, "network")["brokers"]
        known = sorted({name for one in brokers for name in (one["id"], one["site"]) if name})
        if broker not in known:
            raise InputError(f"--broker {broker}: there is no such broker; known are: {', '.join(known)}")


def sessions_of(folder: Path, search: str, broker: str, is_wanted: Callable[[Answer], bool]) -> Answer:
    found = asked_in_parts(folder, "clients", "clients")
    found["clients"] = [
        one
        for one in found["clients"]
        if (not broker or one["broker"] == broker) and search.lower() in one["id"].lower() and is_wanted(one)
    ]
    return found


def print_clients(answer: Answer) -> None:
    table(
        ["client", "broker", "state", "queued", "expected next"],
        [
            [
                one["id"], one["broker"], "attached" if one["attached"] else "away", one["queued"],
                ", ".join(one["predicted"]),
            ]
            for one in answer["clients"]
        ],
    )  # fmt: skip
    print(f"{len(answer['clients']):,} in all")
    name_silent(answer)


def subscriptions(
    search: Search = "",
    topic: str = option("", "Only subscriptions that match this topic."),
    broker: Broker = "",
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = 2.0,
) -> None:
    """List subscriptions of all brokers, and their clients."""
    folder = folder_of(data, config)
    check_broker(folder, broker)

    def found() -> Answer:
        return asked_in_parts(
            folder, "subscriptions", "subscriptions", search=search, topic=topic, broker=broker
        )

    repeat(found, print_subscriptions, as_json, watch, interval)


def print_subscriptions(answer: Answer) -> None:
    rows = answer["subscriptions"]
    table(
        ["client", "broker", "filter", "qos", "group", "selector"],
        [[row[name] or "" for name in ("client", "broker", "filter")]
         + [row["qos"], row["group"] or "", row["selector"] or ""] for row in rows],
    )  # fmt: skip
    print(f"{len(rows):,} in all")
    name_silent(answer)


def name_silent(answer: Answer) -> None:
    if answer["silent"]:
        print(f"no answer from: {', '.join(answer['silent'])}", file=sys.stderr)


def links(
    down: bool = option(False, "Only links that are down.", "--down"),
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = 2.0,
) -> None:
    """List links between brokers, and the messages queued for the other end."""
    folder = folder_of(data, config)

    def found() -> Answer:
        all_links = asked(folder, "network")["links"]
        return {"links": [link for link in all_links if not (down and link["up"])]}

    repeat(found, print_links, as_json, watch, interval)


def print_links(answer: Answer) -> None:
    table(
        ["link", "state", "bytes kept", "why"],
        [
            [f"{link['a']} - {link['b']}", "up" if link["up"] else "down", link["kept_bytes"], link["why"]]
            for link in answer["links"]
        ],
    )


def top(
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    interval: Interval = 2.0,
) -> None:
    """Show the load of all brokers, and the clients with the longest queues.

    At a terminal the display is updated until interrupted; otherwise, and with --json, it is printed once.
    """
    folder = folder_of(data, config)

    def found() -> Answer:
        network = asked(folder, "network")
        rows = asked_in_parts(folder, "clients", "clients")["clients"]
        rows.sort(key=lambda one: (-one["queued"], one["id"]))
        return {**network, "clients": rows[:CLIENTS_IN_TOP]}

    asked(folder, "network")
    time.sleep(RATES_S)  # Meanwhile the brokers measure their rates.
    repeat(found, print_top, as_json, sys.stdout.isatty() and not as_json, interval)


def print_top(answer: Answer) -> None:
    table(
        ["broker", "cpu %", "memory MB", "clients", "queued", "in/s", "out/s", "handoffs/s", "p99 ms"],
        [
            [
                one["id"] if one["up"] else f"{one['id']} (down)", round(100 * one["cpu"], 1),
                round(one["memory_bytes"] / 1e6, 1), one["attached"], one["queued"],
                one["rates"]["received_per_s"], one["rates"]["delivered_per_s"],
                one["rates"]["handoffs_per_s"], one["handoff_ms"]["p99"] if one["handoff_ms"] else "",
            ]
            for one in answer["brokers"]
        ],
    )  # fmt: skip
    waiting = [one for one in answer["clients"] if one["queued"]]
    if waiting:
        print_clients({"clients": waiting, "silent": []})


def kick(
    client: str = argument(..., "The client id."),
    data: Data = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Disconnect a client from its broker. Its session stays, and the client may reconnect."""

    def said(answer: Answer) -> str:
        return printable(answer["text"])

    ask_once(data, config, as_json, said, ANSWER_S, command="kick", client=client)


# --- asking and showing ---


def asked(folder: Path, command: str) -> Answer:
    return without_done(last_answer(folder, ANSWER_S, command=command))


def asked_in_parts(folder: Path, command: str, name: str, **request: object) -> Answer:
    """Join a list that comes in several answers; the last answer has the other fields."""
    from roamcast.daemon.control import ask

    rows: list[Answer] = []
    last: Answer = {}
    for last in ask(folder, ANSWER_S, command=command, **request):
        rows += last[name]
    return {**without_done(last), name: rows}


def repeat(
    find: Callable[[], Answer], show: Callable[[Answer], None], as_json: bool, watch: bool, interval_s: float
) -> Answer:
    """Print the result once, or until interrupted; return the last one."""
    while True:
        found = find()
        if as_json:
            emit_json(found)
        else:
            if watch and sys.stdout.isatty():
                sys.stdout.write(CLEAR)
            show(found)
        if not watch:
            return found
        sys.stdout.flush()
        time.sleep(interval_s)


def table(columns: list[str], rows: list[list[object]]) -> None:
    """Print a table whose texts may come from untrusted clients."""
    print_table(columns, [[printable(one) if isinstance(one, str) else one for one in row] for row in rows])


def printable(text: str) -> str:
    """Escape control characters, which could move a terminal's cursor."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
