"""The engine: when things arrive, what is lost on the air, what full buffers give up, and repeatability."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roamcast.mobility import PROTOCOLS
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.records import FREQUENT_KINDS, KINDS, Row
from roamcast.records import LogWriter
from roamcast.simulator.access import CONTROL_BYTES
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.network import NetworkSettings
from roamcast.simulator.run import Run
from roamcast.simulator.story import Story, parse_story

ROOT = Path(__file__).resolve().parents[2]

ONE_BROKER = """
brokers b0
protocol durable
at 0 c attach b0
at 0 p attach b0
at 1 c subscribe TRUE
"""


def tell(text: str, **settings: Any) -> tuple[Run, list[Row]]:
    """Run a story; settings that stories do not tell are given by name."""
    story = parse_story(text)
    story = replace(story, settings=replace(story.settings, **settings))
    rows: list[Row] = []
    run = story.run(rows.extend)
    assert run.result.violations == []
    return run, rows


def of_kind(rows: list[Row], kind: str, **fields: Any) -> list[Row]:
    return [
        row
        for row in rows
        if row.kind == kind and all(getattr(row, name) == value for name, value in fields.items())
    ]


# --- when things arrive ---


def test_a_notification_takes_the_delays_of_its_way() -> None:
    text = """
    brokers b0-b1 b1-b2
    link 0.1
    access 0.01
    at 0 c attach b0
    at 0 p attach b2
    at 1 c subscribe TRUE
    at 10 p publish {"x": 1}
    """
    _, rows = tell(text, records="full")
    assert of_kind(rows, "published")[0].time == pytest.approx(10.01)
    assert [row.time for row in of_kind(rows, "forwarded")] == [pytest.approx(10.01), pytest.approx(10.11)]
    assert of_kind(rows, "delivered")[0].time == pytest.approx(10.01 + 0.1 + 0.1 + 0.01)
    settled = of_kind(rows, "subscribed", reason="settled")[0].time
    # From the subscriber's broker to the furthest and back.
    assert settled == pytest.approx(1.01 + 4 * 0.1)


def test_a_broker_works_on_one_message_at_a_time() -> None:
    text = ONE_BROKER + "at 10 p publish {}\n" * 3
    _, rows = tell(text, service_s=0.5)
    assert [row.time for row in of_kind(rows, "published")] == [
        pytest.approx(10.02 + 0.5 * place) for place in (1, 2, 3)
    ]


def test_two_messages_over_a_slow_access_link_arrive_one_after_the_other() -> None:
    """The subscriber's own link is slow, and its messages wait for each other on it."""
    text = ONE_BROKER + 'at 10 p publish {"x": 1}\n' + 'at 10 p publish {"x": 22222}\n'
    bits_per_s = 1_000.0
    _, rows = tell(text, access_bits_per_s=bits_per_s)
    up_s = 8 * CONTROL_BYTES / bits_per_s
    first, second = (len(encode_attributes({"x": x})) for x in (1, 22222))
    published = [10.02 + up_s, 10.02 + 2 * up_s]
    assert [row.time for row in of_kind(rows, "published")] == [pytest.approx(at) for at in published]
    out_s = published[0] + 8 * (CONTROL_BYTES + first) / bits_per_s
    # The second is published while the first is still being sent.
    assert out_s > published[1]
    then_s = out_s + 8 * (CONTROL_BYTES + second) / bits_per_s
    assert [row.time for row in of_kind(rows, "delivered")] == [
        pytest.approx(out_s + 0.02), pytest.approx(then_s + 0.02),
    ]  # fmt: skip


def test_hops_are_counted_by_cause() -> None:
    text = """
    brokers b0-b1 b1-b2
    at 0 c attach b0
    at 0 p attach b2
    at 1 c subscribe TRUE
    at 10 p publish {}
    at 10 p publish {}
    """
    run, _ = tell(text)
    # One update and one answer over each of two links; two notifications over each.
    assert run.traffic.hops == {"subscribe": 4, "publish": 4}
    assert run.traffic.overhead_hops == 0
    assert run.traffic.messages == run.traffic.total_hops == 8
    moved, _ = tell(text + "at 20 c attach b1\n")
    assert moved.traffic.overhead_hops > 0
    assert moved.traffic.hops["publish"] == 4


