"""The broker's time does not jump, whatever is done to the system clock."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from tests.daemon.brokers import BrokerProcess, MqttClient

from roamcast.daemon.clock import (
    DOWN_S_MAX,
    FOLLOW_PACE,
    BrokerClock,
    Reading,
    read_reading,
    save_reading,
    time_after,
)

DAY_S = 86_400.0
SHIFTED = (sys.executable, str(Path(__file__).with_name("shifted_broker.py")))


class System:
    """Clocks of a machine."""

    def __init__(self, wall: float = 1000.0) -> None:
        self.wall, self.steady = wall, 50.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def clock(self, now: float | None = None) -> BrokerClock:
        started = self.wall if now is None else now
        return BrokerClock(started, lambda: self.wall, lambda: self.steady)


def test_it_is_the_time_of_the_system_clock() -> None:
    system = System()
    clock = system.clock()
    for _ in range(10):
        system.pass_time(7.5)
        assert clock() == pytest.approx(system.wall)
    assert clock.seconds_until(system.wall + 3.0) == pytest.approx(3.0)
    assert clock.seconds_until(system.wall - 3.0) == 0.0


@pytest.mark.parametrize("step_s", [8 * DAY_S, -8 * DAY_S, 3600.0, -5.0])
def test_a_step_is_followed_slowly(step_s: float, caplog: pytest.LogCaptureFixture) -> None:
    system = System(wall=1e9)
    clock = system.clock()
    system.wall += step_s
    with caplog.at_level(logging.WARNING):
        assert clock() == 1e9
        system.pass_time(2.0)
        assert clock() == pytest.approx(1e9 + 2.0 * (1 + (FOLLOW_PACE if step_s > 0 else -FOLLOW_PACE)))
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"the system clock was set by {step_s:+.1f} s"
    ]
    # Set right again: after some time there is no difference left.
    system.wall -= step_s
    system.pass_time(10.0)
    assert clock() == pytest.approx(system.wall)


def test_it_meets_a_clock_that_stays_where_it_was_set() -> None:
    system = System()
    clock = system.clock()
    system.wall += 60.0
    for _ in range(600):
        before = clock()
        system.pass_time(1.0)
        assert 0.89 < clock() - before < 1.11
    assert clock() == pytest.approx(system.wall)
    assert clock.seconds_until(clock() + 11.0) == pytest.approx(11.0)


def test_small_corrections_are_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    system = System()
    clock = system.clock()
    for step_s in (0.3, -0.4, 0.2):
        system.pass_time(20.0)
        system.wall += step_s
        clock()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("saved", "system", "is_sure", "now"),
    [
        # While the system runs, it knows how long the broker was down.
        (Reading(1, 500.0, 1000.0), Reading(1, 520.0, 1000.0 + 8 * DAY_S), True, 1020.0),
        (Reading(1, 500.0, 1000.0), Reading(1, 520.0, 17.0), False, 1020.0),
        # After a reboot the system clock counts, for a day or if it is synchronised.
        (Reading(1, 500.0, 1000.0), Reading(2, 3.0, 5000.0), False, 5000.0),
        (Reading(1, 500.0, 1000.0), Reading(2, 3.0, 1000.0 + 8 * DAY_S), False, 1010.0 + DOWN_S_MAX),
        (Reading(1, 500.0, 1000.0), Reading(2, 3.0, 1000.0 + 8 * DAY_S), True, 1000.0 + 8 * DAY_S),
        (None, Reading(2, 3.0, 1000.0 + 8 * DAY_S), False, 1010.0 + DOWN_S_MAX),
        # Time never goes back.
        (None, Reading(2, 3.0, 17.0), True, 1010.0),
    ],
)
def test_the_time_after_a_restart(saved: Reading | None, system: Reading, is_sure: bool, now: float) -> None:
    assert time_after(1010.0, saved, system, lambda: is_sure) == now


def test_at_the_first_start_it_is_what_the_system_says() -> None:
    assert time_after(0.0, None, Reading(1, 2.0, 1e9), lambda: False) == 1e9


def test_a_reading_is_kept_in_the_folder(tmp_path: Path) -> None:
    assert read_reading(tmp_path) is None
    reading = System().clock().reading()
    save_reading(tmp_path, reading)
    assert read_reading(tmp_path) == reading
    (tmp_path / "clock").write_text("nothing")
    assert read_reading(tmp_path) is None


@pytest.mark.slow  # 13 s
def test_a_clock_that_is_eight_days_ahead_for_a_moment_ends_no_session(tmp_path: Path) -> None:
    """A real broker, whose system clock is changed while it runs, and again while it is down."""
    shift = tmp_path / "shift"
    shift.write_text("0")
    broker = BrokerProcess(tmp_path, "a", "log.level=info", program=(*SHIFTED, str(shift)))
    subscriber = MqttClient("subscriber", broker.port)
    subscriber.subscribe("t")
    subscriber.leave()
    publisher = MqttClient("publisher", broker.port)
    publisher.publish("t", b"owed")
    for seconds, step in ((8 * DAY_S, r"\+"), (0.0, "-")):
        shift.write_text(str(seconds))
        publisher.publish("other", b"something happens meanwhile")
        broker.wait_for(rf"the system clock was set by {step}69")
    publisher.leave()
    broker.kill()
    shift.write_text(str(8 * DAY_S))
    broker.start()
    subscriber.connect(broker.port)
    assert subscriber.present
    subscriber.wait_for_messages(1)
    subscriber.leave()
    broker.stop()
