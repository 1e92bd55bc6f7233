"""The page: the answer first, complete in itself, each figure once, and no name as markup."""

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roamcast.cli import build_app, run
from roamcast.errors import InputError
from roamcast.pipeline.report import COLUMNS_MAX, ROWS_MAX, collect, page

PNG = b"\x89PNG\r\n\x1a\n"


def lab_folder(folder: Path) -> Path:
    (folder / "figures").mkdir(parents=True)
    (folder / "metrics").mkdir()
    (folder / "figures" / "fig5.png").write_bytes(PNG)
    (folder / "figures" / "fig5.svg").write_text("<svg/>")
    (folder / "metrics" / "runs.csv").write_text("protocol,hops\nnone,12\n" + "x,1\n" * ROWS_MAX)
    claims = [
        {"claim": "W1", "paper": "less <b>", "figures": {"hops": 3.25, "in": [1, 2]}, "holds": True},
        {"claim": "W2", "paper": "more", "figures": {}, "holds": False, "note": "not at 5 s"},
        {"claim": "W3", "paper": "who knows", "figures": {}, "holds": None},
    ]
    (folder / "outcomes.json").write_text(json.dumps({"experiment": "wang", "claims": claims}))
    return folder


class Outline(HTMLParser):
    """The tags, in order, and what an img or link leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.leads_to: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.leads_to += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_has_pictures_first_and_needs_no_other_file(tmp_path: Path) -> None:
    text = page("Title & more", [collect(lab_folder(tmp_path / "lab"))])
    outline = Outline()
    outline.feed(text)
    assert outline.tags.index("img") < outline.tags.index("table")
    assert outline.tags.count("img") == 1, "the same picture as SVG is not shown again"
    assert all(one.startswith("data:image/png;base64,") for one in outline.leads_to)
    assert "b" not in outline.tags, "what a document says is no markup"
    assert "Title &amp; more" in text
    assert "less &lt;b&gt;" in text


def test_claims_show_the_documents_word_what_was_measured_and_the_verdict(tmp_path: Path) -> None:
    text = page("t", [collect(lab_folder(tmp_path / "lab"))])
    assert re.search(r">W1</td><td[^>]*>less &lt;b&gt;</td><td[^>]*>hops: 3.25<br>in: 1, 2</td>.*?hold", text)
    assert re.search(r">W2</td>.*?does not hold.*?not at 5 s", text)
    assert "3 claims:" in text
    assert ">1 holds<" in text
    assert f"The first {ROWS_MAX} of {ROWS_MAX + 1} rows." in text


def test_runs_are_set_side_by_side(tmp_path: Path) -> None:
    for name, lost in (("none", 17), ("reactive", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"protocol": name, "lost": lost}))
    text = page("t", [collect(tmp_path / "none"), collect(tmp_path / "reactive")])
    assert re.search(r"<tr><td[^>]*>lost</td><td[^>]*>17</td><td[^>]*>0</td></tr>", text)


def results_of_spark(folder: Path) -> Path:
    """What audit, metrics and stream leave in their folders, in small."""
    (folder / "findings").mkdir(parents=True)
    (folder / "log").mkdir()
    names = ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected")
    protocols = {"none": dict.fromkeys(names, 5), "reactive": dict.fromkeys(names, 0)}
    audit = {"records": 9, **dict.fromkeys(names, 5), "protocols": protocols}
    (folder / "audit.json").write_text(json.dumps(audit))
    shares = dict.fromkeys(("mean", "low", "high", "p05", "p95"), 0.25)
    measure = {"unit": "s", "what": "how long", **shares}
    groups = {"none": {"latency": measure, "handoff_delay": measure}}
    (folder / "metrics.json").write_text(json.dumps({"runs": 2, "groups": groups}))
    of_clients = {"run": ["none", "none"], "client": ["bus", "<car>"], "expected": [10, 5_000]}
    pq.write_table(pa.table({**of_clients, "lost": [0, 4_321]}), folder / "clients.parquet")
    finding = {"kind": "lost", "run": "none", "client": "<car>", "published_at": 12.5, "was_away": True}
    pq.write_table(pa.Table.from_pylist([finding]), folder / "findings" / "part-0.parquet")
    (folder / "log" / "part-00000.parquet").write_text("an event log is not read")
    minute = {"minute": datetime(2026, 1, 1, tzinfo=UTC), "expected": 4, "lost": 1, "duplicates": 0}
    delays = {"handoff_delay_p95_s": 0.5, "transfer_p95_s": None}
    pq.write_table(pa.Table.from_pylist([{"run": "r", **minute, **delays}]), folder / "minutes.parquet")
    return folder


def test_audit_metrics_and_stream_are_drawn_and_their_tables_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = results_of_spark(tmp_path / "run"), tmp_path / "report"
    assert run(build_app(), ["pipeline", "report", "--log", str(folder), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] == 3
    for name in ("audit", "metrics", "minutes"):
        assert (out / f"{name}.png").read_bytes().startswith(PNG)
        assert "<svg" in (out / f"{name}.svg").read_text()
    text = (out / "report.html").read_text()
    outline = Outline()
    outline.feed(text)
    assert "<h2>none: measures</h2>" in text
    assert "<car>" not in text
    assert "Of 5,010 deliveries that were owed in run none, 4,321 lost." in text
    answer, _, rest = text.partition("<img")
    for figure in ("4,321", "1 of 2", "&lt;car&gt; in none", "12.5", "published while the client was away"):
        assert figure in answer, figure
    assert "bus" not in answer, "nothing went wrong for it"
    assert rest.index("<details>") < rest.index(">bus</td>"), "what nobody asks for first is folded"
    assert outline.tags.count("h2") == len(set(re.findall(r"<h2>(.*?)</h2>", text))), "nothing comes twice"
    (folder / "clients.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="is not a complete Parquet file"):
        collect(folder)


def test_the_command_writes_the_page_and_its_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = lab_folder(tmp_path / "lab")
    out = tmp_path / "report"
    assert run(build_app(), ["pipeline", "report", "--log", str(folder), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "report": str(out / "report.html"), "pictures": 1, "claims": 3,
    }  # fmt: skip
    assert sorted(file.name for file in out.iterdir()) == ["fig5.png", "fig5.svg", "report.html"]


def test_what_cannot_be_shown_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        collect(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no figures, tables or results"):
        collect(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        collect(tmp_path)


def test_when_nothing_went_wrong_the_page_says_so(tmp_path: Path) -> None:
    good = {"expected": 7, "lost": 0, "duplicates": 0, "protocol": "roam"}
    (tmp_path / "summary.json").write_text(json.dumps(good))
    text = page("t", [collect(tmp_path)], "What was <done>")
    assert "Nothing was lost, repeated or out of order: 7 deliveries were owed in run roam." in text
    assert "What was &lt;done&gt;" in text


def test_wide_tables_are_continued_below_and_constant_columns_said_once(tmp_path: Path) -> None:
    columns = [f"c{number}" for number in range(20)]
    rows = [",".join(str(row * number) for number in range(20)) for row in (1, 2)]
    (tmp_path / "wide.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    text = page("t", [collect(tmp_path)])
    widths = [row.count("<th") for row in re.findall(r"<tr>(<th.*?)</tr>", text)]
    assert max(widths) <= COLUMNS_MAX
    assert len(widths) == 4
    (tmp_path / "wide.csv").write_text("name,seed,lost\na,7,0\nb,7,1\n")
    text = page("t", [collect(tmp_path)])
    assert "In all rows: seed 7." in text
    assert text.count("<th") == 2
