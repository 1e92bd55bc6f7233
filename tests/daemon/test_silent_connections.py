"""Connections that say nothing, at every door of a real broker that may open few files."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.daemon.broker_process import DEADLINE_S, ROAMCAST, BrokerProcess, wait_until
from tests.daemon.raw_client import Raw
from tests.net.certificates import Authority

from roamcast.bench.processes import HOST, free_port

FILES = 512
CONFIG = """
id = "a"
data = "data"
[[listener]]
port = {tcp}
[[listener]]
port = {tls}
kind = "tls"
certificate = "{certificate}"
key = "{key}"
[[listener]]
port = {ws}
kind = "ws"
[link]
port = {link}
[metrics]
enabled = true
port = {http}
[mqtt]
connect_timeout_s = 600
"""


class Doors(BrokerProcess):
    """A broker with a door of each kind."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        certificate, key = self.authority.sign("localhost", dns=("localhost",))
        self.ports = {door: free_port() for door in ("tcp", "tls", "ws", "link", "http")}
        config = CONFIG.format(certificate=certificate, key=key, **self.ports)
        super().__init__(folder, config, files_max=FILES)

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    doors = Doors(tmp_path_factory.mktemp("doors"))
    yield doors
    doors.stop()


def silent_crowd(stack: ExitStack, port: int, count: int, first: bytes = b"") -> list[socket.socket]:
    """Connections that send these bytes and then nothing."""
    crowd = []
    for _ in range(count):
        crowd.append(stack.enter_context(socket.create_connection((HOST, port), DEADLINE_S)))
        with suppress(ConnectionError):
            crowd[-1].sendall(first)
    return crowd


def has_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def healthz(broker: Doors, host: str = "localhost", path: str = "/healthz") -> int:
    asking = http.client.HTTPConnection(HOST, broker.ports["http"], timeout=DEADLINE_S)
    try:
        asking.request("GET", path, headers={"Host": host})
        return asking.getresponse().status
    finally:
        asking.close()


def metric(broker: Doors, name: str) -> float:
    asking = http.client.HTTPConnection(HOST, broker.ports["http"], timeout=DEADLINE_S)
    try:
        asking.request("GET", "/metrics")
        page = asking.getresponse().read().decode()
    finally:
        asking.close()
    return float(page.partition(f"\n{name} ")[2].partition("\n")[0])


@pytest.mark.parametrize(
    ("door", "first"),
    [("tls", b""), ("tls", b"\x16\x03\x01\x02"), ("tcp", b""), ("tcp", b"\x10"), ("ws", b"GET /mq")],
)
def test_connections_that_say_next_to_nothing_leave_files_for_the_broker_and_a_place_for_others(
    broker: Doors, door: str, first: bytes
) -> None:
    before = broker.open_files()
    with ExitStack() as stack:
        crowd = silent_crowd(stack, broker.ports[door], 700, first)
        wait_until(lambda: has_closed(crowd[0]), lambda: "who was silent for longest stays")
        assert broker.open_files() < FILES - 100
        # The journal is written, and there is a way in over every door.
        with Raw(broker, "writer") as writer:
            writer.publish("news", b"1", qos=1, retain=True)
        context = ssl.create_default_context(cafile=broker.authority.path)
        plain = stack.enter_context(socket.create_connection((HOST, broker.ports["tls"]), DEADLINE_S))
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            secure.sendall(b"\x10\x0d\0\4MQTT\5\2\0\0\0\0\0")
            assert secure.recv(4)[:1] == b"\x20"
        assert healthz(broker) == 200
        assert 0 < metric(broker, "roamcast_strangers") <= FILES
        assert metric(broker, 'roamcast_strangers_gone_total{reason="gave way"}') > 100
    assert any("closing unidentified connections for new ones" in line for line in broker.lines)
    wait_until(lambda: broker.open_files() <= before, lambda: "files stay open")


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTT"])
def test_connections_that_do_not_ask_do_not_silence_healthz(broker: Doors, first: bytes) -> None:
    before = broker.open_files()
    with ExitStack() as stack:
        crowd = silent_crowd(stack, broker.ports["http"], 200, first)
        assert healthz(broker) == 200
        wait_until(lambda: sum(map(has_closed, crowd)) >= 100, lambda: "nobody gives way")
    wait_until(lambda: broker.open_files() <= before, lambda: "files stay open")


def test_silent_connections_from_a_peers_host_do_not_keep_it_out(broker: Doors, tmp_path: Path) -> None:
    with ExitStack() as stack:
        silent_crowd(stack, broker.ports["link"], 200)
        arguments = ["--id", "b", "--data", "b", "--listen", f"{HOST}:0"]
        peer = [*arguments, "--peer", f"a={HOST}:{broker.ports['link']}"]
        process = subprocess.Popen([ROAMCAST, "broker", *peer], cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            broker.wait_for("the link to b is up")
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def test_a_foreign_host_is_refused_over_http_and_websocket(broker: Doors) -> None:
    port = broker.ports["ws"]
    for path in ("/healthz", "/metrics"):
        assert healthz(broker, "evil.example", path) == 421
        assert healthz(broker, f"evil.example:{broker.ports['http']}", path) == 421
        assert healthz(broker, f"127.0.0.1:{broker.ports['http']}", path) == 200
    rebound = f"evil.example:{port}"
    assert upgrade(port, rebound) == 421
    assert upgrade(port, rebound, f"http://{rebound}") == 421, "a page whose name points here"
    assert upgrade(port, f"localhost:{port}", f"http://{rebound}") == 403
    assert upgrade(port, f"localhost:{port}", f"http://localhost:{port}") == 101
    assert upgrade(port, f"localhost:{port}") == 101


def upgrade(port: int, host: str, origin: str = "") -> int:
    """The status with which a request for a WebSocket is answered."""
    headers = [
        "GET /mqtt HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: mqtt", *([f"Origin: {origin}"] if origin else []), "", "",
    ]  # fmt: skip
    with socket.create_connection((HOST, port), DEADLINE_S) as connection:
        connection.sendall("\r\n".join(headers).encode())
        return int(connection.recv(4096).split(b" ")[1])
