"""`roamcast fuzz`: seeds over processes, failures with their stories, and stories replayed."""

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.commands import Command

from roamcast.cli import build_app, run
from roamcast.cli.fuzz import describe, parse_faults, parse_protocols, parse_seeds
from roamcast.filters.selector import parse
from roamcast.mobility import PROTOCOLS
from roamcast.mobility.sub_unsub import SubUnsub
from roamcast.protocol.messages import AttachRequest, Burst, Grant, Relayed, Update
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.session import Session
from roamcast.simulator import fuzz as drawing

ROAMCAST = Path(sys.executable).parent / "roamcast"
COMMAND = Command("fuzz")
run_json, refused = COMMAND.json, COMMAND.refused
# The rule as published loses something with many seeds; the first is enough.
FAILING = shlex.split("--protocol sub_unsub:published --seeds 0:60 --failures-max 1 --workers 1")

GOOD_STORY = """
brokers b0-b1 b1-b2
protocol sub_unsub
at 0.0 c attach b0
at 0.0 p attach b1
at 0.1 c subscribe x > 3
at 1.0 c leave
at 1.2 p publish {"x": 5}   # while nobody is there
at 1.4 c attach b2
"""


# Seeds.


def test_all_protocols_over_a_few_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "--protocol", "all", "--seeds", "0:3", "--workers", "1")
    assert list(result["protocols"]) == parse_protocols("all")
    assert {"none", "durable", "sub_unsub"} <= set(result["protocols"])
    assert (result["seeds"], result["runs"]) == (3, 3 * len(result["protocols"]))
    assert (result["violations"], result["failures"]) == (0, [])
    for total in ("handoffs", "notifications"):
        assert result[total] == sum(figures[total] for figures in result["protocols"].values()) > 0
    assert result["protocols"]["sub_unsub"]["lost"] == 0
    assert result["protocols"]["none"]["lost"] == sum(result["protocols"]["none"]["excused"].values()) > 0


def test_all_leaves_out_the_rules_as_published() -> None:
    assert any(":" in name for name in PROTOCOLS)
    assert parse_protocols("all") == sorted(name for name in PROTOCOLS if ":" not in name)
    assert parse_protocols("sub_unsub:published") == ["sub_unsub:published"]


