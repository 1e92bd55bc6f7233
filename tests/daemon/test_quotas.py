"""Limits on what a client may send and hold: a real broker, raw sockets, reason codes."""

import asyncio
import gc
import select
import socket
import subprocess
import sys
import weakref
from contextlib import ExitStack, suppress
from typing import Any, cast

import pytest
from tests.daemon.broker_process import DEADLINE_S, BrokerProcess, broker_fixture
from tests.daemon.raw_client import Raw

from roamcast.broker.inputs import ClientFrames
from roamcast.config.sections import Listener
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write
from roamcast.net.clients import Budget, ClientConnection
from roamcast.net.strangers import Stranger

CONFIG = """
id = "small"
data = "data"
[[listener]]
port = 0
[mqtt]
packet_bytes_max = 2048
topic_levels_max = 3
user_properties_max = 2
qos_max = 1
[quotas]
subscriptions_per_client_max = 2
queue_notifications_max = 3
connecting_max = 20
output_bytes_max = 1024
"""


broker = broker_fixture(CONFIG)


def ends_with(broker: BrokerProcess, packet: Packet) -> Reason:
    """The reason with which a connection ends that sent this."""
    with Raw(broker, "rude") as raw:
        raw.send(packet)
        reason = raw.end()
        assert reason is not None
        return reason


def test_what_is_too_much_ends_the_connection_with_its_reason(broker: BrokerProcess) -> None:
    user_properties = tuple((str(n), "x") for n in range(3))
    many = packets.PublishProperties(user_properties=user_properties)
    assert ends_with(broker, packets.Publish("a", b"x" * 3000)) == Reason.PACKET_TOO_LARGE
    assert ends_with(broker, packets.Publish("a/b/c/d")) == Reason.TOPIC_NAME_INVALID
    assert ends_with(broker, packets.Publish("a", properties=many)) == Reason.QUOTA_EXCEEDED
    assert ends_with(broker, packets.Publish("a", qos=2, packet_id=1)) == Reason.QOS_NOT_SUPPORTED


def test_subscriptions_are_granted_as_far_as_there_is_room(broker: BrokerProcess) -> None:
    with Raw(broker, "greedy") as raw:
        entries = tuple(packets.SubscriptionEntry(f"t/{n}", 2) for n in range(3))
        raw.send(packets.Subscribe(1, entries))
        suback = raw.receive()
        assert isinstance(suback, packets.Suback)
        assert suback.reasons == (Reason.GRANTED_QOS_1, Reason.GRANTED_QOS_1, Reason.QUOTA_EXCEEDED)


def test_a_full_queue_keeps_the_newest(broker: BrokerProcess) -> None:
    with Raw(broker, "away", expiry=100) as away:
        away.send(packets.Subscribe(1, (packets.SubscriptionEntry("news", 1),)))
        away.receive()
        away.send(packets.Disconnect())
    with Raw(broker, "writer") as writer:
        for number in range(1, 7):
            writer.send(packets.Publish("news", str(number).encode(), 1, packet_id=number))
            assert writer.receive() == packets.Puback(number)
    with Raw(broker, "away", expiry=0, clean=False) as away:
        received = [away.receive() for _ in range(3)]
        assert [one.payload for one in received if isinstance(one, packets.Publish)] == [b"4", b"5", b"6"]


def test_somebody_who_never_says_connect_takes_no_place_from_others(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), DEADLINE_S))
            for _ in range(20)
        ]
        with Raw(broker, "polite") as polite:
            polite.ping()
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "who was silent for longest stays"
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)


def test_whoever_reads_no_answers_is_not_read_from_and_loses_nothing(broker: BrokerProcess) -> None:
    count = 60_000
    frames = b"".join(write(packets.Publish("t", b"", 1, packet_id=n), 5) for n in range(1, count + 1))
    with Raw(broker, "deaf") as deaf, Raw(broker, "other") as other:
        deaf.socket.setblocking(False)
        sent, least = 0, 1 << 26
        with suppress(BlockingIOError):
            while sent < least:
                if select.select([], [deaf.socket], [], 0.5)[1]:
                    sent += deaf.socket.send(frames[sent % len(frames) :])
                else:
                    break
        other.ping()
        assert sent < least, "it was read from for ever"
        deaf.socket.settimeout(DEADLINE_S)
        answered, whole = 0, sent // 8
        while answered < whole * 4:
            answered += len(deaf.socket.recv(1 << 20))
    assert answered == whole * 4


class Unread(asyncio.Transport):
    """Of a client that reads nothing."""

    size = 1 << 20

    def get_write_buffer_size(self) -> int:
        return self.size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write(self, data: bytes | bytearray | memoryview) -> None: ...


def test_what_a_clogged_client_has_sent_is_taken_when_it_reads() -> None:
    """Or each of its packets would make an answer more that nobody reads."""
    pushed: list[object] = []

    class Door:
        output_bytes_max = 1024
        push = pushed.append

        def __getattr__(self, _: str) -> Any:
            return lambda *_: 7

    async def story() -> None:
        client = ClientConnection(
            cast(Any, Door()), Listener(), Stranger("127.0.0.1", "127.0.0.1:1", 0.0, lambda why: None)
        )
        transport = Unread()
        client.connection_made(transport)
        assert client.hold_back()
        client.pause_writing()
        assert not client.hold_back()
        transport.size = 0
        client.resume_writing()

    asyncio.run(story())
    assert pushed == [ClientFrames(7, b"")]


def test_a_refused_connection_that_is_closed_takes_no_memory() -> None:
    """Thousands come in the seconds that a client has to take its last bytes."""

    class Door:
        output_bytes_max = connect_packet_max = 1024

        def __getattr__(self, _: str) -> Any:
            return lambda *_: 7

    async def story() -> None:
        client = ClientConnection(
            cast(Any, Door()), Listener(), Stranger("127.0.0.1", "127.0.0.1:1", 0.0, lambda why: None)
        )
        transport = Unread()
        client.connection_made(transport)
        client.data_received(b"no CONNECT")
        client.connection_lost(None)
        left = weakref.ref(transport)
        del client, transport
        gc.collect()
        assert left() is None

    asyncio.run(story())


def test_a_client_id_makes_no_lines_in_the_log_of_its_own(broker: BrokerProcess) -> None:
    with Raw(broker, "sly\n2026-01-01 00:00:00,000 ERROR all is lost"):
        broker.wait_for(r"client sly\\x0a2026-01-01 00:00:00,000 ERROR all is lost connected")


def test_connections_leave_files_for_the_broker_itself() -> None:
    code = "from roamcast.net.open_files import room_for; print(room_for(50), room_for(20_000))"
    done = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -n 200 && exec {sys.executable} -c '{code}'"],
        capture_output=True, text=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.stdout.split() == ["50", "100"], "half of few files are the broker's own"


def test_a_budget_pauses_whoever_is_too_fast() -> None:
    sent = 0
    budget = Budget(lambda: sent, per_s=10.0, burst=20, bytes_per_s=None)
    sent = 20
    assert budget.spend(100.0, 1000) == 0.0
    sent = 25
    assert budget.spend(100.0, 1000) == pytest.approx(0.5)
    assert budget.spend(101.0, 1000) == 0.0
    bytes_only = Budget(lambda: 0, per_s=None, burst=1, bytes_per_s=1000.0)
    assert bytes_only.spend(5.0, 1000) == 0.0
    assert bytes_only.spend(5.0, 500) == pytest.approx(0.5)
