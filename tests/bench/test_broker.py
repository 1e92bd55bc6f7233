"""The benchmark of brokers: that it measures what it says, never how fast that is."""

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import cast

import pytest

from roamcast.bench.accounting import Miscounted
from roamcast.bench.broker import compared, descriptors_max, run, shape_figures, summary
from roamcast.bench.broker_cases import CASES, content, fan_out
from roamcast.bench.broker_figure import write_figure
from roamcast.bench.contestants import OTHERS, ROAMCAST, before
from roamcast.bench.field_shapes import (
    RETAINED,
    SHAPES,
    Sent,
    Subscriber,
    Traffic,
    connection_storm,
    paced,
    recall,
    takeovers,
)
from roamcast.bench.mqtt_load import Figure, LoadConnection, Window
from roamcast.bench.processes import BenchFailed
from roamcast.cli import build_app
from roamcast.cli import run as run_command


def test_every_case_counts_every_message(tmp_path: Path) -> None:
    """A short run of each case with a real broker process: the load program checks every byte."""
    process = ROAMCAST["process"].start(tmp_path / "broker", frozenset())
    try:
        for case in CASES:
            figure = case.run(process, 0.02)
            assert figure.messages > 0, case.name
            assert figure.deliveries > 0, case.name
            assert figure.messages_per_s == figure.messages / figure.seconds
    finally:
        process.stop()
    assert not process.is_running


