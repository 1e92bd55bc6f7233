"""Clones, empty disks and old backups: real brokers refuse them, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.brokers import BrokerProcess, MqttClient, free_port, roamcast, roamcast_json, wait_until

QUICK = (
    "link.heartbeat_s=0.1", "link.timeout_s=3", "mobility.meet_timeout_s=2", "mobility.locate_timeout_s=1",
)  # fmt: skip
UNAVAILABLE = "Server unavailable"


class Pair:
    """Brokers a and b, which dial each other."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        self.settings = (*QUICK, *settings)
        self.ports = {id: free_port() for id in "ab"}
        self.client_ports = {id: free_port() for id in "ab"}
        self.started: list[BrokerProcess] = []

    def start(self, id: str, folder: Path | None = None, client_port: int | None = None) -> BrokerProcess:
        """A broker; one that is started in another folder listens for no peer."""
        other = "b" if id == "a" else "a"
        broker = BrokerProcess(
            folder or self.folder, id, *self.settings,
            link_port=self.ports[id] if folder is None else None,
            peers={other: self.ports[other]},
            client_port=self.client_ports[id] if client_port is None else client_port,
        )  # fmt: skip
        self.started.append(broker)
        return broker

    def start_both(self) -> tuple[BrokerProcess, BrokerProcess]:
        a, b = self.start("a"), self.start("b")
        a.wait_for_link("b")
        b.wait_for_link("a")
        return a, b


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with running(Pair(tmp_path)) as pair:
        yield pair


@contextmanager
def running(pair: Pair) -> Iterator[Pair]:
    try:
        yield pair
    finally:
        for broker in pair.started:
            if broker.process.poll() is None:
                broker.kill()


def wait_for_health(broker: BrokerProcess, status: int) -> str:
    """What /healthz says of the history, once it has this status."""
    wait_until(lambda: broker.get("/healthz")[0] == status, lambda: "".join(broker.lines))
    found: str = json.loads(broker.get("/healthz")[1])["history"]
    return found


def wait_for_position(of: BrokerProcess, at: BrokerProcess) -> None:
    """Until all that a broker has done so far is remembered at its peer."""
    position = status(of)["position"]
    wait_until(lambda: bool(status(at)["known"][of.id]["position"] >= position), lambda: str(status(at)))


def status(broker: BrokerProcess) -> dict[str, Any]:
    found: dict[str, Any] = roamcast_json("broker", "status", "--data", str(broker.data))["history"]
    return found


def is_refused(id: str, port: int) -> str:
    client = MqttClient(id, port)
    connected = client.connected
    client.leave()
    return connected


@pytest.mark.slow
def test_a_clone_is_refused_and_serves_nobody(pair: Pair) -> None:
    a, b = pair.start_both()
    subscriber = MqttClient("subscriber", b.port)
    subscriber.subscribe("t/#")
    publisher = MqttClient("publisher", a.port)
    for number in range(20):
        publisher.publish("t/first", b"%d" % number)
    shutil.copytree(a.data, pair.folder / "copy" / "a", ignore=shutil.ignore_patterns("control"))
    clone = pair.start("a", pair.folder / "copy", client_port=0)
    why = wait_for_health(clone, 503)
    assert why.startswith("b refuses the history of this broker: broker a runs twice")
    assert "stop one of the two" in why
    assert is_refused("other", clone.port) == UNAVAILABLE
    # The original goes on as if nothing had been.
    for number in range(20, 40):
        publisher.publish("t/first", b"%d" % number)
    subscriber.wait_for_messages(40)
    assert [int(payload) for _, payload in subscriber.messages] == list(range(40))
    assert a.get("/healthz")[0] == 200
    assert a.metric('roamcast_link_up{peer="b"}') == 1
    # A restart does not help it, and a kill of the original does not either: its copy is older by now.
    clone.kill()
    wait_for_position(a, b)
    a.kill()
    clone.start()
    wait_for_health(clone, 503)
    assert is_refused("other", clone.port) == UNAVAILABLE
    clone.wait_for("b refuses this broker.*older history|it refuses: broker a has an older history")
    clone.kill()
    a.start()
    a.wait_for_link("b")
    assert a.get("/healthz")[0] == 200
    subscriber.leave()


@pytest.mark.slow
def test_who_was_cloned_is_refused_if_the_clone_was_linked_since(pair: Pair) -> None:
    """The copy is as new as the original and is linked first: then the copy is the broker."""
    a, b = pair.start_both()
    wait_for_position(a, b)
    a.kill()
    shutil.copytree(a.data, pair.folder / "copy" / "a", ignore=shutil.ignore_patterns("control"))
    clone = pair.start("a", pair.folder / "copy", client_port=0)
    clone.wait_for_link("b")
    clone.kill()
    a.start()
    why = wait_for_health(a, 503)
    assert "older history than before, or another copy of it" in why
    assert is_refused("client", a.port) == UNAVAILABLE


