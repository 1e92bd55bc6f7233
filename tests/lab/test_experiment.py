"""Claims and experiments: how they are found, kept apart, and written down."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from roamcast.errors import InputError
from roamcast.lab.catalogue import experiments
from roamcast.lab.curves import Curves, plane, power
from roamcast.lab.experiment import (
    EXPERIMENTS,
    Claim,
    Experiment,
    Findings,
    as_row,
    checks,
    conduct,
    select,
)
from roamcast.lab.report import write_findings, write_table
from roamcast.lab.sweep import Sweep

X1 = Claim("X1", "exact", "two and two make four", "4")
X2 = Claim("X2", "shape", "more is more", "more")


def add(quick: bool, sweep: Sweep) -> Findings:
    def draw(figure: Figure) -> None:
        figure.subplots().plot([1, 2], [3, 4])

    return Findings(
        [X1.outcome(True, {"sum": 4}), X2.open("too little to say")],
        {"sums": [{"a": 2, "sum": 4}, {"a": 3, "note": {"b": [1]}}]},
        {"line": draw},
    )


ADDING = Experiment("adding", "adding up", (X1, X2), add)
OTHER = Experiment("other", "another one", (Claim("Y1", "order", "first before second"),), add)


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(EXPERIMENTS)
    yield
    EXPERIMENTS.clear()
    EXPERIMENTS.update(before)


def test_a_claim_has_a_known_kind() -> None:
    with pytest.raises(InputError, match="kind 'guess'; valid: exact, order, shape, erratum"):
        Claim("X9", "guess", "who knows")  # type: ignore[arg-type]


def test_a_claim_is_what_its_parts_are_and_its_note_names_first_those_that_do_not_hold() -> None:
    cases = {
        (True, None, False): (False, "c; undecided: b (so it is); no d"),
        (True, None): (None, "undecided: b (so it is); no d"),
        (True,): (True, "no d"),
        (): (None, "no d"),
    }
    for parts, expected in cases.items():
        outcome = X1.judge(dict(zip("abc", parts, strict=False)), {}, why="so it is", notes=["", "no d"])
        assert (outcome.holds, outcome.note, outcome.paper) == (*expected, "4")


def test_no_id_means_two_things() -> None:
    checks("adding", "adding up", X1, X2)(add)
    with pytest.raises(InputError, match="the id 'X2' is taken"):
        checks("again", "", X2)(add)
    with pytest.raises(InputError, match="the id 'adding' is taken"):
        checks("adding", "")(add)
    assert experiments()[-1] == ADDING


def test_every_claim_of_the_catalogue_has_words() -> None:
    claims = [claim for experiment in experiments() for claim in experiment.claims]
    assert {f"W{number}" for number in range(1, 8)} <= {claim.id for claim in claims}
    assert all(len(claim.text) > 20 for claim in claims)


def test_experiments_are_found_by_their_id_and_by_a_claim() -> None:
    both = [ADDING, OTHER]
    assert select(both, []) == {ADDING: [X1, X2], OTHER: list(OTHER.claims)}
    assert select(both, ["adding"]) == {ADDING: [X1, X2]}
    assert select(both, ["x2", "Y1"]) == {ADDING: [X2], OTHER: list(OTHER.claims)}
    with pytest.raises(InputError, match="no claim or experiment 'Z1'; `roamcast lab list` shows all"):
        select(both, ["X1", "Z1"])


def test_an_experiment_speaks_about_its_own_claims() -> None:
    assert len(conduct(ADDING, True, Sweep(1)).outcomes) == 2
    with pytest.raises(RuntimeError, match="outcomes for the wrong claims"):
        conduct(OTHER, True, Sweep(1))


def test_findings_are_written(tmp_path: Path) -> None:
    write_findings(tmp_path, ADDING, add(True, Sweep(1)), {"quick": True})
    names = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.*"))
    assert names == [
        "figures/line.png", "figures/line.svg", "metrics/sums.csv", "metrics/sums.parquet", "outcomes.json",
    ]  # fmt: skip
    written = json.loads((tmp_path / "outcomes.json").read_text())
    assert written["experiment"] == "adding"
    assert written["quick"] is True
    assert written["claims"][0] == as_row(add(True, Sweep(1)).outcomes[0], ADDING)
    assert [claim["holds"] for claim in written["claims"]] == [True, None]
    expected = [{"a": 2, "sum": 4, "note": None}, {"a": 3, "sum": None, "note": '{"b": [1]}'}]
    assert pq.read_table(tmp_path / "metrics/sums.parquet").to_pylist() == expected
    assert (tmp_path / "metrics/sums.csv").read_text() == 'a,sum,note\n2,4,\n3,,"{""b"": [1]}"\n'


def test_an_empty_table_is_a_table(tmp_path: Path) -> None:
    files = write_table(tmp_path / "nothing", [])
    assert pq.read_table(files[0]).num_rows == 0


# --- curves ---


def test_points_are_means_with_the_interval_of_the_t_distribution() -> None:
    rows = [{"case": "a", "x": 1.0, "y": y} for y in (1.0, 2.0, 3.0)] + [{"case": "a", "x": 0.5, "y": 7.0}]
    rows.append({"case": "a", "x": 1.0, "y": None})
    first, second = Curves(rows, "case", "x", "y")["a"].points
    assert (first.x, first.mean, first.low, first.high, first.runs) == (0.5, 7.0, 7.0, 7.0, 1)
    # t with two degrees of freedom is 4.3027, the standard error 1/√3.
    assert (second.mean, second.runs) == (2.0, 3)
    assert second.high == pytest.approx(2 + 4.30265 / 3**0.5, rel=1e-5)
    assert second.low == pytest.approx(2 - 4.30265 / 3**0.5, rel=1e-5)


def test_the_power_of_a_curve() -> None:
    assert power([1, 10, 100], [3, 30, 300]) == pytest.approx(1)
    assert power([1, 10, 100], [3, 300, 30000]) == pytest.approx(2)
    assert power([1], [1]) != power([1], [1]), "one point has no slope"
    assert power([1, 2], [0, 1]) != 1


def test_two_causes_are_told_apart() -> None:
    places = [(1, 3), (2, 3), (3, 7), (5, 8), (6, 14)]
    rows = [{"a": a, "b": b, "y": 5 + 2 * a + 0.5 * b} for a, b in places]
    slopes = plane(rows, "y", ["a", "b"])
    assert (slopes["a"].value, slopes["b"].value) == pytest.approx((2, 0.5))
    assert slopes["a"].high - slopes["a"].low < 1e-6, "nothing is left unexplained"
    disturbed = [{**row, "y": row["y"] + change} for row, change in zip(rows, (1, -1, 1, -1, 1), strict=True)]
    slope = plane(disturbed, "y", ["a", "b"])["a"]
    assert slope.low < 2 < slope.high
    alike = [{"a": a, "b": 2 * a, "y": a} for a in range(5)]
    assert all(math.isnan(slope.value) for slope in plane(alike, "y", ["a", "b"]).values())
