"""A peer that takes nothing: publishers wait, here and behind other brokers, and nothing is lost."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.daemon.brokers import BrokerProcess, MqttClient, free_port, wait_until

LIMIT = 50_000
COUNT, SIZE = 400, 2_000
SETTING = f"link.unacknowledged_bytes_max={LIMIT}"


def kept(broker: BrokerProcess, peer: str) -> float:
    return broker.metric(f'roamcast_link_kept_bytes{{peer="{peer}"}}')


def test_publishers_wait_until_the_last_broker_goes_on(tmp_path: Path) -> None:
    ports = {id: free_port() for id in "ab"}
    brokers = [
        BrokerProcess(tmp_path, "a", SETTING, link_port=ports["a"]),
        BrokerProcess(tmp_path, "b", SETTING, link_port=ports["b"], peers={"a": ports["a"]}),
        BrokerProcess(tmp_path, "c", SETTING, peers={"b": ports["b"]}),
    ]
    a, b, c = brokers
    try:
        a.wait_for_link("b")
        b.wait_for_link("c")
        far, near = MqttClient("far", c.port), MqttClient("near", a.port)
        publisher, other = MqttClient("p", a.port), MqttClient("q", a.port)
        far.subscribe("t")
        near.subscribe("other", qos=0)
        c.process.send_signal(signal.SIGSTOP)
        try:
            sent = [publisher.paho.publish("t", b"%d " % n + b"x" * SIZE, qos=1) for n in range(COUNT)]
            b.wait_for(r"more than 50000 bytes are buffered for c: publishers wait")
            a.wait_for(r"more than 50000 bytes are buffered for b: publishers wait")
            # Who publishes nothing that has to be kept is served as ever.
            other.publish("other", b"here", qos=0)
            near.wait_for_messages(1)
            assert not sent[-1].is_published()
            # A publisher has been read from once more before it was noticed, with 20 in flight each time.
            assert kept(a, "b") < LIMIT + 2 * 20 * 2 * SIZE
            assert kept(b, "c") < 2 * (LIMIT + 2 * 20 * 2 * SIZE)
        finally:
            c.process.send_signal(signal.SIGCONT)
        far.wait_for_messages(COUNT)
        assert [int(payload.split()[0]) for _, payload in far.messages] == list(range(COUNT))
        wait_until(lambda: all(one.is_published() for one in sent), lambda: "not all are acknowledged")
        a.wait_for("publishers go on")
        for client in (far, near, publisher, other):
            client.leave()
    finally:
        for broker in brokers:
            broker.stop()
