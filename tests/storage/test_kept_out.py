"""Who is kept out, for how long, and what the file keeps of it; reports of failures are bounded."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from roamcast.storage import failures
from roamcast.storage.failures import Failure, failure_of, write_report
from roamcast.storage.kept_out import FILE_NAME, FIRST_S, LONGEST_S, UNEXPLAINED_MAX, KeptOut, Who

MALLORY = Who("client", "mallory")
DAY_S = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_the_time_doubles_for_a_culprit_and_is_forgotten_after_a_day(tmp_path: Path) -> None:
    clock = Clock()
    kept_out = KeptOut(tmp_path, clock)
    times = []
    for _ in range(9):
        times.append(kept_out.blame(MALLORY, "why"))
        assert "mallory is kept out until" in kept_out.refusal("client", "mallory")
        clock.now += times[-1]
        assert kept_out.refusal("client", "mallory") == ""
    assert times == [FIRST_S * 2**i for i in range(7)] + [LONGEST_S] * 2
    clock.now += DAY_S
    assert kept_out.blame(MALLORY, "why") == FIRST_S
    assert kept_out.refusal("peer", "mallory") == "", "a peer of the same name is somebody else"


def test_a_suspect_is_kept_out_for_the_shortest_time_unless_it_was_a_culprit(tmp_path: Path) -> None:
    kept_out = KeptOut(tmp_path, Clock())
    assert [kept_out.suspect(Who("client", "honest"), "why") for _ in range(3)] == [FIRST_S] * 3
    kept_out.blame(MALLORY, "why")
    assert kept_out.suspect(MALLORY, "why") == 2 * FIRST_S


def test_a_restart_forgets_nobody_and_an_operator_lets_in_again(tmp_path: Path) -> None:
    clock = Clock()
    kept_out = KeptOut(tmp_path, clock)
    kept_out.fail_stops = 3
    kept_out.blame(MALLORY, "why")
    kept_out.blame(Who("peer", "e"), "why")
    kept_out.save()
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    clock.now -= 10 * DAY_S  # Set back: nobody is kept out for ten days because of that.
    again = KeptOut(tmp_path, clock)
    assert (again.fail_stops, list(again.now())) == (3, [MALLORY, Who("peer", "e")])
    assert all(one.until <= clock.now + LONGEST_S for one in again.now().values())
    assert again.readmit("mallory") == [MALLORY]
    assert again.readmit("mallory") == []
    assert list(KeptOut(tmp_path, clock).now()) == [Who("peer", "e")]


def test_a_damaged_file_keeps_nobody_out_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    assert KeptOut(tmp_path, Clock()).now() == {}
    assert "nobody is kept out" in caplog.text


def test_only_recent_fail_stops_without_a_culprit_count(tmp_path: Path) -> None:
    clock = Clock()
    kept_out = KeptOut(tmp_path, clock)
    assert all(kept_out.count_unexplained() for _ in range(UNEXPLAINED_MAX))
    assert not kept_out.count_unexplained()
    clock.now += 601
    assert kept_out.count_unexplained()


def test_reports_are_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "REPORTS_MAX", 2)
    monkeypatch.setattr(failures, "ENTRY_BYTES_MAX", 10)
    paths = []
    for i in range(4):
        failure = failure_of(raised(), "a", "1", 0.0, ["x" * 5000] * 1000, bytes(9 + i))
        paths.append(write_report(tmp_path, msgspec.structs.replace(failure, at=float(i))))
    kept = sorted((tmp_path / failures.FOLDER_NAME).iterdir())
    assert kept == paths[2:]
    last = msgspec.json.decode(kept[-1].read_bytes(), type=Failure)
    assert (last.entry, last.input_count, last.error) == (b"", 1000, "KeyError: 'x'")
    assert last.place.startswith("test_kept_out.py:")
    assert "in raised" in last.traceback
    assert kept[-1].stat().st_size < 200_000
    assert stat.S_IMODE(kept[-1].stat().st_mode) == 0o600


def raised() -> Exception:
    try:
        raise KeyError("x")
    except KeyError as error:
        return error
