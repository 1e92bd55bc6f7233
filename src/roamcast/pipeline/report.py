"""A page with results: the answer first, then pictures, claims and details. It needs no other file.

It shows what other commands left in their folders: `outcomes.json` of a lab experiment, `summary.json` of a
simulated run, JSON of an audit, metrics, a stream or a model, pictures, and tables as CSV or Parquet.
Pictures of audits, metrics and streams are drawn for the page (figures.py).
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
import pyarrow.parquet as pq

from roamcast.errors import InputError
from roamcast.lab.rows import cell, is_number
from roamcast.pipeline.report_answer import (
    WRONG,
    Answer,
    answers_of_audit,
    answers_of_figures,
    sentence,
    worst_clients,
)

ROWS_MAX = 200
"""Maximum rows shown of a table, because a page is for people."""
NAMES_MAX = 8
"""A value with more parts of one kind is shown as a table instead of a list of facts."""
FILES_MAX = 500
FINDINGS_MAX = 100_000
"""Findings read of one file; audits of large logs write samples."""
COLUMNS_MAX = 7
"""Maximum columns of a table that fit on a page. Wider tables continue below."""
WORD_MAX, TEXT_MIN = 28, 48
"""Lengths in characters: longer words may be broken anywhere, and cells with longer text need space."""
WORST_MAX = 12
INTERNAL = ("steps",)
"""Tables about how a result was computed: they are shown among the details."""
BYTES_MAX = 20_000_000
"""Maximum size of a file with figures or a table of a report."""
NOT_SHOWN = {"logs", "log", "records", "quarantine", "streams", "traces", "state", "checkpoint"}
"""Folders with rows that are too many for people, or useless to them."""
SHOWN_SUFFIXES = (".png", ".svg", ".csv", ".json", ".parquet")
WORST_FIRST = ("lost", "duplicates", "out_of_order", "unexpected", "invented")

STYLE = """
:root{color-scheme:light dark;--ink:#17202b;--quiet:#55616e;--line:#d9dfe6;--ground:#fff;--raised:#f5f7f9;
--good:#176f47;--good-soft:#e3f3ea;--bad:#b9261c;--bad-soft:#fde7e5;--open:#8a5a00}
@media(prefers-color-scheme:dark){:root{--ink:#e7edf4;--quiet:#9facb9;--line:#2a3541;--ground:#12181f;
--raised:#1a222c;--good:#5cc796;--good-soft:#12301f;--bad:#ff8a80;--bad-soft:#3a1a1a;--open:#e3b34b}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);margin:0 auto;
max-width:72rem;padding:1.5rem}
h1{margin:.2rem 0;font-size:1.7rem}h2{margin:2.2rem 0 .6rem;font-size:1.25rem}
.lead{max-width:50rem;color:var(--quiet)}
.answer{font-size:1.15rem;font-weight:600;border-radius:10px;padding:.8rem 1rem;margin:1rem 0}
.answer.holds{background:var(--good-soft);color:var(--good)}.answer.fails{background:var(--bad-soft);color:var(--bad)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(28rem,100%),1fr));gap:1rem}
figure{margin:.6rem 0}figure img{width:100%;background:#fff;border:1px solid var(--line);border-radius:8px}
figcaption,.quiet{color:var(--quiet);font-size:.9rem}
table{border-collapse:collapse;margin:.6rem 0;font-size:.9rem;width:100%}
th,td{padding:.3rem .6rem;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;font-size:.82rem;color:var(--quiet)}
td.long{overflow-wrap:anywhere}td.text{min-width:14rem}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}td.number{white-space:nowrap}
td.wrong{color:var(--bad);font-weight:600}
.holds{color:var(--good);font-weight:600}.fails{color:var(--bad);font-weight:600}
.open{color:var(--open);font-weight:600}
details{border-top:1px solid var(--line);padding:.5rem 0}summary{cursor:pointer;font-weight:600}
@media(max-width:640px){body{padding:.9rem}
table,tbody,tr,td{display:block}tr:first-child{display:none}
tr{border:1px solid var(--line);border-radius:8px;margin:.5rem 0;padding:.3rem .6rem}
td,td.number{border:0;padding:.1rem 0;text-align:left;white-space:normal}
td::before{content:attr(data-name) ": ";color:var(--quiet)}td:first-child{font-weight:600}
td.text{min-width:0}td:empty{display:none}
figure{overflow-x:auto}figure img{min-width:40rem}figcaption{position:sticky;left:0}}
@media print{body{max-width:none;padding:0}.grid{display:block}figure,tr{break-inside:avoid}}
"""


@dataclass
class Part:
    """Content of one folder."""

    folder: Path
    pictures: list[Path] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Content of JSON files, by name."""
    tables: dict[str, tuple[list[str], list[list[str]], int]] = field(default_factory=dict)
    """By name: columns, the first rows, and the number of rows."""
    minutes: list[Path] = field(default_factory=list)
    """Minutes of a stream."""
    clients: pa.Table | None = None
    """Results of an audit for each client."""
    findings: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.pictures or self.claims or self.facts or self.tables)


