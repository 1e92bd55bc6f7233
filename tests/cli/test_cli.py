"""The manners of the `roamcast` command: one line for a mistake, one JSON object for a program."""

import json
import math
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pytest
import typer
from tests.cli.terminals import read_all
from typer.main import get_command

import roamcast.bench
from roamcast import __version__
from roamcast.cli import build_app, main, run
from roamcast.cli.output import cell, emit_json, plain, prepare_out_folder, progress, table
from roamcast.cli.usage import new_group
from roamcast.errors import InputError, nearest

ROAMCAST = Path(sys.executable).parent / "roamcast"


def planted(error: BaseException) -> typer.Typer:
    """An app with one command, `fail`, that raises."""
    app = new_group("An app for tests.", examples=["roamcast fail"])

    @app.command()
    def fail() -> None:
        print("some output")
        raise error

    @app.command()
    def succeed(count: int = 1) -> None:
        print("x" * count)

    return app


# Through the installed command.


def test_the_installed_command_shows_its_version() -> None:
    result = subprocess.run([ROAMCAST, "--version"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"roamcast {__version__}\n", "")


def test_the_installed_command_answers_a_mistake_in_one_line() -> None:
    result = subprocess.run([ROAMCAST, "bench", "mtach"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "roamcast: 'roamcast bench' has no command 'mtach'; did you mean 'match'?\n"


def test_a_reader_that_went_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run([ROAMCAST, "--help"], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (141, b"")


def test_an_interruption_while_commands_are_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(only: str = "") -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("roamcast.cli.app.build_app", interrupted)
    monkeypatch.setattr(sys, "argv", ["roamcast", "bench", "match"])
    assert main() == 130
    assert capsys.readouterr().err == "roamcast: interrupted\n"


def test_starting_loads_nothing_heavy() -> None:
    heavy = [
        "numpy",
        "pyarrow",
        "matplotlib",
        "networkx",
        "lark",
        "rich",
        "roamcast.filters",
        "roamcast.protocol",
    ]
    code = f"""
import sys
from roamcast.cli import build_app, main, run
assert run(build_app(), ["--help"]) == 0
print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stderr == "[]\n"


# What is typed wrong.


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["bench"], "'roamcast bench' needs a command: "),
        (["bnch"], "'roamcast' has no command 'bnch'; did you mean 'bench'?"),
        (["xyzzy"], "'roamcast' has no command 'xyzzy'; valid are: "),
        (["--verson"], "'roamcast' has no option --verson; did you mean '--version'?"),
        (
            ["bench", "match", "--subscription", "5"],
            "'roamcast bench match' has no option --subscription; did you mean '--subscriptions'?",
        ),
        (
            ["bench", "match", "--zzz"],
            "'roamcast bench match' has no option --zzz; see 'roamcast bench match --help'",
        ),
        (["bench", "match", "--subscriptions"], "option '--subscriptions' requires an argument"),
        (["bench", "match", "--subscriptions", "many"], "'many' is not a whole number; see"),
        (["links", "--up"], "'roamcast links' has no option --up; see 'roamcast links --help'"),
        (["top", "--interval", "0"], "'--interval': 0.0 is not between 0.2 and 60; see"),
        (["bench", "match", "--subscriptions", "0"], "invalid value for '--subscriptions'"),
        (["bench", "match", "more"], "unexpected argument 'more'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(build_app(), arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("roamcast: ")
    assert output.err.count("\n") == 1
    assert line in output.err


def test_a_near_word_is_found_and_a_far_one_is_not() -> None:
    words = ["--subscriptions", "--seed", "--json"]
    assert nearest("--sub", words) == "--subscriptions"
    assert nearest("--SEED", words) == "--seed"
    assert nearest("--jsno", words) == "--json"
    assert nearest("--verbose", words) is None


# What goes wrong inside a command.


def test_bad_input_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(planted(InputError("site.toml: line 3: no such broker")), ["fail"]) == 2
    assert capsys.readouterr().err == "roamcast: site.toml: line 3: no such broker\n"


def test_bad_input_of_several_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(planted(InputError("first\n  second")), ["fail"]) == 2
    assert capsys.readouterr().err == "roamcast: first second\n"


def test_an_interruption_has_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(planted(KeyboardInterrupt()), ["fail"]) == 130
    assert capsys.readouterr().err == "roamcast: interrupted\n"


def test_our_own_fault_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROAMCAST_DEBUG", raising=False)
    assert run(planted(KeyError("broker")), ["fail"]) == 70
    line = "roamcast: internal error: KeyError: 'broker'; set ROAMCAST_DEBUG=1 for the traceback\n"
    assert capsys.readouterr().err == line


def test_a_package_without_a_library_of_the_system_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    why = "libstdc++.so.6: cannot open shared object file: No such file or directory"
    error = ImportError(why, name="pyarrow.lib", path="/opt/pyarrow/lib.cpython-311-x86_64-linux-gnu.so")
    assert run(planted(error), ["fail"]) == 2
    line = f"roamcast: the package pyarrow cannot be loaded ({why}); install that library\n"
    assert capsys.readouterr().err == line


def test_our_own_fault_shows_its_traceback_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROAMCAST_DEBUG", "1")
    assert run(planted(KeyError("broker")), ["fail"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_command_chooses_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(planted(typer.Exit(1)), ["fail"]) == 1
    assert run(planted(typer.Exit(1)), ["succeed", "--count", "3"]) == 0
    assert capsys.readouterr() == ("some output\nxxx\n", "")


# Help.


def commands_below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for below, inner in getattr(command, "commands", {}).items():
        yield from commands_below(inner, f"{name} {below}")


APP = build_app()
EVERYTHING = get_command(APP)
COMMANDS = dict(commands_below(EVERYTHING, "roamcast"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_an_example_that_parses(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMANDS[name].help, f"'{name}' does not say what it does"
    assert run(APP, [*name.split()[1:], "--help"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    examples = [line for line in shown if line.startswith("roamcast ")]
    assert examples, f"'{name} --help' shows no example"
    for example in examples:
        assert example.startswith(name)
        inner: Any = EVERYTHING
        # As a shell reads it: quotes, and what goes to the standard input.
        words = shlex.split(example.partition(" < ")[0])[1:]
        # A group may be a command too: then its own options come where a command could.
        while hasattr(inner, "commands") and words and not words[0].startswith("-"):
            inner = inner.commands[words.pop(0)]
        assert inner.make_context("roamcast", words).params is not None


def test_the_command_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), []) == 0
    assert capsys.readouterr().out.startswith("Usage: roamcast")


# roamcast bench match.


@pytest.fixture
def benchmark_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The benchmark replaced by one that writes down how it was called."""
    calls: list[dict[str, Any]] = []

    def run_benchmark(**arguments: Any) -> dict[str, Any]:
        arguments.pop("progress")(1, 2)
        calls.append(arguments)
        return {"matches": 7, "index": {"us_per_event": 1.5}, "spread": math.nan}

    module = ModuleType("roamcast.bench.match")
    vars(module)["run"] = run_benchmark
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(roamcast.bench, "match", module, raising=False)
    return calls


def test_bench_match_prints_one_json_object(
    benchmark_calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--subscriptions", "20", "--attributes", "3", "--events", "4", "--seed", "9", "--json"]
    assert run(build_app(), ["bench", "match", *options]) == 0
    assert benchmark_calls == [{"subscriptions": 20, "attributes": 3, "events": 4, "seed": 9}]
    assert json.loads(capsys.readouterr().out) == {
        "matches": 7,
        "index": {"us_per_event": 1.5},
        "spread": None,
    }


def test_bench_match_prints_a_table(
    benchmark_calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(build_app(), ["bench", "match"]) == 0
    assert benchmark_calls[0]["subscriptions"] == 100_000
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "index: us per event" in line]
    assert "1.5" in row


# Output.


def test_json_is_one_line_in_the_order_given(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"z": 1, "a": {"nan": math.nan, "inf": -math.inf}, "text": "é\n"})
    out = capsys.readouterr().out
    assert out == '{"z": 1, "a": {"nan": null, "inf": null}, "text": "\\u00e9\\n"}\n'


def test_json_takes_what_runs_give() -> None:
    given = {1: np.int64(3), "f": np.float64("nan"), "a": np.array([1.5, math.inf]), "s": {"b", "a"}}
    assert plain(given) == {"1": 3, "f": None, "a": [1.5, None], "s": ["a", "b"]}
    assert plain((Path("a/b"), True, None)) == ["a/b", True, None]
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        plain(object())


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234567, "1,234,567"), (12345.6, "12,346"), (0.000123456, "0.0001235"), (True, "yes"), (None, "-")],
)
def test_cells_read_well(value: object, shown: str) -> None:
    assert cell(value) == shown


def test_a_table_in_a_pipe_breaks_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 50
    table(["what", "count"], [[long, 5], ["[red]short", 12345]], title="a title")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "a title"
    assert any(long.strip() in line for line in lines)
    (short,) = [line for line in lines if "[red]short" in line]
    assert short.rstrip(" │").endswith("12,345"), "numbers stand at the right"


def test_progress_in_a_log_is_a_line_at_each_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("simulating") as report:
        for done in range(1000):
            report(done, 1000)
    output = capsys.readouterr()
    assert output.out == ""
    first, last = output.err.splitlines()
    assert first == "simulating ..."
    assert last.startswith("simulating: done in ")


def test_progress_in_a_log_says_now_and_then_how_long_the_rest_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times_s = iter([100.0, 110.0, 140.0, 150.0, 180.0, 220.0, 230.0])
    monkeypatch.setattr("roamcast.cli.output.time.monotonic", lambda: next(times_s))
    with progress("simulating") as report:
        for done in range(1, 5):
            report(done, 4)
        report(1, 3)  # What has begun anew takes no longer because of what was before it.
    assert capsys.readouterr().err.splitlines() == [
        "simulating ...",
        "simulating: 2 of 4, about 40 s left",
        "simulating: 1 of 3, about 80 s left",
        "simulating: done in 130.0 s",
    ]


def test_progress_in_a_log_does_not_call_a_failure_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError), progress("simulating"):
        raise InputError("no")
    assert capsys.readouterr().err == "simulating ...\n"


def test_progress_on_a_terminal_is_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress("simulating") as report:
            report(250, 1000)
    shown = read_all(ours)
    assert "simulating" in shown
    assert "250/1000" in shown
    assert capsys.readouterr().out == ""


def test_an_out_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert prepare_out_folder(folder) == folder
    assert folder.is_dir()
    assert list(folder.iterdir()) == [], "what it was tried with is gone again"
    assert prepare_out_folder(folder) == folder


@pytest.mark.parametrize("below", ["", "deeper", "deeper/still"])
def test_an_out_folder_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"^--out .*notes\.txt is a file; name a folder$"):
        prepare_out_folder(tmp_path / "notes.txt" / below)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place where not even root may write")
def test_an_out_folder_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(InputError, match=r"^--to /proc/roamcast: cannot be written to \(.+\)$"):
        prepare_out_folder(Path("/proc/roamcast"), option="--to")


def test_the_shell_is_told_what_could_come_next() -> None:
    words = {"_ROAMCAST_COMPLETE": "complete_bash", "COMP_WORDS": "roamcast bro", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "roamcast"],
        env=os.environ | words,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["broker"], "")
