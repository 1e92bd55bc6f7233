"""Subscribers that never read, at a real broker: what waits for them stays within the quota."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.daemon.broker_process import DEADLINE_S, BrokerProcess
from tests.daemon.raw_client import Raw
from tests.net.certificates import Authority
from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, Request

from roamcast.bench.processes import HOST, free_port
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.writing import write
from roamcast.net.buffered import Buffered, joined

QUOTA = 100_000_000
SMALL_QUOTA = 20_000_000
SUBSCRIBERS = 30
MESSAGES = 60
MESSAGE_BYTES = 1_000_000
PIPELINED = 10
OWN_BYTES = 12_000_000
"""Of a turn, of connections, and of what a snapshot copies."""
CONFIG = """
id = "a"
data = "data"
[journal]
sync = "process"
[quotas]
buffered_bytes_max = {quota}
"""


class Site(BrokerProcess):
    def __init__(self, folder: Path, quota: int) -> None:
        self.authority = Authority(folder)
        certificate, key = self.authority.sign("localhost", dns=("localhost",))
        self.ports = {kind: free_port() for kind in ("tcp", "tls", "ws")}
        config = CONFIG.format(quota=quota)
        for kind, port in self.ports.items():
            config += f'[[listener]]\nport = {port}\nkind = "{kind}"\n'
            if kind == "tls":
                config += f'certificate = "{certificate}"\nkey = "{key}"\n'
        super().__init__(folder, config)

    def memory(self, what: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.partition(f"{what}:")[2].split()[0])


@pytest.fixture
def quota() -> int:
    return QUOTA


@pytest.fixture
def broker(tmp_path: Path, quota: int) -> Iterator[Site]:
    site = Site(tmp_path, quota)
    yield site
    site.stop()


def deaf(broker: Site, kind: str, number: int, qos: int, topic: str = "loud") -> socket.socket:
    """A client that has subscribed, and never reads again."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(DEADLINE_S)
    one.connect((HOST, broker.ports[kind]))
    hello = write(packets.Connect(5, f"deaf-{number}", session_expiry=1000), 5)
    hello += write(packets.Subscribe(1, (packets.SubscriptionEntry(topic, qos),)), 5)
    if kind == "tls":
        context = ssl.create_default_context(cafile=broker.authority.path)
        one = context.wrap_socket(one, server_hostname="localhost")
    if kind == "ws":
        machine = WSConnection(ConnectionType.CLIENT)
        one.sendall(machine.send(Request(host="localhost", target="/mqtt", subprotocols=["mqtt"])))
        machine.receive_data(one.recv(4096))
        hello = machine.send(BytesMessage(data=hello))
    one.sendall(hello)
    heard = b""
    while b"\x90\x04\x00\x01\x00" + bytes((qos,)) not in heard:  # SUBACK
        heard += one.recv(4096)
    return one


@pytest.mark.parametrize(
    ("kind", "qos"),
    [("tcp", 1), *(pytest.param(kind, qos, marks=pytest.mark.slow) for kind, qos in
                   (("tcp", 0), ("tls", 0), ("tls", 1), ("ws", 0), ("ws", 1)))],
)  # fmt: skip
def test_what_waits_for_subscribers_that_never_read_is_bounded(broker: Site, kind: str, qos: int) -> None:
    with ExitStack() as stack:
        for number in range(SUBSCRIBERS):
            stack.enter_context(deaf(broker, kind, number, qos))
        before = peak = broker.memory()
        with Raw(broker, "loud") as loud:
            for number in range(MESSAGES):
                loud.publish("loud", number.to_bytes(4, "big") + bytes(MESSAGE_BYTES), qos=qos)
                peak = max(peak, broker.memory())
        assert peak - before < 1.5 * QUOTA
    # Nothing of QoS 1 was given up: all of it fits into the quota once.
    with Raw(broker, "deaf-7", clean=False) as back:
        messages = back.take(MESSAGES if qos else 0)
        assert [int.from_bytes(one.payload[:4], "big") for one in messages] == list(range(MESSAGES * qos))


PACES = [(size, topics) for size in (10_000, 100_000, 1_000_000) for topics in (1, 10, 60)]


@pytest.mark.parametrize("quota", [SMALL_QUOTA])
@pytest.mark.parametrize(
    ("size", "topics"),
    [pytest.param(*pace, marks=() if pace == (100_000, 60) else pytest.mark.slow) for pace in PACES],
)
def test_what_is_in_flight_is_within_the_quota_too(broker: Site, size: int, topics: int) -> None:
    """With 4 MB in flight for each there would be many times the quota, with one large message still more."""
    kinds = min(topics, SUBSCRIBERS)
    with ExitStack() as stack:
        for number in range(SUBSCRIBERS):
            stack.enter_context(deaf(broker, "tcp", number, 1, f"own/{number % kinds}/#"))
        before = broker.memory()
        with Raw(broker, "loud") as loud:
            for number in range(0, 3 * SMALL_QUOTA // size, PIPELINED):
                for one in range(number, number + PIPELINED):
                    topic = f"own/{one % kinds}/{one % topics}"
                    loud.send(packets.Publish(topic, bytes(size), 1, packet_id=one + 1))
                for _ in range(PIPELINED):
                    loud.expect(packets.Puback)
        assert broker.memory("VmHWM") - before < 1.5 * SMALL_QUOTA + OWN_BYTES
    with Raw(broker, "deaf-7", clean=False) as back:
        assert back.connack.session_present


def test_a_message_for_many_is_held_once() -> None:
    buffered, body, small = Buffered(), bytes(100_000), b"small"
    for _ in range(3):
        buffered.add(body)
        buffered.add(small)
    assert buffered.size_bytes == 100_015
    assert buffered.beside({id(body)}) == 15
    for _ in range(3):
        buffered.remove(small)
        buffered.remove(body)
    assert (buffered.size_bytes, buffered.beside(())) == (0, 0)


def test_only_small_parts_are_put_together() -> None:
    body, other = bytes(100_000), bytes(20_000)
    assert joined([b"a", b"b"]) == [b"ab"]
    parts = joined([b"a", b"b", body, b"c", other, body, b"d", b"e"])
    assert parts == [b"ab", body, b"c", other, body, b"de"]
    assert parts[1] is parts[4] is body