def collect(folder: Path) -> Part:
    """Collect everything in and below a folder that belongs on the page."""
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
            part.findings += _rows_of(file)
        elif file.suffix == ".parquet":
            part.tables[name] = _read_parquet(file)
            part.minutes += [file] if file.name == "minutes.parquet" else []
            if file.name == "clients.parquet" and {"run", "client", "expected", "lost"} <= set(
                part.tables[name][0]
            ):
                part.clients = pq.read_table(file)
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
    """Read a file, or a folder of files; the worst rows come first, if rows can be bad."""
    try:
        table = ds.dataset(place, format="parquet").to_table()
    except (pa.ArrowException, OSError):
        raise InputError(f"{place}: is not a complete Parquet file (truncated or damaged)") from None
    order = [(name, "descending") for name in WORST_FIRST if name in table.column_names]
    first = (table.sort_by(order) if order else table).slice(0, ROWS_MAX)
    rows = [[cell(value) for value in row.values()] for row in first.to_pylist()]
    return table.column_names, rows, len(table)


def _rows_of(file: Path) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = pq.read_table(file).slice(0, FINDINGS_MAX).to_pylist()
    return rows


def _take_json(part: Part, name: str, file: Path) -> None:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: is not JSON ({error})") from None
    if not isinstance(document, dict):
        return
    if isinstance(document.get("claims"), list):
        part.claims += document["claims"]
        document = {key: value for key, value in document.items() if key != "claims"}
    # A neighbour graph says about itself what a person wants to know.
    part.facts[name] = document.get("about", document)


# --- the page ---

CAPTIONS = {
    "audit": "What went wrong, as a share of what was owed",
    "metrics": "The measures of each group of runs",
    "minutes": "Minute by minute",
}


def page(title: str, parts: Iterable[Part], lead: str = "", captions: Mapping[str, str] = CAPTIONS) -> str:
    """Return the page as text. `lead` says what was done; `captions` describe pictures, by name."""
    parts = list(parts)
    body = [f"<h1>{escape(title)}</h1>"]
    body += [f'<p class="lead">{escape(text)}</p>' for text in lead.split("\n\n") if text]
    answers = _answers(parts)
    body += [_answer(answers, parts)] if answers else []
    body += [_verdicts(parts)] if any(part.claims for part in parts) else []
    body += [_pictures(part, len(parts) > 1, captions) for part in parts]
    body += [_comparison(parts)] if len(parts) > 1 else []
    answered = {answer.name for answer in answers}
    has_more = bool(answers) or any(part.pictures or part.claims for part in parts)
    for part in parts:
        if len(parts) > 1:
            body.append(f"<h2>{escape(part.folder.name)}</h2>")
        body.append(_claims(part))
        for facts in part.facts.values():
            for key, columns, rows, names in _tables_in(facts):
                if key not in INTERNAL:
                    body.append(_table(key, *_without_answers(columns, rows, names, answered), len(rows)))
        body += [_details(name, _facts(facts), not has_more) for name, facts in part.facts.items()]
        body += [_details(name, _table("", *table), not has_more) for name, table in part.tables.items()]
    content = "\n".join(text for text in body if text)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n{content}\n</body></html>\n"
    )


def _answers(parts: list[Part]) -> list[Answer]:
    found = []
    for part in parts:
        if part.clients is not None:
            answers = answers_of_audit(part.clients, part.findings)
        else:
            answers = [one for name, facts in part.facts.items() for one in answers_of_figures(name, facts)]
        for answer in answers:
            if len(parts) > 1 and answer.name != part.folder.name:
                answer.name = f"{part.folder.name}: {answer.name}"
        found += answers
    return sorted(found, key=lambda answer: answer.is_good)


