"""The audit of real brokers and clients: nothing false, and whatever is planted is found, exactly."""

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.daemon.brokers import BrokerProcess, MqttClient
from tests.pipeline.real_network import SETTINGS, make_log

import roamcast
from roamcast.pipeline.audit import audit_embedded
from roamcast.protocol.records import Row
from roamcast.records.parquet import LogWriter, read_log

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto_sub is not installed"),
]

FAULTS = ("lost", "duplicates", "out_of_order", "unexpected", "invented")
OF_ROWS = ("bad_rows", "repeated_rows", "missing_rows", "clock_jumps", "misnumbered")
DEFECTS = 20

Found = tuple[str, str, str, int]
"""Kind, client, publisher and number of a finding."""


def findings(out: Path) -> list[Found]:
    rows = pq.read_table(out / "findings").to_pylist()
    return sorted((row["kind"], row["client"], row["publisher"], row["number"]) for row in rows)


@pytest.fixture(scope="module", params=[5, 11, 12, 13])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_log(tmp_path_factory.mktemp("network"), seed=request.param)


def test_a_network_without_faults_has_no_findings(log: Path, tmp_path: Path) -> None:
    figures = audit_embedded(log, tmp_path / "out")
    assert {name: figures[name] for name in (*FAULTS, *OF_ROWS)} == dict.fromkeys((*FAULTS, *OF_ROWS), 0)
    assert figures["runs"] == 1
    clients = {row["client"]: row for row in pq.read_table(tmp_path / "out" / "clients.parquet").to_pylist()}
    by_brokers = {name for name, row in clients.items() if row["judged_by"] == "brokers"}
    assert by_brokers == {"bus", "tram", "walker", "spy"}, "no records, or killed before writing"
    for name in (*by_brokers, "car"):
        row = clients[name]
        assert 50 < row["expected"] - row["unacknowledged"] <= row["delivered"], name
    # Those who are away, whose broker keeps what came since.
    assert {(row[0], row[1]) for row in findings(tmp_path / "out")} <= {
        ("unacknowledged", name) for name in ("van", "car", "spy", "bus", "tram")
    }


async def take(port: int, client_id: str, count: int, **options: Any) -> None:
    """Subscribe if there is nothing to take; else take so many notifications, whichever they are."""
    address = f"127.0.0.1:{port}"
    async with roamcast.connect(address, client_id=client_id, clean=False, **options) as client:
        if not count:
            await client.subscribe("road/#", qos=1, identify=client_id == "car")
        for _ in range(count):
            await anext(client)


def test_subscriptions_of_before_the_log_are_owed(tmp_path: Path) -> None:
    """Logs are switched on, and the broker starts once more. A row that a client did not write is a loss."""
    log = tmp_path / "log"
    broker = BrokerProcess(log, "a", "network=site-7")
    for name in ("car", "bus"):
        asyncio.run(take(broker.port, name, 0))
    sensor = MqttClient("sensor", broker.port)
    sensor.publish("road/1", b"before")
    sensor.leave()
    broker.stop()
    broker = BrokerProcess(log, "a", *SETTINGS)
    sensor.connect(broker.port)
    for number in range(4):
        sensor.publish("road/1", b"%d" % number)
    sensor.leave()
    broker.kill()
    broker.start()
    for name in ("car", "bus"):
        asyncio.run(take(broker.port, name, 5, records=log / "clients" / name))
    broker.stop()

    figures = audit_embedded(log, tmp_path / "out")
    assert {name: figures[name] for name in (*FAULTS, *OF_ROWS)} == dict.fromkeys((*FAULTS, *OF_ROWS), 0)
    clients = {row["client"]: row for row in pq.read_table(tmp_path / "out" / "clients.parquet").to_pylist()}
    told = {name: (row["expected"], row["judged_by"]) for name, row in clients.items()}
    assert told == {"car": (4, "records"), "bus": (4, "brokers")}, "the bus did not ask what it gets"
    logs = Logs([row for folder in folders_of(log) for row in read_log(folder)], random.Random(1))
    lost = logs.remove(
        next(at for at, row in enumerate(logs.rows) if row.kind == "delivered" and row.number == 3)
    )
    with LogWriter(tmp_path / "planted", "site-7") as writer:
        writer.write(logs.rows)
    audit_embedded(tmp_path / "planted", tmp_path / "found")
    assert findings(tmp_path / "found") == [found("lost", lost)]


# --- defects ---


