"""The benchmark of a storm: that it counts handoffs and notices what goes wrong, never how fast it is."""

import json
from typing import Any

import pytest

from roamcast.bench.storm import judged
from roamcast.cli import build_app, run


@pytest.mark.slow
@pytest.mark.parametrize("way", ["move", "drain"])
def test_every_session_is_handed_over_exactly_once(capsys: pytest.CaptureFixture[str], way: str) -> None:
    # More clients than a slice of a drain has.
    run(build_app(), f"bench storm --clients 250 --seconds 0.1 --way {way} --sync process --json".split())
    result = json.loads(capsys.readouterr().out)
    (case,) = result["cases"]
    assert case["is_exact"], case
    assert case["clients"] == 250
    assert case["published"] >= 250
    assert case["handoffs_per_s"] > 0
    assert 0 < case["p50_ms"] <= case["p99_ms"]


def a_case(**changes: Any) -> dict[str, Any]:
    return judged({"handoffs_per_s": 5000.0, "ping_p99_ms": 99.0, "pings_lost": 0, "faults": {}, **changes})


def test_what_is_asked_for() -> None:
    assert a_case()["holds"]
    assert a_case(handoffs_per_s=4999.0)["why"] == ["fewer than 5000 handoffs per second"]
    assert a_case(ping_p99_ms=100.0)["why"] == ["pings took more than 100 ms at p99"]
    assert not a_case(pings_lost=1)["is_exact"]
    assert a_case(faults={"repeated": 2, "lost": 0})["why"] == ["repeated: 2"]
    assert not a_case(faults={"sessions lost": 1})["is_exact"]
