"""Lines of a story about logical mobility.

    graph a-b b-c c>d e
    number budget 10 0 0 100
    earth 250
    zone harbour {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1]]]}
    told lat lon
    lent b0 43.26,-2.93
    stay 0.5
    at 1.0 car move b
    at 2.0 car move {"budget": 80}

`c>d` is a one-way edge, and `e` has no edge. With `earth` locations are positions, and its number is the
longest step in metres (`at 1.0 car move 43.263,-2.935`). `told` names the attributes with which notifications
report their publisher's location; `lent` gives the location of a broker's clients that never report one. The
numbers of a `number` variable are its largest decrease and increase in one step, and its lowest and highest
value. Without `stay`, the duration of stays is learnt from clients' moves; until then it is `first_stay`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

from roamcast.errors import InputError
from roamcast.filters.geography import read_geojson
from roamcast.protocol.effects import MoveTo
from roamcast.protocol.notification import encode_attributes
from roamcast.routing.location.earth import Earth
from roamcast.routing.location.movement_graph import MovementGraph
from roamcast.routing.location.ploc import Rule
from roamcast.routing.location.settings import LocationSettings
from roamcast.routing.location.variables import NumberSteps, Variable

_FIELDS = {"dwell": "dwell_s", "hysteresis": "hysteresis_m", "stay": "stay_s", "first_stay": "stay_first_s"}
LINES = ("graph", "earth", "zone", "told", "lent", "number", "steps", *_FIELDS)
_EDGE = re.compile(r"([^\s>-]+)([->])([^\s>-]+)")
_RULES = {"round_trip": Rule(), "published": Rule("one_way"), "table_4": Rule("one_way", "down")}


def parse_location_line(settings: LocationSettings, key: str, text: str) -> LocationSettings:
    if key in _FIELDS:
        return msgspec.structs.replace(settings, **{_FIELDS[key]: float(text)})
    if key in ("graph", "earth"):
        variable = _parse_graph(text) if key == "graph" else Earth(float(text))
        return _with_variable(settings, "location", variable)
    if key == "zone":
        name, _, shape = text.partition(" ")
        zones = {**settings.zones, name: read_geojson(shape).shape}
        return msgspec.structs.replace(settings, zones=zones)
    if key == "told":
        return msgspec.structs.replace(settings, told_in=tuple(text.split()))
    if key == "lent":
        broker, _, place = text.partition(" ")
        return msgspec.structs.replace(settings, lent={**settings.lent, broker: place})
    if key == "number":
        words = text.split()
        if len(words) != 5:
            raise InputError(f"number {text!r}: valid is `number NAME FALL RISE LOWEST HIGHEST`")
        return _with_variable(settings, words[0], NumberSteps(*map(float, words[1:])))
    if text not in _RULES:
        raise InputError(f"steps {text!r}: valid are {', '.join(_RULES)}")
    return msgspec.structs.replace(settings, rule=_RULES[text])


def format_location_lines(settings: LocationSettings) -> Iterator[str]:
    for name, variable in settings.variables.items():
        if isinstance(variable, MovementGraph):
            yield f"graph {_format_graph(variable)}"
        elif isinstance(variable, Earth):
            yield f"earth {variable.step_m!r}"
        elif isinstance(variable, NumberSteps):
            numbers = (variable.fall, variable.rise, variable.lowest, variable.highest)
            yield f"number {name} {' '.join(f'{number:g}' for number in numbers)}"
    for name, shape in settings.zones.items():
        yield f"zone {name} {shape}"
    if settings.dwell_s:
        yield f"dwell {settings.dwell_s!r}"
    if settings.hysteresis_m:
        yield f"hysteresis {settings.hysteresis_m!r}"
    if settings.told_in:
        yield f"told {' '.join(settings.told_in)}"
    for broker, place in settings.lent.items():
        yield f"lent {broker} {place}"
    if settings.stay_s is not None:
        yield f"stay {settings.stay_s!r}"
    elif settings.stay_first_s != LocationSettings().stay_first_s:
        yield f"first_stay {settings.stay_first_s!r}"
    if settings.rule != Rule():
        yield f"steps {next(name for name, rule in _RULES.items() if rule == settings.rule)}"


def parse_move(text: str) -> MoveTo:
    """Parse a location such as `b`, or `{"budget": 80}` for other variables."""
    if not text:
        raise InputError("move: where to?")
    values = json.loads(text) if text.startswith("{") else {"location": text}
    encode_attributes(values)  # Refuses what no variable can be.
    return MoveTo(values)


def format_move(item: MoveTo) -> str:
    values = dict(item.values)
    location = values.get("location")
    if len(values) == 1 and isinstance(location, str) and not location.startswith("{"):
        return location
    return json.dumps(values)


def _with_variable(settings: LocationSettings, name: str, variable: Variable) -> LocationSettings:
    return msgspec.structs.replace(settings, variables={**settings.variables, name: variable})


def _parse_graph(text: str) -> MovementGraph:
    edges: list[tuple[str, str]] = []
    alone: list[str] = []
    for word in text.split():
        edge = _EDGE.fullmatch(word)
        if edge is None:
            if "-" in word or ">" in word:
                raise InputError(f"graph {word!r}: valid are A-B, A>B (one way) and A")
            alone.append(word)
            continue
        edges.append((edge[1], edge[3]))
        if edge[2] == "-":
            edges.append((edge[3], edge[1]))
    return MovementGraph(edges, alone, one_way=True)


def _format_graph(graph: MovementGraph) -> str:
    words = []
    for start in sorted(graph.locations, key=str):
        ends = graph.neighbours(start)
        words += [] if ends else [f"{start}"]
        for end in ends:
            if not graph.is_step(end, start):
                words.append(f"{start}>{end}")
            elif str(start) <= str(end):
                words.append(f"{start}-{end}")
    return " ".join(words)
