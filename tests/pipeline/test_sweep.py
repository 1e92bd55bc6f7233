"""Runs spread over Spark: those that fail are tried again, and cost the others nothing."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from roamcast.errors import InputError
from roamcast.lab.measure import ScenarioJob, measure
from roamcast.lab.rows import Row
from roamcast.lab.sweep import Sweep
from roamcast.pipeline.spark_engine import read_log
from roamcast.pipeline.sweep import check_logs, spread
from roamcast.simulator.network import NetworkSettings
from roamcast.simulator.scenario import Scenario

pytestmark = pytest.mark.xdist_group("spark")


@dataclass(frozen=True)
class Try:
    seed: int
    folder: str

    @property
    def name(self) -> str:
        return f"try seed={self.seed}"

    @property
    def cost(self) -> float:
        return 1.0


def attempt(job: Try) -> Row:
    """Seed 2 fails the first time, seed 3 always."""
    tried = Path(job.folder) / str(job.seed)
    is_first = not tried.exists()
    tried.touch()
    if job.seed == 3 or (job.seed == 2 and is_first):
        raise ValueError("no luck")
    return {"seed": job.seed, "process": os.getpid()}


def test_a_failed_run_is_tried_again_and_then_named_by_its_seed(spark: SparkSession, tmp_path: Path) -> None:
    sweep = Sweep(spread=partial(spread, spark))
    rows = sweep.run(attempt, [Try(seed, str(tmp_path)) for seed in range(1, 6)])
    assert [row["seed"] for row in rows] == [1, 2, 4, 5]
    assert [str(failure) for failure in sweep.failures] == ["try seed=3: RemoteError: ValueError: no luck"]
    assert os.getpid() not in {row["process"] for row in rows}, "executors did them"


def test_runs_are_the_same_wherever_they_are_done_and_their_logs_can_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    jobs = [
        ScenarioJob(
            (("protocol", "reactive"),),
            Scenario("grid:2", 8, duration_s=60.0, network=NetworkSettings("reactive", seed=seed)),
        )
        for seed in (1, 2)
    ]
    here = Sweep(workers=1).run(measure, jobs)
    there = Sweep(logs=tmp_path, spread=partial(spread, spark)).run(measure, jobs)
    for one, other in zip(here, there, strict=True):
        assert one["seed"] == other["seed"]
        assert (one["hops"], one["delivered"]) == (other["hops"], other["delivered"])
    assert read_log(spark, tmp_path).select("run").distinct().count() == 2


def test_a_folder_that_executors_cannot_write_to_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    check_logs(spark, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="executors cannot write there"):
        check_logs(spark, tmp_path / "file" / "logs")
