"""A copy serves a standard client while the broker that holds the session cannot answer: it is stopped."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.daemon.brokers import BrokerProcess, free_port
from tests.daemon.raw_client import Raw

from roamcast.mqtt.codec import packets

EXPECTED = json.dumps({"brokers": {"a": {"b": {"probability": 1}}}})
NOT_USED = "mobility.model is not used, and the broker learns from moves alone"


@contextmanager
def two_brokers(folder: Path, *settings: str) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    with ExitStack() as stack:
        port = free_port()
        a = BrokerProcess(folder, "a", "mobility.protocol=roam", *settings, link_port=port)
        stack.callback(a.kill)
        b = BrokerProcess(folder, "b", "mobility.protocol=roam", *settings, peers={"a": port})
        stack.callback(b.kill)
        b.wait_for("link to a is up")
        yield a, b


def leave_a_copy(a: BrokerProcess, b: BrokerProcess) -> None:
    """Have a session at `a` whose copy at `b`, if there is one, has one message."""
    with Raw(b, "watcher", expiry=600) as watcher:
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
        assert isinstance(watcher.receive(), packets.Publish)


@pytest.mark.slow
def test_a_standard_client_is_served_where_it_was_expected(tmp_path: Path) -> None:
    with two_brokers(tmp_path, f"mobility.settings.neighbour_graph={EXPECTED}") as (a, b):
        leave_a_copy(a, b)
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


@pytest.mark.slow
def test_without_a_usable_model_a_broker_says_why_and_learns_from_moves(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with two_brokers(tmp_path, f"mobility.model={path}") as (a, b):
        assert [line for line in a.lines if NOT_USED in line] == [
            a.wait_for(f".*{NOT_USED}.*No such file.*\n")[0]
        ]
        rows = {"a": {"b": {"probability": 1.0}}}
        stale = {"brokers": rows, "about": {"made_at_s": time.time() - 1e8}}
        foreign = {"brokers": {"x": {"y": {"probability": 1.0}}}}
        for model, why in (
            (stale, "the model was made .* days ago"),
            (foreign, "the model is of other brokers"),
        ):
            path.write_text(json.dumps(model))
            a.kill()
            before = len(a.lines)
            a.start()
            a.wait_for(f"{NOT_USED}: {why}")
            b.wait_for("link to a is up")
            assert sum(NOT_USED in line for line in a.lines[before:]) == 1
        with Raw(a, "scout", expiry=600) as scout:
            scout.leave()
        with Raw(b, "scout", expiry=600, clean=False) as scout:
            assert scout.connack.session_present
        leave_a_copy(a, b)
        a.process.send_signal(signal.SIGSTOP)
        with Raw(b, "reader", expiry=600, clean=False) as reader:
            assert reader.connack.session_present
            first = reader.receive()
            assert isinstance(first, packets.Publish)
            assert first.payload == b"1"
