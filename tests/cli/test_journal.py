"""`roamcast journal`: what is there, whether it is whole, and one line for what is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.storage.journals import commit_entries, open_journal, segments, snapshots

from roamcast.broker.inputs import ClientFrames, ConnectionLost, Started, encode_entry
from roamcast.broker.settings import MachineSettings
from roamcast.cli import build_app, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two segments of entries before a snapshot were recycled; three entries follow it."""
    journal, _ = open_journal(tmp_path / "journal", version="1.2")
    commit_entries(journal, [[9_000]] * 8)
    journal.write_snapshot(b"the state")
    journal.append(encode_entry(10.5, [Started(MachineSettings("a"))]))
    journal.append(encode_entry(11.0, [ClientFrames(7, b"\x30\x05\x00\x01t\xff\xfe"), ConnectionLost(7)]))
    journal.commit()
    journal.append(msgspec.msgpack.encode({"later": b"text"}))
    journal.commit()
    journal.close()
    return tmp_path / "journal"


def outcome(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], list[str]]:
    code = run(build_app(), ["journal", *map(str, arguments)])
    output = capsys.readouterr()
    return code, output.out.splitlines(), output.err.splitlines()


def outcome_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    code, lines, errors = outcome(capsys, *arguments, "--json")
    assert (len(lines), errors) == (1, [])
    return code, json.loads(lines[0])


# --- verify ---


def test_verify_tells_of_every_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, errors = outcome(capsys, "verify", folder)
    assert (code, errors) == (0, [])
    held = "state after entry 8, 9 bytes, version 1.2, replay 1"
    assert lines[0] == f"snapshot-000000000000000008.snapshot: whole, {held}"
    assert lines[1].startswith("segment-000000000003.journal: whole, entries 9 to 11 in 2 commits, ")
    assert lines[2:] == ["recovery starts from the snapshot after entry 8, replays 3 entries"]


def test_verify_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A broker's data folder will do as well.
    code, report = outcome_json(capsys, "verify", folder.parent)
    assert code == 0
    assert report["folder"] == str(folder)
    assert (report["sound"], report["problem"], report["in_use_by"]) == (True, None, None)
    assert (report["snapshot"], report["entries"], report["cut_bytes"]) == (8, 3, 0)
    segment = report["files"][1]
    assert [segment[key] for key in ("kind", "first", "last", "entries", "commits")] == [
        "segment",
        9,
        11,
        3,
        2,
    ]


def test_verify_says_what_would_be_cut(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segments(folder)[0]
    end = path.read_bytes().rindex(b"text") + 4
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"a record that has only begun")
    code, lines, _ = outcome(capsys, "verify", folder)
    assert code == 0
    assert "entries 9 to 11 in 2 commits," in lines[1]
    assert lines[1].endswith("(a torn commit of 24 bytes would be cut)")
    assert lines[2].endswith("replays 3 entries, cuts 24 torn bytes")


