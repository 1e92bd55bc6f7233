"""A journal that was cut or overwritten while no broker ran: refused, and not taken for a torn commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.daemon.brokers import BrokerProcess, MqttClient, roamcast, roamcast_json

from roamcast.storage.segments import read_watermark

MESSAGES = 300
Spoil = Callable[[bytearray, int], bytes]


def cut(data: bytearray, end: int) -> bytes:
    return bytes(data[: end - 20_000])


def zero(data: bytearray, end: int) -> bytes:
    return bytes(data[: end - 5_000] + bytes(len(data) - end + 5_000))


@pytest.mark.parametrize(("spoil", "sync"), [(cut, "process"), (zero, "group")])
def test_acknowledged_messages_are_missed(tmp_path: Path, spoil: Spoil, sync: str) -> None:
    broker = BrokerProcess(tmp_path, "a", f"journal.sync={sync}")
    subscriber = MqttClient("subscriber", broker.port)
    subscriber.subscribe("t")
    subscriber.leave()
    publisher = MqttClient("publisher", broker.port)
    for number in range(MESSAGES):
        publisher.publish("t", b"%d" % number + bytes(100))
    broker.kill()
    publisher.leave()
    (segment,) = (broker.data / "journal").glob("*.journal")
    data, end = segment.read_bytes(), read_watermark(segment).end
    segment.write_bytes(spoil(bytearray(data), end))
    before = segment.read_bytes()

    # The start is refused with one line that says what to do, and changes nothing.
    with pytest.raises(AssertionError, match="it has ended"):
        broker.start()
    last = broker.lines[-1]
    assert "were acknowledged and are missing; the file was cut or overwritten" in last
    assert "accept the loss with 'roamcast journal repair'" in last
    assert segment.read_bytes() == before
    assert roamcast("journal", "verify", str(broker.data)).returncode == 1

    # The whole file is as good as ever.
    segment.write_bytes(data)
    broker.start()
    broker.kill()
    segment.write_bytes(spoil(bytearray(segment.read_bytes()), end))

    # The operator accepts the loss.
    report = roamcast_json("journal", "repair", str(broker.data), "--accept-loss")
    assert report["repaired"]
    assert report["entries"] > 0
    assert roamcast("journal", "verify", str(broker.data)).returncode == 0
    broker.start()
    subscriber.connect(broker.port)
    assert subscriber.present
    broker.kill()
    subscriber.paho.loop_stop()
