"""Order-k models of the next broker, residence times, and what they are judged by."""

import math
from random import Random

import pytest

from roamcast.models.mobility import (
    CHAINS,
    MODEL_FILE,
    LastUsed,
    Move,
    NextBroker,
    Survival,
    Visit,
    calibration,
    evaluate,
    judge,
    moves_of,
    predictability_bound,
)


def way(client: str, brokers: str, step_s: float = 10.0) -> list[Visit]:
    return [
        Visit(client, broker, step_s * number, step_s * (number + 1)) for number, broker in enumerate(brokers)
    ]


def test_moves_know_where_a_client_was() -> None:
    moves = moves_of(way("c", "abbca"))
    assert [(move.recent, move.target) for move in moves] == [
        (("a",), "b"),
        (("a", "b"), "c"),
        (("a", "b", "c"), "a"),
    ]
    assert moves_of([]) == []


def test_where_a_client_came_from_tells_where_it_goes() -> None:
    """A line a-b-c, to and fro: at b, order 1 knows nothing and order 2 knows it all."""
    moves = moves_of(way("bus", "abcb" * 30))
    judged = judge(
        {name: NextBroker(CHAINS[name]) for name in ("order 1", "order 2", "order 3")},
        moves,
        moves[-1].at_s / 2,
    )
    assert judged["order 1"].row()["hit_1"] == pytest.approx(0.75, abs=0.02)
    for name in ("order 2", "order 3"):
        assert judged[name].row()["hit_1"] == 1.0
        assert (judged[name].row()["log_loss_bits"] or 0) < (judged["order 1"].row()["log_loss_bits"] or 0)


def test_a_context_that_is_not_known_falls_back() -> None:
    model = NextBroker(CHAINS["order 2"])
    for move in moves_of(way("bus", "abab")):
        model.learn(move)
    assert model.ranked(Move("other", ("x", "a"), "b", 0.0))[0][0] == "b"
    shares = model.probabilities(Move("other", ("x", "never seen"), "b", 0.0))
    assert sum(shares.values()) == pytest.approx(1.0)


def test_clients_have_ways_of_their_own() -> None:
    moves = moves_of([*way("one", "ab" * 20), *way("two", "ac" * 20)])
    judged = judge({name: NextBroker(CHAINS[name]) for name in ("order 1", "order 2, client")}, moves, 200.0)
    assert judged["order 2, client"].row()["hit_1"] == 1.0
    assert (judged["order 1"].row()["hit_1"] or 0) < 0.8


def test_the_last_used_destination_is_first() -> None:
    model = LastUsed()
    for move in moves_of(way("c", "abaca")):
        model.learn(move)
    assert [broker for broker, _ in model.ranked(Move("d", ("a",), "x", 0.0))] == ["c", "b"]


def test_stays_that_have_not_ended_count_as_long_as_they_lasted() -> None:
    survival = Survival.of([(10.0, True), (20.0, False), (30.0, True), (40.0, True)])
    assert survival.lasts_longer(5.0) == 1.0
    assert survival.lasts_longer(10.0) == pytest.approx(3 / 4)
    assert survival.lasts_longer(30.0) == pytest.approx(3 / 4 * 1 / 2)
    assert survival.leaves_within(10.0, 20.0) == pytest.approx(1 / 2)
    assert survival.quantiles([0.25, 0.5, 1.0]) == [10.0, 30.0, 40.0]
    assert math.isclose(Survival.of([]).leaves_within(0.0, 1.0), 0.0)


def test_predictions_of_when_are_compared_with_what_happened() -> None:
    visits = [Visit(str(n), "a", 10.0 * n, 10.0 * n + (100.0 if n % 4 else 500.0)) for n in range(400)]
    (found,) = calibration(visits, 2_000.0, horizon_s=300.0)
    assert found["predicted"] == pytest.approx(0.75, abs=0.02)
    assert found["left"] == pytest.approx(0.75, abs=0.01)


def test_the_bound_is_high_for_routine_and_low_for_chance() -> None:
    routine = predictability_bound(moves_of(way("bus", "abcd" * 40)))
    chance = predictability_bound(moves_of(way("fly", "".join(Random(1).choices("abcdefghij", k=400)))))
    assert routine is not None
    assert chance is not None
    assert routine > 0.9
    assert chance < 0.4
    assert predictability_bound(moves_of(way("c", "ab"))) is None


def test_everything_in_one_table() -> None:
    found = evaluate(way("bus", "abcb" * 30))
    assert isinstance(found["models"], dict)
    assert set(found["models"]) == {*CHAINS, MODEL_FILE, "last used"}
    assert found["models"][MODEL_FILE]["hit_1"] == 1.0
    assert found["models"]["order 2"]["hit_1"] == 1.0
