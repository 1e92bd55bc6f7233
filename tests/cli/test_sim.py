"""`roamcast sim run`: its figures, its log, its exit codes, and that a seed decides everything."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Command
from tests.lab.test_sweep import CLOCK_KEYS

from roamcast.cli import build_app, run, sim
from roamcast.errors import InputError
from roamcast.records.parquet import LogWriter, read_log
from roamcast.simulator.network import NetworkSettings
from roamcast.simulator.scenario import Scenario

ROAMCAST = Path(sys.executable).parent / "roamcast"
COMMAND = Command("sim", "run")
run_json, refused = COMMAND.json, COMMAND.refused
SMALL = shlex.split(
    "--topology grid:3 --clients 24 --mobile 0.5 --connect 5 --disconnect 2 --publish-every 2 "
    "--selectivity 0.25 --duration 20 --seed 7"
)
# The rule as published, where links are slow and moves are quick: notifications are lost.
BREAKING = shlex.split(
    "--protocol sub_unsub:published --topology line:5 --clients 40 --mobile 1 --connect 1 --disconnect 0.05 "
    "--publish-every 0.2 --selectivity 0.25 --duration 5 --seed 1 --link-delay 0..0.1"
)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """The scenarios of commands that go no further."""
    scenarios: list[Scenario] = []

    def keep(scenario: Scenario) -> tuple[Any, Any]:
        scenarios.append(scenario)
        raise InputError("enough")

    monkeypatch.setattr(sim, "prepare", keep)
    return scenarios


def test_the_defaults_are_those_of_a_scenario(built: list[Scenario]) -> None:
    assert run(build_app(), ["sim", "run"]) == 2
    assert built == [Scenario()]


MOBILITY = ("neighbours", "neighbours_max", "neighbours_fixed")
"""Options for single protocols."""


def test_a_neighbour_graph_is_read_and_stays_as_it_is(built: list[Scenario], tmp_path: Path) -> None:
    graph = tmp_path / "neighbours.json"
    graph.write_text('{"brokers": {"b00": {"b01": {"probability": 1}}}}')
    options = ["--neighbours", str(graph), "--neighbours-max", "2", "--neighbours-fixed"]
    assert run(build_app(), ["sim", "run", *options]) == 2
    mobility = built[0].network.mobility
    assert (mobility.neighbour_graph, mobility.neighbours_max) == (graph.read_text(), 2)
    assert (mobility.neighbours_online, mobility.neighbours_directed) == (False, True)


def test_a_neighbour_graph_of_other_brokers_is_left_out_with_a_line(
    built: list[Scenario], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = tmp_path / "neighbours.json"
    graph.write_text('{"brokers": {"x": {"y": {"probability": 1}}}}')
    assert run(build_app(), ["sim", "run", "--neighbours", str(graph)]) == 2
    assert built[0].network.mobility.neighbour_graph == ""
    assert capsys.readouterr().err.count("ignoring --neighbours") == 1


def test_every_field_can_be_set(built: list[Scenario]) -> None:
    options = shlex.split(
        "--protocol none --routing covering --advertisements --topology line:4 --clients 9 --mobile 0.1 "
        "--movement NBR --connect 1 --disconnect 2 --handoff 4 --proclaimed 0.3 --workload ranges "
        "--selectivity 0.5 --publish-every 5 --payload-bytes 6 --duration 7 --link-delay 0.001..0.03 "
        "--access-delay 0.5 --access-bits-per-s 8000 --notice-delay 0..9 --service 0.01 --buffer-bytes 10 "
        "--window 11 --unknown-last-broker --seed 12 --records full --trace-from 13"
    )
    assert run(build_app(), ["sim", "run", *options]) == 2
    default, (scenario,) = Scenario(), built
    before, after = ({**vars(one), **vars(one.network)} for one in (default, scenario))
    # Of `mobility` there are options for single settings; the others are for stories and experiments.
    others = {
        "network", "mobility", "location", "loss", "link_delays", "reach", "tree", "mqtt", "hostile",
        "lease_s", "replicas", "access_shared",
    }  # fmt: skip
    fields = before.keys() - others
    assert [name for name in sorted(fields) if before[name] == after[name]] == []
    assert len(signature(sim.run).parameters) == len(fields) + len(["out", "as_json", *MOBILITY])


def test_the_figures_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, *SMALL)
    assert list(result) == [
        *("protocol", "routing", "topology", "clients", "seed", "published", "expected", "delivered", "lost"),
        *("duplicates", "out_of_order", "unexpected", "excused", "violations", "handoffs"),
        *("handoffs_interrupted", "handoffs_nothing_waiting", "handoff_delay_mean_s", "handoff_delay_p50_s"),
        *("handoff_delay_p95_s", "overhead_hops_per_handoff", "hops", "hops_by_cause", "access_hops"),
        *("neighbours", "records", "wall_s", "hops_per_wall_s"),
    ]
    assert (result["protocol"], result["routing"], result["clients"]) == ("sub_unsub", "identity", 24)
    assert result["delivered"] == result["expected"] > result["published"] > 100
    assert (result["lost"], result["duplicates"], result["violations"]) == (0, 0, [])
    assert result["handoffs"] > 10
    assert 0 < result["handoff_delay_p50_s"] <= result["handoff_delay_p95_s"]
    assert sum(result["hops_by_cause"].values()) == result["hops"]
    mobility = result["hops_by_cause"]["handoff"] + result["hops_by_cause"]["transfer"]
    assert result["overhead_hops_per_handoff"] == mobility / result["handoffs"]
    assert result["records"] == 0, "no folder was given"


def test_a_protocol_that_may_lose_is_excused(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, *SMALL, "--protocol", "none")
    assert result["lost"] == result["excused"]["lost (away)"] > 0
    assert result["delivered"] == result["expected"] - result["lost"]


def test_without_handoffs_there_is_no_delay(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, *SMALL, "--mobile", "0")
    assert (result["handoffs"], result["handoff_delay_mean_s"], result["handoff_delay_p95_s"]) == (
        0,
        None,
        None,
    )
    assert result["overhead_hops_per_handoff"] is None


def test_a_person_gets_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["sim", "run", *SMALL]) == 0
    output = capsys.readouterr()
    rows = {
        line.split("│")[1].strip(): line.split("│")[2].strip()
        for line in output.out.splitlines()
        if "│" in line
    }
    assert (rows["lost"], rows["violations"], rows["protocol"]) == ("0", "0", "sub_unsub")
    assert int(rows["hops by cause: publish"].replace(",", "")) > 0
    assert output.err.startswith("simulating sub_unsub ...\n")


def test_a_broken_promise_has_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, *BREAKING, code=1)
    assert result["lost"] > 0
    assert result["violations"][0].startswith("lost: c")
    assert run(build_app(), ["sim", "run", *BREAKING]) == 1
    shown = capsys.readouterr().out
    assert f"violation: {result['violations'][0]}\n" in shown


# The log.


def test_the_log_and_the_figures_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "a" / "run"
    result = run_json(capsys, *SMALL, "--out", str(out))
    assert json.loads((out / "summary.json").read_text()) == result
    assert sorted(path.name for path in out.iterdir()) == ["log", "summary.json"]
    rows = list(read_log(out / "log"))
    assert len(rows) == result["records"]
    assert sum(row.kind == "published" for row in rows) == result["published"]
    assert sum(row.notifications or 0 for row in rows if row.kind == "delivered") == result["delivered"]
    hops = sum(row.hops or 0 for row in rows if row.kind in ("forwarded", "control"))
    assert hops == result["hops"], "every hop is in a full log"


def test_a_log_of_counters_is_smaller(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = run_json(capsys, *SMALL, "--out", str(tmp_path / "run"), "--records", "counters")
    kinds = {row.kind for row in read_log(tmp_path / "run" / "log")}
    assert result["records"] > 0
    assert "delivered" in kinds
    assert not kinds & {"forwarded", "control"}


def test_the_same_seed_gives_the_same_log_in_every_process(tmp_path: Path) -> None:
    options = [
        *SMALL,
        "--link-delay",
        "0.001..0.03",
        "--workload",
        "mixed",
        "--unknown-last-broker",
        "--json",
    ]
    runs = [
        subprocess.Popen(
            [ROAMCAST, "sim", "run", *options, "--seed", seed, "--out", tmp_path / name],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name, seed, hash_seed in (("first", "5", "1"), ("again", "5", "2"), ("other", "6", "1"))
    ]
    summaries = []
    for process in runs:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        summary = json.loads(out)
        summaries.append({key: value for key, value in summary.items() if key not in CLOCK_KEYS})
    first, again, other = (hashes(tmp_path / name / "log") for name in ("first", "again", "other"))
    assert first == again
    assert summaries[0] == summaries[1]
    assert other != first, "another seed is another run"


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_progress_goes_by_simulated_time() -> None:
    seen: list[tuple[int, int]] = []
    scenario = Scenario(
        topology="line:2", clients=20, publish_every_s=0.2, selectivity=0.5, duration_s=30.5,
        network=NetworkSettings(seed=1),
    )  # fmt: skip
    sim.simulate(scenario, *sim.prepare(scenario), None, lambda done, total: seen.append((done, total)))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {31}
    assert 0 < seen[-1][0] <= 31


# What cannot be.


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--protocol nope", "mobility protocol 'nope': valid are "),
        ("--routing nope", "routing strategy 'nope': valid are "),
        ("--topology gird:5", "topology 'gird:5': unknown kind 'gird'; did you mean 'grid'?"),
        ("--topology grid:0", "topology 'grid:0': K must be a whole number from 1"),
        ("--topology file:missing.txt", "missing.txt: cannot be read"),
        ("--workload gruops", "workload 'gruops': unknown; did you mean 'groups'?"),
        ("--movement nope", "pattern 'nope': unknown"),
        ("--movement file:missing.csv", "missing.csv"),
        ("--clients 0", "clients 0: valid is 1 to"),
        ("--mobile 1.5", "mobile 1.5: valid is a number from 0 to 1"),
        ("--mobile nan", "mobile nan: valid is a number from 0 to 1"),
        ("--duration 0", "duration 0.0: valid is a time above 0"),
        ("--duration inf", "duration inf: valid is a time above 0"),
        ("--connect 0", "connect_s must be a number of seconds above 0"),
        ("--proclaimed 2", "proclaimed must be a probability from 0 to 1"),
        ("--publish-every 0", "every_s must be a number of seconds above 0"),
        ("--selectivity 0", "selectivity must be above 0 and at most 1"),
        ("--selectivity 0.3", "selectivity 0.3 is not 1 divided by a whole number"),
        ("--payload-bytes -1", "payload -1: valid is 0 to"),
        ("--link-delay fast", "--link-delay: delay 'fast': valid are seconds"),
        ("--access-delay 3..1", "--access-delay: delay '3..1': valid is "),
        ("--notice-delay -1", "--notice-delay: delay '-1': valid is "),
        ("--service nan", "--service nan: valid is a number, at least 0"),
        ("--service -1", "--service -1.0: valid is a number, at least 0"),
        ("--access-bits-per-s 0", "--access-bits-per-s 0.0: valid is a number, above 0"),
        ("--window 0", "invalid value for '--window'"),
        ("--records some", "--records 'some': valid are counters and full"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(
    options: str,
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in refused(capsys, *SMALL, *options.split(), "--out", "run")
    assert list(tmp_path.iterdir()) == [], "no folder is made for a run that cannot be"


def test_routing_that_the_protocol_does_not_declare_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from roamcast.mobility import find_protocol

    monkeypatch.setattr(find_protocol("sub_unsub"), "strategies", ("identity", "simple"))
    line = refused(capsys, *SMALL, "--routing", "merging")
    assert line == "protocol sub_unsub does not work with merging routing: valid are identity, simple"


@pytest.mark.parametrize(
    ("edges", "line"),
    [
        ("a b\nb c\nc a\n", "is a cycle; the overlay must have none"),
        ("a b\nc d\n", "broker 'c' cannot be reached from 'a'; the overlay must connect all brokers"),
        ("a b c\n", "line 1: 'a b c' is no edge"),
        ("", "no edges in this file"),
    ],
)
def test_an_overlay_from_a_file_must_be_a_tree(
    edges: str, line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "network.txt").write_text(edges)
    assert line in refused(capsys, *SMALL, "--topology", f"file:{tmp_path}/network.txt")


def test_an_overlay_from_a_file_works(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "network.txt").write_text("a b\nb c\n")
    assert run_json(capsys, *SMALL, "--topology", f"file:{tmp_path}/network.txt")["lost"] == 0


def test_a_used_folder_is_refused_and_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_json(capsys, *SMALL, "--out", str(out))
    before = hashes(out / "log"), (out / "summary.json").read_bytes()
    line = f"--out {out}: {out / 'summary.json'} exists already; name a new folder"
    assert refused(capsys, *SMALL, "--out", str(out)) == line
    assert (hashes(out / "log"), (out / "summary.json").read_bytes()) == before
    (out / "summary.json").unlink()
    assert refused(capsys, *SMALL, "--out", str(out)).endswith(
        f"{out / 'log'} exists already; name a new folder"
    )


def test_a_file_is_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    assert refused(capsys, *SMALL, "--out", f"{tmp_path}/notes.txt/run").endswith("is a file; name a folder")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place where not even root may write")
def test_a_folder_that_cannot_be_written_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *SMALL, "--out", "/proc/run").startswith("--out /proc/run: cannot be written to (")


def test_a_disk_that_runs_full_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: LogWriter, rows: list[Any]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogWriter, "write", fail)
    line = refused(capsys, *SMALL, "--out", str(tmp_path / "run"))
    assert line == f"--out {tmp_path / 'run'}: the log cannot be written (No space left on device)"


def test_the_name_of_a_run_says_protocol_and_seed() -> None:
    network = replace(NetworkSettings(), protocol="none", seed=3)
    assert sim.run_name(Scenario(network=network)) == "none-3"
