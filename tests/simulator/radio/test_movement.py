import numpy as np
import pytest

from roamcast.errors import InputError
from roamcast.simulator.radio.movement import Movement, RandomWalk, RandomWaypoint


@pytest.mark.parametrize("kind", [RandomWaypoint, RandomWalk])
def test_everyone_stays_inside(kind: type[RandomWaypoint] | type[RandomWalk]) -> None:
    movement = kind(50, 30.0, 10.0, np.random.default_rng(1))
    for _ in range(600):
        movement.advance(0.3)
        assert (movement.positions_m >= 0.0).all()
        assert (movement.positions_m <= 30.0).all()


def test_waypoint_moves_at_its_speed() -> None:
    movement = RandomWaypoint(200, 1000.0, 5.0, np.random.default_rng(1))
    before = movement.positions_m
    movement.advance(0.1)
    steps = np.linalg.norm(movement.positions_m - before, axis=1)
    # Who arrived within the step has turned, and is less far away.
    assert steps.max() == pytest.approx(0.5)
    assert np.median(steps) == pytest.approx(0.5)


def test_waypoint_does_not_depend_on_how_time_is_cut() -> None:
    one, other = (RandomWaypoint(1, 50.0, 4.0, np.random.default_rng(3)) for _ in range(2))
    one.advance(8.0)
    for _ in range(80):
        other.advance(0.1)
    assert one.positions_m == pytest.approx(other.positions_m)


def test_a_walk_turns_at_every_tick_and_not_between() -> None:
    movement = RandomWalk(1, 10_000.0, 4.0, np.random.default_rng(5))
    places = [movement.positions_m[0]]
    for _ in range(4):
        movement.advance(0.5)
        places.append(movement.positions_m[0])
    steps = np.diff(places, axis=0)
    assert steps[0] == pytest.approx(steps[1])
    assert steps[1] != pytest.approx(steps[2])


def test_a_waypoint_covers_more_of_the_area_than_a_walk() -> None:
    def visited(movement: Movement) -> int:
        cells: set[tuple[int, ...]] = set()
        for _ in range(700):
            movement.advance(1.0)
            cells.update(map(tuple, (movement.positions_m // 5).astype(int)))
        return len(cells)

    walk = visited(RandomWalk(1, 110.0, 2.0, np.random.default_rng(1)))
    waypoint = visited(RandomWaypoint(1, 110.0, 2.0, np.random.default_rng(1)))
    assert waypoint > 1.5 * walk


def test_a_speed_below_zero_is_refused() -> None:
    with pytest.raises(InputError, match="speed"):
        RandomWaypoint(1, 10.0, -1.0, np.random.default_rng(1))
