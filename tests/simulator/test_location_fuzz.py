"""Logical mobility delivers as if everything were flooded, and whoever breaks it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from roamcast.broker.places import LENT, TOLD, Places
from roamcast.broker.session import ClientHere, Waiting
from roamcast.filters.filter import Attributes, Value
from roamcast.protocol.messages import Message
from roamcast.protocol.session import Session
from roamcast.protocol.whereabouts import Whereabouts
from roamcast.routing.dependents import Dependents
from roamcast.routing.location.ploc import Ploc, Rule
from roamcast.routing.location.told import Telling
from roamcast.routing.router import Router
from roamcast.simulator.fuzz import FuzzReport, fuzz
from roamcast.simulator.location_fuzz import ANY, draw_location_story, protocols
from roamcast.simulator.location_oracle import is_standing
from roamcast.simulator.story import format_story, kinds_of, parse_story, verdict


def explain(report: FuzzReport) -> str:
    return "\n\n".join(f"seed {one.seed}: {one.violations}\n{one.story}" for one in report.failures)


def test_as_if_flooding_over_some_seeds() -> None:
    report = fuzz(ANY, range(60, 120), feature="location")
    assert report.violations == 0, explain(report)
    # Something was asked: clients moved both ways, and some were too fast.
    assert report.deliveries > 10_000
    assert report.located > 2_000
    assert report.handoffs > 100
    assert report.blacked_out > 0
    assert (report.lost, report.duplicates, report.out_of_order) == (0, 0, 0)


@pytest.mark.slow
def test_as_if_flooding_over_many_seeds() -> None:
    report = fuzz(ANY, range(1000), feature="location")
    assert report.violations == 0, explain(report)


def test_every_protocol_that_promises_exactly_once_is_asked() -> None:
    assert protocols() == [
        "multi_hop_handoff", "phoenix", "proactive", "reactive:merged", "relocation", "roam", "sub_unsub",
    ]  # fmt: skip
    drawn = {draw_location_story(ANY, seed).settings.protocol for seed in range(60)}
    assert drawn == set(protocols())


@pytest.mark.parametrize("protocol", protocols())
def test_both_promises_for_clients_that_change_broker_and_location(protocol: str) -> None:
    report = fuzz(protocol, (4, 12, 13, 54, 67, 83, 883), feature="location")
    assert report.violations == 0, explain(report)
    assert report.handoffs > 50


def test_a_story_reads_as_it_was_written() -> None:
    for seed in range(10):
        text = format_story(draw_location_story(ANY, seed))
        assert format_story(parse_story(text)) == text


def test_some_clients_tell_where_they_are_and_others_never_do() -> None:
    drawn = [draw_location_story(ANY, seed).settings.location for seed in range(60)]
    assert {one.told_in for one in drawn} == {(), ("at",), ("lat", "lon")}
    assert sum(bool(one.lent) for one in drawn) > 5


def test_most_stories_can_be_compared_with_flooding() -> None:
    standing = 0
    for seed in range(30):
        story = draw_location_story(ANY, seed)
        checker = story.simulate().location
        standing += checker is not None and is_standing(story, checker)
    assert standing >= 10


# --- planted breakages -------------------------------------------------------------------------------

_steps, _locate = Rule.steps, Router.relocate_client
_stage, _exchange = Router._stage_whereabouts, Dependents._exchange_instance
_came, _same = Places.session_came, Ploc.is_same
_put_off, _lend = Places._put_off, Places.lend


def one_way(self: Rule, round_trip_s: float, stay_s: float) -> float:
    return _steps(self._replace(distance="one_way"), round_trip_s, stay_s)


def rounded_down(self: Rule, round_trip_s: float, stay_s: float) -> float:
    return _steps(self._replace(rounding="down"), round_trip_s, stay_s)


def told_to_neighbours_only(self: Router, client: str, source: str | None) -> None:
    if source is None:
        _stage(self, client, source)


def clients_own_filter_stays(self: Dependents, filter: Any, interfaces: Any, exact: bool) -> None:
    if not exact:
        _exchange(self, filter, interfaces, exact)


def moves_do_not_wait(self: Places, here: ClientHere, session: Session) -> None:
    _came(self, here, session)
    here.announced = None


def messages_say_nothing_of_where_a_client_is(self: Places, message: Message) -> Message:
    return message


def jumps_are_steps(self: Places, session: Session, steps: dict[str, Value]) -> bool:
    return True


def distances_do_not_matter(self: Ploc, filters: Any, old: Whereabouts, new: Whereabouts) -> bool:
    return _same(self, filters, msgspec.structs.replace(old, distance_s=new.distance_s), new)


def new_broker_is_not_told(self: Router, whereabouts: Whereabouts) -> None:
    self.dependents.locate(whereabouts)


def notifications_tell_nothing(self: Telling, attributes: Attributes) -> None:
    return None


def lent_places_move_along(self: Places, session: Session, waiting: Waiting) -> None:
    _put_off(self, session, waiting._replace(request=TOLD) if waiting.request == LENT else waiting)


def lent_in_spite_of_the_clients_word(self: Places, here: ClientHere, session: Session) -> None:
    session.is_lent = True
    _lend(self, here, session)


def lent_for_good(self: Places, here: ClientHere, session: Session) -> None:
    if not session.is_lent:
        _lend(self, here, session)


BREAKAGES: list[tuple[type, str, Callable[..., Any], int, str]] = [
    (Rule, "steps", one_way, 6, "missing in epoch"),
    (Rule, "steps", rounded_down, 8, "missing in epoch"),
    (Router, "_stage_whereabouts", told_to_neighbours_only, 0, "missing in epoch"),
    (Dependents, "_exchange_instance", clients_own_filter_stays, 1, "extra in epoch"),
    (Places, "session_came", moves_do_not_wait, 1347, "missing in epoch"),
    (Places, "about", messages_say_nothing_of_where_a_client_is, 83, "extra in epoch"),
    (Places, "_are_steps", jumps_are_steps, 237, "missing in epoch"),
    (Ploc, "is_same", distances_do_not_matter, 3, "missing in epoch"),
    (Router, "relocate_client", new_broker_is_not_told, 3, "missing in epoch"),
    (Telling, "place_in", notifications_tell_nothing, 6, "located elsewhere"),
    (Places, "_put_off", lent_places_move_along, 85, "located elsewhere"),
    (Places, "lend", lent_in_spite_of_the_clients_word, 9, "located elsewhere"),
    (Places, "lend", lent_for_good, 53, "located elsewhere"),
]
"""What is broken, how, the seed that shows it, and as what."""


@pytest.mark.parametrize(
    ("cls", "name", "broken", "seed", "kind"), BREAKAGES, ids=lambda one: getattr(one, "__name__", str(one))
)
def test_a_planted_breakage_is_found(
    monkeypatch: pytest.MonkeyPatch, cls: type, name: str, broken: Callable[..., Any], seed: int, kind: str
) -> None:
    story = draw_location_story(ANY, seed)
    assert verdict(story).violations == []
    monkeypatch.setattr(cls, name, broken)
    assert kind in kinds_of(str(one) for one in verdict(story).violations)
