"""Questions to a log in SQL: every view answers, and both engines answer alike."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.conftest import WriteLog
from tests.pipeline.log_maker import Tampered

from roamcast.cli import build_app, run
from roamcast.pipeline import audit_sql as sql
from roamcast.pipeline.engines import duck_engine
from roamcast.pipeline.output import results
from roamcast.pipeline.spark_engine import read_log, spark_engine
from roamcast.pipeline.views import ask, views


@pytest.fixture
def log(write_log: WriteLog) -> Path:
    return write_log(Tampered().rows)


def ask_command(capsys: pytest.CaptureFixture[str], log: Path, question: str) -> list[dict[str, Any]]:
    assert run(build_app(), ["pipeline", "sql", "--log", str(log), question, "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


def test_the_views_say_what_is_in_the_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (moved,) = ask_command(capsys, log, "SELECT * FROM handoffs")
    assert (moved["client"], moved["came_from"], moved["broker"]) == ("car", "a", "c")
    assert moved["away_s"] == pytest.approx(moved["attached_at"] - moved["left_at"])
    (count,) = ask_command(capsys, log, "SELECT sum(delivered) AS delivered FROM clients;")
    assert count == {"delivered": 15}
    assert {row["broker"] for row in ask_command(capsys, log, "SELECT broker FROM brokers")} == {
        "a",
        "b",
        "c",
    }
    assert len(ask_command(capsys, log, "SELECT * FROM deliveries WHERE delay_s < 0")) == 0


def test_without_a_question_the_views_are_listed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = ask_command(capsys, log, "")
    assert {"handoffs", "deliveries", "sessions", "clients", "brokers"} <= {row["view"] for row in listed}


def test_a_wrong_question_is_one_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["pipeline", "sql", "--log", str(log), "SELECT nothing FROM clients"]) == 2
    assert capsys.readouterr().err.startswith("roamcast: the query failed: ")


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_both_engines_answer_alike(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    with (
        results(tmp_path / "out") as output,
        duck_engine(log, tmp_path) as embedded,
        spark_engine(read_log(spark, log), output, 0) as on_spark,
    ):
        for name, view in views(embedded).items():
            question = f"SELECT * FROM {name} ORDER BY {', '.join(view.columns)}"
            answers = [ask(engine, question, 1_000).to_pylist() for engine in (embedded, on_spark)]
            key = [sorted(map(repr, answer)) for answer in answers]
            assert key[0] == key[1], name
            assert answers[0] or name in ("drops", "transfers"), name


def test_who_moves_on_without_leaving_is_at_one_broker_at_a_time() -> None:
    """A client whose broker fails attaches elsewhere: when it left is not known."""
    moves = """(VALUES ('r', 'car', 'a', 1, 0.0, ''), ('r', 'car', 'a', 2, 5.0, 'left'),
        ('r', 'car', 'b', 3, 7.0, 'a'), ('r', 'car', 'c', 4, 9.0, 'b')
    ) AS told(run, client, broker, sequence, time, reason)"""
    question = f"SELECT broker, left_at, attached_at, until FROM ({sql.visits(moves)}) ORDER BY attached_at"
    found = duckdb.execute(question).fetchall()
    assert found == [("a", None, 0.0, 5.0), ("b", 5.0, 7.0, 9.0), ("c", None, 9.0, None)]
