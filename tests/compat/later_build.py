"""A later build, made of this tree: a copy with all that a next release may change.

- the version, the highest version of the link protocol, and the replay number
- a new field, with a default, in the most frequent message
- an optional message that every peer gets, also one that does not know it, and one that only peers get who do
- a new saved field, and the lift that adds it to older snapshots
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from roamcast import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
LATER_VERSION = f"{__version__}.post1"

MESSAGES = '''
class Murmur(Message, frozen=True, tag="?Murmur"):
    """Every peer gets this one, and whoever does not know it skips it."""

    text: str
    is_optional: ClassVar[bool] = True
    cause: ClassVar[Cause] = "publish"


class Rumour(Message, frozen=True, tag="?Rumour"):
    """Only peers of a later version get this one."""

    text: str
    first_version: ClassVar[int] = 2
    is_optional: ClassVar[bool] = True
    cause: ClassVar[Cause] = "publish"


def add_heard(fields: dict[str, Any]) -> None:
    fields["heard"] = 0


class Links:
'''


class Edit(NamedTuple):
    path: str
    before: str
    after: str


EDITS = (
    Edit("__init__.py", f'"{__version__}"', f'"{LATER_VERSION}"'),
    Edit("protocol/codec.py", "\nVERSION_MAX = 1\n", "\nVERSION_MAX = 2\n"),
    Edit("broker/inputs.py", "\nREPLAY = 1\n", "\nREPLAY = 2\n"),
    Edit(
        "protocol/notification.py",
        '    cause = "publish"\n',
        '    weather: str = "fine"\n\n    cause = "publish"\n',
    ),
    Edit("broker/links/links.py", "\nclass Links:\n", MESSAGES),
    Edit("broker/links/links.py", "import msgspec\n", "from typing import Any, ClassVar\n\nimport msgspec\n"),
    Edit(
        "broker/links/links.py",
        "from roamcast.protocol.notification import Message\n",
        "from roamcast.protocol.notification import Cause, Message\n",
    ),
    Edit(
        "broker/links/links.py",
        '"links", saved=("id",',
        '"links", version=2, lifts={1: add_heard}, saved=("heard", "id",',
    ),
    Edit("broker/links/links.py", "        self.id = id\n", "        self.id = id\n        self.heard = 0\n"),
    Edit(
        "broker/links/links.py",
        "            if type(message) in self.reach.messages:\n",
        "            if type(message) in (Murmur, Rumour):\n                self.heard += 1\n"
        "            elif type(message) in self.reach.messages:\n",
    ),
    Edit(
        "broker/links/links.py",
        "                end.send_encoded(encoded)\n",
        "                end.send_encoded(encoded)\n"
        '                end.send(Murmur("hm"))\n                end.send(Rumour("they say"))\n',
    ),
)


def make_later_build(folder: Path) -> Path:
    """Write the later build to a folder; it is a source tree for `find_build`."""
    source = folder / "src" / "roamcast"
    shutil.copytree(ROOT / "src" / "roamcast", source, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in EDITS:
        path = source / edit.path
        text = path.read_text()
        assert text.count(edit.before) == 1, f"{edit.path} has changed: {edit.before!r} should be there once"
        path.write_text(text.replace(edit.before, edit.after))
    return folder
