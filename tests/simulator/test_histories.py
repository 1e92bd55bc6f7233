"""Clones, empty disks and old backups in the simulator: refused if anything is missing, and found if not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from roamcast.broker.history import History, ToldHistory
from roamcast.simulator.faults import Backup, Impostor
from roamcast.simulator.fuzz import draw_story, fuzz
from roamcast.simulator.network import Journal, Network
from roamcast.simulator.story import format_story, parse_story, violations_of

FAULTS = ("history",)
STORY = """
brokers b0-b1
protocol multi_hop_handoff
at 0.0 c attach b0
at 0.0 p attach b0
at 0.1 c subscribe TRUE
at 1.0 c leave
at 1.1 b0 backup
at 1.2 p publish 3 {"x": 1}
at 1.4 b0 crash
at 1.5 b0 impostor%s
at 1.6 b0 restart
at 2.0 c attach b1
"""


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many impostors were refused, and how many were taken."""
    counted: Counter[str] = Counter()
    try_impostor = Network._try_impostor

    def counting(network: Network, broker: str, journal: Journal | None) -> None:
        before = Counter(network.impostors)
        try_impostor(network, broker, journal)
        counted.update(network.impostors - before)

    monkeypatch.setattr(Network, "_try_impostor", counting)
    return counted


@pytest.mark.parametrize("kind", ["", " empty"])
def test_an_impostor_that_lacks_something_is_refused(kind: str, outcomes: Counter[str]) -> None:
    story = parse_story(STORY % kind)
    assert violations_of(story) == []
    assert outcomes == {"refused": 1}
    assert parse_story(format_story(story)) == story


def test_a_copy_that_lacks_nothing_is_as_good_as_the_original(outcomes: Counter[str]) -> None:
    lines = [line for line in (STORY % "").splitlines() if "backup" not in line]
    story = parse_story("\n".join(lines).replace("at 1.5 b0", "at 1.45 b0 backup\nat 1.5 b0"))
    assert violations_of(story) == []
    assert outcomes == {"taken": 1}


def test_a_clone_is_refused_while_the_original_is_linked(outcomes: Counter[str]) -> None:
    lines = [line for line in (STORY % "").splitlines() if "crash" not in line and "restart" not in line]
    assert violations_of(parse_story("\n".join(lines))) == []
    assert outcomes == {"refused": 1}


@pytest.mark.parametrize(("front", "count"), [("plain", 15), ("mqtt", 10)])
def test_seeds_keep_every_promise(front: str, count: int, outcomes: Counter[str]) -> None:
    assert fuzz("multi_hop_handoff", range(count), faults=FAULTS, front=front).failures == []
    assert outcomes["refused"] > count / 2
    assert outcomes["taken"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("front", ["plain", "mqtt"])
@pytest.mark.parametrize("faults", [FAULTS, ("crash", "partition", "loss", "history")])
def test_many_seeds_keep_every_promise(front: str, faults: tuple[str, ...]) -> None:
    assert fuzz("multi_hop_handoff", range(300), faults=faults, front=front).failures == []


def test_histories_are_drawn() -> None:
    drawn = [item for seed in range(30) for _, _, item in draw_story("none", seed, FAULTS).actions]
    for wanted in (Backup(), Impostor(), Impostor(is_empty=True)):
        assert wanted in drawn


# --- planted mistakes ---


def never_doubts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "doubt", lambda self, peer, told, is_linked: "")


def ignores_positions(patch: pytest.MonkeyPatch) -> None:
    reached = ToldHistory.reached
    far = 1 << 62
    patch.setattr(ToldHistory, "reached", lambda told, start: reached(told, start) and far)


def ignores_starts(patch: pytest.MonkeyPatch) -> None:
    """It goes by the position alone, which the start of an impostor moves on."""
    patch.setattr(ToldHistory, "reached", lambda told, start: told.position)


def forgets_what_peers_did(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "is_progress", lambda self, peer, position: False)


def serves_though_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "fence", lambda self, peer, why: None)


@pytest.mark.parametrize(
    "plant",
    [never_doubts, ignores_positions, ignores_starts, forgets_what_peers_did, serves_though_refused],
)
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(violations_of(draw_story("multi_hop_handoff", seed, FAULTS)) for seed in range(100))
