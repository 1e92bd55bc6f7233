"""Replays: what a log tells of brokers, clients, queues and losses, and the file that the page reads."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from roamcast.errors import InputError
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.records import SHARED, UNPROMISED, Row, life_of
from roamcast.records.parquet import LogWriter
from roamcast.simulator.network import NetworkSettings
from roamcast.simulator.scenario import Scenario
from roamcast.view.log import runs_in
from roamcast.view.picture import answer, draw
from roamcast.view.replay import BUCKETS_MAX, KEY_EVERY, Replay, build, encode, read_places

CAR = life_of("car", 1)
NEWS = encode_attributes({"topic": "news"})


class Story:
    """Rows of a log, numbered by node as their writers would."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def tell(self, time: float, node: str, kind: str, **fields: Any) -> None:
        sequence = 1 + sum(row.node == node for row in self.rows)
        self.rows.append(Row(sequence, time, node, kind, **fields))

    def publish(self, time: float, number: int, attributes: bytes | None = NEWS, count: int = 1) -> None:
        self.tell(
            time, "b", "published", client="desk", broker="b", publisher="desk", incarnation=1, number=number,
            notifications=count, attributes=attributes, published_at=time,
        )  # fmt: skip

    def deliver(
        self, time: float, number: int, node: str = CAR, kind: str = "delivered", count: int = 1
    ) -> None:
        self.tell(
            time, node, kind, client="car", broker="a", publisher="desk", incarnation=1, number=number,
            notifications=count, published_at=time - 0.05 if kind == "delivered" else None,
        )  # fmt: skip

    def subscribe(self, time: float, reason: str = "settled", node: str = "a") -> None:
        self.tell(time, node, "subscribed", client="car", broker="a", filter="topic = 'news'", reason=reason)


def replay_of(folder: Path, rows: Sequence[Row], run: str = "run") -> Replay:
    with LogWriter(folder, run) as log:
        log.write(list(rows))
    return build(runs_in(folder)[run], run)


def trip() -> Story:
    """A car attaches to a, goes away, and gets what waited at b; c dies and comes back."""
    story = Story()
    for peer in ("a", "c"):
        story.tell(0.0, "b", "link_up", peer=peer)
    story.tell(0.0, "a", "attached", client="car", broker="a", number=1)
    story.subscribe(0.1)
    story.publish(1.0, 1)
    story.deliver(1.05, 1)
    story.tell(2.0, "a", "detached", client="car", broker="a", reason="silent")
    story.publish(3.0, 2)
    story.tell(4.0, "b", "link_down", peer="c")
    story.tell(5.0, "b", "handoff_started", client="car", broker="b")
    story.tell(5.1, "b", "attached", client="car", broker="b", number=2, reason="a")
    story.tell(5.25, "b", "handoff_finished", client="car", broker="b", peer="a")
    story.deliver(5.3, 2)
    story.tell(7.0, "b", "link_up", peer="c")
    story.tell(9.0, "b", "detached", client="car", broker="b", reason="session ended")
    story.tell(10.0, "b", "started")
    return story


class Player:
    """The page's part: reads the file and follows it to a time."""

    def __init__(self, content: bytes) -> None:
        lines = [json.loads(line) for line in gzip.decompress(content).splitlines()]
        self.header, self.names, self.buckets = lines[0], lines[1]["names"], lines[2:]

    def at(self, seconds: float) -> dict[str, Any]:
        clients: dict[str, list[int]] = {}
        brokers: dict[str, bool] = {}
        for bucket in self.buckets:
            if bucket["t"] > seconds:
                break
            clients |= {self.names[index]: rest for index, *rest in bucket["clients"]}
            brokers |= {self.header["brokers"][i]["id"]: bool(up) for i, up in bucket.get("brokers", [])}
            figures = bucket["figures"]
        return {
            "clients": clients,
            "down": [name for name, up in brokers.items() if not up],
            "figures": figures,
        }


