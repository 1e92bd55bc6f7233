"""One page of what came out: pictures first, then claims and tables. It needs no other file.

What is shown is what the other commands left in their folders: `outcomes.json` of a lab experiment,
`summary.json` of a simulated run, JSON of an audit, metrics, a stream or a model, pictures, and tables as CSV
or Parquet. Pictures of audits, metrics and streams are drawn for the page (report_figures.py).
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from roamcast.errors import InputError
from roamcast.lab.words import cell, is_number

ROWS_MAX = 200
"""Of a table; a page is for people."""
NAMES_MAX = 8
"""What has more parts of one kind is a table, not a list of facts."""
FILES_MAX = 500
BYTES_MAX = 20_000_000
"""Of one file: what is larger is no figure and no table of a report."""
NOT_SHOWN = {"logs", "log", "records", "quarantine", "streams", "traces", "state", "checkpoint"}
"""Folders of rows that are too many for people, or of no use to them."""
SHOWN_SUFFIXES = (".png", ".svg", ".csv", ".json", ".parquet")
WORST_FIRST = ("lost", "duplicates", "out_of_order", "unexpected", "invented")

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#22303c;margin:0 auto;max-width:72rem;padding:1.5rem}
h1{margin:.2rem 0}h2{margin-top:2.2rem;border-bottom:1px solid #e3e8ec;padding-bottom:.2rem}
figure{margin:1rem 0}figure img{max-width:100%;border:1px solid #e3e8ec;border-radius:6px}
figcaption,.quiet{color:#5b6975;font-size:.9rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:.6rem 0;font-size:.9rem}
th,td{padding:.3rem .7rem;text-align:left;border-bottom:1px solid #e3e8ec;vertical-align:top}
td.number{text-align:right;font-variant-numeric:tabular-nums}
.holds{color:#1c7a4f;font-weight:600}.fails{color:#c8372d;font-weight:600}.open{color:#8a6d1a;font-weight:600}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(28rem,1fr));gap:1rem}
"""


