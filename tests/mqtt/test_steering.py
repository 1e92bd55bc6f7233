"""Where clients are told to go."""

from pathlib import Path

import pytest

from roamcast.config.sections import Steering as Section
from roamcast.config.sections import SteeringBroker
from roamcast.daemon.settings import read_steering
from roamcast.errors import InputError
from roamcast.mqtt.server.steering import Next, SteeredBroker, Steering, read_next

STEERING = Steering(
    (
        SteeredBroker("a", "10.0.0.1:1883", "43.26,-2.93"),
        SteeredBroker("b", "10.0.0.2:1883", "43.32,-1.98"),
        SteeredBroker("c", "10.0.0.3:1883"),
    ),
    {"aa:01": "a", "bb:01": "b", "gone": "z"},
)


def told(here: str, said: str, *likely: str) -> str | None:
    answer = STEERING.answer(here, said, likely)
    if answer is None:
        return None
    found = read_next(answer)
    assert found is not None
    assert found.address == STEERING.address_of(found.broker)
    return found.broker


def test_the_strongest_signal_that_is_known_decides() -> None:
    assert told("a", "unknown\nbb:01\naa:01") == "b"
    assert told("b", "bb:01") is None, "it is there"
    assert told("a", "unknown") is None
    assert told("a", "gone") is None, "nobody knows where that broker is"


def test_the_nearest_broker_decides() -> None:
    assert told("c", "43.27,-2.9") == "a"
    assert told("a", '{"lat": 43.3, "lon": -2.0}') == "b"
    assert told("b", '{"lat": 43.3, "lon": -2.0}') is None
    assert told("a", '{"lat": "far"}') is None
    assert told("a", "{") is None
    assert told("a", '{"a":' + "[" * 100_000) is None


def test_the_model_decides_where_nothing_is_said() -> None:
    assert told("a", "", "b", "c") == "b"
    assert told("a", "") is None
    assert told("a", "", "z") is None


def test_what_is_no_hint() -> None:
    assert read_next(b'{"broker": "b", "address": "h:1"}') == Next("b", "h:1")
    assert read_next(b"\xff") is None
    assert read_next(b'{"broker": 1}') is None


def test_the_file_of_signals(tmp_path: Path) -> None:
    brokers = (SteeringBroker(id="a", address="10.0.0.1:1883"),)
    path = tmp_path / "signals.txt"
    path.write_text("# names\n\naa:01 a  # the platform\naa:02 a\n")
    assert read_steering(Section(signals=str(path), brokers=brokers)).signals == {"aa:01": "a", "aa:02": "a"}
    path.write_text("aa:01 a\naa:02 b\n")
    with pytest.raises(InputError, match=r"line 2: valid is NAME BROKER, with a broker among a$"):
        read_steering(Section(signals=str(path), brokers=brokers))
    with pytest.raises(InputError, match=r"steering.overflow 'b': no \[\[steering.broker\]\] has this id"):
        read_steering(Section(overflow="b", brokers=brokers))
