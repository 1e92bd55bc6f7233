"""`make release`: build wheel and sdist, try the wheel in an empty environment, say what to do next.

Nothing is published, tagged or changed in the source tree: the script writes the two files to dist/.
`--offline` takes the dependencies from this environment instead of the package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "roamcast"
START_S = 60
HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<when>\S+))?$", re.MULTILINE)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class ReleaseError(Exception):
    """A release that must not be made; the text says why and what to do."""


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


# --- the version ---


def read_version(root: Path) -> str:
    """The version that pyproject.toml and the package agree on."""
    project: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    source = (root / "src" / PACKAGE / "__init__.py").read_text()
    found = re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE)
    package = found[1] if found else "none"
    if package != project:
        raise ReleaseError(
            f"pyproject.toml says version {project}, src/{PACKAGE}/__init__.py says {package}: "
            "set both to the version of this release"
        )
    return project


def check_changelog(text: str, version: str) -> None:
    """Refuse a version that has been released, or that the changelog does not describe."""
    headings = {found["version"]: found["when"] or "" for found in HEADING.finditer(text)}
    if version not in headings:
        raise ReleaseError(
            f"CHANGELOG.md does not describe {version}: "
            f"add the heading '## [{version}] - unreleased' above its changes"
        )
    if DATE.fullmatch(headings[version]):
        raise ReleaseError(
            f"version {version} was released on {headings[version]}: set a higher version in pyproject.toml "
            f"and src/{PACKAGE}/__init__.py, and describe it in CHANGELOG.md"
        )


# --- the two files ---


def build(root: Path, out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel out of the sdist; both are moved to `out` when they are complete."""
    with tempfile.TemporaryDirectory(prefix="roamcast-release-") as made:
        # setuptools leaves folders behind in the tree that it builds from.
        copy = Path(made) / "source"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info"))
        run([sys.executable, "-m", "build", "--no-isolation", "--outdir", f"{made}/dist", str(copy)])
        out.mkdir(parents=True, exist_ok=True)
        (wheel,), (sdist,) = Path(made, "dist").glob("*.whl"), Path(made, "dist").glob("*.tar.gz")
        return Path(shutil.copy(wheel, out)), Path(shutil.copy(sdist, out))


def check_contents(root: Path, wheel: Path, sdist: Path) -> None:
    """Every file of src/ is in both, and nothing else is in the wheel."""
    expected = [
        path.relative_to(root / "src").as_posix()
        for path in sorted((root / "src").rglob("*"))
        if is_source(path)
    ]
    with ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    with tarfile.open(sdist) as tar:
        sources = {name.partition("/")[2] for name in tar.getnames()}
    for name in expected:
        if name not in packed:
            raise ReleaseError(f"{wheel.name} has no {name}: name it under package-data in pyproject.toml")
        if f"src/{name}" not in sources:
            raise ReleaseError(f"{sdist.name} has no src/{name}: name it in MANIFEST.in")
    for name in sorted(packed - set(expected)):
        if not name.startswith(f"{PACKAGE}-"):  # what wheels say of themselves
            raise ReleaseError(f"{wheel.name} has {name}, which is not in src/")
    for name in sorted(sources):
        if name.startswith("tests/"):
            raise ReleaseError(f"{sdist.name} has {name}: tests need the whole source tree (MANIFEST.in)")


