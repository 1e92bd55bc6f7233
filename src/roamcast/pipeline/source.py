"""`format("roamcast")`: notifications of a broker network as a DataFrame, and a DataFrame as notifications.

Reading is a session that lasts. Notifications go to the inbox (inbox.py), are acknowledged once they are on
the disk, and stay until Spark has committed them; after any restart of query, driver or broker the session
resumes. Batches are planned by the driver and carried to the executors, which need no access to broker or
inbox.

Writing is a client for each partition: a task is done when brokers have acknowledged all its publishes. A
task that Spark repeats publishes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from roamcast.client import Client
from roamcast.errors import InputError
from roamcast.pipeline.inbox import Inbox, decode
from roamcast.pipeline.receiving import Receiver, as_rows, retained, waiting_for
from roamcast.pipeline.source_format import (
    FORMAT,
    RETAINED,
    Options,
    as_column,
    attribute_columns,
    attributes_of,
    parse_options,
    selector_of,
)

COLUMNS = {
    "topic": "string", "payload": "binary", "qos": "int", "retain": "boolean",
    "properties": "map<string, string>", "content_type": "string", "publisher": "string",
    "incarnation": "bigint", "number": "bigint", "received_at": "timestamp", "position": "bigint",
}  # fmt: skip
"""Columns of the source itself; any other requested column stands for an attribute."""
WRITABLE = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "qos": ("int", "bigint"),
    "retain": ("boolean",),
    "properties": ("map<string,string>",),
    "content_type": ("string",),
}
IN_FLIGHT = 256
"""Maximum number of unacknowledged publishes."""


def register(spark: SparkSession) -> None:
    """Make `format("roamcast")` known to a session."""
    spark.dataSource.register(RoamcastSource)


class RoamcastSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        return WaitingReader(parse_options(self.options).of_batch_reader(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return SessionReader(parse_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return Publisher(_checked(parse_options(self.options), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamPublisher(_checked(parse_options(self.options), schema, False))


# --- reading ---


@dataclass
class Batch(InputPartition):
    """Stored notifications, and the position of the first."""

    position: int
    bodies: list[bytes]


class SessionReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A lasting session as a stream; an offset is the inbox and a position in it."""

    def __init__(self, options: Options) -> None:
        self._folder = options.of_stream_reader()
        self._options = options
        self._inbox: Inbox | None = None
        self._receiver: Receiver | None = None
        self._last: int | None = None
        """End position of a query that reads only what exists when it begins."""

    def _open(self) -> tuple[Inbox, Receiver]:
        # Spark makes readers that it never asks for anything; only one that reads may take the session.
        if self._inbox is None:
            self._inbox = Inbox(self._folder)
        if self._receiver is None:
            self._receiver = Receiver(self._options, self._inbox)
        return self._inbox, self._receiver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        inbox, _ = self._open()
        return {"inbox": inbox.id, "position": inbox.committed}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        inbox, receiver = self._open()
        receiver.wait_until_quiet()
        self._last = inbox.end

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.batch_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        inbox, receiver = self._open()
        receiver.check()
        begin = self._position(inbox, start)
        end = inbox.end if self._last is None else max(self._last, begin)
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        return {"inbox": inbox.id, "position": end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        inbox, _ = self._open()
        begin = self._position(inbox, start)
        bodies = inbox.read(begin, self._position(inbox, end))
        size = max(1, -(-len(bodies) // self._options.partitions))
        return [Batch(begin + at, bodies[at : at + size]) for at in range(0, len(bodies), size)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        assert isinstance(partition, Batch)
        return iter(as_rows(map(decode, partition.bodies), partition.position))

    def commit(self, end: dict[str, Any]) -> None:
        inbox, _ = self._open()
        inbox.commit(self._position(inbox, end))

    def stop(self) -> None:
        if self._receiver is not None:
            self._receiver.stop()
        if self._inbox is not None:
            self._inbox.close()

    def _position(self, inbox: Inbox, offset: dict[str, Any]) -> int:
        if offset["inbox"] != inbox.id:
            raise InputError(
                f"inbox {self._folder}: belongs to another checkpoint;"
                " name the inbox that this checkpoint began with, or begin with a new checkpoint"
            )
        return int(offset["position"])


class WaitingReader(DataSourceReader):
    """Reads what a broker stores for a session, or the retained messages, as a table; all of it stays there.

    Filters on attributes are sent to the broker as a selector, except for what is stored for a session: with
    another selector, the broker would store other notifications for the session from then on.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._names = [field.name for field in schema.fields]
        self._attributes = attribute_columns(schema, COLUMNS)
        self.where = options.where

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        pushed = selector_of(filters, self._attributes) if self._options.read == RETAINED else ""
        parts = [f"({text})" for text in (self._options.where, pushed) if text]
        self.where = " AND ".join(parts) or None
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        if self._options.read == RETAINED:
            found = asyncio.run(retained(self._options, self.where))
        else:
            found = asyncio.run(waiting_for(self._options))
        for one, row in zip(found, as_rows(found, None), strict=True):
            columns = dict(zip(COLUMNS, row, strict=True))
            values = attributes_of(one) if self._attributes else {}
            columns |= {name: as_column(values.get(name), kind) for name, kind in self._attributes.items()}
            yield tuple(columns[name] for name in self._names)


# --- writing ---


@dataclass
class Published(WriterCommitMessage):
    count: int


def _checked(options: Options, schema: StructType, overwrite: bool) -> Options:
    """Refuse invalid rows before the first notification is published."""
    if overwrite:
        raise InputError(f'format("{FORMAT}"): notifications cannot be overwritten; use mode("append")')
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in types.items():
        if name not in WRITABLE:
            raise InputError(f"column {name!r} cannot be published; valid are {', '.join(WRITABLE)}")
        if kind not in WRITABLE[name]:
            raise InputError(f"column {name!r} is {kind}; valid is {' or '.join(WRITABLE[name])}")
    if "payload" not in types:
        raise InputError("there is no column 'payload' to publish")
    if "topic" not in types and not options.topic:
        raise InputError("there is no column 'topic'; add it, or name one topic as an option")
    return options


class Publisher(DataSourceWriter):
    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return publish_partition(self._options, iterator)


class StreamPublisher(DataSourceStreamWriter):
    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return publish_partition(self._options, iterator)


def publish_partition(options: Options, rows: Iterator[Row]) -> Published:
    task = TaskContext.get()
    suffix = f"-{task.partitionId()}" if task is not None and options.client_id else ""
    return Published(asyncio.run(_publish(options, rows, suffix)))


async def _publish(options: Options, rows: Iterator[Row], suffix: str) -> int:
    count = 0
    waiting: list[dict[str, Any]] = []
    async with options.client(clean=True, suffix=suffix) as client:
        for row in rows:
            waiting.append(row.asDict())
            if len(waiting) == IN_FLIGHT:
                count += await _publish_all(client, options, waiting)
                waiting = []
        return count + await _publish_all(client, options, waiting)


async def _publish_all(client: Client, options: Options, rows: Sequence[dict[str, Any]]) -> int:
    """Publish in order; everything is acknowledged when this returns."""
    async with asyncio.TaskGroup() as group:
        for row in rows:
            topic, payload = row.get("topic") or options.topic, row["payload"]
            if topic is None or payload is None:
                raise InputError("a row without a topic or a payload cannot be published")
            qos, retain = row.get("qos"), row.get("retain")
            group.create_task(
                client.publish(
                    topic,
                    payload if isinstance(payload, str) else bytes(payload),
                    qos=options.qos if qos is None else qos,
                    retain=options.retain if retain is None else retain,
                    properties=row.get("properties") or {},
                    content_type=row.get("content_type"),
                )
            )
    return len(rows)
