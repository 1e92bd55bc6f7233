"""The benchmark of the simulator: that it measures what it says, never how fast that is."""

import importlib.util
import json
from typing import Any

import pytest
import typer

from roamcast.bench import sim
from roamcast.bench.sim import SIMPY_MISSING, Case, measure
from roamcast.bench.simpy_model import Model, Plan, Style
from roamcast.cli import bench, run
from roamcast.cli.usage import new_group
from roamcast.protocol.effects import PublishThis
from roamcast.protocol.messages import Acknowledge
from roamcast.simulator.run import run_checked


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process: starting others would take most of the test's time."""
    monkeypatch.setattr(sim, "_in_new_process", measure)


def small_run(**arguments: Any) -> dict[str, Any]:
    return sim.run(sizes=(2, 3), duration_s=20.0, repeat=2, **arguments)


@pytest.mark.slow  # 8 s
@pytest.mark.usefixtures("here")
def test_every_case_is_there_with_its_figures() -> None:
    seen: list[tuple[int, int]] = []
    result = small_run(progress=lambda done, total: seen.append((done, total)))
    assert json.loads(json.dumps(result)) == result
    cases = result["cases"]
    assert [(case["engine"], case["brokers"], case["protocol"], case["records"]) for case in cases] == [
        ("roamcast", 4, "none", "counters"),
        ("roamcast", 4, "sub_unsub", "full"),
        ("roamcast", 4, "sub_unsub", "counters"),
        ("roamcast", 9, "sub_unsub", "counters"),
        ("roamcast", 4, "sub_unsub", "counters"),
        ("simpy stores", 4, None, None),
        ("simpy callbacks", 4, None, None),
    ]
    for case in cases:
        assert case["hops"] == case["link_hops"] + case["access_hops"] > 0
        assert case["hops_per_s_best"] >= case["hops_per_s_median"] > 0
        assert (case["rows"] > 0) == (case["records"] == "full")
        assert case["checkers"] == (case["engine"] == "roamcast")
    assert result["growth"]["brokers"] == [4, 9]
    assert seen == [(done, 14) for done in range(14)]


@pytest.mark.slow  # 12 s
@pytest.mark.usefixtures("here")
def test_without_simpy_the_result_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "simpy" else find_spec(name)
    )
    result = small_run()
    assert result["simpy"] == {"missing": SIMPY_MISSING}
    assert {case["engine"] for case in result["cases"]} == {"roamcast"}


@pytest.mark.parametrize("style", ["stores", "callbacks"])
@pytest.mark.parametrize("seed", [1, 2])
def test_simpy_simulates_the_same_network(style: Style, seed: int) -> None:
    """Both send and deliver exactly as much, apart from what the simulator sends to set the network up."""
    scenario = Case(3, "sub_unsub", "counters", 0.0, 60.0, seed).scenario
    topology = scenario.make_topology()
    actions = list(scenario.actions(topology))
    model = Model(Plan.read(topology, actions), scenario.network, style)
    model.run()
    whole = run_checked(topology, scenario.network, actions)
    before = [action for action in actions if not isinstance(action[2], PublishThis)]
    set_up = run_checked(topology, scenario.network, before)
    assert model.delivered == whole.result.delivered == whole.result.expected > 0
    assert model.link_hops == whole.traffic.messages - set_up.traffic.messages
    assert model.access_hops == whole.traffic.access_hops - set_up.traffic.access_hops


def test_the_simpy_model_refuses_clients_that_move() -> None:
    scenario = Case(2, "none", "counters", 1.0, 300.0, 1).scenario
    topology = scenario.make_topology()
    with pytest.raises(ValueError, match="moves: this model is for networks where nobody does"):
        Plan.read(topology, scenario.actions(topology))


def test_a_case_runs_in_a_process_of_its_own() -> None:
    case = Case(2, "none", "full", 0.2, 5.0, 1)
    there, here = sim._in_new_process(case), measure(case)
    assert (there.hops, there.delivered, there.rows) == (here.hops, here.delivered, here.rows)


def test_setting_up_is_told_apart() -> None:
    short, long = (
        measure(Case(3, "sub_unsub", "counters", 0.2, duration_s, 1)) for duration_s in (5.0, 10.0)
    )
    assert 0 < short.set_up_hops == long.set_up_hops < short.hops < long.hops
    assert 0 <= short.set_up_s <= short.core_s


def test_a_violation_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulator that is fast because it loses things must not be praised for it."""
    take = "roamcast.broker.plain_client.Client.take"
    monkeypatch.setattr(take, lambda self, now, message, records: Acknowledge(message.stream, 0))
    with pytest.raises(RuntimeError, match="lost"):
        measure(Case(2, "sub_unsub", "counters", 0.2, 20.0, 1))


# The command.


def app() -> typer.Typer:
    group = new_group("An app for tests.", examples=["roamcast bench sim"])
    bench.register(group)
    return group


SMALL = ["bench", "sim", "--side", "2", "--side", "3", "--duration", "5", "--repeat", "1"]


@pytest.mark.usefixtures("here")
def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app(), [*SMALL, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result)[:3] == ["growth", "simpy", "cases"], "what holds on every machine comes first"


@pytest.mark.slow  # 8 s
@pytest.mark.usefixtures("here")
def test_the_command_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app(), SMALL) == 0
    shown = capsys.readouterr().out
    assert "simpy stores" in shown
    assert "growth: steady median" in shown


@pytest.mark.slow  # 8 s
def test_the_match_benchmark_reports_its_progress() -> None:
    from roamcast.bench import match

    seen: list[tuple[int, int]] = []
    match.run(subscriptions=50, events=5, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, match.STAGES) for done in range(match.STAGES)]
