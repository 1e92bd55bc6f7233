"""What decides A7 and A10: the judgements on rows that are made up."""

from __future__ import annotations

import pytest

from roamcast.lab.amozarrain_speed import FAST, SLOW, VARIANTS, findings_of
from roamcast.lab.rows import Row


def rows_of(gain: float, neighbours: dict[str, float]) -> list[Row]:
    return [
        {
            "variant": name, "protocol": "mft", "brokers": 16, "speed": speed, "seed": seed, "stored": 0,
            "delivery_rate": 0.5 + seed / 1000 + (gain if speed == FAST else 0.0),
            "delivery_rate_unstored": 0.5, "load_at_0_hops": 9.0 + seed / 100, "load_far": 2.0,
            "load_at_1_hops": 2.0 + seed / 100 + neighbours.get(name, -1.0),
        }
        for name in VARIANTS for speed in (SLOW, FAST) for seed in (1, 2, 3)
    ]  # fmt: skip


@pytest.mark.parametrize(("gain", "holds"), [(0.1, True), (-0.1, False), (0.0, False)])
def test_whether_a_variant_improves_with_speed(gain: float, holds: bool) -> None:
    assert findings_of(rows_of(gain, {})).outcomes[0].holds is holds


def test_neighbours_of_the_leader_are_judged_apart() -> None:
    def verdict(neighbours: dict[str, float]) -> bool | None:
        return findings_of(rows_of(0.1, neighbours)).outcomes[1].holds

    assert verdict({"ours": 1.0}) is True
    assert verdict({}) is False
    assert verdict(dict.fromkeys(VARIANTS, 1.0)) is False
