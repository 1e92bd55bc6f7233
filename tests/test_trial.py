"""The first hour of a newcomer: the README's commands, run with nothing but a wheel and its dependencies."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from scripts.release import build
from tests.test_docs import CLIENTS, STOP_ALL, Story, program_of, steps_of
from tests.test_release import has_index

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ("Two brokers in a minute", "Is anything being lost?")
BASE_MB_MAX, CLIENT_MB_MAX = 80, 45
NOT_FOUND = 127
"""What a shell answers when there is no such command."""


def section(name: str) -> str:
    found = re.search(rf"^## {re.escape(name)}$(.*?)^## ", (ROOT / "README.md").read_text(), re.M | re.S)
    assert found is not None, f"README.md has no section {name!r}"
    return found[1]


def size_mb(folder: Path) -> float:
    """What `du` says: whole blocks, links not followed."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) / 2**20


def call(command: Path, *arguments: str) -> str:
    done = subprocess.run([str(command), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(folder: Path, *packages: str) -> None:
    call(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-input", *packages)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="the package build, of the extra dev, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    if not has_index(folder / "probe"):
        pytest.skip("pip cannot reach a package index, so dependencies cannot be installed from it")
    return build(ROOT, folder)[0]


@pytest.mark.slow
def test_the_readme_can_be_copied_from_top_to_bottom(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "venv"
    venv.create(installed, with_pip=True)
    install(installed, str(wheel))
    assert size_mb(installed) < BASE_MB_MAX
    # Not this tree, and not the packages that its tests are run with.
    monkeypatch.setattr(sys, "executable", str(installed / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    story = Story([step for name in SECTIONS for step in steps_of(section(name))], tmp_path)
    try:
        for index, step in enumerate(story.steps):
            if STOP_ALL.fullmatch(step.text) and not (tmp_path / "audit").exists():
                install(installed, f"{wheel}[audit]")
            result = story.run(index)
            if index == 1:
                use_the_client_alone(wheel, tmp_path / "client", story.ports["1883"])
            if program_of(step.text) in CLIENTS and result.returncode == NOT_FOUND:
                continue
            assert result.returncode == 0, f"{step.text}\n{result.stdout}{result.stderr}"
        found = next(line for line in result.stdout.splitlines() if line.startswith("│ roamcast"))
        owed, delivered, *wrong = [int(cell) for cell in found.split("│")[2:-1]]
        # The others wait for clients that are away; Mosquitto's may not be installed.
        assert owed == (6 if shutil.which("mosquitto_sub") else 4)
        assert (delivered, set(wrong)) == (2, {0})
    finally:
        story.stop()


def use_the_client_alone(wheel: Path, folder: Path, port: str) -> None:
    """As docs/client.md says: without the packages that only brokers need."""
    venv.create(folder, with_pip=True)
    install(folder, "--no-deps", str(wheel), "msgspec")
    assert size_mb(folder) < CLIENT_MB_MAX
    roamcast = folder / "bin" / "roamcast"
    session = ("-p", port, "-i", "alone", "-c", "-x", "60", "-q", "1", "-t", "alone")
    call(roamcast, "sub", *session, "-E")
    call(roamcast, "pub", "-p", port, "-q", "1", "-t", "alone", "-m", "hello")
    assert call(roamcast, "sub", *session, "-C", "1", "-W", "30") == "hello\n"
    code = f"""
import asyncio, roamcast
async def main():
    async with roamcast.connect("127.0.0.1:{port}", client_id="alone") as client:
        await client.publish("alone", "hello", qos=2)
asyncio.run(main())
"""
    call(folder / "bin" / "python", "-c", code)
