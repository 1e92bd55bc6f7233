"""`format("roamcast")` with real brokers: nothing is lost and nothing comes twice, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from tests.daemon.brokers import BrokerProcess, MqttClient, free_port
from tests.pipeline import stream_query
from tests.pipeline.waiting import wait_until

from roamcast.errors import InputError
from roamcast.pipeline.source_options import parse_options

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


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1536]"])
def test_nothing_is_lost_when_query_and_brokers_are_killed(master: str, tmp_path: Path) -> None:
    links = [free_port(), free_port()]
    a = BrokerProcess(tmp_path, "a", link_port=links[0])
    b = BrokerProcess(tmp_path, "b", link_port=links[1], peers={"a": links[0]})
    b.wait_for_link("a")
    options = {"clientId": "spark", "inbox": str(tmp_path / "inbox")}
    published = 0
    garage = MqttClient("garage", b.port)

    def publish(count: int) -> None:
        nonlocal published
        for number in range(published, published + count):
            garage.publish("road/parking", str(number).encode(), qos=2)
        published += count

    def wait_for(count: int) -> None:
        said = tmp_path / "query.log"
        wait_until(
            lambda: len(found_in(tmp_path)) >= count,
            lambda: f"{len(found_in(tmp_path))} of {count}: {said.read_text()[-3000:]}",
        )

    try:
        at_a, at_b = (f"a=127.0.0.1:{a.port}", f"b=127.0.0.1:{b.port}")
        with query_process(master, tmp_path, {**options, "brokers": f"{at_a},{at_b}"}):
            wait_until(lambda: a.metric("roamcast_subscriptions") > 0, lambda: a.get("/metrics")[1])
            publish(300)
            wait_for(150)
            publish(200)
        # The query was killed in the middle; what is published now waits at its broker, which is killed too.
        publish(200)
        a.kill()
        a.start()
        at_a = f"a=127.0.0.1:{a.port}"
        # It comes back elsewhere.
        with query_process(master, tmp_path, {**options, "brokers": f"{at_b},{at_a}"}):
            wait_for(600)
            publish(100)
            wait_for(published)
        counts = Counter(found_in(tmp_path))
        assert sorted(counts) == list(range(published)), "nothing is lost"
        assert set(counts.values()) == {1}, "nothing comes twice"
    finally:
        garage.leave()
        a.stop()
        b.stop()
