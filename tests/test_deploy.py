"""What deploy/ starts can be started: its commands are ours, with a configuration that is valid."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roamcast.cli import build_app, run

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
UNIT = DEPLOY / "roamcast.service"


def commands_of(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_unit_starts_a_broker_with_a_configuration(tmp_path: Path) -> None:
    (start,), (check,) = commands_of("ExecStart"), commands_of("ExecStartPre")
    assert check == f"{start} --check"
    program, *arguments = shlex.split(check)
    assert program == "/opt/roamcast/bin/roamcast"
    config = tmp_path / "site.toml"
    config.write_text('data = "/var/lib/roamcast"\n')
    given = [str(config) if one == "/etc/roamcast/site.toml" else one for one in arguments]
    assert given != arguments
    assert run(build_app(), given) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "roamcast.service"
    unit.write_text(UNIT.read_text().replace("/opt/roamcast/bin/roamcast", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "roamcast.service:" not in done.stderr, done.stderr


def test_the_container_runs_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DEPLOY / "Containerfile").read_text()
    found = dict(re.findall(r"^(ENTRYPOINT|HEALTHCHECK)[^\[]*(\[.*\])$", text, re.MULTILINE))
    for line in found.values():
        program, *arguments = json.loads(line)
        assert program == "/opt/roamcast/bin/roamcast"
        assert run(build_app(), [*arguments, "--help"]) == 0
        assert "Usage: roamcast broker" in capsys.readouterr().out
    assert len(found) == 2
