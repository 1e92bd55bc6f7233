"""What one client sends takes neither the time nor the memory of others: real brokers, and an honest client.

A busy machine delays pings by itself, so the bounds here are far below what the attacks once cost and above
what a scheduler may add; `roamcast bench attack` measures.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.daemon import brokers
from tests.daemon.broker_process import BrokerProcess, broker_fixture, wait_until
from tests.daemon.raw_client import Listening, Raw

from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet, PublishProperties, SubscriptionEntry, Will
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

PING_S = 0.5
MEGABYTE = 1_000_000
QUOTA = 10 * MEGABYTE

CONFIG = f"""
id = "site"
data = "data"
[[listener]]
port = 0
[journal]
sync = "process"
[quotas]
subscription_bytes_per_client_max = 16777216
queue_bytes_max = {QUOTA}
retained_bytes_max = {QUOTA}
wills_bytes_max = {QUOTA}
sessions_max = 300
"""

broker = broker_fixture(CONFIG)


class Honest:
    """A client that pings all the time."""

    def __init__(self, broker: Listening) -> None:
        self.worst_s = 0.0
        self.pings = 0
        self._raw = Raw(broker, "honest")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.002):
            began_s = time.monotonic()
            self._raw.ping()
            self.worst_s = max(self.worst_s, time.monotonic() - began_s)
            self.pings += 1

    def leave(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._raw.leave()


@contextmanager
def served(broker: Listening) -> Iterator[Honest]:
    """Somebody else is served meanwhile."""
    honest = Honest(broker)
    try:
        yield honest
    finally:
        honest.leave()
    assert honest.pings
    assert honest.worst_s < PING_S


def memory(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def send_all(raw: Raw, made: Iterable[Packet]) -> None:
    """In large writes, and until the broker has taken them."""
    waiting, size = [], 0
    for packet in made:
        waiting.append(write(packet, 5))
        size += len(waiting[-1])
        if size > 100_000:
            raw.socket.sendall(b"".join(waiting))
            waiting, size = [], 0
    raw.socket.sendall(b"".join(waiting))
    raw.ping()


def retain(broker: Listening, topics: Iterable[str], payload: bytes = b"x") -> None:
    with Raw(broker, "writer") as raw:
        send_all(raw, (packets.Publish(topic, payload, 0, True) for topic in topics))


@pytest.fixture
def retained(broker: BrokerProcess) -> Iterator[int]:
    count = 8_000
    topics = [f"r/{n}" for n in range(count)]
    retain(broker, topics)
    yield count
    retain(broker, topics, b"")


def test_a_subscription_to_everything_that_is_retained(broker: BrokerProcess, retained: int) -> None:
    with Raw(broker, "greedy") as greedy, served(broker):
        greedy.send(packets.Subscribe(1, tuple(SubscriptionEntry("#") for _ in range(200))))
        greedy.expect(packets.Suback)
        assert len({one.topic for one in greedy.take(retained)}) == retained


def test_the_same_subscription_again_and_again(broker: BrokerProcess, retained: int) -> None:
    with Raw(broker, "greedy") as greedy, served(broker):
        for number in range(1, 11):
            greedy.send(packets.Subscribe(number, (SubscriptionEntry("r/#"),)))
        for _ in range(10):
            greedy.expect(packets.Suback)
        greedy.take(retained)


def test_many_deep_topic_filters_in_one_packet(broker: BrokerProcess) -> None:
    deep = tuple(SubscriptionEntry("+/" * 120 + str(n)) for n in range(1000))
    with Raw(broker, "deep") as raw, served(broker):
        raw.send(packets.Subscribe(1, deep))
        granted = raw.expect(packets.Suback).reasons.count(Reason.GRANTED_QOS_0)
        assert 100 < granted < 1000, "levels count with the memory that they take"
        raw.send(packets.Unsubscribe(2, tuple(one.filter for one in deep)))
        assert raw.expect(packets.Unsuback).reasons.count(Reason.SUCCESS) == granted


def test_many_filters_with_a_long_selector(broker: BrokerProcess) -> None:
    where = " AND ".join(f"a{n} > {n}" for n in range(300))
    with Raw(broker, "picky") as raw, served(broker):
        entries = tuple(SubscriptionEntry(f"t/{n}") for n in range(90))
        raw.send(packets.Subscribe(1, entries, None, (("where", where),)))
        reasons = raw.expect(packets.Suback).reasons
    granted = reasons.count(Reason.GRANTED_QOS_0)
    assert 0 < granted < 90, "selectors count with the memory that they take"
    assert set(reasons[granted:]) == {Reason.QUOTA_EXCEEDED}


def test_acknowledgements_are_small(broker: BrokerProcess) -> None:
    described = packets.AcknowledgementProperties(user_properties=(("a", "b"),) * 100_000)
    with served(broker), Raw(broker, "talker") as raw:
        raw.send(packets.Pubrel(1, properties=described))
        assert raw.end() == Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize(
    "packet",
    [
        packets.Pubrel(1, properties=packets.AcknowledgementProperties(user_properties=(("a", "b"),) * 65)),
        packets.Subscribe(1, (SubscriptionEntry("t"),), None, (("a", "b"),) * 65),
        packets.Publish("t", properties=PublishProperties(user_properties=(("a", "b"),) * 65)),
        packets.Disconnect(user_properties=(("a", "b"),) * 65),
        packets.Subscribe(1, tuple(SubscriptionEntry("t") for _ in range(2001))),
    ],
)
def test_a_packet_with_too_many_parts_is_not_read_to_its_end(broker: BrokerProcess, packet: Packet) -> None:
    with Raw(broker, "talker") as raw:
        raw.send(packet)
        assert raw.end() == Reason.QUOTA_EXCEEDED


def test_a_connect_with_too_many_user_properties_is_refused(broker: BrokerProcess) -> None:
    with Raw(broker) as raw:
        raw.send(packets.Connect(5, "talker", user_properties=(("a", "b"),) * 65))
        assert raw.end() == Reason.QUOTA_EXCEEDED


def test_a_will_keeps_to_the_limits_of_topics(broker: BrokerProcess) -> None:
    with Raw(broker) as raw:
        raw.send(packets.Connect(5, "deep", will=Will("a/" * 2_000, b"")))
        assert raw.end() == Reason.TOPIC_NAME_INVALID


# --- memory ---


def fill_retained(broker: BrokerProcess) -> None:
    retain(broker, ("/".join("0123456789" * 12) + f"/{n}" for n in range(20_000)))


def fill_retained_with_properties(broker: BrokerProcess) -> None:
    described = PublishProperties(user_properties=tuple((str(n), "y" * 15_000) for n in range(60)))
    with Raw(broker, "writer") as raw:
        send_all(raw, (packets.Publish(f"p/{n}", b"x", 0, True, properties=described) for n in range(40)))


def fill_queue(broker: BrokerProcess) -> None:
    with Raw(broker, "absent", expiry=1000) as absent:
        absent.subscribe("q/#", qos=1)
    described = PublishProperties(user_properties=tuple((str(n), "y" * 15_000) for n in range(60)))
    with Raw(broker, "writer") as raw:
        for n in range(40):
            raw.publish(f"q/{n}", b"x", 1, user_properties=described.user_properties)
        for n in range(20_000 // 500):
            made = [packets.Publish(f"q/{n}/{i}", b"x", 1, packet_id=i) for i in range(1, 501)]
            raw.socket.sendall(b"".join(write(one, 5) for one in made))
            for _ in made:
                raw.expect(packets.Puback)


def fill_wills(broker: BrokerProcess) -> None:
    for n in range(400):
        with Raw(broker) as raw:
            will = Will(f"w/{n}", b"x" * 60_000, 1, delay=10_000)
            raw.send(packets.Connect(5, f"willing-{n}", session_expiry=10_000, will=will))
            if raw.expect(packets.Connack).reason == Reason.QUOTA_EXCEEDED:
                return
    raise AssertionError("every will found room")


@pytest.mark.parametrize("fill", [fill_retained, fill_retained_with_properties, fill_queue, fill_wills])
def test_quotas_count_memory(tmp_path: Path, fill: Callable[[BrokerProcess], None]) -> None:
    """Memory grows by one and a half times the quota at most, beside what any load takes."""
    own = BrokerProcess(tmp_path, CONFIG.replace("sessions_max = 300", ""))
    try:
        with Raw(own, "warm") as raw:
            raw.subscribe("warm")
            send_all(raw, (packets.Publish(f"warm/{n}", b"x" * 500) for n in range(2_000)))
        before = memory(own)
        fill(own)
        assert memory(own) - before < 1.5 * QUOTA + 10 * MEGABYTE
    finally:
        own.stop()


def test_a_selector_that_nobody_holds_any_more_is_forgotten(broker: BrokerProcess) -> None:
    before = 0
    with Raw(broker, "picky") as raw:
        for n in range(200):
            where = " AND ".join(f"b{n}_{i} > {i}" for i in range(200))
            assert raw.subscribe("t", where=where) == (Reason.GRANTED_QOS_2,)
            raw.unsubscribe("t")
            if n == 100:
                before = memory(broker)
    assert memory(broker) - before < 10 * MEGABYTE


# --- sessions ---


def test_sessions_that_were_never_used_give_way(broker: BrokerProcess) -> None:
    for n in range(400):
        with Raw(broker, f"empty-{n}", expiry=10_000) as raw:
            assert raw.connack.reason == Reason.SUCCESS
    with Raw(broker, "worker", expiry=10_000) as worker:
        worker.subscribe("t")
    for n in range(400):
        with Raw(broker, f"more-{n}", expiry=10_000):
            pass
    with Raw(broker, "worker", clean=False) as worker:
        assert worker.connack.session_present
    with Raw(broker, "empty-0", clean=False) as raw:
        assert not raw.connack.session_present


# --- links ---


def test_in_a_partition_only_those_wait_whose_messages_go_over_the_link(tmp_path: Path) -> None:
    limit = 100_000
    setting, port = f"link.unacknowledged_bytes_max={limit}", brokers.free_port()
    a = brokers.BrokerProcess(tmp_path, "a", setting, link_port=port)
    b = brokers.BrokerProcess(tmp_path, "b", setting, peers={"a": port})
    try:
        a.wait_for_link("b")
        with Raw(b, "far", expiry=1000) as far, ExitStack() as left:
            near, writer, busy = (left.enter_context(Raw(a, name)) for name in ("near", "writer", "busy"))
            far.subscribe("far/#", "will/#", qos=1)
            near.subscribe("near/#", qos=1)
            willing = [Raw(a, f"w{n}", will=Will("will/1", b"x" * 10_000)) for n in range(50)]
            b.process.send_signal(signal.SIGSTOP)
            made = [packets.Publish(f"far/{n}", b"x" * 2000, 1, packet_id=n) for n in range(1, 201)]
            for one in made:
                busy.send(one)
            a.wait_for("publishers wait")
            before = kept_bytes(a, "b")
            for n in range(2000):
                writer.send(packets.Publish(f"kept/{n % 10}", b"%d" % n + b"x" * 1000, 0, True))
            for other in willing:
                other.close()
            for n in range(10):
                assert writer.publish(f"near/{n}", b"here") == Reason.SUCCESS
            near.take(10)
            assert kept_bytes(a, "b") - before < 2 * limit
            b.process.send_signal(signal.SIGCONT)
            for _ in made:
                busy.expect(packets.Puback)
            owed = {one.topic for one in made}
            while owed:
                owed -= {one.topic for one in far.take(1)}
            wanted = {b"%d" % n for n in range(1990, 2000)}
            with Raw(b, "late") as late:
                wait_until(lambda: last_values(late) == wanted, lambda: "b was not told")
    finally:
        b.process.send_signal(signal.SIGCONT)
        a.stop()
        b.stop()


def kept_bytes(broker: brokers.BrokerProcess, peer: str) -> float:
    return broker.metric(f'roamcast_link_kept_bytes{{peer="{peer}"}}')


def last_values(raw: Raw) -> set[bytes]:
    raw.inbox.clear()
    raw.subscribe("kept/#", qos=0)
    raw.ping()
    return {one.payload.rstrip(b"x") for one in raw.inbox}
