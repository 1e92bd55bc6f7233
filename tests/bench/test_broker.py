"""The benchmark of brokers: that it measures what it says, never how fast that is."""

import json
import os
from pathlib import Path

import pytest

from roamcast.bench.broker import compared, run, summary
from roamcast.bench.broker_cases import CASES, content, fan_out
from roamcast.bench.broker_figure import write_figure
from roamcast.bench.contestants import OTHERS, ROAMCAST
from roamcast.bench.mqtt_load import Figure, Window
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
