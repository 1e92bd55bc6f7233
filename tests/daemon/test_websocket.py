"""MQTT over WebSocket, with a real client and with requests that are refused."""

import socket
from collections.abc import Iterator
from contextlib import suppress

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from tests.daemon.broker_process import DEADLINE_S, BrokerProcess, wait_until

CONFIG = """
id = "web"
data = "data"
[[listener]]
port = 0
kind = "ws"
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    broker = BrokerProcess(tmp_path_factory.mktemp("web"), CONFIG)
    yield broker.port
    broker.stop()


def test_messages_go_both_ways(port: int) -> None:
    sent = [bytes([n]) * 1000 * n for n in range(9)]
    received: list[bytes] = []

    def publish(client: paho.Client, *_: object) -> None:
        for n, payload in enumerate(sent):
            client.publish("web/a", payload, n % 3)

    client = paho.Client(CallbackAPIVersion.VERSION2, transport="websockets", protocol=paho.MQTTv5)
    client.on_message = lambda _client, _data, message: received.append(bytes(message.payload))
    client.on_connect = lambda one, *_: one.subscribe("web/#", 2)
    client.on_subscribe = publish
    client.connect("127.0.0.1", port)
    client.loop_start()
    wait_until(lambda: len(received) >= len(sent), lambda: f"only {len(received)} messages")
    client.disconnect()
    client.loop_stop()
    assert sorted(received) == sorted(sent)


def ask(port: int, path: str = "/mqtt", protocol: str = "mqtt", origin: str = "") -> bytes:
    """The first line that a request is answered with."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        f"Sec-WebSocket-Protocol: {protocol}",
    ]
    if origin:
        lines.append(f"Origin: {origin}")
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection.recv(4096).split(b"\r\n")[0]


def test_only_the_right_path_protocol_and_origin_become_a_websocket(port: int) -> None:
    assert ask(port).startswith(b"HTTP/1.1 101")
    assert ask(port, origin=f"http://127.0.0.1:{port}").startswith(b"HTTP/1.1 101")
    assert ask(port, path="/other").startswith(b"HTTP/1.1 404")
    assert ask(port, protocol="chat").startswith(b"HTTP/1.1 404")
    assert ask(port, origin="http://elsewhere.example").startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("data", [b"\0" * 100, b"GET / HTTP/1.0\r\n\r\n", b"x" * 100_000])
def test_rubbish_is_closed_and_others_are_served(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):
            while chunk := connection.recv(4096):
                answer += chunk
    assert b"101" not in answer
    assert ask(port).startswith(b"HTTP/1.1 101")
