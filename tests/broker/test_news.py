"""News for operators: to all brokers or to one, along the tree, and in no journal."""

from __future__ import annotations

from tests.broker.world import World

from roamcast.broker.inputs import MachineInput, NewsGiven
from roamcast.broker.news import News


class Hearing(World):
    def __init__(self) -> None:
        self.heard: list[tuple[str, str, News]] = []
        super().__init__(1, 4, [(0, 1), (1, 2), (1, 3)])

    def step(self, id: str, inputs: list[MachineInput]) -> None:
        site = self.sites[id]
        original = site.step

        def listening(now: float, given: list[MachineInput]) -> object:
            effects = original(now, given)
            self.heard += [(id, peer, news) for peer, news in effects.news]
            return effects

        site.step = listening
        try:
            super().step(id, inputs)
        finally:
            del site.step


def test_news_reach_all_brokers_or_one_and_no_journal() -> None:
    world = Hearing()
    before = {id: len(entries) for id, entries in world.journals.items()}
    world.order("b0", NewsGiven("", b"for all"))
    assert sorted((id, peer, news.origin, news.body) for id, peer, news in world.heard) == [
        ("b1", "b0", "b0", b"for all"), ("b2", "b1", "b0", b"for all"), ("b3", "b1", "b0", b"for all"),
    ]  # fmt: skip
    world.heard.clear()
    world.order("b2", NewsGiven("b3", b"for one"))
    assert [(id, peer, news.origin) for id, peer, news in world.heard] == [("b3", "b1", "b2")]
    assert {id: len(entries) for id, entries in world.journals.items()} == before
    world.cut_link("b1", "b2")
    world.heard.clear()
    world.step("b0", [NewsGiven("b2", b"lost")])
    world.step("b0", [NewsGiven("", b"to the others")])
    world.run(100)
    assert [(id, news.body) for id, _, news in world.heard] == [
        ("b1", b"to the others"),
        ("b3", b"to the others"),
    ]
