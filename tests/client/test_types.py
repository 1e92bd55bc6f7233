"""What a type checker says of programs that use the client."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
WRONG = """
import roamcast

async def main(client: roamcast.Client, other: roamcast.Clinet) -> None:
    await client.publish("a", 57)
    answer: str = await client.subscribe("a")
"""


@pytest.mark.slow
def test_the_programs_of_the_guide_are_well_typed_and_mistakes_are_found(tmp_path: Path) -> None:
    programs = BLOCK.findall((ROOT / "docs" / "client.md").read_text())
    assert len(programs) > 3
    files = [tmp_path / f"program_{number}.py" for number in range(len(programs))]
    for file, program in zip(files, programs, strict=True):
        file.write_text(program)
    (tmp_path / "wrong.py").write_text(WRONG)
    checker = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file="]
    right = subprocess.run([*checker, *files], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (right.returncode, right.stdout.startswith("Success")) == (0, True), right.stdout
    wrong = subprocess.run([*checker, "wrong.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.findall(r"wrong.py:(\d+): error", wrong.stdout) == ["4", "5", "6"], wrong.stdout
