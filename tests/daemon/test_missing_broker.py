"""A broker is killed and stays away: what clients of the others notice of it. Real processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.daemon.brokers import BrokerProcess, MqttClient, wait_until

from roamcast.bench.processes import free_port

AT_ONCE_S = 3.0
"""Far below the five seconds for which clients would be let wait for a broker that does not answer."""


@pytest.mark.slow
def test_nobody_waits_for_a_broker_that_is_down(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(2)]
    a = BrokerProcess(tmp_path, "a", link_port=ports[0])
    b = BrokerProcess(tmp_path, "b", link_port=ports[1], peers={"a": ports[0]})
    c = BrokerProcess(tmp_path, "c", peers={"b": ports[1]})
    try:
        b.wait_for_link("a")
        b.wait_for_link("c")
        away, roaming = MqttClient("away", c.port), MqttClient("roaming", a.port)
        away.subscribe("city/#", 1)
        away.leave()
        c.kill()
        wait_until(lambda: b.metric('roamcast_link_up{peer="c"}') == 0, lambda: "b has not noticed it")
        began = time.monotonic()
        new = MqttClient("new", a.port)
        assert new.connected == "Success"
        new.subscribe("city/#", 1)
        roaming.leave()
        roaming.connect(b.port)
        assert (roaming.connected, roaming.present) == ("Success", True)
        assert time.monotonic() - began < AT_ONCE_S
        roaming.publish("city/air", b"1", 1)
        new.wait_for_messages(1)
        away.connect(b.port)
        assert away.connected == "Server unavailable", "its session is at c"
        c.start()
        b.wait_for_link("c")
        away.connect(b.port)
        assert (away.connected, away.present) == ("Success", True)
        away.wait_for_messages(1)
        for client in (new, roaming, away):
            client.leave()
    finally:
        for broker in (a, b, c):
            broker.kill()
