"""`python -m tests.compat.released COMMIT`: note that the current version was released as this commit.

From then on the tables of messages, states and journal entries allow only changes that released builds can
live with, and rolling upgrades are tested from this commit.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from pathlib import Path

from roamcast import __version__
from roamcast.protocol.codec import VERSION_MAX

HERE = Path(__file__).resolve().parent
FLAGS: dict[str, int | bool] = {"messages.json": VERSION_MAX, "states.json": True, "inputs.json": True}
"""What each table says of releases: the highest version of the link protocol, or that there is one."""


def note(folder: Path, version: str, commit: str) -> None:
    releases = folder / "releases.toml"
    text = releases.read_text()
    if version in tomllib.loads(text)["commits"]:
        raise SystemExit(f"{releases} has {version} already: a version is released once")
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise SystemExit(f"{commit!r} is no commit: give its full hash (git rev-parse HEAD)")
    releases.write_text(f'{text}"{version}" = "{commit}"\n')
    for name, flag in FLAGS.items():
        table = json.loads((folder / name).read_text())
        table["released"] = flag
        (folder / name).write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Note that the current version was released.")
    parser.add_argument("commit", help="the full hash of the commit that was tagged")
    note(HERE, __version__, parser.parse_args().commit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
