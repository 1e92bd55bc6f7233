"""/metrics: a page that takes long is shown again for a while."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from roamcast.daemon import metrics
from roamcast.daemon.metrics import LONG_S, SHOWN_AGAIN, Metrics


@pytest.mark.parametrize(("took_s", "pages"), [(LONG_S / 2, [1, 2, 3, 4]), (2 * LONG_S, [1, 1, 1, 2])])
def test_pages_take_a_share_of_a_core_at_most(
    monkeypatch: pytest.MonkeyPatch, took_s: float, pages: list[int]
) -> None:
    now, made = [100.0], [0]

    def make(registry: object) -> bytes:
        made[0] += 1
        now[0] += took_s
        return b"%d" % made[0]

    monkeypatch.setattr(metrics, "generate_latest", make)
    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    asked = Metrics(cast(Any, None))
    found = []
    for pause_s in (0.0, 0.0, 0.9 * SHOWN_AGAIN * took_s, 0.2 * SHOWN_AGAIN * took_s):
        now[0] += pause_s
        found.append(int(asked.page().body))
    assert found == pages
