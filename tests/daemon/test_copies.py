"""A copy serves a standard client while the broker that holds the session cannot answer: it is stopped."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.daemon.brokers import BrokerProcess, free_port
from tests.daemon.raw_client import Raw

from roamcast.mqtt.codec import packets

EXPECTED = json.dumps({"brokers": {"a": {"b": {"probability": 1}}}})
SETTINGS = ("mobility.protocol=roam", f"mobility.settings.neighbour_graph={EXPECTED}")


@pytest.mark.slow
def test_a_standard_client_is_served_where_it_was_expected(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = free_port()
        a = BrokerProcess(tmp_path, "a", *SETTINGS, link_port=port)
        stack.callback(a.kill)
        b = BrokerProcess(tmp_path, "b", *SETTINGS, peers={"a": port})
        stack.callback(b.kill)
        b.wait_for("link to a is up")
        watcher = stack.enter_context(Raw(b, "watcher", expiry=600))
        watcher.subscribe("filled", qos=1)
        with Raw(a, "reader", expiry=600) as reader:
            reader.subscribe("news", qos=1)
            reader.leave()
        with Raw(a, "writer") as writer:
            writer.send(packets.Publish("news", b"1", 1, packet_id=1))
            writer.expect(packets.Puback)
            # What is fed to the copy goes before this over the same link.
            writer.send(packets.Publish("filled", b"", 1, packet_id=2))
            writer.expect(packets.Puback)
        filled = watcher.receive()
        assert isinstance(filled, packets.Publish)

        a.process.send_signal(signal.SIGSTOP)
        with Raw(b, "reader", expiry=600, clean=False) as reader:
            assert reader.connack.session_present
            first = reader.receive()
            assert isinstance(first, packets.Publish)
            assert (first.payload, first.qos, first.dup) == (b"1", 1, True)
            reader.send(packets.Puback(first.packet_id))
            reader.ping()
            b.kill()  # With CONNACK said, and the session still elsewhere.
            b.start()
        a.process.send_signal(signal.SIGCONT)
        b.wait_for("link to a is up")
        with Raw(b, "writer") as writer:
            writer.send(packets.Publish("news", b"2", 1, packet_id=1))
            writer.expect(packets.Puback)
        with Raw(b, "reader", expiry=600, clean=False) as reader:
            assert reader.connack.session_present
            second = reader.receive()
            assert isinstance(second, packets.Publish)
            assert (second.payload, second.dup) == (b"2", False)
