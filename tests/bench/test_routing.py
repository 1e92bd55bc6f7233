"""`roamcast bench routing` measures what it says, and judges by it."""

from __future__ import annotations

import json

import pytest

from roamcast.bench.report import check_names
from roamcast.bench.routing import WORKLOADS, judged, run
from roamcast.cli import build_app
from roamcast.cli import run as run_command
from roamcast.errors import InputError
from roamcast.routing.aggregation import AGGREGATES


@pytest.mark.slow
def test_every_strategy_says_no_more_than_the_one_before() -> None:
    rows = run(sizes=(40,))["cases"]
    said = {(row["workload"], row["strategy"]): row for row in rows}
    order = ("simple", "identity", "covering", "merging")
    for workload in WORKLOADS:
        forwarded = [said[workload, strategy]["forwarded"] for strategy in order]
        assert forwarded == sorted(forwarded, reverse=True), workload
        assert forwarded[0] == 40
    assert said["touching ranges", "merging"]["forwarded"] < 20
    assert said["nested ranges", "covering"]["forwarded"] < 30
    assert all(row["subscribe_us"] > 0 and row["handoff_ms"] > 0 for row in rows)


def test_what_grows_too_fast_or_takes_too_long_does_not_hold() -> None:
    def rows(*times: float) -> list[dict[str, object]]:
        return [{"workload": "w", "strategy": "s", "subscribe_us": time} for time in times]

    assert judged(rows(100.0, 200.0, 290.0))["holds"] is True
    assert judged(rows(100.0, 310.0))["holds"] is False
    assert judged(rows(500.0, 1_100.0))["holds"] is False


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "routing", "--subscriptions", "10", "--strategy", "covering", "--json"]
    assert run_command(build_app(), arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["subscriptions"] for row in result["cases"]] == [10] * len(WORKLOADS)


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(InputError, match="covering"):
        check_names("--strategy", ["coverng"], AGGREGATES)
