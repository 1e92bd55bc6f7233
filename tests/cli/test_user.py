"""`roamcast user`: passwords that nobody sees, and one line for whatever is wrong."""

import hashlib
import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.terminals import read_all

from roamcast.cli import build_app, run
from roamcast.daemon.config import load
from roamcast.mqtt.scram import ScramVerifier
from roamcast.net.passwords import is_password
from roamcast.net.users import read_users, verifier_of

ROAMCAST = Path(sys.executable).parent / "roamcast"


class Stdin(io.TextIOWrapper):
    """Standard input that is no terminal."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


def user(monkeypatch: pytest.MonkeyPatch, *arguments: str, stdin: bytes = b"") -> int:
    monkeypatch.setattr(sys, "stdin", Stdin(stdin))
    return run(build_app(), ["user", *arguments])


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """A file with the users alice and bob, whose passwords are their names in capitals."""
    path = str(tmp_path / "users")
    for name in ("alice", "bob"):
        stdin = name.upper().encode() + b"\n"
        assert user(monkeypatch, "add", name, "--file", path, "--password-stdin", stdin=stdin) == 0
    capsys.readouterr()
    return path


def test_users_are_added_listed_checked_and_removed(
    users: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert user(monkeypatch, "list", "--file", users) == 0
    assert capsys.readouterr().out == "alice\nbob\n"
    check = ["check", "alice", "--file", users, "--password-stdin"]
    assert user(monkeypatch, *check, stdin=b"ALICE") == 0
    assert user(monkeypatch, *check, stdin=b"alice\r\n") == 1
    assert capsys.readouterr().out == "right\nwrong\n"
    assert user(monkeypatch, "remove", "alice", "--file", users) == 0
    capsys.readouterr()
    assert user(monkeypatch, "list", "--file", users, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"users": ["bob"]}


def test_the_variable_of_the_broker_names_the_file(users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROAMCAST_ACCESS_USERS", users)
    assert user(monkeypatch, "check", "bob", "--password-stdin", stdin=b"BOB\n") == 0


def test_a_password_is_replaced_only_when_asked(
    users: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add = ["add", "bob", "--file", users, "--password-stdin"]
    assert user(monkeypatch, *add, stdin=b"other\n") == 2
    assert "user 'bob' exists already; --replace sets a new password" in capsys.readouterr().err
    assert user(monkeypatch, *add, "--replace", stdin=b"other\n") == 0
    assert is_password(read_users(users)["bob"], b"other")
    assert "other" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("arguments", "stdin", "line"),
    [
        (["add", "a/b", "--password-stdin"], b"x", "user 'a/b': valid is a name of 1 to 128 characters"),
        (["add", "eve", "--password-stdin"], b"\n", "a password has 1 to 65535 bytes, this one has 0"),
        (["add", "eve", "--password-stdin"], b"x" * 70_000, "a password has 1 to 65535 bytes, this one"),
        (["add", "eve"], b"x", "there is no terminal to ask for the password on; give it with --password-"),
        (["remove", "alcie"], b"", "there is no user 'alcie'; did you mean 'alice'?"),
        (["check", "zzz"], b"", "there is no user 'zzz'; `roamcast user list` shows the 2 there are"),
        (["chekc", "bob"], b"", "'roamcast user' has no command 'chekc'; did you mean 'check'?"),
    ],
)
def test_a_mistake_is_one_line(
    users: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    stdin: bytes,
    line: str,
) -> None:
    before = Path(users).read_bytes()
    assert user(monkeypatch, *arguments, "--file", users, stdin=stdin) == 2
    output = capsys.readouterr()
    assert line in output.err
    assert output.err.count("\n") == 1
    assert Path(users).read_bytes() == before


def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert user(monkeypatch, "list", "--file", str(tmp_path / "absent")) == 2
    assert "absent: cannot be read (No such file or directory); name a file" in capsys.readouterr().err
    assert user(monkeypatch, "add", "bob", "--file", str(tmp_path / "no" / "users")) == 2
    assert "its folder cannot be used (No such file or directory)" in capsys.readouterr().err


# On a terminal.


def read_until(terminal: int, wanted: bytes, deadline_s: float = 30.0) -> bytes:
    shown = b""
    end = time.monotonic() + deadline_s
    while wanted not in shown:
        assert time.monotonic() < end, f"saw only {shown!r}"
        shown += os.read(terminal, 4096)
    return shown


def type_passwords(path: str, *passwords: bytes) -> tuple[int, bytes]:
    """Run `user add carol` on a terminal; gives its exit code and all that was shown there."""
    ours, theirs = pty.openpty()
    # In a session without a terminal of its own, it has only the one we hold the other end of.
    process = subprocess.Popen(
        [ROAMCAST, "user", "add", "carol", "--file", path],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    for prompt, password in zip((b"Password of carol: ", b"Once more: "), passwords, strict=True):
        shown += read_until(ours, prompt)
        os.write(ours, password + b"\n")
    shown += read_all(ours).encode()
    return process.wait(timeout=30), shown


def test_a_typed_password_is_not_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "users")
    code, shown = type_passwords(path, b"typed unseen", b"typed unseen")
    assert code == 0, shown
    assert b"typed unseen" not in shown
    assert is_password(read_users(path)["carol"], b"typed unseen")


def test_two_different_passwords_change_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "users")
    code, shown = type_passwords(path, b"typed once", b"typed twice")
    assert code == 2
    assert b"the two password" in shown
    assert not Path(path).exists()


def test_a_user_can_be_given_a_scram_verifier(users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add = ["add", "carol", "--file", users, "--password-stdin", "--scram"]
    assert user(monkeypatch, *add, stdin=b"open sesame\n") == 0
    stored = read_users(users)["carol"]
    verifier = verifier_of(stored)
    assert verifier is not None
    assert verifier == ScramVerifier.of(b"open sesame", verifier.salt)
    assert is_password(stored, b"open sesame")
    assert verifier_of(read_users(users)["alice"]) is None


def test_a_token_is_shown_once_and_its_hash_is_a_valid_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert user(monkeypatch, "token", "dashboard", "--may", "operate") == 0
    out, err = capsys.readouterr()
    token = err.split()[-1]
    assert token not in out
    config = tmp_path / "site.toml"
    config.write_text(out)
    (read,) = load(config, {}, {}, lambda line: None).view.tokens
    assert (read.name, read.may) == ("dashboard", "operate")
    assert read.sha256 == hashlib.sha256(token.encode()).hexdigest()
