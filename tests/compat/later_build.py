"""A later build, made of this tree: a copy with all that a next release may change.

- the version, the highest version of the link protocol, and the replay number
- a new field, with a default, in the most frequent message
- an optional message that every peer gets, also one that does not know it, and one that only peers get who do
- a new saved field, and the lift that adds it to older snapshots
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from roamcast import __version__
from roamcast.broker.inputs import REPLAY
from roamcast.protocol.codec import VERSION_MAX

ROOT = Path(__file__).resolve().parent.parent.parent
LATER_VERSION = f"{__version__}.post1"

AT_THE_END_OF_LINKS = '''

from typing import ClassVar


class Murmur(Message, frozen=True, tag="?Murmur"):
    """Every peer gets this one, and whoever does not know it skips it."""

    text: str
    is_optional: ClassVar[bool] = True
    cause: ClassVar[str] = "publish"


class Rumour(Message, frozen=True, tag="?Rumour"):
    """Only peers of a later version get this one."""

    text: str
    first_version: ClassVar[int] = VERSION_MAX
    is_optional: ClassVar[bool] = True
    cause: ClassVar[str] = "publish"


def _add_heard(fields):
    fields["heard"] = 0


def _init(self, *arguments, before=Links.__init__, **options):
    before(self, *arguments, **options)
    self.heard = 0


def _send(self, sends, before=Links.send):
    sends = list(sends)
    before(self, sends)
    for peer in dict.fromkeys(peer for peer, message in sends if not message.is_fleeting):
        if peer in self.ends:
            self.ends[peer].send(Murmur("hm"))
            self.ends[peer].send(Rumour("they say"))


def _receive(self, peer, frames, before=Links.receive):
    turn = before(self, peer, frames)
    said = [one for one in turn.inputs if isinstance(one, Received) and type(one.message) in (Murmur, Rumour)]
    turn.inputs = [one for one in turn.inputs if one not in said]
    self.heard += len(said)
    return turn


_was = Links.__state__
Links.__state__ = State("links", 2, saved=("heard", *_was.saved), derived=_was.derived, lifts={1: _add_heard})
Links.__init__, Links.send, Links.receive = _init, _send, _receive
'''


class Edit(NamedTuple):
    path: str
    pattern: str
    """Of the first place that is meant."""
    new: str


EDITS = (
    Edit("__init__.py", r'(?m)^__version__ = ".*"$', f'__version__ = "{LATER_VERSION}"'),
    Edit("protocol/codec.py", r"(?m)^VERSION_MAX = \d+$", f"VERSION_MAX = {VERSION_MAX + 1}"),
    Edit("broker/inputs.py", r"(?m)^REPLAY = \d+$", f"REPLAY = {REPLAY + 1}"),
    Edit(
        "protocol/notification.py",
        r'(?s)(class Burst\(.*?)(\n    cause = "publish"\n)',
        r'\1\n    weather: str = "fine"\n\2',
    ),
    Edit("broker/links/links.py", r"\Z", AT_THE_END_OF_LINKS.replace("\\", "\\\\")),
)


def make_later_build(folder: Path) -> Path:
    """Write the later build to a folder; it is a source tree for `find_build`."""
    source = folder / "src" / "roamcast"
    shutil.copytree(ROOT / "src" / "roamcast", source, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in EDITS:
        path = source / edit.path
        text, count = re.subn(edit.pattern, edit.new, path.read_text(), count=1)
        assert count == 1, f"{edit.path} has no {edit.pattern} any more: change the edit in {__name__}"
        path.write_text(text)
    return folder
