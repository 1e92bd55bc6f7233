"""`python -m tests.compat.make`: write what this build leaves behind, for later builds to open.

The files go to tests/compat/VERSION/. `--check` writes nothing, and fails if the files there are not what
this build would write.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.compat.archives import contents, pack
from tests.compat.conversations import RecordingWorld
from tests.compat.handshakes import record
from tests.compat.worlds import PROTOCOLS, make_killed, make_stopped, tell_first_part, tell_second_part

from roamcast import __version__

HERE = Path(__file__).resolve().parent
WORLDS = {"stopped": make_stopped, "killed": make_killed}
CONVERSATION_FILE = "conversation.json"
HANDSHAKE_FILE = "handshake.json"
LISTENER = "b1"


def folder_of(protocol: str) -> str:
    return protocol.replace(":", "-")


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, make_world in WORLDS.items():
        with tempfile.TemporaryDirectory(prefix="roamcast-compat-") as made:
            for protocol in PROTOCOLS:
                make_world(protocol).write(Path(made) / folder_of(protocol))
            pack(Path(made), folder / f"{kind}.tar.xz")
    world = RecordingWorld(PROTOCOLS[0], LISTENER)
    tell_first_part(world)
    tell_second_part(world)
    for name, told in ((CONVERSATION_FILE, world.turns), (HANDSHAKE_FILE, record())):
        (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")


def differences(one: Path, other: Path) -> Iterator[str]:
    """The names of files that are not the same in both; archives are compared by what they hold."""
    for name in sorted({path.name for folder in (one, other) for path in folder.glob("*")}):
        paths = [folder / name for folder in (one, other)]
        if not all(path.exists() for path in paths):
            yield name
        elif name.endswith(".tar.xz"):
            first, second = map(contents, paths)
            differ = [file for file in sorted({**first, **second}) if first.get(file) != second.get(file)]
            yield from (f"{name}: {file}" for file in differ)
        elif paths[0].read_bytes() != paths[1].read_bytes():
            yield name


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write what this build leaves behind.")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    given = parser.parse_args(arguments)
    folder = HERE / __version__
    if not given.check:
        write(folder)
        return 0
    with tempfile.TemporaryDirectory(prefix="roamcast-compat-") as made:
        write(Path(made))
        found = list(differences(folder, Path(made)))
    if found:
        print(f"{folder.relative_to(HERE.parent.parent)} is not what this build writes: {', '.join(found)}")
        print("write it again: python -m tests.compat.make")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
