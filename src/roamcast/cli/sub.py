"""`roamcast sub`: subscribe from the command line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roamcast.cli.flags import Command, Flag, Values, number, of_packet, whole_number
from roamcast.cli.mosquitto import ABSENT, CONNECTION, QOS, client_of, say, target_of
from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.cli.formats import Format
    from roamcast.client import Client, Notification

EXIT_TIMED_OUT = 27
"""Exit code after -W, the same as that of mosquitto_sub."""
TOGETHER_MAX = 1024

FLAGS = (
    Flag(
        ("-t", "--topic"),
        "A topic filter; a?x>5 filters by content. Repeatable.",
        "FILTER",
        is_repeatable=True,
    ),
    Flag(("--where",), "Print only notifications that match this selector: pm10 > 50.", "SELECTOR"),
    Flag(("--at",), "Location of this client, for selectors with myloc.", "LOCATION"),
    QOS,
    Flag(("-C", "--count"), "Exit after this many messages.", "NUMBER", None, whole_number(1)),
    Flag(("-W", "--timeout"), "Exit after this many seconds, with code 27.", "SECONDS", None, number(0.0)),
    Flag(("-E", "--exit-after-subscribe"), "Exit when the broker has acknowledged all subscriptions."),
    Flag(("-v", "--verbose"), "Print the topic too."),
    Flag(
        ("-F", "--format"),
        "As in mosquitto_sub: %t %p %x %X %l %q %r %d %C %R %D %E %F %S %P %A, %j and %J for JSON, %I and %U "
        "for the time, @H and the like of strftime, \\n and the like; %-10.10t has a width.",
        "FORMAT",
    ),
    Flag(("--json",), "Print one JSON object per message."),
    Flag(("--pretty",), "With %j, %J and --json: indented over several lines."),
    Flag(("-N", "--no-newline"), "No line break after each message."),
    Flag(("-R", "--no-retained"), "Skip retained messages."),
    Flag(("--retained-only",), "Print only retained messages; exit at the first other one."),
    Flag(("--remove-retained",), "Delete printed retained messages from the broker."),
    Flag(("-T", "--filter-out"), "Skip messages that match this topic filter.", "FILTER", is_repeatable=True),
    Flag(
        ("-U", "--unsubscribe"),
        "End this subscription of a kept session (-c). Repeatable.",
        "FILTER",
        is_repeatable=True,
    ),
    Flag(("--random-filter",), "Print this percentage of messages.", "PERCENT", None, number(0.1, 100.0)),
    Flag(("--no-local",), "Skip messages published by this client."),
    Flag(("--retain-as-published",), "Keep the retain flag as it was published."),
    Flag(
        ("--subscription-identifier",),
        "Subscription identifier, returned with each message.",
        "NUMBER",
        None,
        whole_number(1, 268_435_455),
    ),
    Flag(("--records",), "A new folder for this client's own event log, as Parquet.", "FOLDER", None, Path),
    *CONNECTION,
)


def sub(values: Values) -> int:
    target = target_of(values)
    topics = [*values.topic, *([target.topic] if target.topic is not None else [])]
    if not topics and not values.unsubscribe:
        raise InputError("no topic filter: give -t FILTER, or a URL with one (-L)")
    if values.no_retained and (values.retained_only or values.remove_retained):
        raise InputError("-R skips retained messages, and the other flag selects them: give one")
    show = shown_as(values)
    asked = options_of(values)
    # Loading this takes longer than everything above.
    from roamcast.cli.running import run_client

    client = client_of(values, target)
    return run_client(values, Printing(client, values, show).run(topics, asked))


def options_of(values: Values) -> dict[str, Any]:
    described, user_properties = of_packet(values.property, "subscribe")
    is_5 = values.protocol_version == 5
    identifier = values.subscription_identifier
    return {
        "qos": values.qos,
        "where": values.where,
        "no_local": values.no_local,
        "retain_as_published": values.retain_as_published,
        "retain_handling": 2 if values.no_retained and is_5 else 0,
        "identifier": described.get("subscription-identifier") if identifier is None else identifier,
        "properties": user_properties,
    }


def shown_as(values: Values) -> Format:
    from roamcast.cli.formats import Format

    if sum((values.format is not None, values.json, values.verbose)) > 1:
        raise InputError("give one of -v, -F FORMAT and --json")
    given = values.format if values.format is not None else "%p"
    text = "" if values.json else "%t %p" if values.verbose else given
    return Format(text, is_json=values.json, is_pretty=values.pretty, ends_line=not values.no_newline)


class Printing:
    def __init__(self, client: Client, values: Values, show: Format) -> None:
        from roamcast.mqtt.codec.topics import check_filter

        self._client, self._values, self._show = client, values, show
        self._printed = 0
        self._is_done = False
        for text in values.filter_out:
            try:
                check_filter(text)
            except Exception as error:
                raise InputError(f"-T {text}: {error}") from None
        self._takes_all = not (
            values.no_retained or values.retained_only or values.filter_out or values.random_filter
        )

    async def run(self, topics: list[str], asked: dict[str, Any]) -> int:
        import asyncio

        values = self._values
        try:
            async with asyncio.timeout(values.timeout), self._client:
                await self._subscribe(topics, asked)
                if not values.exit_after_subscribe:
                    await self._print_all()
        except TimeoutError:
            if not values.quiet:
                say(f"timed out after {values.timeout:g} s")
            return EXIT_TIMED_OUT
        return 0

    async def _subscribe(self, topics: list[str], asked: dict[str, Any]) -> None:
        if self._values.at is not None:
            await self._client.move(self._values.at)
        for topic in self._values.unsubscribe:
            await self._client.unsubscribe(topic)
        for topic in topics:
            await self._client.subscribe(topic, **asked)

    async def _print_all(self) -> None:
        from roamcast.cli.running import flush_all, roaming

        client, count = self._client, self._values.count
        async with roaming(client, self._values, lambda: f"{self._printed:,} printed"):
            while not self._is_done:
                left = TOGETHER_MAX if count is None else min(TOGETHER_MAX, count - self._printed)
                waiting = await client.peek(left)
                wanted, looked_at = (waiting, len(waiting)) if self._takes_all else self._wanted(waiting)
                # A notification that could not be printed is not acknowledged.
                flush_all(self._show.show_all(wanted))
                self._printed += len(wanted)
                client.acknowledge(looked_at)
                if self._values.remove_retained:
                    await self._remove([one.topic for one in wanted if one.retain and one.payload])
                self._is_done |= self._printed == count

    def _wanted(self, waiting: list[Notification]) -> tuple[list[Notification], int]:
        """Yield notifications to print, and the number examined."""
        from roamcast.mqtt.codec.topics import matches

        values = self._values
        wanted: list[Notification] = []
        for place, one in enumerate(waiting):
            if values.retained_only and not one.retain:
                self._is_done = True
                return wanted, place
            if values.no_retained and one.retain:
                continue
            if values.filter_out and any(matches(text, one.topic) for text in values.filter_out):
                continue
            if values.random_filter is None or random.random() * 100.0 < values.random_filter:
                wanted.append(one)
        return wanted, len(waiting)

    async def _remove(self, topics: list[str]) -> None:
        for topic in topics:
            await self._client.publish(topic, b"", qos=1, retain=True)


COMMAND = Command(
    "sub",
    "Subscribe, and print what is published until it is told to end.\n\n"
    "Messages that were not printed are not acknowledged: with -c, the session keeps them for the next run. "
    "Exit code 1 if the broker cannot be reached, its reason code if it refuses, with the reason in a line; "
    "27 after the time of -W.",
    FLAGS,
    ABSENT,
    (
        "roamcast sub -t 'city/#' -v",
        "roamcast sub -t 'city/+/air' --where 'pm10 > 50' -q 2 -i car-1 -c",
        "roamcast sub -t parking --where 'location WITHIN 2 OF myloc' --at market",
        "roamcast sub -t 'city/#' -q 2 -i car-1 -c --roam a=127.0.0.1:1883,b=127.0.0.1:1884 --every 10",
    ),
    sub,
)
