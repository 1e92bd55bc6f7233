"""`roamcast pub`: publish from the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, BinaryIO

from roamcast.cli.flags import Command, Flag, Values, number, of_packet, whole_number
from roamcast.cli.mosquitto import ABSENT, CONNECTION, QOS, Target, client_of, message_options, target_of
from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.client import Client

FLAGS = (
    Flag(("-t", "--topic"), "The topic.", "TOPIC"),
    Flag(("-m", "--message"), "The payload.", "TEXT"),
    Flag(("-f", "--file"), "Publish the content of this file.", "FILE"),
    Flag(("-l", "--stdin-line"), "Publish each non-empty line of standard input."),
    Flag(("-s", "--stdin-file"), "Publish all of standard input as one message."),
    Flag(("-n", "--null-message"), "Publish an empty payload."),
    QOS,
    Flag(("-r", "--retain"), "Retain the message for later subscribers."),
    Flag(
        ("--content-type",),
        "Content type; with application/json the fields of the payload are attributes.",
        "TYPE",
    ),
    Flag(
        ("--message-expiry",),
        "Seconds until the message expires.",
        "SECONDS",
        None,
        whole_number(0, 0xFFFF_FFFF),
    ),
    Flag(("--response-topic",), "Response topic.", "TOPIC"),
    Flag(("--repeat",), "Publish this many times.", "NUMBER", 1, whole_number(1)),
    Flag(("--repeat-delay",), "Seconds between two repetitions.", "SECONDS", 0.0, number(0.0)),
    *CONNECTION,
)


def pub(values: Values) -> int:
    target = target_of(values)
    topic = values.topic if values.topic is not None else target.topic
    if topic is None:
        raise InputError("no topic: give -t TOPIC, or a URL with one (-L)")
    if values.stdin_line and values.repeat > 1:
        raise InputError("--repeat repeats one message: give it with -m, -f, -s or -n")
    given = (values.message, values.file, values.stdin_line, values.stdin_file, values.null_message)
    if sum(one is not None and one is not False for one in given) != 1:
        raise InputError("give one of -m MESSAGE, -f FILE, -l (lines), -s (standard input) and -n (empty)")
    options = options_of(values)
    payload = None if values.stdin_line else read_payload(values)
    return publish(values, target, topic, payload, options)


def options_of(values: Values) -> dict[str, Any]:
    described, user_properties = of_packet(values.property, "publish")
    options = {"qos": values.qos, "retain": values.retain, **message_options(described, user_properties)}
    for flag in ("content_type", "message_expiry", "response_topic"):
        if values[flag] is not None:
            options[flag] = values[flag]
    return options


def read_payload(values: Values) -> bytes:
    if values.message is not None:
        return bytes(values.message.encode("utf-8", "surrogateescape"))
    if values.stdin_file:
        return standard_input().read()
    if values.file is None:
        return b""
    try:
        with open(values.file, "rb") as source:
            return source.read()
    except OSError as error:
        raise InputError(f"-f {values.file}: cannot be read ({error.strerror})") from None


def standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("standard input is closed: there is nothing to read")
    return sys.stdin.buffer


def publish(
    values: Values, target: Target, topic: str, payload: bytes | None, options: dict[str, Any]
) -> int:
    """Connect and publish; without a payload, the lines of standard input."""
    # Loading this takes longer than everything above.
    from roamcast.cli.running import run_client

    client = client_of(values, target)
    if payload is None:
        return run_client(values, publish_lines(client, values, topic, options))
    return run_client(values, publish_repeatedly(client, values, topic, payload, options))


async def publish_repeatedly(
    client: Client, values: Values, topic: str, payload: bytes, options: dict[str, Any]
) -> int:
    import asyncio

    from roamcast.cli.running import roaming

    done = 0
    async with client, roaming(client, values, lambda: f"{done} published"):
        while done < values.repeat:
            if done and values.repeat_delay:
                await asyncio.sleep(values.repeat_delay)
            await client.publish(topic, payload, **options)
            done += 1
    return 0


async def publish_lines(client: Client, values: Values, topic: str, options: dict[str, Any]) -> int:
    from roamcast.cli.lines import Lines
    from roamcast.cli.running import roaming

    lines = Lines(standard_input().fileno())
    async with client, roaming(client, values, lambda: f"{lines.count:,} lines read"):
        await client.publish_each(topic, lines.bursts(), **options)
    return 0


COMMAND = Command(
    "pub",
    "Publish a message, or every line that is read, and wait until the broker has acknowledged it.\n\n"
    "Exit code 1 if the broker cannot be reached, its reason code if it refuses, with the reason in a line.",
    FLAGS,
    ABSENT,
    (
        "roamcast pub -t city/north/air -m 57 -q 1",
        "roamcast pub -h 127.0.0.1 -p 1883 -t log -q 2 -l < lines.txt",
        "roamcast pub -t city/north/air -m '{\"pm10\": 57}' --content-type application/json",
        "roamcast pub -L mqtt://127.0.0.1/city/north/air -m 57 --property unit=ug",
    ),
    pub,
)