# --- what is lost on the air ---


def test_what_is_in_flight_when_the_client_leaves_is_sent_again() -> None:
    text = ONE_BROKER + "at 10 p publish {}\nat 10.03 c leave\nat 11 c attach b0\n"
    _, rows = tell(text, records="full")
    assert len(of_kind(rows, "sent")) == 2
    assert [row.time for row in of_kind(rows, "delivered")] == [pytest.approx(11.04)]


def test_a_request_that_was_lost_is_sent_again() -> None:
    """The publisher leaves before its publication has reached the broker."""
    text = ONE_BROKER + "at 10 p publish {}\nat 10.01 p leave\nat 11 p attach b0\n"
    _, rows = tell(text)
    assert [row.number for row in of_kind(rows, "published")] == [1]
    assert len(of_kind(rows, "delivered")) == 1


def test_what_was_said_before_a_proclaimed_leave_arrives_and_nothing_is_heard_after_it() -> None:
    text = "brokers b0-b1\nat 0 c attach b0\nat 1 c subscribe TRUE\nat 10 c publish {}\nat 10.01 c leave b1\n"
    _, rows = tell(text + "at 12 c attach b1\n")
    assert [row.time for row in of_kind(rows, "published")] == [pytest.approx(10.02)]
    # Sent at 10.02 to a client that listens no more, and delivered where it went.
    assert [(row.broker, row.time > 12) for row in of_kind(rows, "delivered")] == [("b1", True)]


# --- buffers ---


@pytest.mark.parametrize("kept", [0, 1, 3, 9, 10, 11])
def test_a_full_buffer_gives_up_exactly_the_oldest(kept: int) -> None:
    """Ten notifications for a client that is away, and room for so many."""
    size = len(encode_attributes({"x": 0}))
    text = ONE_BROKER + "at 2 c leave\n"
    text += "".join(f'at {3 + x} p publish {{"x": {x}}}\n' for x in range(10)) + "at 20 c attach b0\n"
    run, rows = tell(text, buffer_bytes=kept * size)
    given_up = max(0, 10 - kept)
    assert [row.number for row in of_kind(rows, "dropped", reason="overflow")] == list(range(1, given_up + 1))
    assert [row.number for row in of_kind(rows, "delivered")] == list(range(given_up + 1, 11))
    assert (run.result.dropped, run.result.lost) == (given_up, given_up)
    assert run.result.excused == ({"lost (overflow)": given_up} if given_up else {})


def test_clients_of_a_broker_share_its_buffer() -> None:
    """The oldest goes, whoever it is for: the one of c, then those of d in their order."""
    size = len(encode_attributes({"x": 0}))
    text = ONE_BROKER.replace("TRUE", "x = 0") + "at 0 d attach b0\nat 1 d subscribe x > 0\n"
    text += "at 2 c leave\nat 2 d leave\n" + "".join(f'at {3 + x} p publish {{"x": {x}}}\n' for x in range(5))
    run, rows = tell(text + "at 20 c attach b0\nat 20 d attach b0\n", buffer_bytes=3 * size)
    assert [(row.client, row.number) for row in of_kind(rows, "dropped")] == [("c", 1), ("d", 2)]
    assert [(row.client, row.number) for row in of_kind(rows, "delivered")] == [("d", 3), ("d", 4), ("d", 5)]
    assert run.result.excused == {"lost (overflow)": 2}


@pytest.mark.parametrize("protocol", [name for name in sorted(PROTOCOLS) if ":" not in name])
def test_with_small_buffers_nothing_goes_wrong_but_overflow(protocol: str) -> None:
    overflowed = 0
    for seed in range(4):
        story = draw_story(protocol, seed)
        story = replace(story, settings=replace(story.settings, buffer_bytes=60))
        result = story.run().result
        assert result.violations == []
        overflowed += result.excused.get("lost (overflow)", 0)
    # Without mobility nothing waits for anyone, so there is little to overflow.
    assert overflowed > 0 or protocol == "none"


