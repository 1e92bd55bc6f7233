"""`make release`: what it refuses, and that what it builds can be installed and used."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from scripts.release import (
    ReleaseError,
    check_changelog,
    check_contents,
    next_steps,
    read_version,
    uncommitted,
)

from roamcast import __version__

ROOT = Path(__file__).resolve().parent.parent


def source_tree(folder: Path, project: str, package: str) -> Path:
    (folder / "src" / "roamcast").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{project}"\n')
    (folder / "src" / "roamcast" / "__init__.py").write_text(f'__version__ = "{package}"\n')
    (folder / "src" / "roamcast" / "py.typed").touch()
    return folder


def test_the_version_is_said_once(tmp_path: Path) -> None:
    assert read_version(ROOT) == __version__
    assert read_version(source_tree(tmp_path / "same", "1.2.3", "1.2.3")) == "1.2.3"
    with pytest.raises(ReleaseError, match=r"says version 1\.2\.3, src/roamcast/__init__\.py says 1\.2\.2"):
        read_version(source_tree(tmp_path / "other", "1.2.3", "1.2.2"))


def test_python_runs_the_package_as_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "roamcast", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"roamcast {__version__}\n", "")


CHANGELOG = "# Changelog\n\n## [1.3.0] - unreleased\n\n- A change.\n\n## [1.2.0] - 2026-01-31\n\n- Another.\n"


def test_a_version_that_is_described_and_not_released_passes() -> None:
    check_changelog(CHANGELOG, "1.3.0")
    check_changelog((ROOT / "CHANGELOG.md").read_text(), __version__)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("1.2.0", "version 1.2.0 was released on 2026-01-31: set a higher version"),
        ("1.4.0", "does not describe 1.4.0: add the heading '## [1.4.0] - unreleased'"),
    ],
)
def test_a_version_that_is_released_or_not_described_is_refused(version: str, why: str) -> None:
    with pytest.raises(ReleaseError) as refused:
        check_changelog(CHANGELOG, version)
    assert why in str(refused.value)


PACKAGE = ("roamcast/__init__.py", "roamcast/py.typed")
SOURCES = tuple(f"src/{name}" for name in PACKAGE)
TEST = "tests/test_a.py"


@pytest.mark.parametrize(
    ("in_wheel", "in_sdist", "why"),
    [
        (PACKAGE, SOURCES, ""),
        (PACKAGE[:1], SOURCES, "r.whl has no roamcast/py.typed"),
        (PACKAGE, SOURCES[:1], "r.tar.gz has no src/roamcast/py.typed"),
        ((*PACKAGE, TEST), SOURCES, "r.whl has tests/test_a.py"),
        (PACKAGE, (*SOURCES, TEST), "r.tar.gz has tests/test_a.py"),
    ],
)
def test_what_is_missing_or_too_much_is_named(
    tmp_path: Path, in_wheel: tuple[str, ...], in_sdist: tuple[str, ...], why: str
) -> None:
    root = source_tree(tmp_path / "tree", "1.0.0", "1.0.0")
    wheel, sdist = tmp_path / "r.whl", tmp_path / "r.tar.gz"
    with ZipFile(wheel, "w") as archive:
        for name in (*in_wheel, "roamcast-1.0.0.dist-info/METADATA"):
            archive.writestr(name, "")
    with tarfile.open(sdist, "w:gz") as tar:
        for name in in_sdist:
            tar.addfile(tarfile.TarInfo(f"roamcast-1.0.0/{name}"), BytesIO())
    if why:
        with pytest.raises(ReleaseError, match=why):
            check_contents(root, wheel, sdist)
    else:
        check_contents(root, wheel, sdist)


def test_files_of_no_commit_are_not_to_be_published() -> None:
    files = Path("a.whl"), Path("a.tar.gz")
    assert "git tag v1.2.3" in next_steps("1.2.3", *files, [])
    said = next_steps("1.2.3", *files, ["src/a.py"])
    assert "Commit src/a.py; then run again" in said
    assert "git tag" not in said


def has_index(folder: Path) -> bool:
    """Ask pip, which knows of mirrors and proxies, for a small dependency."""
    probe = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "0", "--no-deps", "--no-input"]
    return subprocess.run([*probe, "--dest", str(folder), "lark"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_offline", [True, False])
def test_a_release_can_be_installed_and_used(tmp_path: Path, is_offline: bool) -> None:
    pytest.importorskip("build", reason="the package build, of the extra dev, is not installed")
    if not is_offline and not has_index(tmp_path / "probe"):
        pytest.skip("pip cannot reach a package index, so dependencies cannot be installed from it")
    out = tmp_path / "dist"
    command = [sys.executable, "scripts/release.py", "--out", str(out)]
    done = subprocess.run(
        [*command, *(["--offline"] if is_offline else [])], cwd=ROOT, capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    wheel, sdist = f"roamcast-{__version__}-py3-none-any.whl", f"roamcast-{__version__}.tar.gz"
    assert sorted(path.name for path in out.iterdir()) == sorted([wheel, sdist])
    last = f"Commit {uncommitted(ROOT)[0]}" if uncommitted(ROOT) else f"git tag v{__version__}"
    assert last in done.stdout
