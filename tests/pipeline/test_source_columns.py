"""Filters of Spark that reach the broker as selectors: no row is missed, and fewer bytes cross the link."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    In,
    InputPartition,
    IsNotNull,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import DoubleType, FloatType, LongType, StringType, StructField, StructType
from tests.daemon.brokers import BrokerProcess

from roamcast.client import connect
from roamcast.errors import InputError
from roamcast.pipeline.inbox import Received
from roamcast.pipeline.source import RoamcastSource, WaitingReader
from roamcast.pipeline.source_format import (
    as_column,
    attribute_columns,
    attributes_of,
    parse_options,
    selector_of,
)

MESSAGES = 100
PAYLOAD = "x" * 1_000
COLUMNS = {"pm10": DoubleType(), "count": LongType(), "zone": StringType(), "small": FloatType()}
SCHEMA = StructType([StructField("topic", StringType()), StructField("pm10", DoubleType())])


@pytest.mark.parametrize(
    ("filters", "selector"),
    [
        ([GreaterThan(("pm10",), 50.5), LessThanOrEqual(("pm10",), 60)], "pm10 > 50.5 AND pm10 <= 60"),
        ([In(("count",), (1, 2)), IsNotNull(("zone",))], "count IN (1, 2) AND zone IS NOT NULL"),
        ([EqualTo(("zone",), "o'hare")], "zone = 'o''hare'"),
        ([GreaterThan(("zone",), "m"), StringStartsWith(("zone",), "m")], ""),
        ([EqualTo(("small",), 0.1), EqualTo(("topic",), "a"), EqualTo(("pm10", "x"), 1)], ""),
        ([GreaterThan(("pm10",), float("inf"))], ""),
    ],
)
def test_what_a_selector_can_say_is_said(filters: list[Filter], selector: str) -> None:
    assert selector_of(filters, COLUMNS) == selector


def test_attributes_have_the_types_that_brokers_give_them() -> None:
    properties = [("pm10", "57"), ("zone", "north"), ("count", '"3"'), ("pm10", "58")]
    one = Received("t", b'{"small": 2.5, "zone": 1}', 1, True, properties, "application/json", None, None,
                   None, 0.0)  # fmt: skip
    found = attributes_of(one)
    assert found == {"pm10": 58, "zone": "north", "count": "3", "small": 2.5}
    row = {name: as_column(found[name], kind) for name, kind in COLUMNS.items()}
    assert row == {"pm10": 58.0, "zone": "north", "count": None, "small": 2.5}


def test_an_attribute_is_no_list() -> None:
    schema = StructType.fromJson({"type": "struct", "fields": [
        {"name": "tags", "nullable": True, "metadata": {},
         "type": {"type": "array", "elementType": "string", "containsNull": True}},
    ]})  # fmt: skip
    with pytest.raises(InputError, match="an attribute is a string, a number or a boolean"):
        attribute_columns(schema, ())


def test_filters_on_a_session_that_waits_stay_with_spark() -> None:
    """They would change what the broker keeps for the session."""
    options = parse_options({"brokers": "127.0.0.1:1", "clientId": "c", "filter": "a", "where": "x = 1"})
    reader = WaitingReader(options, SCHEMA)
    filters: list[Filter] = [GreaterThan(("pm10",), 5)]
    assert reader.pushFilters(filters) == filters
    assert reader.where == "(x = 1)"


# --- bytes ---


class CountingLink:
    """A port that passes connections on, and counts what comes back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.received = 0
        self._sockets = [self._server]
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, broker]
            Thread(target=self._pass, args=(client, broker, 0), daemon=True).start()
            Thread(target=self._pass, args=(broker, client, 1), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, counts: int) -> None:
        try:
            while data := source.recv(65_536):
                self.received += counts * len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        for one in self._sockets:
            one.close()


@contextmanager
def counting(broker: BrokerProcess) -> Iterator[CountingLink]:
    link = CountingLink(broker.port)
    try:
        yield link
    finally:
        link.close()


async def publish_retained(port: int) -> None:
    async with connect([f"127.0.0.1:{port}"], client_id="writer") as client:
        for number in range(MESSAGES):
            await client.publish(f"city/{number}", PAYLOAD, retain=True, properties={"pm10": str(number)})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With retained messages whose pm10 is 0 to 99."""
    process = BrokerProcess(tmp_path_factory.mktemp("brokers"), "a")
    asyncio.run(publish_retained(process.port))
    yield process
    process.stop()


def options_of(link: CountingLink) -> dict[str, str]:
    return {"brokers": f"127.0.0.1:{link.port}", "filter": "city/#", "read": "retained", "quiet": "1"}


def read_above(link: CountingLink, bound: int) -> tuple[list[Any], int]:
    """The values of pm10 that come, and the bytes that they took."""
    before = link.received
    reader = RoamcastSource(options_of(link)).reader(SCHEMA)
    assert isinstance(reader, WaitingReader)
    reader.pushFilters([GreaterThan(("pm10",), bound)])
    rows = list(reader.read(InputPartition(0)))
    return sorted(row[1] for row in rows), link.received - before


def test_bytes_fall_with_what_a_filter_leaves_out(broker: BrokerProcess) -> None:
    with counting(broker) as link:
        taken = {}
        for bound in (-1, 49, 89):
            values, taken[bound] = read_above(link, bound)
            assert values == [float(number) for number in range(bound + 1, MESSAGES)]
    size = MESSAGES * len(PAYLOAD)
    assert taken[-1] > size
    assert taken[49] < 0.6 * taken[-1]
    assert taken[89] < 0.2 * taken[-1]


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_spark_pushes_its_filters(spark: SparkSession, broker: BrokerProcess) -> None:
    with counting(broker) as link:
        reader = spark.read.format("roamcast").schema("topic string, pm10 double")
        rows = reader.options(**options_of(link)).load()
        few = rows.where("pm10 > 89 and topic != 'city/95'")
        assert sorted(row.pm10 for row in few.collect()) == [90, 91, 92, 93, 94, 96, 97, 98, 99]
        assert link.received < 0.3 * MESSAGES * len(PAYLOAD)
