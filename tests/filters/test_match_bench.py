"""The match benchmark runs, checks itself, and gives figures that a report can hold."""

import json
from typing import Any

import pytest

from roamcast.bench import match
from roamcast.filters.index import FilterIndex


@pytest.mark.slow  # 14 s
def test_a_small_run() -> None:
    said: list[object] = []

    def report(*stage: object) -> None:
        said.append(stage)

    figures: Any = json.loads(json.dumps(match.run(subscriptions=4_000, events=30, progress=report)))
    smaller, larger = figures["tables"]
    assert (smaller["subscriptions"], larger["subscriptions"]) == (400, 4_000)
    # The same number of matches at both sizes, within what chance allows.
    for table in (smaller, larger):
        assert 2 < table["matches_per_event"] < 8
        assert table["index_us_per_event"] > 0
    assert figures["speedup"] == larger["speedup"]
    assert figures["small_tables"]["16_groups"]["matches_per_event"] == 1
    assert 10 < figures["small_tables"]["250_ranges"]["matches_per_event"] < 20
    assert said


def test_a_disagreement_is_not_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilterIndex, "match", lambda self, attributes: [-1])
    with pytest.raises(RuntimeError, match="disagree"):
        match.run(subscriptions=200, events=5)
