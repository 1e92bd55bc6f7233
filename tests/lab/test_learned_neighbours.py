"""The learned neighbour graph on a trace of one's own: learned from the first part, tried on the rest."""

import itertools
import json
from pathlib import Path

import pytest

from roamcast.cli import build_app, run
from roamcast.lab.learned_neighbours import LEARNED, ONLINE, PUBLISHES, GraphJob, given_trace, jobs, replay
from roamcast.lab.measure import GivenTrace
from roamcast.simulator.trace_generator import TraceSettings, generate_trace, write_trace

SIDE = 3


@pytest.fixture
def trace(tmp_path: Path) -> tuple[Path, Path]:
    """A trace and an overlay of its brokers: a line through the rows of the grid."""
    file, overlay = tmp_path / "trace.csv", tmp_path / "overlay.txt"
    settings = TraceSettings(side=SIDE, clients=8, duration_s=20_000.0, stay_s=600.0, seed=3)
    write_trace(file, generate_trace(settings))
    brokers = sorted({line.split(",")[1] for line in file.read_text().splitlines()[1:]})
    overlay.write_text("".join(f"{one} {other}\n" for one, other in itertools.pairwise(brokers)))
    return file, overlay


def test_a_given_trace_is_cut_learned_from_and_replayed(trace: tuple[Path, Path]) -> None:
    given = given_trace(*trace)
    assert given.publish_every_s == pytest.approx(8 * given.span_s / PUBLISHES)
    assert 0.6 * 20_000 < given.from_s < 0.8 * 20_000
    rows = {graph: replay(GraphJob(graph, 2, 1, False, 1.0, given)) for graph in (ONLINE, LEARNED)}
    assert rows[ONLINE]["moves"] == rows[LEARNED]["moves"] > 20
    for row in rows.values():
        assert (row["lost"], row["violations"]) == (0, 0)
        assert 0 < row["hit_rate"] < 1
    assert rows[LEARNED]["hit_rate"] > rows[ONLINE]["hit_rate"]


def test_of_a_given_trace_there_is_but_one() -> None:
    given = GivenTrace("trace.csv", "overlay.txt", 70.0, 30.0, 5, 0.5, 1.0)
    assert {job.seed for job in jobs(False, given)} == {1}
    assert {job.given for job in jobs(False, given)} == {given}
    assert {job.seed for job in jobs(False)} == {1, 2, 3}


def test_what_cannot_be_is_told(
    trace: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str | Path) -> str:
        asked = ["lab", "run", *map(str, arguments), "--out", str(tmp_path / "out")]
        assert run(build_app(), asked) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    file, overlay = trace
    assert "give both" in said("N1", "--trace", file)
    assert "does not accept a trace; comparison and" in said("W6", "--trace", file, "--overlay", overlay)
    assert "is always replayed in full" in said("N1", "--trace", file, "--overlay", overlay, "--quick")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_experiment_on_a_given_trace(
    trace: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["lab", "run", "N1", "--trace", str(trace[0]), "--overlay", str(trace[1])]
    assert run(build_app(), [*asked, "--out", str(tmp_path / "out"), "--json"]) == 0
    (claim,) = json.loads(capsys.readouterr().out)["claims"]
    assert claim["claim"] == "N1"
    assert (tmp_path / "out" / "figures" / "learned_neighbours.png").exists()
