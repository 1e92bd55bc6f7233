"""Logs and results in stores that have a URL: an S3 server, and the file system."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.daemon.brokers import free_port, wait_until
from tests.pipeline.log_maker import Tampered

from roamcast.cli import build_app, run
from roamcast.errors import InputError
from roamcast.pipeline.places import Store, made_for, place_of
from roamcast.pipeline.spark_engine import read_log
from roamcast.records.parquet import LogWriter


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log in folders by date and broker, as lakes have them."""
    with LogWriter(tmp_path / "log" / "date=2026-11-16" / "broker=a", "run") as writer:
        writer.write(Tampered().rows)
    (tmp_path / "log" / "_temporary").mkdir()
    (tmp_path / "log" / "_temporary" / "half.parquet").write_bytes(b"half")
    return tmp_path / "log"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server in a process of its own."""
    pytest.importorskip("moto", reason="moto is not installed")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            request = urllib.request.Request(f"{address}/lake", method="PUT")
            return bool(urllib.request.urlopen(request, timeout=5).status == 200)
        except OSError:
            return False

    try:
        wait_until(answers, lambda: "no S3 server")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "some")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "one")
            yield f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    finally:
        server.terminate()
        server.wait()


def audit(log: str, out: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert run(build_app(), ["pipeline", "audit", "--log", log, "--out", out, "--json"]) == 0
    figures: dict[str, object] = json.loads(capsys.readouterr().out)
    return figures


def test_a_url_of_the_file_system_is_a_folder(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = audit(log.as_uri(), (tmp_path / "with space").as_uri(), capsys)
    assert (figures["expected"], figures["delivered"], figures["lost"]) == (15, 15, 0)
    assert (tmp_path / "with space" / "audit.json").exists()


def test_logs_and_results_in_an_object_store(
    s3: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, results = place_of(f"s3a://lake/logs?{s3}"), place_of(f"s3://lake/results?{s3}")
    assert isinstance(logs, Store)
    assert isinstance(results, Store)
    logs.take(log)
    for _ in range(2):  # The second replaces what the first has left.
        figures = audit(f"s3://lake/logs?{s3}", f"s3://lake/results?{s3}", capsys)
        assert (figures["expected"], figures["delivered"], figures["lost"]) == (15, 15, 0)
    found = results.filesystem.get_file_info("lake/results/audit.json")
    assert found.is_file
    assert run(build_app(), ["pipeline", "audit", "--log", f"s3://lake/nowhere?{s3}", "--out", "x"]) != 0
    assert "s3://lake/nowhere" in capsys.readouterr().err


def test_results_that_were_not_finished_are_not_copied(s3: str) -> None:
    place = place_of(f"s3://lake/unfinished?{s3}")
    assert isinstance(place, Store)
    folders: list[Path] = []

    def fail() -> None:
        with made_for(place) as made:
            folders.append(made)
            (made / "part").write_text("half")
            raise InputError("no")

    with pytest.raises(InputError, match="no"):
        fail()
    assert not folders[0].exists()
    assert place.filesystem.get_file_info("lake/unfinished/part").type.name == "NotFound"


@pytest.mark.parametrize("url", ["gopher://here/there", "s3://", "hdfs://127.0.0.1:1/x"])
def test_what_is_no_place_is_one_line(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(build_app(), ["pipeline", "audit", "--log", url, "--out", str(tmp_path / "out")]) != 0
    said = capsys.readouterr().err
    assert url in said
    assert "Traceback" not in said


@pytest.mark.xdist_group("spark")
def test_spark_says_what_it_lacks_to_reach_a_store(spark: SparkSession) -> None:
    place = place_of("s3a://lake/logs?endpoint_override=127.0.0.1:1&scheme=http")
    with pytest.raises(InputError, match="Spark has no file system for it"):
        read_log(spark, place)
