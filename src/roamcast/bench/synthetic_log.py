"""An event log of any size with known faults, for benchmarks of programs that read logs.

It has the composition of a simulated network's log: about 5 % of the rows are published, 45 % forwarded, 40 %
delivered, the rest control and moves. Every subscriber holds one filter, an equality and a range; every
notification has different attributes, so that nothing can be cached. Faults are planted at a given rate and
counted: an audit must find exactly these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roamcast.bench.report import Report, silent
from roamcast.records.parquet import ROWS_PER_GROUP, schema
from roamcast.simulator.checkers import Counts

PUBLISHED_PER_FILE = 50_000
ROWS_PER_PUBLISHED = 20
FORWARDED_PER_PUBLISHED = 9
SUBSCRIBERS_PER_ZONE = 10
WIDTH = 0.8
"""Share of the values that each subscriber wants: it gets eight of ten notifications of its zone."""
PUBLISH_EVERY_S = 0.002
BEGIN_S = 10.0
HANDOFF_EVERY = 400
"""Number of notifications between two moves."""
CONTROL_PER_HANDOFF = 6
FAULT_EVERY = 10_000
"""Number of notifications between two faults of the same kind."""
PUBLISHERS = 250
BROKERS = 25
TEMPLATE = b"\x82\xa5value\xcb........\xa4zone\xa5z...."
"""Attributes as canonical msgpack: a float of eight bytes, a string of five."""

Numbers = npt.NDArray[Any]


@dataclass
class Planted(Counts):
    """What the log contains, and its faults."""

    records: int = 0
    handoffs: int = 0


@dataclass
class Network:
    """Names of the nodes, and what each subscriber wants."""

    subscribers: int
    random: np.random.Generator
    lows: Numbers = field(init=False)
    names: pa.Array = field(init=False)
    sequences: Numbers = field(init=False)
    """Number of rows written by each node."""

    def __post_init__(self) -> None:
        self.lows = np.round(self.random.uniform(0.0, 1.0 - WIDTH, self.subscribers), 6)
        brokers = [f"b{number:02d}" for number in range(BROKERS)]
        publishers = [f"p{number:03d}" for number in range(PUBLISHERS)]
        self.names = pa.array([*brokers, *publishers, *(f"c{n:05d}" for n in range(self.subscribers))])
        self.sequences = np.zeros(len(self.names), dtype=np.int64)
        self.at = np.arange(self.subscribers) % BROKERS

    @property
    def zones(self) -> int:
        return max(1, self.subscribers // SUBSCRIBERS_PER_ZONE)

    def publisher(self, numbers: Numbers) -> Numbers:
        return BROKERS + numbers

    def client(self, numbers: Numbers) -> Numbers:
        return BROKERS + PUBLISHERS + numbers

    def filter_of(self, subscriber: int) -> str:
        low = float(self.lows[subscriber])
        return f"value < {low + WIDTH!r} AND value >= {low!r} AND zone = 'z{subscriber % self.zones:04d}'"


def write_synthetic_log(
    folder: Path,
    records: int,
    *,
    subscribers: int = 1_000,
    seed: int = 1,
    progress: Report = silent,
) -> Planted:
    """Write a log of about `records` rows into a new folder; return its content."""
    folder.mkdir(parents=True)
    network, planted = Network(subscribers, np.random.default_rng(seed)), Planted()
    published = max(1, records // ROWS_PER_PUBLISHED)
    starts = range(0, published, PUBLISHED_PER_FILE)
    waiting = schema().empty_table()
    for number, start in enumerate(starts):
        indices = np.arange(start, min(start + PUBLISHED_PER_FILE, published))
        blocks = [*([_opening(network)] if not number else []), *_blocks(network, indices, planted)]
        rows = pa.concat_tables([waiting, *(_table(network, block) for block in blocks)])
        rows, waiting = _split(rows, BEGIN_S + (int(indices[-1]) + 1) * PUBLISH_EVERY_S)
        if start == starts[-1]:
            rows = pa.concat_tables([rows, waiting])
        _write(folder / f"part-{number:05d}.parquet", network, rows)
        planted.records += rows.num_rows
        progress(number + 1, len(starts))
    planted.published = published
    return planted


# --- the parts of a file ---

Block = Mapping[str, Any]
"""Column to its values: an array, or one value for all rows. Columns with nodes hold their numbers."""
NODE_COLUMNS = ("node", "client", "broker", "peer", "publisher")


def _opening(network: Network) -> Block:
    """Return the rows of all subscriptions, settled before the first publish."""
    subscribers = np.repeat(np.arange(network.subscribers), 2)
    texts = [network.filter_of(one) for one in range(network.subscribers)]
    return {
        "kind": "subscribed",
        "time": np.tile([0.5, 0.6], network.subscribers),
        "node": network.at[subscribers],
        "client": network.client(subscribers),
        "broker": network.at[subscribers],
        "filter": pa.array(texts).take(pa.array(subscribers)),
        "reason": pa.array(["issued", "settled"] * network.subscribers),
    }


def _blocks(network: Network, indices: Numbers, planted: Planted) -> list[Block]:
    draw, count = network.random, len(indices)
    zones, values = draw.integers(network.zones, size=count), draw.random(count)
    times = BEGIN_S + indices * PUBLISH_EVERY_S
    notifications = {
        "publisher": network.publisher(indices % PUBLISHERS),
        "number": indices // PUBLISHERS + 1,
        "published_at": times,
        "attributes": _encoded(zones, values),
    }
    which, subscribers = _owed(network, zones, values)
    planted.expected += len(which)
    deliveries = _delivered(network, indices, which, subscribers, notifications, planted)
    hops = np.repeat(np.arange(count), FORWARDED_PER_PUBLISHED)
    blocks: list[Block] = [
        {
            "kind": "published", "time": times, "node": indices % PUBLISHERS % BROKERS,
            "client": notifications["publisher"], "broker": indices % PUBLISHERS % BROKERS,
            "incarnation": 1, "notifications": 1, "size_bytes": len(TEMPLATE), **notifications,
        },
        {
            "kind": "forwarded", "time": times[hops] + np.tile(np.arange(9) * 0.01, count),
            "node": draw.integers(BROKERS, size=len(hops)), "peer": draw.integers(BROKERS, size=len(hops)),
            "publisher": notifications["publisher"][hops], "number": notifications["number"][hops],
            "incarnation": 1, "notifications": 1, "message": "Burst", "cause": "publish", "hops": 1,
            "size_bytes": len(TEMPLATE),
        },
        deliveries,
        *_handoffs(network, indices, planted),
    ]  # fmt: skip
    filler = count * ROWS_PER_PUBLISHED - sum(len(block["time"]) for block in blocks)
    return [*blocks, _control(network, times, max(filler, 0), "subscribe")]


def _encoded(zones: Numbers, values: Numbers) -> pa.Array:
    """Return the encoded attributes of each notification."""
    width = len(TEMPLATE)
    table = np.tile(np.frombuffer(TEMPLATE, dtype=np.uint8), (len(zones), 1))
    at_value, at_zone = TEMPLATE.index(b"."), TEMPLATE.rindex(b"z") + 1
    table[:, at_value : at_value + 8] = values.astype(">f8").view(np.uint8).reshape(-1, 8)
    for digit in range(4):
        table[:, at_zone + digit] = ord("0") + zones // 10 ** (3 - digit) % 10
    offsets = pa.array(np.arange(len(zones) + 1, dtype=np.int32) * width)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(zones), [None, offsets.buffers()[1], pa.py_buffer(table.tobytes())]
    )


def _owed(network: Network, zones: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Return which notification is owed to which subscriber."""
    members = zones[:, None] + network.zones * np.arange(SUBSCRIBERS_PER_ZONE)
    there = members < network.subscribers
    lows = network.lows[np.where(there, members, 0)]
    wanted = there & (values[:, None] >= lows) & (values[:, None] < lows + WIDTH)
    which, column = np.nonzero(wanted)
    return which, members[which, column]


