"""Builds of Roamcast for starting brokers: this one, or another version."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roamcast import __version__
from roamcast.bench.processes import roamcast_command
from roamcast.errors import InputError

ASK_S = 60.0


@dataclass(frozen=True)
class Build:
    version: str
    program: tuple[str, ...]
    """The `roamcast` command, before its arguments."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for it."""


THIS_BUILD = Build(__version__, tuple(roamcast_command()))


def find_build(path: Path) -> Build:
    """Find the build in a source tree, run by this interpreter, or in a virtual environment."""
    if (path / "src" / "roamcast").is_dir():
        program, variables = THIS_BUILD.program, {"PYTHONPATH": str((path / "src").resolve())}
    elif (path / "bin" / "roamcast").is_file():
        # An empty PYTHONPATH, because this build may be in that of the environment.
        program, variables = (str((path / "bin" / "roamcast").absolute()),), {"PYTHONPATH": ""}
    else:
        raise InputError(
            f"no Roamcast in {path}: name a source tree (with src/roamcast) or a virtual environment "
            "(with bin/roamcast)"
        )
    asked = subprocess.run(
        [*program, "--version"], env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=ASK_S,
    )  # fmt: skip
    name, _, version = asked.stdout.strip().partition(" ")
    if asked.returncode or name != "roamcast":
        said = " ".join((asked.stderr or asked.stdout).strip().splitlines()[-1:])
        raise InputError(f"the Roamcast in {path} does not start: {said}")
    return Build(version, program, variables)
