"""What a follower's copy, which may be behind its journal, learns of the leader's links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from roamcast.broker.inputs import MachineEffects, Tick, encode_entry
from roamcast.broker.site_copy import SiteCopy


class Copied:
    """A site that notes what happens to it."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.links = SimpleNamespace(ends={"p": SimpleNamespace(learn_settled=self.seen.append)})

    def step(self, now: float, inputs: object) -> MachineEffects:
        self.seen.append(f"entry {now:.0f}")
        return MachineEffects()


def test_a_copy_learns_what_peers_have_after_the_entries_before_the_report() -> None:
    site: Any = Copied()
    copy: SiteCopy[Any] = SiteCopy(site, 4, lambda entry: site)
    copy.learn_settled({"p": 10}, 4)
    copy.take(encode_entry(number, [Tick()]) for number in (5, 6, 7))
    copy.learn_settled({"p": 11, "gone": 3}, 6)
    copy.learn_settled({"p": 12}, 7)
    while copy.behind:
        copy.step()
    copy.learn_settled({"p": 13}, 7)
    assert site.seen == [10, "entry 5", "entry 6", 11, "entry 7", 13]
