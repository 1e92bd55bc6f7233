from __future__ import annotations

from dataclasses import replace

import pytest

from roamcast.lab import amozarrain
from roamcast.lab.sweep import Sweep


@pytest.mark.parametrize("run", [amozarrain.tables, amozarrain.migrations, amozarrain.phantoms])
def test_the_exact_claims_hold(run: type) -> None:
    for outcome in run(True, Sweep(1)).outcomes:
        assert outcome.holds, f"{outcome.claim}: {outcome.note} {outcome.figures}"


def test_another_message_list_would_not_hold() -> None:
    text = amozarrain.A4.paper.replace("h 1", "h 2")
    outcome = amozarrain.judge_migration(replace(amozarrain.A4, paper=text), amozarrain.SIMPLE, "mft")
    assert not outcome.holds
    assert "the messages differ" in outcome.note


def test_the_order_counts_on_each_link_and_not_between_links() -> None:
    messages = amozarrain.expected_messages("b1→b2 X, b1→b3 Y, b1→b2 Z")
    swapped = amozarrain.expected_messages("b1→b3 Y, b1→b2 X, b1→b2 Z")
    assert amozarrain.by_link(messages) == amozarrain.by_link(swapped)
    assert amozarrain.by_link(messages) != amozarrain.by_link(messages[::-1])