@dataclass
class Logs:
    """All rows of the network, to be changed; each place is given to one defect at most."""

    rows: list[Row]
    draw: random.Random

    def pick(self, *, kind: str = "delivered", clients: tuple[str, ...] = ("bike", "car")) -> int:
        """A delivery that another of its publisher follows, in the same process of its client."""
        places = [
            place
            for place, row in enumerate(self.rows)
            if row.kind == kind and row.client in clients and row.notifications == 1 and row.reason is None
            and any(self._follows(row, later) for later in self.rows)
        ]  # fmt: skip
        return self.draw.choice(places)

    @staticmethod
    def _follows(row: Row, later: Row) -> bool:
        same = (later.kind, later.node, later.publisher) == (row.kind, row.node, row.publisher)
        return same and 0 < later.sequence - row.sequence < 3 and (later.number or 0) == (row.number or 0) + 1

    def change(self, place: int, **fields: Any) -> Row:
        self.rows[place] = self.rows[place]._replace(**fields)
        return self.rows[place]

    def remove(self, place: int) -> Row:
        """Take a row out and close the gap in its node's numbering."""
        gone = self.rows.pop(place)
        for later, row in enumerate(self.rows):
            if row.node == gone.node and row.sequence > gone.sequence:
                self.change(later, sequence=row.sequence - 1)
        return gone

    def insert(self, row: Row, **fields: Any) -> Row:
        """Another row of the node, behind this one."""
        for later, other in enumerate(self.rows):
            if other.node == row.node and other.sequence > row.sequence:
                self.change(later, sequence=other.sequence + 1)
        new = row._replace(sequence=row.sequence + 1, **fields)
        self.rows.append(new)
        return new


def found(kind: str, row: Row) -> Found:
    return kind, row.client or "", row.publisher or "", row.number or 0


def lose(logs: Logs) -> list[Found]:
    return [found("lost", logs.remove(logs.pick()))]


def repeat(logs: Logs) -> list[Found]:
    return [found("duplicate", logs.insert(logs.rows[logs.pick()]))]


def swap(logs: Logs) -> list[Found]:
    row = logs.rows[first := logs.pick()]
    second = next(place for place, later in enumerate(logs.rows) if logs._follows(row, later))
    logs.change(first, number=logs.rows[second].number)
    return [found("out of order", logs.change(second, number=row.number))]


def misdirect(logs: Logs) -> list[Found]:
    """The car wants what costs less than 50, and gets something dearer.

    Not something cheap that it missed while it was not subscribed: for some seconds that may still come.
    """
    dear = {
        (row.publisher, row.incarnation, row.number)
        for row in logs.rows
        if row.kind == "published" and row.attributes
        and msgspec.msgpack.decode(row.attributes).get("cost", 0) >= 50
    }  # fmt: skip
    car = logs.rows[logs.pick(clients=("car",))]
    publisher, incarnation, number = logs.draw.choice(sorted(dear, key=str))
    wrong = logs.insert(car, publisher=publisher, incarnation=incarnation, number=number)
    return [found("unexpected", wrong)]


def invent(logs: Logs) -> list[Found]:
    number = 100_000 + logs.draw.randrange(1_000)
    return [found("invented", logs.insert(logs.rows[logs.pick()], number=number))]


def forget_an_acknowledgement(logs: Logs) -> list[Found]:
    """What nobody says a client without records has got is no loss, but it is told."""
    return [found("unacknowledged", logs.remove(logs.pick(kind="acknowledged", clients=("bus", "tram"))))]


KINDS: tuple[Callable[[Logs], list[Found]], ...] = (
    lose, repeat, swap, misdirect, invent, forget_an_acknowledgement,
)  # fmt: skip


def folders_of(log: Path) -> Iterator[Path]:
    yield from sorted({file.parent for file in log.rglob("*.parquet") if not file.name.startswith(".")})


@pytest.mark.parametrize("seed", range(DEFECTS))
def test_each_planted_defect_is_found_exactly(log: Path, tmp_path: Path, seed: int) -> None:
    audit_embedded(log, tmp_path / "before")
    logs = Logs([row for folder in folders_of(log) for row in read_log(folder)], random.Random(seed))
    planted = KINDS[seed % len(KINDS)](logs)
    with LogWriter(tmp_path / "log", "site-7") as writer:
        writer.write(logs.rows)
    figures = audit_embedded(tmp_path / "log", tmp_path / "out")
    assert findings(tmp_path / "out") == sorted([*findings(tmp_path / "before"), *planted])
    assert not any(figures[name] for name in OF_ROWS)