# --- the same seed, the same log ---


def write_log(folder: Path, seed: int) -> None:
    story = draw_story("sub_unsub", seed)
    story = Story(story.topology, replace(story.settings, records="full"), story.actions)
    with LogWriter(folder, f"fuzz-{seed}") as log:
        story.run(log.write)


def log_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_seed_writes_the_same_log_in_any_process(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.simulator.test_network import write_log; "
        "write_log(Path(sys.argv[1]), 4)"
    )
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program, str(tmp_path / hash_seed)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    write_log(tmp_path / "other", 5)
    one, two = log_bytes(tmp_path / "1"), log_bytes(tmp_path / "2")
    assert sum(map(len, one.values())) > 10_000
    assert one == two
    assert one != log_bytes(tmp_path / "other")


def test_a_drawn_link_depends_on_nothing_but_its_own_messages() -> None:
    """Every link has a source of chance of its own: another client changes nothing for this one."""
    text = "brokers b0-b1 b0-b2\nlink 0..0.1\nat 0 c attach b0\nat 0 p attach b1\nat 1 c subscribe x = 1\n"
    text += "".join(f'at {10 + place} p publish {{"x": 1}}\n' for place in range(5))
    _, alone = tell(text)
    _, together = tell(text + "at 0 q attach b2\n" + 'at 12.5 q publish {"x": 1}\n' * 3)
    delivered = [row.time for row in of_kind(alone, "delivered", publisher="p")]
    assert delivered == [row.time for row in of_kind(together, "delivered", publisher="p")]
    assert len({round(at % 1, 6) for at in delivered}) == 5


# --- records ---


def rows_of(protocol: str, seed: int, level: Any) -> list[Row]:
    story = draw_story(protocol, seed)
    rows: list[Row] = []
    replace(story, settings=replace(story.settings, records=level)).run(rows.extend)
    return rows


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_every_kind_that_is_written_is_documented(protocol: str) -> None:
    usual = {
        *("published", "forwarded", "control", "sent", "delivered", "acknowledged", "attached", "detached"),
        *("moved", "handoff_started", "handoff_finished", "subscribed", "unsubscribed"),
    }
    kinds: set[str] = set()
    for seed in range(12):
        kinds |= {row.kind for row in rows_of(protocol, seed, "full")}
        assert kinds <= set(KINDS)
        if kinds >= usual:
            return
    assert kinds >= usual


def test_counters_leave_out_the_frequent_kinds_and_change_nothing_else() -> None:
    for seed in (2, 4):
        full, fewer = rows_of("sub_unsub", seed, "full"), rows_of("sub_unsub", seed, "counters")
        # Clients of the lab write rows themselves, so a broker's word on what they had is not needed.
        left_out = {*FREQUENT_KINDS, "acknowledged"}
        kept = [row._replace(sequence=0) for row in full if row.kind not in left_out]
        assert kept == [row._replace(sequence=0) for row in fewer]
        assert len(kept) < len(full)


@pytest.mark.parametrize("level", ["full", "counters"])
def test_a_row_is_identified_by_node_and_sequence_and_time_does_not_run_back(level: str) -> None:
    rows = rows_of("sub_unsub", 4, level)
    by_node: dict[str, list[Row]] = {}
    for row in rows:
        by_node.setdefault(row.node, []).append(row)
    for own in by_node.values():
        assert [row.sequence for row in own] == list(range(1, len(own) + 1))
    assert [row.time for row in rows] == sorted(row.time for row in rows)


def test_settings_have_a_hash_since_jobs_of_a_sweep_need_one() -> None:
    assert hash(NetworkSettings()) == hash(NetworkSettings())
    assert hash(NetworkSettings(seed=1)) != hash(NetworkSettings(seed=2))