def test_the_file_follows_clients_brokers_and_queues(tmp_path: Path) -> None:
    player = Player(encode(replay_of(tmp_path / "log", trip().rows)))
    header = player.header
    assert (header["format"], header["version"], header["start"], header["end"]) == ("roamview", 1, 0.0, 10.0)
    assert [broker["id"] for broker in header["brokers"]] == ["a", "b", "c"]
    assert header["links"] == [["a", "b"], ["b", "c"]]
    assert header["totals"] == {
        "owed": 2, "delivered": 2, "lost": 0, "repeated": 0, "published": 2, "handoffs": 1, "clients": 2,
    }  # fmt: skip
    assert player.at(1.5)["clients"]["car"] == [0, 0]
    assert player.at(3.5)["clients"]["car"] == [-2, 1], "away, the session at a, one waits"
    assert player.at(4.5)["down"] == ["c"], "its only neighbour says that the link is down"
    assert player.at(5.5)["clients"]["car"] == [1, 0]
    assert player.at(8.0)["down"] == []
    assert player.at(9.5)["clients"]["car"] == [-1, 0], "the session has ended"
    (handoff,) = [one for bucket in player.buckets for one in bucket.get("handoffs", [])]
    assert handoff == [player.names.index("car"), 0, 1, 5.25, 250.0, 1]
    assert player.at(2.5)["figures"]["latency_ms"] == {"p50": 50.0, "p99": 50.0}