def _delivered(
    network: Network, indices: Numbers, which: Numbers, subscribers: Numbers, notifications: Block,
    planted: Planted,
) -> Block:  # fmt: skip
    """Return the deliveries: everything owed, except for the faults."""
    draw, faults = network.random, ceil(len(indices) / FAULT_EVERY)
    which, subscribers, swapped = _swapped(which, subscribers, indices[which] % PUBLISHERS, faults)
    chosen = np.setdiff1d(draw.choice(len(which), 4 * faults, replace=False), swapped)[: 2 * faults]
    lost, repeated = np.split(draw.permutation(chosen), [faults])
    strangers = draw.choice(len(indices), faults, replace=False)
    wrong_zone = (_zone_of(notifications["attributes"], strangers) + 1) % network.zones
    times = notifications["published_at"][which] + 0.05
    if len(swapped):
        # Each pair stands side by side: what was published second arrives first.
        times[swapped[0::2]] = times[swapped[1::2]] + 0.001
    kept = np.setdiff1d(np.arange(len(which)), lost)
    every = np.concatenate([which[kept], which[repeated], strangers])
    planted.lost += len(lost)
    planted.duplicates += len(repeated)
    planted.out_of_order += len(swapped) // 2
    planted.unexpected += len(strangers)
    planted.delivered += len(every)
    clients = np.concatenate([subscribers[kept], subscribers[repeated], wrong_zone])
    return {
        "kind": "delivered",
        "time": np.concatenate([
            times[kept], times[repeated] + 0.5, notifications["published_at"][strangers] + 0.05,
        ]),
        "node": network.client(clients),
        "client": network.client(clients),
        "broker": network.at[clients],
        "incarnation": 1, "notifications": 1, "size_bytes": len(TEMPLATE),
        **{name: _take(values, every) for name, values in notifications.items()},
    }  # fmt: skip


