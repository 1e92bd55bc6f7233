"""`roamcast pub`: publish from the command line."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roamcast.cli import mosquitto as flags
from roamcast.cli.mosquitto import Connection, register_command, roaming, run_client
from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.client import Client

CHUNK_BYTES = 1 << 16
CHUNKS_WAITING_MAX = 16


def register(app: typer.Typer) -> None:
    register_command(
        app,
        "pub",
        pub,
        "roamcast pub -t city/north/air -m 57 -q 1",
        "roamcast pub -h 127.0.0.1 -p 1883 -t log -q 2 -l < lines.txt",
        "roamcast pub -t city/north/air -m '{\"pm10\": 57}' --content-type application/json",
    )


def pub(
    topic: Annotated[str, typer.Option("-t", "--topic", help="The topic.")],
    message: Annotated[str | None, typer.Option("-m", "--message", help="The payload.")] = None,
    file: Annotated[str | None, typer.Option("-f", "--file", help="The payload is this file.")] = None,
    lines: Annotated[
        bool, typer.Option("-l", "--stdin-line", help="Each line of standard input that is not blank.")
    ] = False,
    stdin: Annotated[bool, typer.Option("-s", "--stdin-file", help="All of standard input.")] = False,
    null: Annotated[bool, typer.Option("-n", "--null-message", help="An empty payload.")] = False,
    qos: flags.Qos = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Keep it for later subscribers.")] = False,
    property: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A user property, an attribute for filters. Repeatable."),
    ] = None,
    content_type: Annotated[
        str | None, typer.Option(help="application/json makes fields of the payload attributes.")
    ] = None,
    message_expiry: Annotated[int | None, typer.Option(min=0, help="Seconds until it is worthless.")] = None,
    response_topic: Annotated[str | None, typer.Option(help="Where an answer is expected.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Publish so many times.")] = 1,
    repeat_delay: Annotated[float, typer.Option(min=0.0, help="Seconds between two of these.")] = 0.0,
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
    """Publish a message, or every line that is read, and wait until the broker has acknowledged it.

    Exit code 1 if the broker cannot be reached or refuses, with the reason in a line.
    """
    connection = Connection(
        host, port, id, lasting, expiry, keep_alive, version, user, password, cafile, tls, cert, key,
        roam, every, proclaim,
    )  # fmt: skip
    sources = [message is not None, file is not None, lines, stdin, null]
    if sum(sources) != 1:
        raise InputError("give one of -m MESSAGE, -f FILE, -l (lines), -s (standard input) and -n (empty)")
    options: dict[str, Any] = {
        "qos": qos,
        "retain": retain,
        "properties": [parse_property(text) for text in property or []],
        "content_type": content_type,
    }
    client = connection.client()
    if lines:
        run_client(publish_lines(client, connection, topic, options))
        return
    options |= {"message_expiry": message_expiry, "response_topic": response_topic}
    payload = read_payload(message, file, stdin)
    run_client(publish_repeatedly(client, connection, topic, payload, options, repeat, repeat_delay))


def parse_property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--property {text}: valid is NAME=VALUE, as in pm10=57")
    return name, value


def read_payload(message: str | None, file: str | None, stdin: bool) -> bytes:
    if message is not None:
        return message.encode("utf-8", "surrogateescape")
    if stdin:
        return sys.stdin.buffer.read()
    if file is None:
        return b""
    try:
        with open(file, "rb") as source:
            return source.read()
    except OSError as error:
        raise InputError(f"-f {file}: cannot be read ({error.strerror})") from None


async def publish_repeatedly(
    client: Client,
    connection: Connection,
    topic: str,
    payload: bytes,
    options: dict[str, Any],
    repeat: int,
    delay_s: float,
) -> int:
    async with client, roaming(client, connection):
        for number in range(repeat):
            if number and delay_s:
                await asyncio.sleep(delay_s)
            await client.publish(topic, payload, **options)
    return 0


async def publish_lines(client: Client, connection: Connection, topic: str, options: dict[str, Any]) -> int:
    async with client, roaming(client, connection):
        await client.publish_each(topic, stdin_lines(), **options)
    return 0


async def stdin_lines() -> AsyncIterator[bytes]:
    """The lines of standard input as they come, without those that are blank."""
    rest = b""
    async for chunk in stdin_chunks():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line.removesuffix(b"\r")
    if rest.strip():
        yield rest


async def stdin_chunks() -> AsyncIterator[bytes]:
    """What is read from standard input, by a thread: it may be a file, which no event loop can wait for."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_WAITING_MAX)
    source = sys.stdin.fileno()

    def read() -> None:
        chunk = b" "
        # The loop may be closed before this ends: nobody wants the rest then.
        with suppress(RuntimeError):
            while chunk:
                room.acquire()
                chunk = os.read(source, CHUNK_BYTES)
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    # A daemon, so that nobody has to wait for a line when the broker has gone.
    threading.Thread(target=read, daemon=True).start()
    while chunk := await chunks.get():
        room.release()
        yield chunk