@pytest.mark.slow
def test_an_empty_disk_serves_nobody_until_an_operator_decides(pair: Pair) -> None:
    a, b = pair.start_both()
    owner = MqttClient("owner", a.port)
    owner.subscribe("t")
    owner.leave()
    a.kill()
    shutil.rmtree(a.data)
    a.start()
    a.wait_for(
        "clients are refused and links are closed: b refuses this broker: broker a has started with an"
    )
    assert "empty folder" in wait_for_health(a, 503)
    assert is_refused("owner", a.port) == UNAVAILABLE
    assert roamcast("broker", "status", "--data", str(a.data)).returncode == 1
    told = roamcast("broker", "status", "--data", str(b.data)).stdout
    assert (
        "history of a refused: broker a has started with an empty folder, and its former data is gone" in told
    )
    assert "roamcast broker accept-history a" in told
    # A restart changes nothing; the operator does.
    a.kill()
    a.start()
    assert "b refuses" in wait_for_health(a, 503)
    wait_until(lambda: "a" in status(b)["refused"], lambda: str(b.lines))
    done = roamcast("broker", "accept-history", "a", "--data", str(b.data))
    assert (done.returncode, done.stdout) == (0, "the history of a is accepted\n")
    a.wait_for_link("b")
    assert wait_for_health(a, 200) == "ok"
    b.wait_for("the history of a is accepted as it is now, by an operator's order")
    # Both work together.
    subscriber = MqttClient("subscriber", b.port)
    subscriber.subscribe("t")
    owner.connect(a.port)
    assert not owner.present
    owner.publish("t", b"again")
    subscriber.wait_for_messages(1)
    owner.leave()
    subscriber.leave()
    # The decision is in the journal.
    b.kill()
    b.start()
    b.wait_for_link("a")


def test_an_empty_disk_that_meets_nobody_promises_nothing(pair: Pair) -> None:
    a = pair.start("a")
    assert is_refused("client", a.port) == UNAVAILABLE
    assert "has met none of its peers" in wait_for_health(a, 503)
    done = roamcast("broker", "accept-history", "a", "--data", str(a.data))
    assert done.returncode == 0, done.stderr
    assert wait_for_health(a, 200) == "ok"
    client = MqttClient("client", a.port)
    assert client.connected == "Success"
    client.leave()
    assert "nobody refuses" in roamcast("broker", "accept-history", "a", "--data", str(a.data)).stderr
    assert "refused are: none" in roamcast("broker", "accept-history", "b", "--data", str(a.data)).stderr


@pytest.mark.slow
@pytest.mark.parametrize("links_moved", [False, True])
def test_an_old_backup_is_refused_until_an_operator_decides(pair: Pair, links_moved: bool) -> None:
    a, b = pair.start_both()
    subscriber = MqttClient("subscriber", a.port)
    subscriber.subscribe("t")
    subscriber.leave()
    a.stop()
    shutil.copytree(a.data, pair.folder / "backup")
    a.start()
    a.wait_for_link("b")
    publisher = MqttClient("publisher", b.port if links_moved else a.port)
    for number in range(10):
        publisher.publish("t", b"%d" % number)
    publisher.leave()
    wait_for_position(a, b)
    # The newest folder is set aside, and the backup takes its place.
    a.kill()
    a.data.rename(pair.folder / "newest")
    shutil.copytree(pair.folder / "backup", a.data)
    a.start()
    why = wait_for_health(a, 503)
    assert "broker a has an older history than before" in why
    assert is_refused("subscriber", a.port) == UNAVAILABLE
    a.kill()
    if links_moved:
        # The operator has no newer folder.
        a.start()
        wait_for_health(a, 503)
        wait_until(lambda: "a" in status(b)["refused"], lambda: str(b.lines))
        assert roamcast("broker", "accept-history", "a", "--data", str(b.data)).returncode == 0
        a.wait_for_link("b")
        subscriber.connect(a.port)
        assert subscriber.present
        assert wait_for_health(a, 200) == "ok"
        publisher.connect(b.port)
        publisher.publish("t", b"after")
        subscriber.wait_for_messages(1)
        publisher.leave()
    else:
        # The operator puts the newest folder back.
        shutil.rmtree(a.data)
        (pair.folder / "newest").rename(a.data)
        a.start()
        a.wait_for_link("b")
        subscriber.connect(a.port)
        subscriber.wait_for_messages(10)
    subscriber.leave()


def test_a_client_that_moves_before_the_first_link_finds_its_session(tmp_path: Path) -> None:
    """b has peers and has met none of them: it does not answer as if it were alone."""
    with running(Pair(tmp_path, "mobility.locate_timeout_s=20")) as pair:
        # a lists no peer: it may be a network of its own, and serves at once.
        a = BrokerProcess(
            tmp_path, "a", *QUICK, link_port=pair.ports["a"], client_port=pair.client_ports["a"]
        )
        pair.started.append(a)
        client = MqttClient("car", a.port)
        client.subscribe("t", qos=2)
        client.leave()
        a.process.send_signal(signal.SIGSTOP)
        b = pair.start("b")
        with ThreadPoolExecutor() as pool:
            moving = pool.submit(MqttClient, "car", b.port)
            wait_until(lambda: b.metric("roamcast_connections") == 1, lambda: str(b.lines))
            a.process.send_signal(signal.SIGCONT)
            moved = moving.result()
        assert (moved.connected, moved.present) == ("Success", True)
        moved.leave()


@pytest.mark.slow
def test_brokers_without_peers_and_new_networks_need_no_operator(pair: Pair) -> None:
    a, b = pair.start_both()
    for broker in (a, b):
        assert wait_for_health(broker, 200) == "ok"
        client = MqttClient("client", broker.port)
        assert client.connected == "Success"
        client.leave()
    # A peer that is down does not keep a broker that has met it from serving.
    b.kill()
    a.kill()
    a.start()
    client.connect(a.port)
    assert a.get("/healthz")[0] == 200
    client.leave()
