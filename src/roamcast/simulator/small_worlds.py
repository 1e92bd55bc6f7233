"""The worlds of the exhaustive search (see `explore`): three or four brokers, one or two clients, a crash."""

from __future__ import annotations

import json
from collections.abc import Sequence

from roamcast.mobility import Settings
from roamcast.simulator.explore import Do, World

PROTOCOLS = ("multi_hop_handoff", "roam")
"""Protocols for use in production."""
LINE = (("a", "b"), ("b", "c"))
STAR = (("a", "b"), ("b", "c"), ("b", "d"))
EXPECTED = {"a": {"c": 0.9}, "c": {"b": 0.9}, "b": {"a": 0.9}}
"""Predictions of `roam`: where clients go next; some of the scripts go elsewhere."""


def script(text: str) -> tuple[Do, ...]:
    """Parse a script: `-` leaves silently, `-c` leaves and announces c, `@c` attaches there, `!`
    publishes.
    """
    done: list[Do] = []
    for word in text.split():
        match word[0]:
            case "-":
                done.append(("leave", word[1:]))
            case "@":
                done.append(("attach", word[1:]))
            case _:
                done.append(("publish", ""))
    return tuple(done)


def small_worlds(protocol: str, *, large: bool = True) -> list[World]:
    """Return all worlds for a protocol, or only those that take about a second."""
    rows = json.dumps(
        {
            "brokers": {
                here: {there: {"probability": likely} for there, likely in row.items()}
                for here, row in EXPECTED.items()
            }
        }
    )
    # Time stands still, so a timer that is left would never run out.
    mobility = Settings(neighbour_graph=rows, copies_max=1, context_timeout_s=None)

    def world(
        name: str,
        *scripts: str,
        overlay: Sequence[tuple[str, str]] = LINE,
        subscribers: Sequence[str] = ("s",),
        crashes: Sequence[str] = (),
    ) -> World:
        """Build a world; each script begins with its client and the broker where the client starts."""
        parts = [text.split(maxsplit=2) for text in scripts]
        return World(
            name,
            protocol,
            overlay,
            {client: start for client, start, *_ in parts},
            {client: script(rest[0] if rest else "") for client, _, *rest in parts},
            subscribers,
            crashes,
            mobility,
        )

    small = [
        world("an expected move", "s a - @c", "p a !"),
        world("an unexpected move", "s a - @b", "p c !"),
        world("a proclaimed move", "s a -c @c", "p b !"),
    ]
    if not large:
        return small
    return [
        *small,
        world("two publishes", "s a - @c", "p b ! !"),
        world("two moves", "s a - @c - @b", "p b !"),
        world("there and back", "s a - @c - @a", "p b !"),
        world("two proclaimed moves", "s a -c @c -b @b", "p b !"),
        world("a proclaimed move that goes elsewhere", "s a -c @b", "p c !"),
        world("a publisher moves", "s a", "p b ! - @c !"),
        world("both move", "s a - @c", "p c ! - @a"),
        world("a star", "s a - @c - @d", "p b !", overlay=STAR),
        world("three moves", "s a - @c - @b - @a", "p b !"),
        world("a crash during a move", "s a - @c", "p b !", crashes=("a", "b", "c")),
    ]