def test_keyframes_tell_of_every_client(tmp_path: Path) -> None:
    story = trip()
    story.tell(3_000.0, "a", "started")
    player = Player(encode(replay_of(tmp_path / "log", story.rows)))
    assert len(player.buckets) <= BUCKETS_MAX
    assert all(
        bucket.get("key", False) == (number % KEY_EVERY == 0) for number, bucket in enumerate(player.buckets)
    )
    last = player.buckets[(len(player.buckets) - 1) // KEY_EVERY * KEY_EVERY]
    assert last["clients"] == [[player.names.index("car"), -1, 0]]
    assert last["brokers"] == [[2, 1]]


def test_what_arrives_never_although_later_ones_do_is_lost(tmp_path: Path) -> None:
    story = trip()
    story.rows = [row for row in story.rows if not (row.kind == "delivered" and row.number == 1)]
    story.publish(9.5, 3)
    replay = replay_of(tmp_path / "log", story.rows)
    assert replay.totals()["lost"] == 1, "the third one came after the session had ended"
    assert answer(replay) == "run: 2 deliveries owed, 1 lost, nothing repeated; 1 handoff"
    assert Player(encode(replay)).at(1.5)["clients"]["car"] == [0, 0, 1]


def test_what_is_published_last_waits(tmp_path: Path) -> None:
    story = trip()
    story.rows = [row for row in story.rows if row.number != 2 or row.kind not in ("delivered",)]
    replay = replay_of(tmp_path / "log", story.rows)
    assert replay.totals()["lost"] == 0
    assert Player(encode(replay)).at(10.0)["clients"]["car"][1] == 1


def test_arrivals_by_the_word_of_brokers_and_repetitions(tmp_path: Path) -> None:
    story = Story()
    story.tell(0.0, "a", "attached", client="car", broker="a", number=1)
    story.subscribe(0.1)
    story.publish(1.0, 1, count=3)
    story.deliver(1.2, 1, node="a", kind="acknowledged", count=3)
    assert replay_of(tmp_path / "quiet", story.rows).totals()["delivered"] == 3
    story.deliver(1.1, 1, count=3)
    story.deliver(1.3, 2)
    totals = replay_of(tmp_path / "speaking", story.rows).totals()
    assert (totals["owed"], totals["delivered"], totals["repeated"]) == (3, 3, 1)


def test_a_row_that_was_written_again_counts_once(tmp_path: Path) -> None:
    rows = trip().rows
    totals = replay_of(tmp_path / "log", [*rows, *rows]).totals()
    assert totals == replay_of(tmp_path / "once", rows).totals()


def test_without_attributes_the_brokers_are_believed(tmp_path: Path) -> None:
    story = Story()
    for number in (1, 2):
        story.publish(float(number), number, attributes=None)
    story.deliver(1.1, 1, node="a", kind="acknowledged")
    story.tell(
        3.0, "a", "dropped", client="car", broker="a", publisher="desk", incarnation=1, number=2,
        notifications=1, reason="quota",
    )  # fmt: skip
    replay = replay_of(tmp_path / "log", story.rows)
    assert {key: replay.totals()[key] for key in ("owed", "delivered", "lost")} == {
        "owed": 2,
        "delivered": 1,
        "lost": 1,
    }
    assert Player(encode(replay)).at(3.0)["figures"]["given_up"] == {"quota": 1}


@pytest.mark.parametrize("reason", [UNPROMISED, SHARED])
def test_what_a_subscription_does_not_ask_for_is_not_owed(tmp_path: Path, reason: str) -> None:
    story = Story()
    story.tell(0.0, "a", "attached", client="car", broker="a", number=1)
    story.subscribe(0.1)
    story.subscribe(0.1, reason, CAR)
    story.publish(1.0, 1)
    assert replay_of(tmp_path / "log", story.rows).totals()["owed"] == 0


@pytest.mark.parametrize("protocol", ["none", "roam"])
def test_a_simulated_run_has_the_figures_of_its_checkers(tmp_path: Path, protocol: str) -> None:
    scenario = Scenario(
        topology="grid:2", clients=12, mobile=0.5, connect_s=4.0, disconnect_s=2.0, publish_every_s=1.0,
        selectivity=0.5, duration_s=20.0, network=NetworkSettings(protocol=protocol, records="full", seed=3),
    )  # fmt: skip
    with LogWriter(tmp_path / "log", protocol) as log:
        result = scenario.run(log.write).result
    replay = build(runs_in(tmp_path / "log")[protocol], protocol)
    totals = replay.totals()
    assert (totals["owed"], totals["lost"]) == (result.expected, result.lost)
    assert totals["repeated"] == result.duplicates
    assert totals["handoffs"] > 0
    assert (protocol == "none") == (result.lost > 0)
    draw(replay, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    again = build(runs_in(tmp_path / "log")[protocol], protocol)
    assert encode(again) == encode(replay), "the same bytes for the same log"


def test_runs_are_told_apart_and_other_tables_passed_over(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for run in ("one", "two"):
        with LogWriter(tmp_path / "log" / run, run) as log:
            log.write(trip().rows)
    (tmp_path / "audit").mkdir()
    pq.write_table(pa.table({"client": ["car"]}), tmp_path / "audit" / "clients.parquet")
    assert list(runs_in(tmp_path)) == ["one", "two"]
    (tmp_path / "log" / "two" / "part-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="is not a complete Parquet file"):
        runs_in(tmp_path)
    with pytest.raises(InputError, match="there is no such folder"):
        runs_in(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no event log in it"):
        runs_in(tmp_path / "empty")


def test_places_come_from_a_table(tmp_path: Path) -> None:
    file = tmp_path / "places.csv"
    file.write_text("broker,latitude,longitude\na,43.26,-2.93\nb,43.3,-1.98\nc,42.8,-2.7\n")
    with LogWriter(tmp_path / "log", "run") as log:
        log.write(trip().rows)
    replay = build(runs_in(tmp_path / "log")["run"], "run", read_places(file))
    assert Player(encode(replay)).header["brokers"][0] == {"id": "a", "lat": 43.26, "lon": -2.93}
    draw(replay, tmp_path / "map.png")
    file.write_text("name,x\na,1\n")
    with pytest.raises(InputError, match="expected CSV with the columns"):
        read_places(file)