@pytest.mark.parametrize("how", ["cut", "zeroed"])
def test_verify_and_repair_of_a_journal_that_lost_its_end(
    folder: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    path = segments(folder)[0]
    data = path.read_bytes()
    kept = data.index(b"later")
    path.write_bytes(data[:kept] + (bytes(len(data) - kept) if how == "zeroed" else b""))
    code, lines, _ = outcome(capsys, "verify", folder)
    assert code == 1
    assert "entries 11 to 11 were acknowledged and are missing" in lines[-1]
    assert "roamcast journal repair" in lines[-1]
    code, lines, errors = outcome(capsys, "repair", folder.parent)
    assert (code, lines[1:]) == (
        1,
        ["would keep: entries up to 10", "would give up: 1 acknowledged entry, and all later ones"],
    )
    assert errors == ["nothing was changed; repair with --accept-loss"]
    code, report = outcome_json(capsys, "repair", folder, "--accept-loss")
    assert (code, report["repaired"], report["last_kept"], report["entries"]) == (0, True, 10, 1)
    assert outcome(capsys, "verify", folder)[0] == 0
    assert outcome(capsys, "repair", folder)[:2] == (0, ["nothing to repair"])


def test_verify_finds_damage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(segments(folder)[0], b"Started")
    code, lines, _ = outcome(capsys, "verify", folder)
    assert code == 1
    assert lines[1].startswith(
        "segment-000000000003.journal: DAMAGED after no entries, 0 bytes, version 1.2, replay 1: "
    )
    assert "damaged at offset 4096: entry 9 is broken or missing" in lines[1]
    assert lines[2].startswith(
        f"a broker refuses this journal: {segments(folder)[0]}: damaged at offset 4096"
    )
    code, report = outcome_json(capsys, "verify", folder)
    assert (code, report["sound"]) == (1, False)
    assert "damaged at offset 4096" in report["problem"]


def test_verify_finds_damage_that_a_broker_could_live_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, _ = open_journal(tmp_path)
    journal.write_snapshot(b"state")
    commit_entries(journal, [[10]])
    journal.close()
    flip(snapshots(tmp_path)[0], b"state")
    code, lines, _ = outcome(capsys, "verify", tmp_path)
    assert code == 1
    assert "DAMAGED" in lines[0]
    assert lines[-1] == "recovery starts from the beginning, replays 1 entry"


def test_verify_of_a_head_that_cannot_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segments(folder)[0].write_bytes(b"nothing")
    code, lines, _ = outcome(capsys, "verify", folder)
    assert code == 1
    assert "segment-000000000003.journal: DAMAGED: " in lines[1]


def test_a_journal_in_use_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, _ = open_journal(tmp_path)
    commit_entries(journal, [[10]])
    code, lines, errors = outcome(capsys, "verify", tmp_path)
    assert (code, lines[-1]) == (0, "recovery starts from the beginning, replays 1 entry")
    assert errors == [f"in use by process {os.getpid()}: the result may be outdated"]
    # Looking left no lock behind.
    journal.close()
    open_journal(tmp_path)[0].close()


# --- show ---


def test_show_tells_what_the_entries_hold(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, errors = outcome(capsys, "show", folder)
    assert (code, errors, len(lines)) == (0, [], 3)
    assert lines[0].startswith("9 (segment 3, ")
    assert '"Started": {"settings": {"MachineSettings": {"id": "a"' in lines[0]
    assert lines[1].endswith(
        '{"Entry": {"now": 11.0, "inputs": '
        '[{"ClientFrames": {"connection": 7, "data": "0x3005000174fffe"}}, '
        '{"ConnectionLost": {"connection": 7}}]}}'
    )
    assert lines[2] == '11 (segment 3, 13 bytes): {"later": "text"}'


def test_show_a_part(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, errors = outcome(capsys, "show", folder, "--from", 10, "--limit", 1)
    assert code == 0
    assert [line.split()[0] for line in lines] == ["10"]
    assert errors == ["more entries: --from 11"]
    code, lines, errors = outcome(capsys, "show", folder, "--from", 12)
    assert (code, lines, errors) == (0, [], ["no entries"])
    code, found = outcome_json(capsys, "show", folder, "--limit", 2)
    assert (code, found["more"]) == (0, True)
    assert [(one["sequence"], one["segment"]) for one in found["entries"]] == [(9, 3), (10, 3)]


def test_show_what_is_no_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, _ = open_journal(tmp_path)
    for content in (
        b"\xc1\xff",
        b"plain text",
        bytes(300),
        msgspec.msgpack.encode({1: [b"\xff", None, 2.5]}),
    ):
        journal.append(content)
    journal.close()
    _, found = outcome_json(capsys, "show", tmp_path)
    assert [one["content"] for one in found["entries"]] == [
        "0xc1ff", "plain text", f"0x{'00' * 256} … 300 bytes", {"1": ["0xff", None, 2.5]},
    ]  # fmt: skip


def test_show_goes_over_segments_and_up_to_a_break(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, _ = open_journal(tmp_path)
    commit_entries(journal, [[9_000]] * 20)
    journal.close()
    _, found = outcome_json(capsys, "show", tmp_path, "--from", 5)
    assert [one["sequence"] for one in found["entries"]] == list(range(5, 21))
    flip(segments(tmp_path)[1], b"9:x")
    _, found = outcome_json(capsys, "show", tmp_path, "--from", 5)
    assert [one["sequence"] for one in found["entries"]] == [5, 6, 7, 8, *range(13, 21)]
    assert found["missing"] == [[9, 12]]
    _, _, errors = outcome(capsys, "show", tmp_path)
    assert errors == ["entries 9 to 12 cannot be read; 'roamcast journal verify' says why"]


# --- mistakes ---


@pytest.mark.parametrize("command", ["verify", "show"])
def test_what_is_no_journal_gets_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, lines, errors = outcome(capsys, command, tmp_path / "none")
    assert (code, lines) == (2, [])
    assert errors == [f"roamcast: {tmp_path / 'none'}: there is no such folder; name that of a journal"]
    code, lines, errors = outcome(capsys, command, tmp_path)
    assert (code, lines) == (2, [])
    assert errors == [
        f"roamcast: {tmp_path}: no journal here; name the folder with the files segment-….journal"
    ]


def test_what_cannot_be_read_gets_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segments(folder)[0]
    path.unlink()
    path.mkdir()
    for command in ("verify", "show"):
        code, lines, errors = outcome(capsys, command, folder)
        assert (code, lines) == (2, [])
        assert errors == [f"roamcast: {path}: cannot be read (Is a directory)"]


@pytest.mark.parametrize("command", [[], ["verify"], ["show"]])
def test_help_has_an_example(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    code, lines, _ = outcome(capsys, *command, "--help")
    assert code == 0
    assert any(line.strip().startswith("roamcast journal ") for line in lines)


def flip(path: Path, where: bytes) -> None:
    """Flip a bit in the first place where these bytes are."""
    content = bytearray(path.read_bytes())
    content[content.index(where)] ^= 1
    path.write_bytes(content)
