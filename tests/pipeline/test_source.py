"""`format("roamcast")` with real brokers: nothing is lost and nothing comes twice, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.daemon.brokers import BrokerProcess, MqttClient, free_port
from tests.pipeline import stream_query
from tests.pipeline.spark_cluster import standalone_cluster
from tests.pipeline.waiting import wait_until

from roamcast.bench.process_tree import tree_of
from roamcast.errors import InputError
from roamcast.pipeline.source import SessionReader
from roamcast.pipeline.source_format import parse_options

pytestmark = pytest.mark.xdist_group("spark")

ATTEMPTS = 3
MINE = {"clientId": "spark", "filter": "road/#"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("brokers"), "a")
    yield process
    process.stop()


def texts_of(rows: DataFrame) -> list[str]:
    return [row.text for row in rows.select(fn.col("payload").cast("string").alias("text")).collect()]


def read_now(spark: SparkSession, folder: Path, options: dict[str, str]) -> list[str]:
    """What a query finds that ends when it has read what was there; each query appends to the same files."""
    stream = spark.readStream.format("roamcast").options(**options, inbox=str(folder / "inbox")).load()
    writing = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writing.trigger(availableNow=True)
    for attempt in range(ATTEMPTS):
        try:
            query.start(str(folder / "out")).awaitTermination()
            break
        except StreamingQueryException as error:
            # Spark gives a Python process ten seconds to start, which a machine that is busy exceeds.
            if "failed to connect back" not in str(error) or attempt == ATTEMPTS - 1:
                raise
    return sorted(texts_of(spark.read.schema(stream.schema).parquet(str(folder / "out"))), key=int)


def lasting_session(broker: BrokerProcess) -> dict[str, str]:
    """The options of a reader whose session is there, and keeps what is published."""
    client = MqttClient(MINE["clientId"], broker.port)
    client.subscribe(MINE["filter"])
    client.leave()
    return {**MINE, "brokers": f"127.0.0.1:{broker.port}", "maxPerBatch": "20", "quiet": "2"}


def publish(rows: DataFrame, broker: BrokerProcess) -> None:
    options = {"brokers": f"127.0.0.1:{broker.port}", "clientId": "writer"}
    rows.write.format("roamcast").options(**options).mode("append").save()


@pytest.mark.slow
def test_what_one_query_writes_another_reads(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    options = lasting_session(broker)
    numbers = spark.range(30).select(
        fn.concat(fn.lit("road/"), fn.col("id") % 3).alias("topic"),
        fn.col("id").cast("string").alias("payload"),
        fn.create_map(fn.lit("speed"), fn.col("id").cast("string")).alias("properties"),
    )
    publish(numbers, broker)
    assert read_now(spark, tmp_path, options) == [str(number) for number in range(30)]
    (seven,) = spark.read.parquet(str(tmp_path / "out")).where("cast(payload as string) = '7'").collect()
    assert (seven.topic, seven.qos, seven.retain, seven.properties) == ("road/1", 1, False, {"speed": "7"})
    assert 0 <= seven.position < 30


@pytest.mark.slow
def test_a_batch_read_looks_and_a_stream_takes(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    options = {**lasting_session(broker), "clientId": "spark-again"}
    waiting = spark.read.format("roamcast").options(**options).load()
    assert waiting.isEmpty()
    publish(spark.createDataFrame([("road/1", "1"), ("road/2", "2")], "topic string, payload string"), broker)
    assert sorted(texts_of(waiting)) == ["1", "2"], "it is looked at"
    assert sorted(texts_of(waiting)) == ["1", "2"], "and stays"
    assert read_now(spark, tmp_path, options) == ["1", "2"]
    assert waiting.isEmpty(), "now it was taken"
    (first,) = spark.read.parquet(str(tmp_path / "out")).where("topic = 'road/1'").collect()
    assert first.publisher.startswith("writer-")
    assert first.number == 1
    # The same client publishes the same again, with the same number: it is another notification.
    publish(spark.createDataFrame([("road/1", "1"), ("road/2", "2")], "topic string, payload string"), broker)
    assert read_now(spark, tmp_path, options) == ["1", "1", "2", "2"], "a restarted query reads what is new"


def test_queries_of_one_group_share_a_subscription(broker: BrokerProcess, tmp_path: Path) -> None:
    """Each has a session and an inbox of its own; each notification is read by one of them."""
    readers = [
        SessionReader(
            parse_options(
                {
                    "brokers": f"127.0.0.1:{broker.port}",
                    "clientId": f"part-{number}",
                    "filter": "$share/parts/lane/#",
                    "inbox": str(tmp_path / str(number)),
                }
            )
        )
        for number in range(2)
    ]
    starts = [reader.initialOffset() for reader in readers]
    for reader, start in zip(readers, starts, strict=True):
        reader.latestOffset(start, ReadAllAvailable())  # It has subscribed.
    garage = MqttClient("garage of lanes", broker.port)
    for number in range(40):
        garage.publish(f"lane/{number % 4}", str(number).encode(), qos=1)
    garage.leave()
    read = []
    for reader, start in zip(readers, starts, strict=True):
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(start, ReadAllAvailable())
        parts = reader.partitions(start, end)
        read.append([int(bytes(row[1])) for part in parts for row in reader.read(part)])  # type: ignore[call-overload]
        reader.stop()
    assert sorted(read[0] + read[1]) == list(range(40))
    assert min(map(len, read)) > 0


def test_mistakes_are_told(spark: SparkSession, tmp_path: Path) -> None:
    def message(ask: Callable[[], object]) -> str:
        with pytest.raises((InputError, PySparkException)) as caught:
            ask()
        return str(caught.value)

    def said_of(**options: str) -> str:
        return message(lambda: parse_options(options).of_stream_reader())

    assert '"brokers" is missing' in said_of()
    assert "there is no option 'borkers'; valid are brokers" in said_of(borkers="a")
    assert "qos '3': valid is a number from 0 to 2" in said_of(brokers="a", qos="3")
    assert "retain 'yes': valid are true and false" in said_of(brokers="a", retain="yes")
    assert '"filter" is missing' in said_of(brokers="a", clientId="c")
    assert '"clientId" is missing' in said_of(brokers="a", filter="b")
    assert '"inbox" is missing' in said_of(brokers="a", **MINE)
    port = free_port()
    nobody = {"brokers": f"127.0.0.1:{port}", **MINE}
    rows = spark.range(1).selectExpr("cast(id as string) as payload")
    writer = rows.write.format("roamcast").options(**nobody)
    assert "there is no column 'topic'" in message(writer.mode("append").save)
    assert "cannot be overwritten" in message(writer.mode("overwrite").save)
    assert "nobody listens there" in message(writer.option("topic", "t").mode("append").save)
    wrong = rows.selectExpr("payload", "1 as speed").write.format("roamcast").options(**nobody)
    assert "column 'speed' cannot be published" in message(wrong.mode("append").save)


@contextmanager
def query_process(master: str, folder: Path, options: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The query of stream_query.py; at the end it is killed, with its Java and everything else."""
    command = [sys.executable, stream_query.__file__, master, str(folder), json.dumps(options)]
    with (folder / "query.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def found_in(folder: Path) -> list[int]:
    """What the file sink has committed."""
    log = folder / "out" / "_spark_metadata"
    files = {
        json.loads(line)["path"].removeprefix("file://")
        for entry in (log.iterdir() if log.is_dir() else ())
        if not entry.name.startswith(".")
        for line in entry.read_text().splitlines()[1:]
    }
    if not files:
        return []
    return [int(text) for text in ds.dataset(sorted(files)).to_table(["text"]).column("text").to_pylist()]


@contextmanager
def chosen_master(kind: str, folder: Path) -> Iterator[str]:
    if kind != "standalone":
        yield kind
        return
    with standalone_cluster(folder) as url:
        yield url


def executors() -> list[int]:
    """The executors of queries that this process started, on whatever cluster."""
    return [pid for pid in tree_of(os.getpid()) if EXECUTOR in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


EXECUTOR = b"CoarseGrainedExecutorBackend"
MOMENTS = 10
VICTIMS = ("driver", "executor", "broker")
"""Of four of each, ten are killed, so each is killed twice at least."""
PUBLISHED_MAX = 60
"""Between two moments."""


class Site:
    """A broker where a garage publishes, two others where a query reads, and the query."""

    def __init__(self, folder: Path, master: str, draw: random.Random) -> None:
        self.folder, self.master, self.draw = folder, master, draw
        links = {id: free_port() for id in "gab"}
        self.brokers = {
            id: BrokerProcess(
                folder, id, "journal.sync=process", link_port=links[id], client_port=free_port(),
                peers={peer: links[peer] for peer in peers},
            )
            for id, peers in (("g", ""), ("a", "g"), ("b", "g"))
        }  # fmt: skip
        for id in "ab":
            self.brokers[id].wait_for_link("g")
        self.garage = MqttClient("garage", self.brokers["g"].port)
        self.published = 0
        addresses = ",".join(f"{id}=127.0.0.1:{self.brokers[id].port}" for id in "ab")
        self.options = {"clientId": "spark", "inbox": str(folder / "inbox"), "brokers": addresses}
        self.query: AbstractContextManager[object] = nullcontext()

    def start_query(self) -> None:
        self.query = query_process(self.master, self.folder, self.options)
        self.query.__enter__()

    def publish(self) -> None:
        for number in range(self.published, self.published + self.draw.randint(1, PUBLISHED_MAX)):
            self.garage.publish("road/parking", str(number).encode(), qos=2)
            self.published += 1

    def wait_for(self, count: int) -> None:
        said = self.folder / "query.log"
        wait_until(
            lambda: len(found_in(self.folder)) >= count,
            lambda: f"{len(found_in(self.folder))} of {count}: {said.read_text()[-3000:]}",
        )

    def kill(self, victim: str) -> None:
        """Kill one of the three that may fail, with SIGKILL; an executor as soon as there is one."""
        if victim == "broker":
            broker = self.brokers[self.draw.choice("ab")]
            broker.kill()
            broker.start()
        elif victim == "executor":
            wait_until(self._has_killed_executor, (self.folder / "query.log").read_text)
        else:
            self.query.__exit__(None, None, None)
            self.start_query()

    def _has_killed_executor(self) -> bool:
        with suppress(ProcessLookupError, IndexError):  # There is none, or it has just ended.
            os.kill(self.draw.choice(executors()), signal.SIGKILL)
            return True
        return False

    def stop(self) -> None:
        self.query.__exit__(None, None, None)
        self.garage.leave()
        for broker in self.brokers.values():
            broker.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", ["local-cluster[2,1,1024]", "standalone"])
def test_nothing_is_lost_whatever_is_killed(kind: str, seed: int, tmp_path: Path) -> None:
    """At drawn moments: right after another one, or when the sink has so much of what was published."""
    draw = random.Random(seed)
    with chosen_master(kind, tmp_path) as master:
        site = Site(tmp_path, master, draw)
        try:
            site.start_query()
            # A batch is planned when the session has subscribed.
            wait_until((tmp_path / "checkpoint" / "offsets" / "0").exists, (tmp_path / "query.log").read_text)
            for victim in draw.sample(VICTIMS * 4, MOMENTS):
                site.publish()
                if draw.random() < 0.7:
                    site.wait_for(draw.randint(0, site.published))
                site.kill(victim)
            site.publish()
            site.wait_for(site.published)
            counts = Counter(found_in(tmp_path))
            assert sorted(counts) == list(range(site.published)), "nothing is lost"
            assert set(counts.values()) == {1}, "nothing comes twice"
        finally:
            site.stop()
