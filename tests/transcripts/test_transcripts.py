"""Stories of handoffs that a person can read, with every message between brokers that results.

A transcript is a story (see simulator/story.py), a line `---`, and what happened:
messages between brokers when they were sent, and what reached clients. It is
compared exactly. After a change that is meant, write them anew and look at the diff:

    ROAMCAST_REGENERATE=1 python -m pytest tests/transcripts
"""

from __future__ import annotations

import os
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roamcast.filters.filter import Filter
from roamcast.protocol.messages import Message, Relayed
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.protocol.records import Row
from roamcast.protocol.session import Session
from roamcast.simulator.story import parse_story

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))
CUT = "---\n"
STAYS_S = 10.0
"""How long a transcript of MQTT goes on after the last action."""
REGENERATE = os.environ.get("ROAMCAST_REGENERATE") == "1"

SKIPPED_FIELDS = {
    "cause",
    "published_at",
    "bodies",
    "incarnation",
    "received",
    "heard",
    "had",
    "known_as",
    "capsule",
}
"""Fields that say nothing about who tells whom what."""


def numbers(publisher: str | None, number: int | None, count: int | None) -> str:
    """`p/3`, or `p/3-5` for several."""
    first, last = number or 0, (number or 0) + (count or 1) - 1
    return f"{publisher}/{first}" if first == last else f"{publisher}/{first}-{last}"


def told_attributes(attributes: bytes | None) -> str:
    return told(decode_attributes(attributes or b""))


def told(value: Any) -> str:
    """A value as a person would write it down."""
    match value:
        case Burst():
            return (
                f"{numbers(value.publisher, value.number, value.count)} {told_attributes(value.attributes)}"
            )
        case Session():
            held = f" with {told(list(value.subscriptions))}" if value.subscriptions else ""
            owed = f" owed {told(value.owed)}" if value.owed else ""
            return f"{value.client} number {value.number}{held}{owed}"
        case (Filter() as filter, str() as subscriber):
            return f"{filter.text} of {subscriber}" if subscriber else filter.text
        case Filter():
            return value.text
        case msgspec.Struct():
            return told_message(value)
        case dict():
            return "{" + ", ".join(f"{key}: {told(one)}" for key, one in value.items()) + "}"
        case tuple() | list():
            return "[" + ", ".join(map(told, value)) + "]"
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)


def told_message(message: msgspec.Struct) -> str:
    """Its type, and those of its fields that are not as always."""
    if isinstance(message, Burst):
        return f"Burst({told(message)})"
    if isinstance(message, Relayed):
        return f"{told_message(message.message)} from {message.source} for {message.destination}"
    fields = []
    for field in msgspec.structs.fields(type(message)):
        value = getattr(message, field.name)
        if field.name not in SKIPPED_FIELDS and value != field.default:
            fields.append(f"{field.name} {told(value)}")
    return f"{type(message).__name__}({', '.join(fields)})"


class Witness:
    """Writes down what happens: at equal times what was done, then what was sent, then what was got."""

    def __init__(self, until_s: float = inf) -> None:
        """`until_s` if those who look on at the end of a story are to be left out: with MQTT."""
        self.seen: list[tuple[float, int, str]] = []
        self.until_s = until_s

    def on_message(self, now: float, sender: str, receiver: str, message: Message) -> None:
        self.seen.append((now, 1, f"{sender} -> {receiver} {told_message(message)}"))

    def on_rows(self, rows: list[Row]) -> None:
        for row in rows:
            client, broker = row.client, row.broker
            which = numbers(row.publisher, row.number, row.notifications)
            if row.kind == "moved":
                what = f"{client} leaves {broker}" if row.reason == "left" else f"{client} comes to {broker}"
                self.seen.append((row.time, 0, what))
            elif row.kind == "published":
                what = f"{client} publishes {which} {told_attributes(row.attributes)} at {broker}"
                self.seen.append((row.time, 0, what))
            elif row.kind == "located":
                what = f"{client} is now where {told_attributes(row.attributes)} says ({row.reason})"
                self.seen.append((row.time, 0, what))
            elif row.kind == "crashed":
                when = " before it sends anything of this" if row.reason == "unsent" else ""
                self.seen.append((row.time, 0, f"{broker} crashes{when}"))
            elif row.kind == "started":
                self.seen.append((row.time, 0, f"{broker} is back"))
            elif row.kind == "attached" and row.node == client:
                self.seen.append((row.time, 2, f"{client} is welcome at {broker}, number {row.number}"))
            elif row.kind == "acknowledged" and self.until_s < inf:
                self.seen.append((row.time, 2, f"{client} has acknowledged {which} at {broker}"))
            elif row.kind == "delivered":
                self.seen.append((row.time, 2, f"{client} gets {which} from {broker}"))

    def lines(self) -> list[str]:
        seen = [one for one in self.seen if one[0] <= self.until_s]
        return [f"{at:.3f} {what}" for at, _, what in sorted(seen, key=lambda one: one[:2])]


def transcript_of(text: str, name: str) -> str:
    """The story with what comes of it; what was there behind the cut is not looked at."""
    story = text.partition(CUT)[0]
    told_story = parse_story(story, name)
    is_mqtt = told_story.settings.mqtt is not None
    witness = Witness(told_story.actions[-1][0] + STAYS_S if is_mqtt else inf)
    result = told_story.judge(witness.on_rows, witness.on_message)
    figures = {"lost": result.lost, "duplicates": result.duplicates, "out of order": result.out_of_order}
    figures["missed by a client that is too fast"] = result.blacked_out
    verdict = ", ".join(f"{what} {count}" for what, count in figures.items() if count)
    lines = [*witness.lines(), f"in the end: {verdict or 'everything once and in order'}"]
    lines += [f"against the promise: {one}" for one in result.violations]
    return f"{story.rstrip()}\n{CUT}" + "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    expected = path.read_text()
    happened = transcript_of(expected, path.name)
    if REGENERATE:
        path.write_text(happened)
    else:
        assert happened.splitlines() == expected.splitlines()


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transcript_begins_by_telling_its_story_in_words(path: Path) -> None:
    words = [line for line in path.read_text().partition(CUT)[0].splitlines() if line.startswith("#")]
    assert sum(map(len, words)) > 100
    assert path.read_text().startswith("# ")
    assert max(map(len, words)) <= 110


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 3
