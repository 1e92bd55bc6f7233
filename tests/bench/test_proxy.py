"""`roamcast bench proxy`: a move-in and a plain delivery for real, small."""

import pytest

from roamcast.bench.foreign_brokers import missing
from roamcast.bench.proxy import KINDS, SYNCS, run
from roamcast.bench.report import split_names
from roamcast.errors import InputError


def test_unknown_brokers_are_refused() -> None:
    assert split_names("--against", "nats, activemq", KINDS) == ["nats", "activemq"]
    with pytest.raises(InputError, match="--against kafka: valid are mosquitto, nats, activemq, roamcast"):
        split_names("--against", "kafka", KINDS)


def test_unknown_settings_of_the_journal_are_refused() -> None:
    assert split_names("--sync", "group, process", SYNCS) == ["group", "process"]
    with pytest.raises(InputError, match="--sync always: valid are process, group"):
        split_names("--sync", "always", SYNCS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mosquitto", "nats"])
def test_everything_comes_with_and_without_a_proxy(kind: str) -> None:
    reason = missing(kind)
    if reason is not None:
        pytest.skip(reason)
    result = run([kind], syncs=["group"], messages=300, rounds=2)
    (row,) = result["cases"]
    assert (row["broker"], row["sync"]) == (kind, "group")
    assert row["through_per_s"] > 0
    assert row["move_in_s"] > 0
    times = zip(row["all"]["move_in_s"], row["all"]["broker_s"], strict=True)
    ratios = [moved_s / plain_s for moved_s, plain_s in times]
    assert row["ratio"] == pytest.approx(sum(ratios) / 2)
    assert [row["ratio_half_from"], row["ratio_half_to"]] == sorted(ratios)
    assert len(row["all"]["move_in_s"]) == 2


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roamcast.bench.proxy.missing", lambda kind: f"{kind} is not installed")
    result = run(["nats"])
    assert result["cases"] == []
    assert result["skipped"] == {"nats": "nats is not installed"}
