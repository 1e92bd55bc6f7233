"""`roamcast sub`: subscribe from the command line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.cli import mosquitto as flags
from roamcast.cli.mosquitto import Connection, register_command, roaming, run_client
from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.client import Client, Notification

EXIT_TIMED_OUT = 27
"""As with mosquitto_sub."""


def register(app: typer.Typer) -> None:
    register_command(
        app,
        "sub",
        sub,
        "roamcast sub -t 'city/#' -v",
        "roamcast sub -t 'city/+/air' --where 'pm10 > 50' -q 2 -i car-1 -c",
        "roamcast sub -t parking --where 'location WITHIN 2 OF myloc' --at market",
        "roamcast sub -t 'city/#' -q 2 -i car-1 -c --roam a=127.0.0.1:1883,b=127.0.0.1:1884 --every 10",
    )


def sub(
    topic: Annotated[
        list[str], typer.Option("-t", "--topic", help="A topic filter; a?x>5 filters by content. Repeatable.")
    ],
    where: Annotated[
        str | None, typer.Option(metavar="SELECTOR", help="Only what this selector matches: pm10 > 50.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="LOCATION", help="Where this client is, for selectors with myloc.")
    ] = None,
    qos: flags.Qos = 0,
    count: Annotated[int | None, typer.Option("-C", "--count", min=1, help="End after so many.")] = None,
    timeout: Annotated[
        float | None, typer.Option("-W", "--timeout", min=0.0, help="End after so many seconds, code 27.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic too.")] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "-F", "--format", help="As in mosquitto_sub: %t %p %x %l %q %r %d %I %U %j %J %P %C %%."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each.")] = False,
    no_newline: Annotated[bool, typer.Option("-N", help="No line break after each.")] = False,
    no_retained: Annotated[bool, typer.Option("-R", help="Leave out what was retained.")] = False,
    no_local: Annotated[
        bool, typer.Option("--no-local", help="Leave out what this client published.")
    ] = False,
    retain_as_published: Annotated[
        bool, typer.Option("--retain-as-published", help="Keep the retain flag as it was published.")
    ] = False,
    subscription_identifier: Annotated[int | None, typer.Option(min=1, help="Sent back with each.")] = None,
    records: flags.Records = None,
    host: flags.Host = "localhost",
    port: flags.Port = None,
    id: flags.Id = None,
    lasting: flags.Lasting = False,
    expiry: flags.Expiry = 3600,
    keep_alive: flags.KeepAlive = 60,
    version: flags.ProtocolVersion = "5",
    user: flags.User = None,
    password: flags.Password = None,
    cafile: flags.CaFile = None,
    tls: flags.Tls = False,
    cert: flags.Cert = None,
    key: flags.Key = None,
    roam: flags.Roam = None,
    every: flags.Every = 5.0,
    proclaim: flags.Proclaim = False,
) -> None:
    """Subscribe, and print what is published until it is told to end.

    What was not printed is not acknowledged: with -c the next one to come gets it. Exit code 1 if the broker
    cannot be reached or refuses, with the reason in a line; 27 after the time of -W.
    """
    connection = Connection(
        host, port, id, lasting, expiry, keep_alive, version, user, password, cafile, tls, cert, key,
        roam, every, proclaim, records,
    )  # fmt: skip
    asked = {
        "qos": qos,
        "where": where,
        "no_local": no_local,
        "retain_as_published": retain_as_published,
        "retain_handling": 2 if no_retained and version not in ("4", "311", "mqttv311") else 0,
        "identifier": subscription_identifier,
    }
    show = shown_as(format, as_json, verbose, no_newline)
    client = connection.client()
    run_client(print_notifications(client, connection, topic, asked, at, show, count, timeout, no_retained))


def shown_as(
    format: str | None, as_json: bool, verbose: bool, no_newline: bool
) -> Callable[[Notification], bytes]:
    from roamcast.cli.formats import Format

    if sum((format is not None, as_json, verbose)) > 1:
        raise InputError("give one of -v, -F FORMAT and --json: each says how to print")
    text = "%j" if as_json else "%t %p" if verbose else format if format is not None else "%p"
    return Format(text + ("" if no_newline else "\\n")).show


async def print_notifications(
    client: Client,
    connection: Connection,
    topics: list[str],
    asked: dict[str, Any],
    at: str | None,
    show: Callable[[Notification], bytes],
    count: int | None,
    timeout_s: float | None,
    no_retained: bool,
) -> int:
    out, left = sys.stdout.buffer, count
    try:
        async with asyncio.timeout(timeout_s), client:
            if at is not None:
                await client.move(at)
            for topic in topics:
                await client.subscribe(topic, **asked)
            async with roaming(client, connection):
                async for notification in client:
                    if no_retained and notification.retain:
                        continue
                    out.write(show(notification))
                    left = left - 1 if left is not None else None
                    if left == 0 or not client.waiting:
                        out.flush()
                    if left == 0:
                        break
    except TimeoutError:
        print(f"roamcast: timed out after {timeout_s:g} s", file=sys.stderr)
        return EXIT_TIMED_OUT
    return 0
