"""The benchmark of the radio simulator: that it measures what it says, never how fast that is."""

import json

import pytest

from roamcast.bench import radio
from roamcast.cli import build_app, run


def test_both_protocols_are_measured_and_targets_belong_to_the_whole_setting() -> None:
    result = radio.run(brokers=2, duration_s=20.0)
    cases = result["cases"]
    assert isinstance(cases, list)
    assert [case["protocol"] for case in cases] == ["mft", "aodv"]
    for case in cases:
        assert case["core_s"] > 0
        assert case["delivered"] > 0
        assert case["target_s"] is None


def test_the_command_prints_one_object_and_refuses_other_networks(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "radio", "--duration", "5", "--json", "--brokers"]
    assert run(build_app(), [*command, "2"]) == 0
    assert json.loads(capsys.readouterr().out)["configuration"] == "C2"
    assert run(build_app(), [*command, "3"]) == 2
    assert "C2, C4, C8, C16, C32" in capsys.readouterr().err
