"""The picture of the rooms in docs/architecture.md, drawn from the table of tests/test_rooms.py.

    python -m tests.rooms_figure > docs/figures/rooms.svg

A test compares the two, so the picture cannot become old.
"""

from __future__ import annotations

from tests.test_rooms import PURE, SEES

PLACES = {
    "filters": (2.0, 0), "protocol": (2.0, 1),
    "routing": (1.1, 2), "mqtt": (2.9, 2), "records": (4.2, 2),
    "mobility": (1.1, 3), "client": (4.2, 3.3),
    "broker": (2.0, 4), "models": (5.2, 5.0),
    "config": (2.0, 5), "storage": (3.3, 5),
    "simulator": (0.6, 5.6), "net": (2.0, 6), "slow_link": (5.2, 6.2),
    "daemon": (2.0, 7), "proxy": (3.6, 7),
    "bench": (2.0, 8.2), "lab": (2.0, 9.2), "pipeline": (4.2, 9.8), "view": (5.4, 9.8), "cli": (2.0, 10.6),
}  # fmt: skip
"""Column and row of each room. What a room imports is above it."""
COLUMN, ROW, BOX_WIDTH, BOX_HEIGHT = 140, 60, 124, 34
SUBJECTS = {
    "filters": "predicates, index",
    "protocol": "values, messages",
    "routing": "tables",
    "mobility": "one file a protocol",
    "mqtt": "codec, server, client",
    "broker": "the machine",
    "storage": "journal on disk",
    "net": "sockets, TLS, users",
    "daemon": "the broker process",
    "proxy": "beside others' brokers",
    "simulator": "virtual time, proof",
    "records": "event log",
    "client": "Python client",
    "config": "settings",
    "pipeline": "audit on Spark",
    "lab": "experiments",
    "bench": "measurements",
    "models": "analytic models",
    "slow_link": "TCP slow-down",
    "view": "replays",
    "cli": "commands",
}


def seen_by(room: str) -> set[str]:
    return {name.partition(".")[0] for name in SEES[room]}


def arrows() -> list[tuple[str, str]]:
    """From a room to those it imports, without what follows from the others."""
    found = []
    for room in SUBJECTS:
        direct = seen_by(room) & SUBJECTS.keys()
        implied = {further for one in direct for further in seen_by(one) - {one}}
        found += [(room, other) for other in sorted(direct - implied)]
    return found


def places() -> dict[str, tuple[float, float]]:
    """The middle of each box."""
    return {room: (COLUMN * column, 30 + ROW * row) for room, (column, row) in PLACES.items()}


def draw() -> str:
    where = places()
    width, height = max(x for x, _ in where.values()) + 80, max(y for _, y in where.values()) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#667"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
    ]
    for room, other in arrows():
        (x1, y1), (x2, y2) = where[room], where[other]
        start, end = y1 - BOX_HEIGHT / 2, y2 + BOX_HEIGHT / 2
        bend = (start + end) / 2
        lines.append(
            f'<path d="M{x1:.0f} {start:.0f} C{x1:.0f} {bend:.0f} {x2:.0f} {bend:.0f} {x2:.0f} {end:.0f}" '
            'fill="none" stroke="#99a" marker-end="url(#tip)"/>'
        )
    for room, (x, y) in where.items():
        fill = "#dcedd8" if room in PURE else "#e4e8f4"
        lines.append(
            f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{BOX_WIDTH}" '
            f'height="{BOX_HEIGHT}" rx="5" fill="{fill}" stroke="#667"/>'
            f'<text x="{x:.0f}" y="{y - 2:.0f}" font-size="13" text-anchor="middle">{room}</text>'
            f'<text x="{x:.0f}" y="{y + 12:.0f}" font-size="10" text-anchor="middle" fill="#445">'
            f"{SUBJECTS[room]}</text>"
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    print(draw(), end="")