@pytest.mark.slow  # 9 s
def test_the_number_of_workers_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Also not when it stops early: seeds beyond the last failure that counts are left out."""
    options = ["--protocol", "sub_unsub:published", "--seeds", "0:60", "--failures-max", "2"]
    alone = run_json(capsys, *options, "--workers", "1", code=1)
    assert run_json(capsys, *options, "--workers", "3", code=1) == alone
    seeds = [failure["seed"] for failure in alone["failures"]]
    assert len(seeds) == 2
    assert alone["seeds"] == seeds[-1] + 1 < 60
    assert alone["protocols"]["sub_unsub:published"]["failing_seeds"] == seeds


def test_a_failure_is_a_story_that_fails_when_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = run_json(capsys, *FAILING, code=1)
    (failure,) = result["failures"]
    assert (failure["protocol"], failure["seed"]) == ("sub_unsub:published", result["seeds"] - 1)
    assert failure["violations"][0].startswith("lost: ")
    assert result["violations"] >= 1
    assert 0 < failure["story"].count("\nat ") < 30, "it is shrunk"
    (tmp_path / "story.txt").write_text(failure["story"])
    again = run_json(capsys, "--story", str(tmp_path / "story.txt"), code=1)
    assert again["violations"] == failure["violations"]
    assert again["story"] == failure["story"]
    mended = run_json(capsys, "--story", str(tmp_path / "story.txt"), "--protocol", "sub_unsub")
    assert (mended["violations"], mended["lost"], mended["protocol"]) == ([], 0, "sub_unsub")


def test_a_person_gets_a_command_that_replays_the_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["fuzz", *FAILING]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("fuzzing sub_unsub:published ...\n")
    violations = re.findall(r"^  (violation: .*)$", output.out, re.MULTILINE)
    assert violations
    command = output.out.partition("Replay it with\n")[2]
    assert command.startswith("roamcast fuzz --trace --story - <<'END'\n")
    replayed = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PATH": f"{ROAMCAST.parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert replayed.returncode == 1, replayed.stderr
    assert re.findall(r"^violation: .*$", replayed.stdout, re.MULTILINE) == violations


def test_a_person_gets_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["fuzz", "--protocol", "none", "--seeds", "0:2", "--workers", "1"]) == 0
    shown = capsys.readouterr().out
    (row,) = [line for line in shown.splitlines() if line.startswith("│")]
    assert row.split("│")[1:3] == [" none              ", "     2 "]
    assert "Replay" not in shown


def test_a_mistake_in_a_protocol_names_the_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(protocol: str, seed: int, faults: tuple[str, ...]) -> None:
        raise KeyError("broker")

    monkeypatch.setattr(drawing, "draw_story", fail)
    assert run(build_app(), ["fuzz", "--protocol", "none", "--seeds", "8:9"]) == 70
    assert "protocol none with seed 8: KeyError: 'broker'" in capsys.readouterr().err


def test_ctrl_c_ends_all_processes_in_one_line() -> None:
    process = subprocess.Popen(
        [ROAMCAST, "fuzz", "--seeds", "0:1000000", "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("fuzzing ")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    latest = time.monotonic() + 30
    # Interrupted when workers have been started, where that can be seen; else at once.
    while children.exists() and len(children.read_text().split()) < 3:
        assert time.monotonic() < latest
    # To the whole group, as a terminal does. The pipes end when the last process has.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "roamcast: interrupted\n")


@pytest.mark.parametrize(
    ("text", "seeds"), [("0:200", range(200)), ("17", range(17, 18)), ("5:6", range(5, 6))]
)
def test_seeds_are_read(text: str, seeds: range) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", ":", "0:", ":5", "a:b", "0-5", "1:2:3", "-1:5", "1.5", "²:³", " 1", "9" * 19]
)
def test_seeds_that_are_none_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, f"--seeds={text}")
    assert line == f"--seeds {text!r}: valid is FROM:TO such as 0:200, or one seed such as 17"


@pytest.mark.parametrize("text", ["5:5", "5:4"])
def test_no_seeds_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--seeds", text) == f"--seeds {text!r}: holds no seed; TO must be above FROM"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--protocol nope", "mobility protocol 'nope': valid are "),
        ("--protocol=", "mobility protocol '': valid are "),
        ("--workers 0", "invalid value for '--workers'"),
        ("--trace", "--trace shows the messages of a story: name one with --story FILE"),
        ("--story s.txt --seeds 0:5", "--seeds and --story exclude each other"),
        ("--story missing.txt", "--story missing.txt: cannot be read (No such file or directory)"),
        ("--story s.txt --faults all", "--faults and --story exclude each other"),
        ("--faults rain", "--faults 'rain': there is no fault 'rain'; valid are crash, partition, loss"),
        ("--faults=", "--faults '': there is no fault ''; valid are "),
        ("--faults loss,", "--faults 'loss,': there is no fault ''; valid are "),
        ("--faults crash --protocol sub_unsub", "a bound on the overlay's delay, which crash breaks"),
    ],
)
def test_what_cannot_be_is_refused(options: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in refused(capsys, *options.split())


# Faults.


def test_faults_are_drawn_for_those_that_promise_something(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "--faults", "loss,crash", "--seeds", "0:3", "--workers", "1")
    assert result["faults"] == ["crash", "loss"] == list(parse_faults("loss,crash,loss"))
    why = "sub_unsub relies on a bound on the overlay's delay, which crash breaks"
    assert result["left_out"] == {"sub_unsub": why}
    assert sorted([*result["protocols"], "sub_unsub"]) == parse_protocols("all")
    for figures in result["protocols"].values():
        assert figures["crashes"] > 0
    assert (result["violations"], result["seeds"]) == (0, 3)
    without = run_json(capsys, "--protocol", "none", "--seeds", "0:3", "--workers", "1")
    assert (without["faults"], without["left_out"]) == ([], {})
    assert without["protocols"]["none"]["crashes"] == 0
    assert without["protocols"]["none"]["deliveries"] != result["protocols"]["none"]["deliveries"]


def test_a_person_is_told_who_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["fuzz", "--faults", "all", "--seeds", "0:2", "--workers", "1"]) == 0
    *lines, left_out = capsys.readouterr().out.splitlines()
    assert any("crashes ┃ links down" in line for line in lines)
    relies = "relies on a bound on the overlay's delay, which crash, partition and history break"
    assert left_out == f"skipped: sub_unsub {relies}"


@pytest.mark.slow  # 6 s
def test_the_same_faults_are_drawn_by_any_worker(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--protocol", "reactive", "--faults", "all", "--seeds", "0:8"]
    alone = run_json(capsys, *options, "--workers", "1")
    assert run_json(capsys, *options, "--workers", "2") == alone


def test_a_failure_under_faults_is_a_story_that_tells_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SubUnsub, "assumes", frozenset())
    options = shlex.split("--protocol sub_unsub --faults partition --seeds 0:40 --failures-max 1 --workers 1")
    (failure,) = run_json(capsys, *options, code=1)["failures"]
    assert re.search(r"^at [0-9.]+ \w+ cut \w+$", failure["story"], re.MULTILINE)
    (tmp_path / "story.txt").write_text(failure["story"])
    again = run_json(capsys, "--story", str(tmp_path / "story.txt"), code=1)
    assert again["violations"] == failure["violations"]


# MQTT clients.


def test_mqtt_clients_over_a_few_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    options = shlex.split("--front mqtt --faults all --seeds 0:2 --workers 1")
    result = run_json(capsys, *options)
    assert result["front"] == "mqtt"
    assert {"multi_hop_handoff", "relocation", "proactive", "phoenix"} <= result["protocols"].keys()
    assert "none does not promise exactly once" in result["left_out"]["none"]


def test_both_fronts_of_a_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    options = shlex.split("--front all --protocol relocation --seeds 0:1 --workers 1")
    assert list(run_json(capsys, *options)["protocols"]) == ["relocation (plain)", "relocation (mqtt)"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--front web", "valid are plain, mqtt, all"),
        ("--front mqtt --protocol none", "valid are all, multi_hop_handoff"),
        ("--front mqtt --feature location", "--front and --feature exclude each other"),
        ("--front mqtt --story -", "--front and --story exclude each other"),
    ],
)
def test_fronts_that_cannot_be(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    assert words in refused(capsys, *arguments.split())


# Stories.


def test_a_story_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text(GOOD_STORY)
    result = run_json(capsys, "--story", str(tmp_path / "story.txt"))
    assert (result["notifications"], result["expected"], result["deliveries"], result["handoffs"]) == (
        1,
        1,
        1,
        1,
    )
    assert "messages" not in result
    assert run(build_app(), ["fuzz", "--story", str(tmp_path / "story.txt")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/story.txt: the promise of sub_unsub is kept\n"


def test_a_story_is_traced(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(GOOD_STORY))
    assert run(build_app(), ["fuzz", "--story", "-", "--trace"]) == 0
    *messages, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "standard input: the promise of sub_unsub is kept"
    for message in messages:
        assert re.match(r" +\d+\.\d{6}  b[012] -> b[012]  [A-Z]\w+|.*  p/1 ", message), message
    assert '    1.220000  b1 -> b0  p/1 {"x": 5}' in messages
    (transfer, _) = [message for message in messages if "Transfer" in message]
    assert 'bursts=[p/1 {"x": 5}]' in transfer
    assert transfer.endswith("(from b0 to b2)")


def test_faults_are_traced(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    faults = "at 0.5 b1 cut b2\nat 0.6 b1 heal b2\nat 1.1 b1 crash\nat 1.15 b1 restart\n"
    story = GOOD_STORY.replace("sub_unsub", "phoenix") + faults + "at 1.2 b2 crash unsent\nat 3 b2 restart\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(story))
    assert run(build_app(), ["fuzz", "--story", "-", "--trace"]) == 0
    *seen, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "standard input: the promise of phoenix is kept"
    assert seen == sorted(seen, key=lambda line: float(line.split()[0]))
    for line in (
        "    0.500000  b1 notices that its link to b2 is down",
        "    0.600000  b2 notices that its link to b1 is up",
        "    1.100000  b1 crashes",
        "    1.150000  b1 is back",
        "    1.420000  b2 crashes, before it sends anything of its last step",
        "    3.000000  b2 is back",
    ):
        assert line in seen
    assert any(line.startswith("    3.000000  b2 -> b1  ") for line in seen)


def test_a_trace_fits_into_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(GOOD_STORY))
    result = run_json(capsys, "--story", "-", "--trace")
    assert any("AttachRequest client=c" in message for message in result["messages"])


@pytest.mark.parametrize(
    ("story", "line"),
    [
        ("at 0 c attach b0\n", "the line `brokers a-b b-c …` is missing"),
        (GOOD_STORY + "at 2 c fly b1\n", "story.txt, line 10: 'fly': valid are attach, leave"),
        (GOOD_STORY + "at 2 c attach b7\n", "there is no broker 'b7'"),
        (GOOD_STORY + "protocol nope\n", "mobility protocol 'nope': valid are "),
        (GOOD_STORY + "routing nope\n", "routing strategy 'nope': valid are "),
        ("\xff\xfe", "is not a text file in UTF-8"),
    ],
)
def test_a_story_that_cannot_be_is_refused(
    story: str, line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "story.txt").write_bytes(story.encode("latin-1" if story.startswith("\xff") else "utf-8"))
    assert line in refused(capsys, "--story", str(tmp_path / "story.txt"))


def test_messages_read_well() -> None:
    x, y = parse("x = 1"), parse("y = 2")
    burst = Burst("p", 0, 3, encode_attributes({"x": 1}), count=2, bodies=(b"", b""))
    request = AttachRequest("c", "b2", 7, 1, {"session": 4})
    assert describe(burst) == 'p/3..4 {"x": 1}'
    assert describe(Update(subscribe=((x, "c"), (y, "")), settle=4, flush=True)) == (
        "Update subscribe=[x = 1 of c; y = 2] settle=4 flush"
    )
    assert describe(Relayed("b2", "b0", request)) == (
        "AttachRequest client=c broker=b2 connection=7 moves=1 received={session: 4} (from b2 to b0)"
    )
    assert describe(Grant(Session("c", number=2, subscriptions={"x = 1": 1.5}))) == (
        "Grant session=Session client=c number=2 subscriptions={x = 1: 1.5}"
    )


# Filters that depend on where clients are.


def test_the_feature_location(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "--feature", "location", "--seeds", "0:8", "--workers", "1")
    assert result["feature"] == "location"
    figures = result["protocols"]["any"]
    assert (figures["seeds"], figures["violations"]) == (8, 0)
    assert figures["located"] > 50
    one = run_json(capsys, "--feature", "location", "--protocol", "relocation", "--seeds", "3")
    assert set(one["protocols"]) == {"relocation"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--feature", "colour"], "--feature 'colour': valid is location"),
        (
            ["--feature", "location", "--protocol", "home_broker"],
            "--feature location --protocol home_broker: valid are any, all, ",
        ),
        (["--feature", "location", "--faults", "crash"], "--feature and --faults exclude each other"),
        (["--feature", "location", "--story", "x"], "--feature and --story exclude each other"),
    ],
)
def test_a_feature_that_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert refused(capsys, *arguments).startswith(message)