@dataclass
class Part:
    """What was found in one folder."""

    folder: Path
    pictures: list[Path] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name of a JSON file to what it says."""
    tables: dict[str, tuple[list[str], list[list[str]], int]] = field(default_factory=dict)
    """Name to columns, the first rows, and how many there are."""
    minutes: list[Path] = field(default_factory=list)
    """What a stream found, by the minute."""

    @property
    def is_empty(self) -> bool:
        return not (self.pictures or self.claims or self.facts or self.tables)


def collect(folder: Path) -> Part:
    """Everything in a folder, and below it, that belongs on the page."""
    part = Part(folder)
    try:
        files = sorted(_files(folder))
    except OSError as error:
        raise InputError(f"{error.filename}: {(error.strerror or str(error)).lower()}") from None
    names = {file.with_suffix("") for file in files if file.suffix == ".png"}
    for file in files:
        name = str(file.relative_to(folder).with_suffix(""))
        if file.suffix == ".png" or (file.suffix == ".svg" and file.with_suffix("") not in names):
            part.pictures.append(file)
        elif file.suffix == ".csv":
            part.tables[name] = _read_table(file)
        elif file.suffix == ".parquet" and file.parent.name == "findings":
            part.tables[str(file.parent.relative_to(folder))] = _read_parquet(file.parent)
        elif file.suffix == ".parquet":
            part.tables[name] = _read_parquet(file)
            part.minutes += [file] if file.name == "minutes.parquet" else []
        elif file.suffix == ".json":
            _take_json(part, name, file)
    if part.is_empty:
        raise InputError(f"{folder}: no figures, tables or results in it; name a folder that a command wrote")
    return part


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    found = 0
    waiting = [folder]
    while waiting:
        for entry in sorted(waiting.pop().iterdir()):
            if entry.is_dir() and entry.name not in NOT_SHOWN and not entry.name.startswith((".", "_")):
                waiting.append(entry)
            elif entry.name.startswith("."):
                continue
            elif entry.suffix in SHOWN_SUFFIXES and entry.stat().st_size <= BYTES_MAX:
                found += 1
                if found > FILES_MAX:
                    raise InputError(f"{folder}: more than {FILES_MAX} files; name the folder of one result")
                yield entry


def _read_table(file: Path) -> tuple[list[str], list[list[str]], int]:
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines)
        columns = next(reader, [])
        rows: list[list[str]] = []
        count = 0
        for row in reader:
            count += 1
            if len(rows) < ROWS_MAX:
                rows.append(row)
    return columns, rows, count


def _read_parquet(place: Path) -> tuple[list[str], list[list[str]], int]:
    """A file, or a folder of files; the worst rows first, if rows can be bad."""
    try:
        table = ds.dataset(place, format="parquet").to_table()
    except (pa.ArrowException, OSError):
        raise InputError(f"{place}: is no whole Parquet file (truncated or damaged)") from None
    order = [(name, "descending") for name in WORST_FIRST if name in table.column_names]
    first = (table.sort_by(order) if order else table).slice(0, ROWS_MAX)
    rows = [[cell(value) for value in row.values()] for row in first.to_pylist()]
    return table.column_names, rows, len(table)


def _take_json(part: Part, name: str, file: Path) -> None:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: is no JSON ({error})") from None
    if not isinstance(document, dict):
        return
    if isinstance(document.get("claims"), list):
        part.claims += document["claims"]
        document = {key: value for key, value in document.items() if key != "claims"}
    # A neighbour graph says about itself what a person wants to know.
    part.facts[name] = document.get("about", document)


# --- the page ---


def page(title: str, parts: Iterable[Part]) -> str:
    """The whole page as text."""
    parts = list(parts)
    body = [f"<h1>{escape(title)}</h1>"]
    body += [_verdicts(parts)] if any(part.claims for part in parts) else []
    body += [_pictures(part, len(parts) > 1) for part in parts]
    body += [_comparison(parts)] if len(parts) > 1 else []
    for part in parts:
        if len(parts) > 1:
            body.append(f"<h2>{escape(part.folder.name)}</h2>")
        body.append(_claims(part))
        body += [_facts(name, facts) for name, facts in part.facts.items()]
        body += [_table(name, *table) for name, table in part.tables.items()]
    content = "\n".join(text for text in body if text)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n{content}\n</body></html>\n"
    )


def _pictures(part: Part, with_folder: bool) -> str:
    above = f"{part.folder.name}: " if with_folder else ""
    named = [(escape(above + _words(file.stem)), file) for file in part.pictures]
    shown = [
        f'<figure><img alt="{name}" src="{_embedded(file)}"><figcaption>{name}</figcaption></figure>'
        for name, file in named
    ]
    return f'<div class="grid">{"".join(shown)}</div>' if shown else ""


def _embedded(file: Path) -> str:
    kind = "image/png" if file.suffix == ".png" else "image/svg+xml"
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"


VERDICTS = {True: ("holds", "holds"), False: ("fails", "does not hold"), None: ("open", "open")}


def _verdicts(parts: list[Part]) -> str:
    claims = [claim for part in parts for claim in part.claims]
    counts = [
        f'<span class="{kind}">{sum(claim.get("holds") is holds for claim in claims)} {words}</span>'
        for holds, (kind, words) in VERDICTS.items()
    ]
    return f"<p>{len(claims)} claim{'s' * (len(claims) != 1)}: {', '.join(counts)}</p>"


def _claims(part: Part) -> str:
    if not part.claims:
        return ""
    rows = []
    for claim in part.claims:
        kind, words = VERDICTS.get(claim.get("holds"), VERDICTS[None])
        figures = claim.get("figures")
        measured = _lines(figures if isinstance(figures, dict) else {})
        note = f'<div class="quiet">{escape(str(claim["note"]))}</div>' if claim.get("note") else ""
        name, word = (escape(str(claim.get(key, ""))) for key in ("claim", "paper"))
        rows.append(
            f"<tr><td>{name}</td><td>{word}</td>"
            f'<td>{measured}</td><td><span class="{kind}">{words}</span>{note}</td></tr>'
        )
    head = "<tr><th>claim</th><th>the document's word</th><th>measured</th><th>verdict</th></tr>"
    return f'<h2>Claims</h2><div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _lines(figures: Mapping[str, Any]) -> str:
    return "<br>".join(f"{escape(name)}: {escape(cell(value))}" for name, value in flat(figures))


def flat(facts: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """What is nested gets the names above it; what is a table of its own is left out."""
    for name, value in facts.items():
        whole = f"{above}{_words(str(name))}"
        if isinstance(value, dict) and (is_table(value) or name == "groups"):
            continue
        if isinstance(value, dict):
            yield from flat(value, f"{whole}: ")
        elif not isinstance(value, list):
            yield whole, value
        elif all(not isinstance(one, dict | list) for one in value):
            yield whole, ", ".join(map(cell, value)) if value else "none"


def is_table(value: Mapping[str, Any]) -> bool:
    """Whether it holds several things of one kind by their names, such as brokers."""
    parts = [one for one in value.values() if isinstance(one, dict)]
    if not parts or len(parts) < len(value):
        return False
    return len(value) > NAMES_MAX or (len(value) > 1 and all(one.keys() == parts[0].keys() for one in parts))


def _facts(name: str, facts: Mapping[str, Any]) -> str:
    tables = [_table(key, columns, rows[:ROWS_MAX], len(rows)) for key, columns, rows in _tables_in(facts)]
    rows = [[key, cell(value)] for key, value in flat(facts)][:ROWS_MAX]
    return "".join(tables) + _table(name, ["what", "value"], rows, 0)


def _tables_in(facts: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """What has rows of one kind: their name, columns and rows."""
    for key, value in facts.items():
        if isinstance(value, dict) and key == "groups":
            # Metrics: a table of measures for each group of runs.
            for group, measures in value.items():
                yield from _tables_in({f"{group}/measures": measures})
        elif isinstance(value, dict) and is_table(value):
            columns = _columns(value.values())
            named = [(str(name), *(one.get(column) for column in columns)) for name, one in value.items()]
            yield key, ["name", *columns], [list(map(cell, row)) for row in named]
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            columns = _columns(value)
            yield key, columns, [[cell(row.get(column)) for column in columns] for row in value]


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of what is in any of the rows; what is itself a table has no place in a cell."""
    names = dict.fromkeys(name for row in rows for name, one in row.items() if not isinstance(one, dict))
    return list(names)


