"""A release is noted once, and changes nothing else in the tables."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from tests.compat.released import FLAGS, HERE, note

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_release_is_noted_in_all_tables(tmp_path: Path) -> None:
    for name in (*FLAGS, "releases.toml"):
        shutil.copy(HERE / name, tmp_path / name)
    note(tmp_path, "9.8.7", COMMIT)
    assert tomllib.loads((tmp_path / "releases.toml").read_text())["commits"]["9.8.7"] == COMMIT
    for name, flag in FLAGS.items():
        before, after = ((folder / name).read_text() for folder in (HERE, tmp_path))
        assert json.loads(after) == json.loads(before) | {"released": flag}
        lines = zip(before.splitlines(), after.splitlines(), strict=True)
        changed = [one for one, other in lines if one != other]
        assert all('"released"' in line for line in changed), "the form of the table is kept"
    with pytest.raises(SystemExit, match="a version is released once"):
        note(tmp_path, "9.8.7", COMMIT)
    with pytest.raises(SystemExit, match="give its full hash"):
        note(tmp_path, "9.8.8", "HEAD")
