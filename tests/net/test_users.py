"""The file of users: what is in it, who may read it, and that it is never half written."""

import os
import stat
import threading
from pathlib import Path

import pytest

from roamcast.errors import InputError
from roamcast.net.passwords import is_password
from roamcast.net.users import changing_users, check_name, hash_password, hasher, read_users

HASH = hasher().hash(b"open sesame")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_users_are_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "users"
    with changing_users(str(path)) as users:
        users["bob"] = hash_password(b"secret of bob")
        users["ålice smith"] = HASH
    read = read_users(str(path))
    assert list(read) == ["bob", "ålice smith"]
    assert is_password(read["bob"], b"secret of bob")
    assert not is_password(read["bob"], b"secret of alice")
    assert "secret of bob" not in path.read_text()
    assert mode_of(path) == 0o600
    assert os.listdir(tmp_path) == ["users"], "nothing is left behind"


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users"
    with changing_users(str(path)) as users:
        users["bob"] = HASH
    before = path.read_bytes()

    def fail() -> None:
        with changing_users(str(path)) as users:
            users.clear()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["users"]


def test_a_file_keeps_its_group_and_its_link(tmp_path: Path) -> None:
    path, link = tmp_path / "users", tmp_path / "link"
    path.write_text(f"bob:{HASH}\n")
    path.chmod(0o640)
    link.symlink_to(path)
    with changing_users(str(link)) as users:
        users["eve"] = HASH
    assert link.is_symlink()
    assert sorted(read_users(str(path))) == ["bob", "eve"]
    assert mode_of(path) == 0o640


def test_changes_at_once_wait_for_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "users")

    def add(number: int) -> None:
        with changing_users(path) as users:
            users[f"user-{number}"] = HASH

    threads = [threading.Thread(target=add, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_users(path)) == 20


@pytest.mark.parametrize(
    "name", ["", " bob", "bob ", "a:b", "a/b", "a+", "#a", "a*", "$a", "a\nb", "a\0", "anonymous", "x" * 129]
)
def test_names_that_rules_or_topics_would_mistake_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="valid is a name of 1 to 128 characters without") as refused:
        check_name(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["bob", "Bob Smith", "bob@example.org", "Zoë", "a$", "x" * 128])
def test_other_names_are_fine(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"# users\n\nbob:plain text", "line 3: valid is NAME:HASH, hashed by argon2"),
        (b"bob", "line 1: valid is NAME:HASH, hashed by argon2"),
        (b"\xff:x", "line 1: valid is NAME:HASH, hashed by argon2"),
        (b"a/b:" + HASH.encode(), "line 1: user 'a/b': valid is a name"),
        (b"a:%s\na:%s\n" % (HASH.encode(), HASH.encode()), "line 2: user 'a' is there twice"),
    ],
    ids=["no hash", "no colon", "no text", "no name", "twice"],
)
def test_a_broken_file_is_one_line(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "users"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InputError) as refused:
        read_users(str(path))
    assert str(refused.value).startswith(f"access.users = {path}, {line}")
    assert "plain text" not in str(refused.value), "it may be a secret"


def test_a_file_too_large_or_open_to_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.touch(0o600)
    os.truncate(path, 67_108_865)
    with pytest.raises(InputError, match="larger than 67108864 bytes; this is not a file of users"):
        read_users(str(path))
    path.chmod(0o644)
    with pytest.raises(InputError, match="every user of this machine can read it"):
        read_users(str(path))


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "users"
    with (
        pytest.raises(InputError, match=r"its folder cannot be used \(No such file or directory\)"),
        changing_users(str(path)),
    ):
        pass


def test_a_password_has_a_length() -> None:
    for password in (b"", b"x" * 65_536):
        with pytest.raises(InputError, match="a password has 1 to 65535 bytes, this one has"):
            hash_password(password)
