"""Foreign clients of the chaos benchmark."""

from __future__ import annotations

import pytest

from roamcast.bench.roaming_clients import paho_client


def test_paho_publishes_nothing_again_that_was_received_with_qos_2() -> None:
    client_module = pytest.importorskip("paho.mqtt.client")
    states = pytest.importorskip("paho.mqtt.enums").MessageState
    client = paho_client("c")
    received, sent = (client_module.MQTTMessage(mid, b"t") for mid in (1, 2))
    received.qos, received.state = 2, states.MQTT_MS_WAIT_FOR_PUBCOMP
    sent.qos, sent.state = 2, states.MQTT_MS_WAIT_FOR_PUBREC
    client._out_messages.update({1: received, 2: sent})
    client._clean_start = False
    for _ in range(3):
        client._messages_reconnect_reset_out()
    assert [received.state, sent.state] == [states.MQTT_MS_RESEND_PUBREL, states.MQTT_MS_PUBLISH]
