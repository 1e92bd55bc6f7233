"""The stories of sites whose brokers move find mistakes: each of these is one line, planted on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.test_mobile_site import story

from roamcast.broker.inputs import Confirmed
from roamcast.broker.moving.core import MobileCore, Visit
from roamcast.broker.moving.machine import MovingMachine
from roamcast.broker.moving.sessions import MobileSessions
from roamcast.broker.moving.tree_links import TreeLinks
from roamcast.mobility.moving.mobile import Mig
from roamcast.protocol.messages import Message

SEEDS = range(8)

Patch = Callable[[pytest.MonkeyPatch], None]


def loses_what_was_on_a_link(patch: pytest.MonkeyPatch) -> None:
    close = TreeLinks.close

    def broken(self: TreeLinks, peer: str, tell: bool) -> list[Message]:
        close(self, peer, tell)
        return []

    patch.setattr(TreeLinks, "close", broken)


def forgets_what_a_client_has_not_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Visit, "unacknowledged", lambda self: list(self.waiting))


def claims_a_client_with_an_old_timestamp(patch: pytest.MonkeyPatch) -> None:
    def broken(self: MobileSessions, client: str, visit: Visit) -> None:
        known = self.core.machine.known[client]
        self.core.say(client, Mig(client, "", known.timestamp, 0, known.since))

    patch.setattr(MobileSessions, "_claim", broken)


def does_not_journal_what_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    def broken(self: MovingMachine, confirmed: Confirmed) -> None:
        self.links.confirm(confirmed.peer, confirmed.number)

    patch.setattr(MovingMachine, "_confirm", broken)


def does_not_tell_which_subscriptions_were_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MobileSessions, "_look_for_missed", lambda self, message: None)


def keeps_a_session_that_lives_elsewhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MobileSessions, "_review", lambda self, client, is_answer=False: None)


def delivers_what_is_stored_to_nobody(patch: pytest.MonkeyPatch) -> None:
    deliver = MobileCore._deliver

    def broken(self: MobileCore, client: str, burst: Any) -> None:
        if burst.published_at + 3.0 > self.now:
            deliver(self, client, burst)

    patch.setattr(MobileCore, "_deliver", broken)


@pytest.mark.parametrize(
    "breakage",
    [
        loses_what_was_on_a_link,
        forgets_what_a_client_has_not_acknowledged,
        claims_a_client_with_an_old_timestamp,
        does_not_journal_what_is_confirmed,
        does_not_tell_which_subscriptions_were_missed,
        keeps_a_session_that_lives_elsewhere,
        delivers_what_is_stored_to_nobody,
    ],
)
def test_a_planted_breakage_is_found(breakage: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    breakage(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        tell_stories()


def tell_stories() -> None:
    for seed in SEEDS:
        story(seed, crash=seed % 2 == 1)
