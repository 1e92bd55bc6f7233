"""Logs and results in stores that have a URL: an S3 server, and the file system."""

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.daemon.brokers import free_port, wait_until
from tests.pipeline.log_maker import Tampered

from roamcast.cli import build_app, run
from roamcast.errors import InputError
from roamcast.pipeline.ingest import ingest
from roamcast.pipeline.metrics import metrics
from roamcast.pipeline.output import results
from roamcast.pipeline.places import ArrowFiles, Files, Store, place_of
from roamcast.pipeline.spark_engine import audit_on_spark, read_log
from roamcast.pipeline.stream import StreamSettings, start_stream
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


def copy_to(files: Files, folder: Path, place: Store) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            files.put(file, place / file.relative_to(folder).as_posix())


def test_logs_and_results_in_an_object_store(
    s3: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, results, files = Store(f"s3a://lake/logs?{s3}"), Store(f"s3://lake/results?{s3}"), ArrowFiles()
    copy_to(files, log, logs)
    (tmp_path / "old").write_text("old")
    files.put(tmp_path / "old", results / "findings" / "old.parquet")
    files.put(tmp_path / "old", results / "other" / "old.parquet")
    for _ in range(2):  # The second replaces what the first has left.
        figures = audit(f"s3://lake/logs?{s3}", f"s3://lake/results?{s3}", capsys)
        assert (figures["expected"], figures["delivered"], figures["lost"]) == (15, 15, 0)
    there = files.listed(results)
    assert {"audit.json", "findings/part-00000.parquet", "other/old.parquet"} <= set(there)
    assert "findings/old.parquet" not in there, "a part is replaced as a whole"
    assert not [name for name in there if name.startswith(".")]
    files.get(results / "audit.json", tmp_path / "audit.json")
    assert json.loads((tmp_path / "audit.json").read_text())["expected"] == 15
    assert run(build_app(), ["pipeline", "audit", "--log", f"s3://lake/nowhere?{s3}", "--out", "x"]) != 0
    assert "s3://lake/nowhere" in capsys.readouterr().err


def test_results_that_were_not_finished_are_not_copied(s3: str) -> None:
    place = Store(f"s3://lake/unfinished?{s3}")
    folders: list[Path] = []

    def fail() -> None:
        with results(place) as output:
            folders.append(output.folder)
            (output.folder / "part").write_text("half")
            raise InputError("no")

    with pytest.raises(InputError, match="no"):
        fail()
    assert not folders[0].exists()
    assert ArrowFiles().listed(place) == []


# --- Hadoop's file systems ---

LAKE = "viewfs://lake"
"""A file system of Hadoop's that is neither local nor known to anybody but the session that mounts it."""


@pytest.fixture
def mounted(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A folder that Spark knows as `LAKE` alone."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    folder = tmp_path / "lake"
    folder.mkdir()
    conf.set("fs.viewfs.mounttable.lake.link./data", folder.as_uri())
    conf.set("fs.viewfs.impl.disable.cache", "true")
    yield folder
    conf.unset("fs.viewfs.mounttable.lake.link./data")


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_every_job_on_a_file_system_of_hadoop(spark: SparkSession, mounted: Path, log: Path) -> None:
    shutil.copytree(log, mounted / "log")
    logs, lake = Store(f"{LAKE}/data/log"), Store(f"{LAKE}/data")
    for _ in range(2):
        figures = ingest(spark, logs, lake / "clean")
        assert (figures["rows_kept"], figures["quarantined"]) == (len(Tampered().rows), 0)
    (day, *_) = sorted((mounted / "clean" / "records").iterdir())
    assert day.name == "date=1970-01-01"
    assert {folder.name for folder in day.iterdir()} >= {"at_broker=a", "at_broker=b"}
    audited = audit_on_spark(spark, lake / "clean" / "records", lake / "audit")
    assert (audited["expected"], audited["delivered"], audited["lost"]) == (15, 15, 0)
    assert {path.name for path in (mounted / "audit").iterdir()} >= {"audit.json", "findings", "streams"}
    metrics(spark, logs, lake / "metrics")
    assert pq.read_table(mounted / "metrics" / "traces").num_rows > 0
    start_stream(spark, logs, lake / "stream", StreamSettings(late_s=0.0), lambda _: None, once=True)
    for query in spark.streams.active:
        query.awaitTermination()
    assert json.loads((mounted / "stream" / "stream.json").read_text())["records"] == len(Tampered().rows)
    assert not list(mounted.rglob(".unfinished*"))


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_spark_refuses_a_log_of_a_later_version_in_a_store(spark: SparkSession, mounted: Path) -> None:
    later = pa.table({"run": ["r"]}).replace_schema_metadata({"roamcast.schema_version": "99"})
    pq.write_table(later, mounted / "part-0.parquet")
    with pytest.raises(InputError, match="has schema version 99"):
        read_log(spark, Store(f"{LAKE}/data"))
    (mounted / "part-0.parquet").write_bytes(b"half")
    (mounted / ".part-0.parquet.crc").unlink(missing_ok=True)
    with pytest.raises(InputError, match="is not a complete Parquet file"):
        read_log(spark, Store(f"{LAKE}/data"))


@pytest.mark.parametrize("url", ["gopher://here/there", "s3://", "hdfs://127.0.0.1:1/x"])
def test_what_is_no_place_is_one_line(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["pipeline", "audit", "--engine", "duckdb", "--log", url, "--out", str(tmp_path / "out")]
    assert run(build_app(), command) != 0
    said = capsys.readouterr().err
    assert url in said
    assert "Traceback" not in said


@pytest.mark.xdist_group("spark")
def test_spark_says_what_it_lacks_to_reach_a_store(spark: SparkSession) -> None:
    place = place_of("s3a://lake/logs?endpoint_override=127.0.0.1:1&scheme=http")
    with pytest.raises(InputError, match="Spark has no file system for it"):
        read_log(spark, place)