def test_an_earlier_tree_is_measured_with_its_own_source(tmp_path: Path) -> None:
    (tmp_path / "roamcast").mkdir()
    (tmp_path / "roamcast" / "__init__.py").write_text("")
    *command, _ = before(tmp_path, "group").command[:5]
    out = subprocess.run(
        [*command, "import roamcast; print(roamcast.__file__)"], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == str(tmp_path / "roamcast" / "__init__.py")


def test_a_folder_without_roamcast_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(build_app(), ["bench", "broker", "--before", str(tmp_path)]) == 2
    assert f"--before {tmp_path}: no folder with a roamcast package" in capsys.readouterr().err


@pytest.mark.slow  # 10 s: thousands of connections
def test_every_shape_counts_every_message(tmp_path: Path) -> None:
    process = ROAMCAST["process"].start(tmp_path / "broker", frozenset())
    descriptors_max()
    try:
        for shape in SHAPES:
            figure = shape.run(process, 0.02)
            assert len(figure.latencies_s) >= figure.deliveries // RETAINED, shape.name
            assert set(shape.limits) <= set(shape_figures([figure]))
    finally:
        process.stop()


def test_a_steady_rate_with_topics_of_every_kind(tmp_path: Path) -> None:
    process = ROAMCAST["process"].start(tmp_path / "broker", frozenset())
    topics = ["bench/a", "bench/b", "bench/{}/c"]
    traffic = Traffic(2_000, topics, [[0, 2], [1], []], 2, per_write_max=3, is_lasting=True)
    try:
        for qos in (0, 1):
            figure = paced(traffic, qos, process, 0.05)
            assert figure.messages == 100
            assert len(figure.latencies_s) == figure.deliveries > 0
        everything = paced(Traffic(2_000, topics[:2], [range(2)] * 2, 2, ["bench/#"]), 1, process, 0.05)
        assert everything.deliveries == 200
        for other in (connection_storm, takeovers, recall):
            assert len(other(process, 0.01).latencies_s) > 1
    finally:
        process.stop()


@pytest.mark.parametrize("what", ["repeated", "swapped", "changed", "not wanted"])
def test_a_message_that_is_not_due_is_noticed(what: str) -> None:
    sent = Sent(Traffic(1, ["a", "b"], []), 1)
    frames = [sent.frame(0.0, 0, 0) for _ in range(3)]
    listener, end = socket.socketpair()
    subscriber = Subscriber(cast(LoadConnection, FrameSource(end)), 1, [1] if what == "not wanted" else [0])
    if what == "repeated":
        frames[2] = frames[1]
    elif what == "swapped":
        frames.reverse()
    elif what == "changed":
        frames[1] = frames[1][:-1] + b"y"
    with listener, end:
        listener.sendall(b"".join(frames))
        subscriber.on_read()
        with pytest.raises(Miscounted):
            subscriber.verify(sent)


class FrameSource:
    """A connection that reads from a socket, and drops what is sent."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def receive(self) -> bytes:
        return self._end.recv(65_536)

    def send(self, data: bytes) -> None: ...


def test_a_broker_that_goes_away_gives_no_figure(tmp_path: Path) -> None:
    process = ROAMCAST["process"].start(tmp_path / "broker", frozenset())
    process.kill()
    with pytest.raises((BenchFailed, OSError)):
        fan_out(0, 1)(process, 0.02)


@pytest.mark.slow
def test_the_command_compares_with_what_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = os.sched_getaffinity(0)
    arguments = ["bench", "broker", "--against", "mosquitto", "--quick", "--out", str(tmp_path), "--json"]
    assert run_command(build_app(), arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert os.sched_getaffinity(0) == before
    assert result["failures"] == []
    assert len(result["cases"]) == sum(len(case.targets) for case in CASES)
    assert {row["shape"] for row in result["shapes"]} == {shape.name for shape in SHAPES}
    for row in result["cases"]:
        assert row["messages_per_s"] > 0
        assert row["journal"]
        assert row["records"] == "counters"
    if OTHERS["mosquitto"].missing() is None:
        assert result["cases"][0]["against"]["mosquitto"]["target"] == 5
        assert Path(result["figure"]).stat().st_size > 10_000
    else:
        assert "not installed" in result["skipped"]["mosquitto"]
    assert [row["connections"] for row in result["idle"]] == [200] * len(result["idle"])


def test_an_unknown_broker_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(build_app(), ["bench", "broker", "--against", "mosquito"]) == 2
    assert capsys.readouterr().err == "roamcast: --against mosquito: did you mean 'mosquitto'?\n"


@pytest.mark.slow  # 5 s
def test_what_is_missing_is_skipped_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    import roamcast.bench.broker as module
    import roamcast.bench.foreign_brokers as foreign_brokers

    monkeypatch.setattr(foreign_brokers, "find_program", lambda name: None)
    monkeypatch.setattr(module, "CASES", CASES[:1])
    monkeypatch.setattr(module, "SHAPES", SHAPES[:1])
    result = run(against=["mosquitto"], seconds=0.02, rounds=1, idle=5)
    assert result["skipped"]["mosquitto"].startswith("mosquitto is not installed (Debian: apt-get install")
    assert result["failures"] == []
    assert [row["against"] for row in result["cases"]] == [{}]
    assert not write_figure(result, Path("never.png"))


def test_medians_and_ratios() -> None:
    own = summary([Figure(count, count, 1.0, 0.5, 0.5) for count in (10, 30, 20)])
    assert (own["messages_per_s"], own["messages_per_s_best"], own["messages_per_core_s"]) == (20, 30, 40)
    other = summary([Figure(4, 4, 1.0, 0.5, 0.4)])
    told = compared(own, other, 5.0)
    assert (told["ratio"], told["ratio_per_core_s"]) == (5, 4)
    assert (told["holds"], told["holds_per_core_s"]) == (True, False)


def test_a_window_grows_only_while_messages_arrive_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("roamcast.bench.mqtt_load.time.perf_counter", lambda: now_s)
    window = Window(500)
    now_s = 10.0
    window.arrived(500)
    assert window.size == 500
    for count, size in ((999, 500), (1_000, 1_000), (2_000, 2_000), (4_000, 4_000), (8_000, 4_000)):
        now_s += 0.01
        window.arrived(count)
        assert window.size == size


def test_about_one_percent_of_the_content_filters_match() -> None:
    assert 0.008 < content().matching < 0.012
    assert len(set(content().filters)) == 1_000
