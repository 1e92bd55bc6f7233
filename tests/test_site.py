"""The documentation builds as a site: no warning, no dead link, nothing fetched from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from roamcast.cli.app import build_app

ROOT = Path(__file__).resolve().parent.parent
FETCHED = re.compile(
    r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"|<link[^>]* rel="stylesheet"[^>]*"(https?:[^"]+)"'
)


@pytest.mark.slow  # MkDocs takes 6 s of CPU
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (built.returncode, built.stderr, built.stdout) == (0, "", "")
    pages = {
        path.relative_to(tmp_path / "site").as_posix(): path.read_text() for path in tmp_path.rglob("*.html")
    }
    fetched = {found for text in pages.values() for pair in FETCHED.findall(text) for found in pair if found}
    assert fetched == set()
    commands = get_command(build_app()).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert command.hidden or f"roamcast {name}" in pages["reference/commands.html"], name
    assert "roamcast_link_up" in pages["reference/metrics.html"]
    assert "handoff_finished" in pages["reference/event-log.html"]
    for path in (ROOT / "docs").glob("*.md"):
        assert f"{path.stem}.html" in pages
        assert (
            f"- {path.name}" in (ROOT / "mkdocs.yml").read_text()
            or f": {path.name}" in (ROOT / "mkdocs.yml").read_text()
        )