def _comparison(parts: list[Part]) -> str:
    """The numbers that all folders have, side by side."""
    known = [dict(item for facts in part.facts.values() for item in flat(facts)) for part in parts]
    shared = [name for name in known[0] if all(is_number(one.get(name)) for one in known)]
    if not shared:
        return ""
    rows = [[name, *(cell(one[name]) for one in known)] for name in shared]
    columns = ["what", *(part.folder.name for part in parts)]
    return _table("side by side", columns, rows[:ROWS_MAX], len(rows))


def _table(name: str, columns: list[str], rows: list[list[str]], count: int) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(_words(column))}</th>" for column in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    more = f'<p class="quiet">The first {len(rows)} of {count:,} rows.</p>' if count > len(rows) else ""
    heading = f"<h2>{escape(_words(name))}</h2>"
    return f'{heading}<div class="scroll"><table><tr>{head}</tr>{body}</table></div>{more}'


def _cell(value: str) -> str:
    try:
        float(value.replace(",", ""))
    except ValueError:
        return f"<td>{escape(value)}</td>"
    return f'<td class="number">{escape(cell(_number(value)))}</td>'


def _number(value: str) -> str | float:
    return float(value) if "." in value and "," not in value else value


def _words(name: str) -> str:
    return name.replace("_", " ").replace("/", ": ")


def write_page(file: Path, text: str) -> None:
    """Never half of it under its name."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror or error})") from None
