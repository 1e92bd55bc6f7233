"""Moves of clients, as brokers carry them out: steps, jumps, refusals, and who hears of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from roamcast.protocol.messages import Message, Update
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.protocol.records import Row
from roamcast.simulator.run import Run
from roamcast.simulator.story import parse_story

LINE = """
brokers b0-b1 b1-b2 b2-b3
protocol sub_unsub
link 0.01
access 0
"""
SQUARE = "graph a-b a-c b-d c-d\n"
ROOMS = "graph corridor-r1 corridor-r2 corridor-r3 corridor-hall hall-yard yard-gate\n"


class Told:
    """A story that has been run, and what was seen of it."""

    def __init__(self, text: str) -> None:
        self.rows: list[Row] = []
        self.messages: list[tuple[float, str, str, Message]] = []
        story = parse_story(text)
        self.run: Run = story.run(self.rows.extend, lambda *message: self.messages.append(message))

    def delivered(self, client: str) -> list[str]:
        """Where the notifications were about that a client got."""
        got = [row for row in self.rows if row.kind == "delivered" and row.client == client]
        return [str(decode_attributes(row.attributes or b"")["location"]) for row in got]

    def located(self, client: str) -> list[tuple[str, str]]:
        return [
            (str(decode_attributes(row.attributes)["location"]) if row.attributes else "", row.reason or "")
            for row in self.rows
            if row.kind == "located" and row.client == client
        ]

    def whereabouts_after(self, time_s: float) -> list[tuple[str, str]]:
        """Between which brokers whereabouts were told from then on."""
        return [
            (broker, peer)
            for at, broker, peer, message in self.messages
            if at >= time_s and isinstance(message, Update) and message.whereabouts
        ]

    def refused(self, client: str) -> list[str]:
        return list(self.run.network.clients[client].refused.values())


def tell(*parts: str) -> Told:
    told = Told("".join(parts))
    assert told.run.result.violations == []
    return told


def published(*locations: str, start_s: float = 10.0) -> str:
    """A publisher at the far end, once a second."""
    lines = [
        f'at {start_s + number} p publish {{"location": "{location}"}}'
        for number, location in enumerate(locations)
    ]
    return "\n".join(["at 0 p attach b3", *lines]) + "\n"


CAR = """
at 0 car attach b0
at 1 car subscribe location IN myloc
at 2 car move a
"""


def test_a_client_gets_what_is_where_it_is() -> None:
    told = tell(LINE, SQUARE, "stay 1\n", CAR, published(*"abcd", *"abcd"), "at 13.5 car move b\n")
    assert told.delivered("car") == ["a", "b"]
    assert told.located("car") == [("a", "late"), ("b", "step")]


def test_within_so_many_steps() -> None:
    near = CAR.replace("IN myloc", "WITHIN 1 OF myloc")
    told = tell(LINE, SQUARE, "stay 1\n", near, published(*"abcd", *"abcd"), "at 13.5 car move d\n")
    # From a to d there is no edge: a jump, which takes effect when all know.
    assert told.delivered("car") == ["a", "b", "c", "b", "c", "d"]
    assert told.located("car") == [("a", "late"), ("d", "late")]


# --- what cannot be, and what it means ---


def test_an_unknown_location_is_refused_and_nothing_changes() -> None:
    told = tell(LINE, SQUARE, "stay 1\n", CAR, published(*"aba"), "at 10.5 car move nowhere\n")
    assert told.delivered("car") == ["a", "a"]
    (reason,) = told.refused("car")
    assert reason == "location 'nowhere' is not in the movement graph, which has 4 locations"
    assert told.located("car")[-1] == ("", f"refused: {reason}")


def test_a_jump_takes_effect_when_everyone_knows_and_misses_nothing() -> None:
    told = tell(
        LINE, SQUARE, "stay 100\n", CAR,
        "at 0 p attach b3\n",
        *(f'at {10 + number / 100} p publish {{"location": "{"ad"[number % 2]}"}}\n' for number in range(40)),
        "at 10.1 car move d\n",
    )  # fmt: skip
    assert told.located("car") == [("a", "late"), ("d", "late")]
    (took_effect,) = [row.time for row in told.rows if row.kind == "located" and row.time > 5]
    assert took_effect == pytest.approx(10.1 + 6 * 0.01)
    got = told.delivered("car")
    # All about a that arrives until then, all about d from then on, and nothing between is missing.
    assert got == ["a"] * 7 + ["d"] * 14


def test_one_can_leave_an_isolated_location_only_by_a_jump() -> None:
    told = tell(
        LINE, "graph a-b island\n", "stay 1\n",
        CAR.replace("move a", "move island"), published("island", "a", "a"), "at 10.5 car move a\n",
    )  # fmt: skip
    assert told.delivered("car") == ["island", "a", "a"]
    assert told.located("car") == [("island", "late"), ("a", "late")]


def test_a_client_that_never_said_where_it_is_gets_nothing() -> None:
    nowhere = "at 0 car attach b0\nat 1 car subscribe location IN myloc\nat 1 car subscribe kind = 1\n"
    others = "at 0 bus attach b1\nat 1 bus subscribe location = 'a'\n"
    told = tell(LINE, SQUARE, nowhere, others, published(*"ab"))
    assert told.delivered("car") == []
    assert told.delivered("bus") == ["a"]
    # Nothing is even sent towards it.
    assert not any(
        (broker, peer) == ("b1", "b0") and isinstance(message, Burst)
        for _, broker, peer, message in told.messages
    )


def test_staying_is_no_move() -> None:
    told = tell(LINE, SQUARE, "stay 1\n", CAR, published("a"), "at 10.5 car move a\nat 10.6 car move a\n")
    assert told.located("car") == [("a", "late")]
    assert told.refused("car") == []
    assert told.run.network.clients["car"].settled == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("at 1 car subscribe location IN myloc('bus')\n", "uses the state of another client"),
        ("at 1 car subscribe x < my.budget\n", "my.budget: this broker does not know how it may change"),
        ('at 1 car move {"budget": 3}\n', "my.budget: this broker does not know how it may change"),
        ("at 1 car advertise location IN myloc\n", "depends on the publisher's own state"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(lines: str, reason: str) -> None:
    bystander = "at 0 bus attach b0\nat 1 bus subscribe location = 'a'\n"
    told = tell(LINE, SQUARE, "at 0 car attach b0\n", lines, bystander, published("a"))
    (said,) = told.refused("car")
    assert reason in said
    assert told.delivered("bus") == ["a"]


def test_without_a_movement_graph_there_are_no_such_filters() -> None:
    told = tell(LINE, CAR, published("a"))
    assert [said.split(":")[0] for said in told.refused("car")] == ["my.location"] * 2
    assert all(said.endswith("known are none") for said in told.refused("car"))


def test_a_name_too_long_to_be_put_into_the_filter_is_refused() -> None:
    client = "c" * 9_000
    told = tell(LINE, SQUARE, f"at 0 {client} attach b0\nat 1 {client} subscribe location IN myloc\n")
    assert told.refused(client)[0].startswith("with the client id added, the selector is too long")


def test_home_broker_does_not_work_with_them() -> None:
    told = tell(LINE.replace("sub_unsub", "home_broker"), SQUARE, CAR)
    assert "protocol home_broker does not work with filters on the client's own state" in told.refused("car")


# --- who hears of a move ---


def test_a_move_is_told_only_where_it_changes_something() -> None:
    told = tell(
        LINE, ROOMS, "stay 0.06\n", CAR.replace("move a", "move r1"),
        "at 20 car move corridor\nat 30 car move r2\n",
    )  # fmt: skip
    # One round trip is a third of a stay, two are two thirds, three are a whole one: one step everywhere.
    assert told.whereabouts_after(20)[:3] == [("b0", "b1"), ("b1", "b2"), ("b2", "b3")]
    closer = tell(
        LINE, ROOMS, "stay 0.03\n", CAR.replace("move a", "move corridor"),
        "at 20 car move r1\nat 30 car move corridor\nat 40 car move r2\nat 50 car move corridor\n",
    )  # fmt: skip
    # Two steps at b2 and b3; a room and the corridor differ there, so each step is told.
    assert closer.whereabouts_after(49) == [("b0", "b1"), ("b1", "b2"), ("b2", "b3")]


def test_a_step_between_rooms_with_the_same_surroundings_is_not_told_further() -> None:
    text = (
        LINE, "graph h-r1 h-r2 h-r3 r1-r2 h-x x-y y-z\n", "stay 0.03\n", CAR.replace("move a", "move r1"),
        "at 20 car move r2\n",
    )  # fmt: skip
    # One step from r1 and from r2 is the same (each other and h), so what is beyond b1 need not hear.
    assert tell(*text).whereabouts_after(20) == [("b0", "b1")]


def test_where_all_locations_are_possible_nothing_is_told() -> None:
    told = tell(LINE, SQUARE, "stay 0.005\n", CAR, "at 20 car move b\n")
    assert told.whereabouts_after(20) == [("b0", "b1")]


def test_covering_makes_a_move_cost_nothing() -> None:
    wider = "at 0 bus attach b0\nat 0.5 bus subscribe location IS NOT NULL\n"
    told = tell(
        LINE, "routing covering\n", SQUARE, "stay 1\n", wider, CAR, published(*"ab"), "at 10.5 car move b\n"
    )
    assert told.whereabouts_after(0) == []
    assert told.delivered("car") == ["a", "b"]


def test_advertisements_limit_who_hears() -> None:
    publishers = (
        "at 0 p attach b1\nat 0 p advertise location IS NOT NULL\n"
        "at 0 q attach b3\nat 0 q advertise location IS NULL\n"
    )
    told = tell(
        LINE, "advertisements True\n", SQUARE, "stay 1\n", publishers, CAR,
        "at 10.5 car move b\n", 'at 12 p publish {"location": "b"}\n',
    )  # fmt: skip
    assert told.whereabouts_after(10) == [("b0", "b1")]
    assert told.delivered("car") == ["b"]


def test_both_limits_of_the_algorithm() -> None:
    def hops(stay: str) -> tuple[int, int]:
        told = tell(LINE, SQUARE, f"stay {stay}\n", CAR, published(*"abcdabcd"), "at 13.5 car move b\n")
        assert told.delivered("car") == ["a", "b"]
        traffic = told.run.traffic.hops
        return traffic["publish"], len(told.whereabouts_after(13))

    # Slow enough: what is not wanted is not sent at all, and every move is told to everyone.
    assert hops("inf") == (2 * 3, 3)
    # Too fast to be followed: everything is sent to the client's broker, and no move is told.
    assert hops("0") == (8 * 3, 1)


# --- how far away everyone is ---


def test_distances_are_measured_and_added_up() -> None:
    told = tell(
        LINE.replace("link 0.01", "link 0.01\nlink b1-b2 0.25"), SQUARE, "stay 1\n", CAR, "at 20 car move b\n"
    )
    known = [broker.router.dependents.known("car") for broker in told.run.network.brokers.values()]
    distances = [one.distance_s for one in known if one is not None]
    assert distances == pytest.approx([0, 0.02, 0.52, 0.54])


def test_the_pace_is_learnt_and_rounded_down() -> None:
    moves = "".join(f"at {10 + 3 * number} car move {'ba'[number % 2]}\n" for number in range(4))
    told = tell(LINE, SQUARE, "first_stay 0.5\n", CAR, moves)
    known = told.run.network.brokers["b3"].router.dependents.known("car")
    assert known is not None
    assert known.places["location"].stay_s == pytest.approx(2 ** (6 / 4))


def test_what_is_known_of_a_client_is_forgotten_with_its_last_filter() -> None:
    told = tell(LINE, SQUARE, "stay 1\n", CAR, "at 20 car unsubscribe location IN myloc\n")
    brokers = told.run.network.brokers
    assert [bool(broker.router.dependents) for broker in brokers.values()] == [True, False, False, False]


# --- the published rule ---

TOO_FEW_STEPS = (
    "brokers b0-b1\nprotocol sub_unsub\nlink 0.09\naccess 0\ngraph a-b b-c c-d\nstay 0.1\n",
    CAR,
    "at 0 p attach b1\n",
    "at 10 car move b\nat 10.1 car move c\n",
    'at 10.05 p publish {"location": "c"}\n',
)
"""Published while b1 has not heard of the first step, and at b0 after the second: two steps, not one."""


def test_the_rule_of_figure_13_misses_what_a_round_trip_allows_for() -> None:
    assert tell(*TOO_FEW_STEPS).delivered("car") == ["c"]
    published_rule = Told("".join(TOO_FEW_STEPS) + "steps published\n")
    assert published_rule.delivered("car") == []
    assert [one.kind for one in published_rule.run.result.violations] == ["blackout"]
    assert published_rule.run.result.blacked_out == 1


# --- any other state ---


def test_a_budget_works_like_a_location() -> None:
    def offers(prices: Iterable[int], start_s: float) -> str:
        lines = [
            f'at {start_s + number} p publish {{"location": "shop", "price": {price}}}'
            for number, price in enumerate(prices)
        ]
        return "\n".join(lines) + "\n"

    told = tell(
        LINE, "number budget 10 0 0 100\nstay 0.5\n", "at 0 p attach b3\nat 0 buyer attach b0\n",
        'at 1 buyer subscribe price <= my.budget\nat 2 buyer move {"budget": 50}\n',
        offers((40, 60), 10), 'at 12.5 buyer move {"budget": 42}\n', offers((40, 45), 13),
        # More than a step: it takes effect when all know.
        'at 15.5 buyer move {"budget": 90}\n', offers((85,), 16),
    )  # fmt: skip
    assert len(told.delivered("buyer")) == 3
    known = told.run.network.brokers["b3"].router.dependents.known("buyer")
    assert known is not None
    assert known.places["budget"].value == 90


# --- places that nobody asked to be taken to -----------------------------------------------------------


def test_who_was_away_may_have_gone_farther_than_a_step() -> None:
    """What a client publishes when it comes back it may have gathered on its way: all must know first."""
    told = tell(
        LINE, SQUARE, "told at\nstay 1\n",
        """
        at 0 car attach b0
        at 1 car subscribe location IN myloc
        at 2 car publish {"at": "a"}
        at 5 car publish {"at": "b"}
        at 6 car leave
        at 7 car publish {"at": "a"}
        at 8 car attach b0
        """,
    )  # fmt: skip
    assert told.located("car") == [("a", "late"), ("b", "step"), ("a", "late")]


def test_a_client_that_says_nothing_is_where_its_broker_is() -> None:
    told = tell(
        LINE, SQUARE, "lent b0 a\nlent b2 c\nstay 1\n",
        """
        at 0 car attach b0
        at 1 car subscribe location IN myloc
        at 20 car leave
        at 21 car attach b2
        at 30 car leave
        at 31 car attach b1
        """,
        published(*"aaaaaaaaaabcccccccccccccccccccccccccc"),
    )  # fmt: skip
    # A broker without a place leaves its clients where they were.
    assert told.located("car") == [("a", "late"), ("c", "late")]
    assert set(told.delivered("car")) == {"a", "c"}
