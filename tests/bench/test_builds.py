"""Which build a path names, and what is said of one that names none."""

from pathlib import Path

import pytest

from roamcast import __version__
from roamcast.bench.builds import THIS_BUILD, find_build
from roamcast.errors import InputError

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_source_tree_is_run_by_this_interpreter() -> None:
    found = find_build(ROOT)
    assert found.version == THIS_BUILD.version == __version__
    assert found.program == THIS_BUILD.program
    assert found.variables == {"PYTHONPATH": str(ROOT / "src")}


def test_an_environment_has_a_command_of_its_own(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "roamcast"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\necho "roamcast 9.8.7$PYTHONPATH"\n')
    command.chmod(0o755)
    found = find_build(tmp_path)
    assert (found.version, found.program) == ("9.8.7", (str(command),))


def test_a_path_without_a_build_that_starts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"name a source tree .* or a virtual environment"):
        find_build(tmp_path)
    command = tmp_path / "bin" / "roamcast"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho 'no such module' >&2\nexit 1\n")
    command.chmod(0o755)
    with pytest.raises(InputError, match="does not start: no such module"):
        find_build(tmp_path)
