"""`make compiled`: what it builds does what the sources do.

Tests that replace methods of the machine, or plant breakages in it, are about the sources: a compiled class
cannot be changed from outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

from roamcast import __version__

ROOT = Path(__file__).resolve().parent.parent
CHOSEN = (
    "tests/compat/test_corpus.py",
    "tests/protocol",
    # It puts a function where text belongs, which a compiled class refuses.
    "--deselect=tests/protocol/test_snapshot.py::test_the_place_of_a_value_in_a_broker",
)


class Build:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Optimised code takes twice as long to make, and does the same.
        command = [sys.executable, "scripts/compile.py", "--level", "0"]
        self.run([*command, "--to", str(folder / "build"), "--out", str(folder)], with_sources=True)

    def run(self, command: list[str], with_sources: bool = False) -> str:
        """Run a command with this build, or with the sources, and give what it prints."""
        package = ROOT / "src" if with_sources else self.folder / "build" / "lib"
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(package)}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    if int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip("the package setuptools is older than the extra dev wants")
    return Build(tmp_path_factory.mktemp("compiled"))


@pytest.mark.slow
@pytest.mark.xdist_group("compiled")
class TestCompiled:
    def test_the_wheel_has_the_whole_package_and_says_that_it_is_compiled(self, build: Build) -> None:
        (wheel,) = build.folder.glob("*.whl")
        packed = set(ZipFile(wheel).namelist())
        sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "roamcast").rglob("*.py")}
        assert sources <= packed
        assert any(name.startswith("roamcast/broker/machine.") and name.endswith(".so") for name in packed)
        said = build.run([sys.executable, "-m", "roamcast", "--version"])
        assert said == f"roamcast {__version__} (compiled)\n"

    def test_stories_end_alike(self, build: Build) -> None:
        command = [sys.executable, "-m", "tests.compiled_run"]
        kind, *outcomes = build.run(command).splitlines()
        assert kind == "compiled"
        assert outcomes == build.run(command, with_sources=True).splitlines()[1:]

    def test_chosen_tests_pass(self, build: Build) -> None:
        build.run([sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not slow", *CHOSEN])