def _answer(answers: list[Answer], parts: list[Part]) -> str:
    kind = "holds" if all(answer.is_good for answer in answers) else "fails"
    text = [f'<p class="answer {kind}">{escape(sentence(answers))}</p>', _answer_table("run", answers)]
    for part in parts:
        if part.clients is not None:
            worst, count = worst_clients(part.clients, part.findings, WORST_MAX)
            if worst:
                more = (
                    f'<p class="quiet">The worst {len(worst)} of {count:,} clients.</p>'
                    if count > len(worst)
                    else ""
                )
                text.append(f"<h2>For whom</h2>{_answer_table('client', worst)}{more}")
    return "".join(text)


def _answer_table(first: str, answers: list[Answer]) -> str:
    """Return the table without columns that have no figure."""
    wrong = [
        column
        for column in WRONG
        if column in ("lost", "duplicates") or any(a.wrong[column] for a in answers)
    ]
    columns = [first, "owed", *(WRONG[column] for column in wrong)]
    has_clients = any(answer.clients is not None for answer in answers)
    has_times = any(answer.since for answer in answers)
    has_reasons = any(answer.why for answer in answers)
    columns += ["clients concerned"] * has_clients + ["first at"] * has_times + ["why"] * has_reasons
    rows = []
    for answer in answers:
        cells = [(answer.name, ""), (f"{answer.owed:,}", "number")]
        cells += [
            (f"{answer.wrong[one]:,}", "number wrong" if answer.wrong[one] else "number") for one in wrong
        ]
        cells += [(f"{answer.affected:,} of {answer.clients or 0:,}", "")] * has_clients
        cells += [(answer.since, "")] * has_times + [(answer.why, "")] * has_reasons
        rows.append("".join(_td(name, *cell) for name, cell in zip(columns, cells, strict=True)))
    numbers = {"owed", *WRONG.values()}
    head = "".join(f"<th{' class=number' if name in numbers else ''}>{escape(name)}</th>" for name in columns)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _without_answers(
    columns: list[str], rows: list[list[str]], names: list[str], answered: set[str]
) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows without those that the answers already contain."""
    plain = [name.rpartition(": ")[2] for name in answered]
    if not names or not all(
        any(one == name or one.startswith(f"{name}-") for one in plain) for name in names
    ):
        return columns, rows
    told = ("expected", "delivered", "unacknowledged", *WRONG)
    kept = [at for at, column in enumerate(columns) if column not in told]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows] if len(kept) > 1 else []


def _details(name: str, content: str, is_open: bool) -> str:
    opened = " open" if is_open else ""
    return (
        f"<details{opened}><summary>{escape(_heading(name))}</summary>{content}</details>" if content else ""
    )


def _pictures(part: Part, with_folder: bool, captions: Mapping[str, str]) -> str:
    above = f"{part.folder.name}: " if with_folder else ""
    named = [(escape(above + captions.get(file.stem, _words(file.stem))), file) for file in part.pictures]
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
            f'<tr><td data-name="claim">{name}</td><td data-name="document">{word}</td>'
            f'<td data-name="measured">{measured}</td>'
            f'<td data-name="verdict"><span class="{kind}">{words}</span>{note}</td></tr>'
        )
    head = "<tr><th>claim</th><th>the document's word</th><th>measured</th><th>verdict</th></tr>"
    return f"<h2>Claims</h2><table>{head}{''.join(rows)}</table>"


def _lines(figures: Mapping[str, Any]) -> str:
    return "<br>".join(f"{escape(name)}: {escape(cell(value))}" for name, value in flat(figures))


def flat(facts: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Flatten nested values with joined names; tables are left out."""
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
    """Return whether the value holds several things of one kind by name, such as brokers."""
    parts = [one for one in value.values() if isinstance(one, dict)]
    if not parts or len(parts) < len(value):
        return False
    return len(value) > NAMES_MAX or (len(value) > 1 and all(one.keys() == parts[0].keys() for one in parts))


def _facts(facts: Mapping[str, Any]) -> str:
    rows = [[key, cell(value)] for key, value in flat(facts)][:ROWS_MAX]
    tables = [
        _table(key, columns, lines, len(lines))
        for key, columns, lines, _ in _tables_in(facts)
        if key in INTERNAL
    ]
    return _table("", ["what", "value"], rows, 0) + "".join(tables)


