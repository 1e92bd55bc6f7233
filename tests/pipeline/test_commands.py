"""`roamcast pipeline` as it is typed: what it prints, and the one line that every mistake gets."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.conftest import WriteLog
from tests.pipeline.log_maker import Tampered, as_nobody

from roamcast.cli import build_app, run
from roamcast.cli.spark import cause_of, parse_conf
from roamcast.errors import InputError, empty_log

pytestmark = pytest.mark.xdist_group("spark")

ROAMCAST = [sys.executable, "-c", "import sys; from roamcast.cli import main; sys.exit(main())"]


@pytest.fixture
def log(write_log: WriteLog) -> Path:
    return write_log(Tampered().rows, "sub_unsub-1")


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that a command answers with before it has started Spark."""
    assert run(build_app(), ["pipeline", *map(str, arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line.removeprefix("roamcast: ")


@pytest.mark.parametrize("command", ["ingest", "audit", "metrics", "neighbours"])
def test_mistakes_get_one_line_and_leave_nothing(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, log: Path
) -> None:
    empty, results = tmp_path / "empty", tmp_path / "results"
    empty.mkdir()
    results.mkdir()
    asked = (command, "--out", results / "out", "--log")
    assert complaint(capsys, *asked, empty) == str(empty_log(empty))
    missing = complaint(capsys, *asked, tmp_path / "nowhere")
    assert missing == f"log folder {tmp_path / 'nowhere'}: no such file or directory"
    assert complaint(capsys, *asked, log, "--master", "sparks://a:1").startswith(
        "--master 'sparks://a:1': is no Spark master; valid are local[*]"
    )
    assert "nobody answers there (127.0.0.1:1: " in complaint(
        capsys, *asked, log, "--master", "spark://127.0.0.1:1"
    )
    (file,) = log.glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    damaged = f"log file {file}: is not a complete Parquet file (truncated or damaged)"
    assert complaint(capsys, *asked, log) == damaged
    pq.write_table(pa.table({"x": [1]}), file)
    assert complaint(capsys, *asked, log) == f"log file {file} is no event log: it has no column 'run'"
    pq.write_table(pq.read_table(pa.BufferReader(whole)).slice(0, 0), file)
    assert complaint(capsys, *asked, log) == f"log folder {log}: its files hold no rows"
    assert not list(results.iterdir())


@pytest.mark.parametrize("command", ["ingest", "audit", "metrics", "neighbours"])
def test_what_may_not_be_read_or_written_is_named(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, log: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o000)
    complaint(capsys, command, "--out", tmp_path / "out", "--log", tmp_path / "nowhere")  # Loads the library.
    with as_nobody():
        no_entry = complaint(capsys, command, "--out", tmp_path / "out", "--log", locked)
        assert no_entry == f"log folder {locked}: permission denied"
    (file,) = log.glob("*.parquet")
    # A file where a folder must be: not even root can write there.
    line = complaint(capsys, command, "--log", log, "--out", file / "out")
    assert line.startswith(f"--out {file / 'out'}: ")
    assert file.is_file()


@pytest.mark.parametrize("command", ["ingest", "audit", "metrics"])
def test_settings_and_seconds_that_cannot_be(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, log: Path
) -> None:
    asked = (command, "--out", tmp_path / "out", "--log", log)
    assert "valid is KEY=VALUE" in complaint(capsys, *asked, "--conf", "executor.memory=1g")
    (file,) = log.glob("*.parquet")
    assert complaint(capsys, command, "--log", log, "--out", file).endswith("is a file; name a folder")
    if command != "ingest":
        assert "valid is a number of seconds" in complaint(capsys, *asked, "--clock-error", "inf")


def test_mistakes_with_a_trace_or_a_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, trace = tmp_path / "out", tmp_path / "trace.csv"
    trace.write_text("who,where\n")
    assert "columns are 'who,where'" in complaint(capsys, "neighbours", "--out", out, "--trace", trace)
    assert complaint(capsys, "neighbours", "--out", out) == "--log and --trace: give one of them"
    (tmp_path / "empty").mkdir()
    line = complaint(capsys, "report", "--out", out, "--log", tmp_path / "empty")
    assert line.startswith(f"{tmp_path / 'empty'}: no figures, tables or results in it")
    (tmp_path / "locked").mkdir(mode=0o000)
    complaint(capsys, "report", "--out", out, "--log", tmp_path / "nowhere")  # Loads the library.
    with as_nobody():
        line = complaint(capsys, "report", "--out", out, "--log", tmp_path / "locked")
    assert line.endswith("permission denied")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "audit.json").write_text('{"expected": 1')
    line = complaint(capsys, "report", "--out", out, "--log", tmp_path / "half")
    assert "audit.json: is not JSON" in line
    assert not out.exists()


def test_without_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, log: Path, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    missing = ("pyspark", "duckdb")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else found(name))
    options = ("--log", log, "--out", tmp_path / "out")
    line = complaint(capsys, "audit", *options, "--engine", "spark")
    assert line == "Spark is not installed; it comes with: pip install 'roamcast[pipeline]'"
    line = complaint(capsys, "audit", *options, "--engine", "duckdb")
    assert line == "DuckDB is not installed; it comes with: pip install 'roamcast[audit]'"


def test_settings_of_sparks_own() -> None:
    assert parse_conf(["spark.a=b=c", "spark.d="]) == {"spark.a": "b=c", "spark.d": ""}
    with pytest.raises(InputError, match=r"spark\.a"):
        parse_conf(["spark.a"])


def test_of_a_page_of_stack_traces_one_line_is_shown() -> None:
    page = "An error.\n: org.X: aborted\n\tat a\nCaused by: b.C: no\nCaused by: java.io.IOException: full\n"
    assert cause_of(RuntimeError(page)) == "java.io.IOException: full"
    assert cause_of(RuntimeError("only this\n\tat here")) == "only this"
    assert cause_of(RuntimeError()) == "RuntimeError"


def spark_command(*arguments: str | Path) -> tuple[dict[str, Any], str, int]:
    """Runs a command in a process of its own; its JSON, what it said on stderr, and its exit code."""
    done = subprocess.run(
        [*ROAMCAST, "pipeline", *map(str, arguments), "--json"],
        capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONWARNINGS": ""},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), done.stderr, done.returncode


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_ingest_and_audit_with_executors_in_processes_of_their_own(log: Path, tmp_path: Path) -> None:
    """What runs in one process runs unchanged on a cluster."""
    clean, out = tmp_path / "clean", tmp_path / "out"
    rows = len(Tampered().rows)
    figures, said, _ = spark_command("ingest", "--log", log, "--out", clean, "--master", "local[1]")
    assert (figures["rows_read"], figures["rows_kept"], figures["quarantined"]) == (rows, rows, 0)
    assert said.splitlines()[:2] == ["Spark is starting (local[1]) ...", "ingesting ..."]
    assert all(line.startswith("ingesting") for line in said.splitlines()[1:]), said
    cluster = "local-cluster[2,1,1536]"
    figures, said, code = spark_command(
        "audit", "--log", clean / "records", "--out", out, "--master", cluster, "--strict"
    )
    assert code == 0
    assert said.splitlines()[0] == f"Spark is starting ({cluster}) ..."
    assert all(line.startswith("auditing") for line in said.splitlines()[1:]), said
    assert {name: figures[name] for name in ("expected", "delivered", "lost", "records")} == {
        "expected": 15, "delivered": 15, "lost": 0, "records": rows,
    }  # fmt: skip
    assert {path.name for path in out.iterdir()} >= {"findings", "streams", "audit.json"}
