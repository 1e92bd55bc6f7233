"""`roamcast bench attack`: two short attacks for real, and how what was noticed is judged."""

import json

import pytest

from roamcast.bench.attack.run import reasons
from roamcast.bench.attack.table import ATTACKS
from roamcast.cli import build_app, run

WELL = {
    "is_running": True, "lost": 0, "unanswered": 0, "reconnects": 0, "ping_worst_ms": 99.0,
    "memory_mb_peak": 150.0, "memory_mb_max": 150.0, "connect_failed": 0, "healthz_failed": 0,
}  # fmt: skip


@pytest.mark.slow  # 11 s
def test_short_attacks_are_noticed_by_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "silent-tcp", "--only", "mutated-packets", "--seconds", "1", "--json"]
    code = run(build_app(), ["bench", "attack", *arguments, "--set", "quotas.connecting_max=50"])
    result = json.loads(capsys.readouterr().out)
    silent, mutated = result["cases"]
    assert code == (0 if result["holds"] else 1)
    for case in (silent, mutated):
        # How long a ping takes at worst is the machine's affair, where other tests run beside it.
        assert [why for why in case["why"] if "ping" not in why] == []
        assert case["pings"] > 50
        assert 0 < case["ping_p99_ms"] <= case["ping_worst_ms"]
        assert 0 < case["memory_mb_before"] <= case["memory_mb_peak"]
    assert silent["did"]["opened"] > 50
    assert mutated["did"]["packets"] > 10
    assert silent["said"], "connections give way, and the broker says so"
    assert mutated["said"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"lost": 1}, "messages were lost"),
        ({"unanswered": 1}, "messages were lost"),
        ({"ping_worst_ms": 100.0}, "a ping took longer than 100 ms"),
        ({"memory_mb_peak": 151.0}, "memory is above the quota"),
        ({"connect_failed": 1}, "a new client did not get in"),
        ({"healthz_failed": 1}, "/healthz did not answer"),
        ({"joined_s": float("inf")}, "a broker could not join"),
        ({"reconnects": 1}, "an honest client was disconnected"),
        ({"is_running": False}, "the broker ended"),
    ],
)
def test_what_hurts_is_said(changed: dict[str, object], why: str) -> None:
    assert reasons(WELL) == []
    assert reasons(WELL | changed) == [why]


def test_the_attacks_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["bench", "attack", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["cases"]
    assert [row["attack"] for row in listed] == list(ATTACKS)
    assert all(row["what"] for row in listed)


def test_an_unknown_attack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["bench", "attack", "--only", "silent-tpc"]) == 2
    assert "--only silent-tpc: did you mean 'silent-tcp'?" in capsys.readouterr().err