def _tables_in(facts: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]], list[str]]]:
    """Yield the values with rows of one kind: name, columns, rows, and the word for a row."""
    for key, value in facts.items():
        if isinstance(value, dict) and key == "groups":
            # Metrics: a table of measures for each group of runs.
            for group, measures in value.items():
                yield from _tables_in({f"{group}/measures": measures})
        elif isinstance(value, dict) and is_table(value):
            columns = _columns(value.values())
            named = [(str(name), *(one.get(column) for column in columns)) for name, one in value.items()]
            yield key, ["name", *columns], [list(map(cell, row)) for row in named], [row[0] for row in named]
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            columns = _columns(value)
            yield key, columns, [[cell(row.get(column)) for column in columns] for row in value], []


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names in any of the rows; values that are tables do not fit into a cell."""
    names = dict.fromkeys(name for row in rows for name, one in row.items() if not isinstance(one, dict))
    return list(names)


def _comparison(parts: list[Part]) -> str:
    """Return the numbers that all folders have, side by side."""
    known = [dict(item for facts in part.facts.values() for item in flat(facts)) for part in parts]
    shared = [name for name in known[0] if all(is_number(one.get(name)) for one in known)]
    if not shared:
        return ""
    rows = [[name, *(cell(one[name]) for one in known)] for name in shared]
    columns = ["what", *(part.folder.name for part in parts)]
    return _table("side by side", columns, rows[:ROWS_MAX], len(rows))


def _table(name: str, columns: list[str], rows: list[list[str]], count: int) -> str:
    """Return a table, in parts if it is wide; values equal in all rows are stated once."""
    if not rows:
        return ""
    rows = rows[:ROWS_MAX]
    places = range(len(columns))
    same = [at for at in places if at and len(rows) > 1 and all(row[at] == rows[0][at] for row in rows)]
    again = [at for at in places if at and all(row[at] == row[0] for row in rows)]
    shown = [at for at in places if at not in same and at not in again]
    said = [
        f"{_words(columns[at])} {rows[0][at]}" for at in same if rows[0][at] not in ("", "–", "None", "[]")
    ]
    note = f'<p class="quiet">In all rows: {escape(", ".join(said))}.</p>' if said else ""
    more = f'<p class="quiet">The first {len(rows)} of {count:,} rows.</p>' if count > len(rows) else ""
    heading = f"<h2>{escape(_heading(name))}</h2>" if name else ""
    key, rest = shown[:1], shown[1:]
    cuts = range(0, max(len(rest), 1), COLUMNS_MAX - 1)
    parts = [_part(columns, rows, [*key, *rest[first : first + COLUMNS_MAX - 1]]) for first in cuts]
    return f"{heading}{''.join(parts)}{note}{more}"


def _part(columns: list[str], rows: list[list[str]], places: list[int]) -> str:
    numbers = {at for at in places if all(_is_number(row[at]) for row in rows)}
    head = "".join(
        f"<th{' class=number' if at in numbers else ''}>{escape(_words(columns[at]))}</th>" for at in places
    )
    body = "".join(
        "<tr>" + "".join(_cell(row[at], _words(columns[at])) for at in places) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _is_number(value: str) -> bool:
    try:
        float(value.replace(",", ""))
    except ValueError:
        return False
    return True


def _cell(value: str, name: str) -> str:
    return _td(name, cell(_number(value)), "number") if _is_number(value) else _td(name, value)


def _td(name: str, text: object, kind: str = "") -> str:
    """Return a cell that names its column on narrow screens, where rows are drawn as cards."""
    shown = str(text)
    kind += " long" * any(len(word) > WORD_MAX for word in shown.split()) + " text" * (len(shown) > TEXT_MIN)
    marked = f' class="{kind.strip()}"' if kind else ""
    return f'<td data-name="{escape(name)}"{marked}>{escape(shown)}</td>'


def _heading(name: str) -> str:
    """Return a heading in which no name is repeated: `audit/audit` becomes `audit`."""
    words = list(dict.fromkeys(_words(name).split(": ")))
    return ": ".join(words)


def _number(value: str) -> str | float:
    return float(value) if "." in value and "," not in value else value


def _words(name: str) -> str:
    return name.replace("_", " ").replace("/", ": ")


def write_page(file: Path, text: str) -> None:
    """Write the page atomically."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror or error})") from None
