"""The same commands on a cluster: Spark's own master and workers, and executors in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.conftest import WriteLog
from tests.pipeline.log_maker import Tampered
from tests.pipeline.spark_cluster import standalone_cluster

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("java")]

ROAMCAST = [sys.executable, "-c", "import sys; from roamcast.cli import main; sys.exit(main())"]


def roamcast(*arguments: str | Path) -> dict[str, Any]:
    """What a command prints as JSON."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [*ROAMCAST, *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_an_audit_and_a_stream_on_a_standalone_cluster(write_log: WriteLog, tmp_path: Path) -> None:
    log = write_log(Tampered().rows, "sub_unsub-1")
    with standalone_cluster(tmp_path) as master:
        where = ("--master", master, "--conf", "spark.executor.memory=600m")
        audited = roamcast("pipeline", "audit", "--log", log, "--out", tmp_path / "audit", *where)
        assert (audited["expected"], audited["delivered"], audited["lost"]) == (15, 15, 0)
        streamed = roamcast(
            "pipeline", "stream", "--log", log, "--out", tmp_path / "stream", "--once", "--late", "0", *where
        )
        assert streamed["records"] == len(Tampered().rows)
    assert list(tmp_path.glob("work-*/app-*/0")), "executors of the workers did it"


def test_runs_of_an_experiment_on_executors_of_their_own(tmp_path: Path) -> None:
    cluster = ("--master", "local-cluster[2,1,1536]")
    found = roamcast("lab", "run", "W6", "--quick", "--log", "--out", tmp_path / "lab", *cluster)
    assert found["failed_runs"] == []
    assert [claim["claim"] for claim in found["claims"]] == ["W6"]
    assert (tmp_path / "lab" / "outcomes.json").exists()
