"""The limit for clients that move again and again."""

from roamcast.net.flapping import CLIENTS_KEPT_MAX, Flapping


def test_handoffs_are_counted_for_each_client_and_come_back_with_time() -> None:
    flapping = Flapping()
    assert [flapping.pause_s("c", 30, 0.0) for _ in range(30)] == 30 * [0.0]
    assert flapping.pause_s("c", 30, 0.0) == 2.0
    assert flapping.pause_s("d", 30, 0.0) == 0.0
    assert flapping.pause_s("c", 30, 1.0) == 1.0, "who is refused is not counted"
    assert [flapping.pause_s("c", 30, now_s) for now_s in (2.0, 2.0)] == [0.0, 2.0]


def test_the_memory_is_bounded() -> None:
    flapping = Flapping()
    for number in range(CLIENTS_KEPT_MAX + 1):
        assert flapping.pause_s(str(number), 1, 0.0) == 0.0
    assert flapping.pause_s("0", 1, 0.0) == 0.0, "the oldest was forgotten"
    assert flapping.pause_s(str(CLIENTS_KEPT_MAX), 1, 0.0) > 0.0
