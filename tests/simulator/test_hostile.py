"""A hostile neighbour harms nobody whose sessions and topics its link does not allow; holes are found."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from roamcast.broker.core import BrokerCore
from roamcast.broker.links.border import Border
from roamcast.broker.links.rules import ClientRules, Translation
from roamcast.errors import InputError
from roamcast.mobility.multi_hop_handoff import MultiHopHandoff
from roamcast.mqtt.server import sessions
from roamcast.protocol.messages import Locate, Update
from roamcast.protocol.notification import Message
from roamcast.simulator.fuzz import draw_story, fuzz
from roamcast.simulator.story import format_story, parse_story, violations_of

SEEDS_MAX = 120


def assert_unharmed(protocol: str, seeds: range, *faults: str, front: str = "plain") -> None:
    report = fuzz(protocol, seeds, faults=("hostile", *faults), failures_max=1, front=front)
    assert not report.failures, f"{report.failures[0].violations}\n{report.failures[0].story}"
    assert report.deliveries > 0


@pytest.mark.parametrize("protocol", ["multi_hop_handoff", "reactive", "proactive", "durable"])
def test_nobody_else_is_harmed(protocol: str) -> None:
    assert_unharmed(protocol, range(4))


def test_no_client_of_mqtt_is_harmed() -> None:
    assert_unharmed("multi_hop_handoff", range(4), front="mqtt")


def test_nobody_else_is_harmed_while_brokers_crash_and_links_are_cut() -> None:
    assert_unharmed("multi_hop_handoff", range(4), "crash", "partition")


@pytest.mark.slow
@pytest.mark.parametrize("front", ["plain", "mqtt"])
@pytest.mark.parametrize("start", range(0, 500, 50))
def test_nobody_else_is_harmed_with_many_seeds(start: int, front: str) -> None:
    assert_unharmed("multi_hop_handoff", range(start, start + 50), front=front)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["reactive", "proactive", "sub_unsub", "durable", "none"])
def test_nobody_else_is_harmed_under_other_protocols(protocol: str) -> None:
    assert_unharmed(protocol, range(4, 60))


def test_a_story_with_lies_can_be_written_down() -> None:
    story = draw_story("multi_hop_handoff", 3, ("hostile",))
    again = parse_story(format_story(story))
    assert again.settings.hostile == "evil"
    assert format_story(again) == format_story(story)


# --- holes ---


def no_border(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Border, "admit", lambda self, peer, message: message)


def any_client(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClientRules, "allow", lambda self, client: True)


def any_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Translation, "attributes", lambda self, encoded: encoded)


def any_unsubscription(patch: pytest.MonkeyPatch) -> None:
    def believe(self: Border, peer: str, origin: str, guard: Any, update: Update) -> Message:
        return update

    patch.setattr(Border, "_check_update", believe)
    restore = Border._restore

    def restored(self: Border) -> None:
        restore(self)
        self._checks[Update] = self._check_update

    patch.setattr(Border, "_restore", restored)


def any_handoff(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MultiHopHandoff, "expects", lambda self, sender, message: True)


def guests_are_asked(patch: pytest.MonkeyPatch) -> None:
    release = Border.release

    def ask(self: Border, peer: str, message: Message) -> Message | None:
        return message if isinstance(message, Locate) else release(self, peer, message)

    patch.setattr(Border, "release", ask)


def any_form(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BrokerCore, "understands", lambda self, message: True)


HOLES: list[Any] = [
    no_border,
    any_client,
    any_unsubscription,
    guests_are_asked,
    any_form,
    any_topic,
    pytest.param(any_handoff, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("hole", HOLES)
def test_a_hole_in_the_border_is_found(
    hole: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hole(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            if violations_of(draw_story("multi_hop_handoff", seed, ("hostile",))):
                return
        except InputError:  # The machine raised it: nothing that a peer says may come so far.
            return
    pytest.fail(f"{hole.__name__}: none of {SEEDS_MAX} seeds noticed it")


def test_a_capsule_that_nobody_checks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the state of a session at the MQTT side, so clients of the lab have none."""
    monkeypatch.setattr(sessions, "check_capsule", lambda capsule: None)
    with pytest.raises((InputError, struct.error)):
        fuzz("multi_hop_handoff", range(SEEDS_MAX), faults=("hostile",), front="mqtt")