def is_source(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc" and ".egg-info" not in str(path)


# --- the wheel, installed ---


def install(wheel: Path, folder: Path, is_offline: bool) -> Path:
    """Install the wheel into an empty environment; the folder of its commands."""
    venv.create(folder, with_pip=True, symlinks=True)
    commands = folder / "bin"
    pip = [str(commands / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if is_offline:
        # Only the folders: a .pth file in them, as of an editable installation, is not followed.
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if is_packages(path)))
        run([*pip, "--no-index", "--no-deps", str(wheel)])
    else:
        run([*pip, "--no-input", str(wheel)])
    return commands


def is_packages(path: str) -> bool:
    return Path(path).name in ("site-packages", "dist-packages")


def check_installed(commands: Path, version: str, folder: Path) -> None:
    """Ask the installed commands, then send one message through a broker."""
    roamcast, python = str(commands / PACKAGE), str(commands / "python")
    expect(f"{PACKAGE} {version}\n", run([roamcast, "--version"], folder))
    expect(f"{PACKAGE} {version}\n", run([python, "-m", PACKAGE, "--version"], folder))
    run([roamcast, "broker", "--help"], folder)
    log = folder / "broker.log"
    with log.open("wb") as output:
        broker = subprocess.Popen(
            [roamcast, "broker", "--id", "a", "--listen", "127.0.0.1:0", "--data", "data"],
            cwd=folder, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        send_a_message(roamcast, port_of(broker, log), folder)
    finally:
        broker.terminate()
        code = broker.wait(timeout=START_S)
    if code:
        raise ReleaseError(f"the broker ended with exit code {code}:\n{log.read_text()}")


def port_of(broker: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the broker says on which port it listens."""
    pattern = re.compile(r"listens on (\d+)")
    wait_until(lambda: bool(pattern.search(log.read_text())) or broker.poll() is not None)
    found = pattern.search(log.read_text())
    if found is None:
        raise ReleaseError(f"the broker does not listen:\n{log.read_text()}")
    return found[1]


def send_a_message(roamcast: str, port: str, folder: Path) -> None:
    """Publish for a session that is away, and fetch the message."""
    session = ["-p", port, "-i", "car", "-c", "-x", "3600", "-q", "2", "-t", "city/#"]
    run([roamcast, "sub", *session, "-E"], folder)
    run([roamcast, "pub", "-p", port, "-q", "2", "-t", "city/air", "-m", "PM10 12"], folder)
    expect("city/air PM10 12\n", run([roamcast, "sub", *session, "-C", "1", "-W", "30", "-v"], folder))


def expect(wanted: str, got: str) -> None:
    if got != wanted:
        raise ReleaseError(f"the installed package printed {got!r} instead of {wanted!r}")


# --- helpers ---


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)


def clean_environment() -> dict[str, str]:
    """Without what would let this source tree in."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(command: Sequence[str], folder: Path | None = None) -> str:
    """Run a command in the source tree, or outside of it in a folder, and give what it prints."""
    environment = clean_environment() if folder is not None else None
    done = subprocess.run(
        command, cwd=folder or ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def uncommitted(root: Path) -> list[str]:
    """Files that are not as in the last commit; nothing where there is no history to compare with."""
    if shutil.which("git") is None:
        return []
    command = ["git", "-C", str(root), "status", "--porcelain"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return [line[3:] for line in done.stdout.splitlines()]


def next_steps(version: str, wheel: Path, sdist: Path, changed: Sequence[str]) -> str:
    if changed:
        return (
            f"{wheel} and {sdist} work, but belong to no commit. Commit {', '.join(changed)}; then run again."
        )
    return "\n".join([
        f"{wheel} and {sdist} are good. Next:",
        f"  1. Put today's date into the heading of {version} in CHANGELOG.md, commit, and tag the commit: "
        f"git tag v{version}",
        f"  2. python -m tests.compat.released $(git rev-parse v{version}), and commit what it changed.",
        "  3. Publish the two files, for example with twine.",
        f"  4. Set the next version in pyproject.toml and src/{PACKAGE}/__init__.py, open its heading in "
        "CHANGELOG.md, and write its files: python -m tests.compat.make",
    ])  # fmt: skip


def release(root: Path, out: Path, is_offline: bool) -> None:
    version = read_version(root)
    check_changelog((root / "CHANGELOG.md").read_text(), version)
    say(f"comparing tests/compat/{version} with what this tree writes")
    run([sys.executable, "-m", "tests.compat.make", "--check"])
    say(f"building {version}")
    wheel, sdist = build(root, out)
    check_contents(root, wheel, sdist)
    say(f"installing {wheel.name} into an empty environment")
    with tempfile.TemporaryDirectory(prefix="roamcast-installed-") as folder:
        commands = install(wheel, Path(folder) / "venv", is_offline)
        say("starting a broker and sending a message through it")
        check_installed(commands, version, Path(folder))
    say(next_steps(version, wheel, sdist, uncommitted(root)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build a release and check it.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the two files")
    parser.add_argument("--offline", action="store_true", help="use the dependencies of this environment")
    given = parser.parse_args(arguments)
    try:
        release(ROOT, given.out, given.offline)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