def _swapped(
    which: Numbers, subscribers: Numbers, publishers: Numbers, faults: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the deliveries by subscriber and publisher, and the positions of consecutive pairs."""
    order = np.lexsort((which, publishers, subscribers))
    which, subscribers, publishers = which[order], subscribers[order], publishers[order]
    follows = (subscribers[1:] == subscribers[:-1]) & (publishers[1:] == publishers[:-1])
    (firsts,) = np.nonzero(follows)
    # Far enough from each other, so that no delivery is in two pairs.
    firsts = firsts[:: max(1, len(firsts) // max(faults, 1))][:faults]
    firsts = firsts[np.insert(np.diff(firsts) > 2, 0, True)] if len(firsts) else firsts
    return which, subscribers, np.stack([firsts, firsts + 1], axis=1).ravel()


def _zone_of(attributes: pa.Array, places: Numbers) -> Numbers:
    digits = attributes.take(pa.array(places)).to_pylist()
    return np.array([int(text[-4:]) for text in digits], dtype=np.int64)


def _handoffs(network: Network, indices: Numbers, planted: Planted) -> list[Block]:
    """Return the rows of clients that move from one broker to the next."""
    starts = BEGIN_S + indices[::HANDOFF_EVERY] * PUBLISH_EVERY_S
    clients = network.random.permutation(network.subscribers)[: len(starts)]
    starts = starts[: len(clients)]
    old = network.at[clients].copy()
    new = (old + 1) % BROKERS
    network.at[clients] = new
    planted.handoffs += len(clients)
    ids = network.client(clients)
    old_names = network.names.take(pa.array(old))
    left = {"kind": "moved", "time": starts, "node": ids, "client": ids, "broker": old, "reason": "left"}
    moved = {**left, "time": starts + 1.0, "broker": new, "reason": old_names}
    begun = {
        "kind": "handoff_started", "time": starts + 1.02, "node": new, "client": ids, "broker": new,
        "peer": old,
    }  # fmt: skip
    attached = {**begun, "kind": "attached", "time": starts + 1.06, "peer": None, "reason": old_names}
    return [
        left,
        {**left, "kind": "detached", "node": old, "reason": "silent"},
        moved,
        begun,
        attached,
        {**attached, "time": starts + 1.08, "node": ids, "reason": None},
        {**begun, "kind": "handoff_finished", "time": starts + 1.07},
        _control(network, starts + 1.03, CONTROL_PER_HANDOFF * len(starts), "handoff"),
    ]


def _control(network: Network, times: Numbers, count: int, cause: str) -> Block:
    draw = network.random
    return {
        "kind": "control",
        "time": np.resize(times, count),
        "node": draw.integers(BROKERS, size=count),
        "peer": draw.integers(BROKERS, size=count),
        "message": "Update",
        "cause": cause,
        "hops": 1,
    }


# --- from parts to a file ---


def _take(values: Any, places: Numbers) -> Any:
    return values.take(pa.array(places)) if isinstance(values, pa.Array) else values[places]


def _split(rows: pa.Table, time_s: float) -> tuple[pa.Table, pa.Table]:
    """Split rows into those before this time, and those for the next file."""
    early = pc.less(rows.column("time"), time_s)
    return rows.filter(early), rows.filter(pc.invert(early))


def _write(file: Path, network: Network, table: pa.Table) -> None:
    """Write the rows in order of time, numbered by node."""
    order = np.argsort(table.column("time").to_numpy(), kind="stable")
    table = table.take(pa.array(order))
    nodes = pc.index_in(table.column("node"), network.names).to_numpy()
    at = table.schema.get_field_index("sequence")
    table = table.set_column(at, "sequence", pa.chunked_array([_sequences(network, nodes)]))
    pq.write_table(table, file, compression="zstd", row_group_size=ROWS_PER_GROUP)


def _sequences(network: Network, nodes: Numbers) -> pa.Array:
    """Return the number of each row within its node."""
    by_node = np.argsort(nodes, kind="stable")
    ordered = nodes[by_node]
    firsts = np.searchsorted(ordered, ordered)
    sequences = np.empty(len(nodes), dtype=np.int64)
    sequences[by_node] = network.sequences[ordered] + 1 + np.arange(len(nodes)) - firsts
    network.sequences += np.bincount(nodes, minlength=len(network.sequences))
    return pa.array(sequences)


def _table(network: Network, block: Block) -> pa.Table:
    count = len(block["time"])
    columns = {"run": "synthetic-1", "sequence": 0, **block}
    arrays = []
    for column in schema():
        value = columns.get(column.name)
        if column.name in NODE_COLUMNS and value is not None:
            value = network.names.take(pa.array(value))
        elif not isinstance(value, np.ndarray | pa.Array):
            value = pa.repeat(pa.scalar(value, column.type), count)
        arrays.append(pa.array(value, column.type) if isinstance(value, np.ndarray) else value)
    return pa.Table.from_arrays(arrays, schema=schema())
