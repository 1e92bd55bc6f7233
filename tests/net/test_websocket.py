"""MQTT over WebSocket, with a real client and with requests that are refused."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from tests.daemon.broker_process import DEADLINE_S, BrokerProcess, wait_until

from roamcast.config.sections import Listener
from roamcast.net.websocket import PONGS_BYTES_MAX, WebSocketConnection

CONFIG = """
id = "web"
data = "data"
[[listener]]
port = 0
kind = "ws"
[mqtt]
connect_timeout_s = 1.0
"""

UPGRADE = [
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    started = BrokerProcess(tmp_path_factory.mktemp("web"), CONFIG)
    yield started
    started.stop()


@pytest.fixture
def port(broker: BrokerProcess) -> int:
    return broker.port


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
    connection, line = open_socket(port, path, protocol, origin)
    connection.close()
    return line


def open_socket(
    port: int, path: str = "/mqtt", protocol: str = "mqtt", origin: str = ""
) -> tuple[socket.socket, bytes]:
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        *UPGRADE,
        f"Sec-WebSocket-Protocol: {protocol}",
    ]
    if origin:
        lines.append(f"Origin: {origin}")
    connection = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection, connection.recv(4096).split(b"\r\n")[0]


def test_only_the_right_path_protocol_and_origin_become_a_websocket(port: int) -> None:
    assert ask(port).startswith(b"HTTP/1.1 101")
    assert ask(port, origin=f"http://127.0.0.1:{port}").startswith(b"HTTP/1.1 101")
    assert ask(port, path="/other").startswith(b"HTTP/1.1 404")
    assert ask(port, protocol="chat").startswith(b"HTTP/1.1 404")
    assert ask(port, origin="http://elsewhere.example").startswith(b"HTTP/1.1 403")
    assert ask(port, origin="http://[no-address").startswith(b"HTTP/1.1 403")
    assert ask(port, path="http://[no-address").startswith(b"HTTP/1.1 404")


def test_whoever_does_not_say_what_it_wants_is_closed_in_time(port: int) -> None:
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as silent,
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as halting,
    ):
        halting.sendall(b"GET /mqtt HTTP/1.1\r\nHost:")
        assert silent.recv(1) == halting.recv(1) == b""


class Clogged(asyncio.Transport):
    """Of somebody who reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return False


def test_pings_are_answered_only_as_long_as_the_answers_are_read() -> None:
    class Inner:
        def connection_made(self, _: object) -> None: ...

    transport = Clogged()
    connection = WebSocketConnection(cast(Any, Inner()), Listener(kind="ws"))
    connection.connection_made(transport)
    lines = ["GET /mqtt HTTP/1.1", "Host: localhost", *UPGRADE, "Sec-WebSocket-Protocol: mqtt", "", ""]
    connection.data_received("\r\n".join(lines).encode())
    assert transport.written.startswith(b"HTTP/1.1 101")
    for _ in range(1000):
        connection.data_received(b"\x89\xfd" + bytes(4 + 125))
    assert PONGS_BYTES_MAX <= len(transport.written) < PONGS_BYTES_MAX + 200


FOREIGN_LETTERS = "\r\n".join(["GET /mqtt HTTP/1.1", "Host: \xff", *UPGRADE, "", ""]).encode("latin-1")


@pytest.mark.parametrize("data", [b"\0" * 100, b"GET / HTTP/1.0\r\n\r\n", b"x" * 100_000, FOREIGN_LETTERS])
def test_rubbish_is_closed_and_others_are_served(broker: BrokerProcess, port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):
            while chunk := connection.recv(4096):
                answer += chunk
    assert b"101" not in answer
    assert ask(port).startswith(b"HTTP/1.1 101")
    assert not [line for line in broker.lines if "Traceback" in line], "each would be many lines in the log"
