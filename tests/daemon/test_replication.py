"""Replicated sites with real processes and a real etcd."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.brokers import (
    DEADLINE_S,
    ROAMCAST,
    SECRET,
    BrokerProcess,
    MqttClient,
    free_port,
    wait_until,
)
from tests.daemon.etcd_process import EtcdProcess, needs_etcd

from roamcast.config.sections import Mobility
from roamcast.daemon.control import ask
from roamcast.errors import InputError
from roamcast.storage.segments import HEADER_BYTES, read_watermark

pytestmark = [needs_etcd, pytest.mark.slow]

LEASE_S = 4
TOKEN = "a token of the tests"


class Replica:
    """One replica of the site `east`."""

    def __init__(self, folder: Path, name: str, etcd: EtcdProcess) -> None:
        self.name = name
        self.port, self.http_port, self.link_port = free_port(), free_port(), free_port()
        self.data = folder / name
        secret = folder / "secret"
        secret.write_text("a secret of the replicas")
        secret.chmod(0o600)
        link_secret = folder / "link-secret"
        link_secret.write_text(SECRET)
        link_secret.chmod(0o600)
        settings = {
            "link.secret_file": str(link_secret), "link.unlisted": "accept",
            "journal.snapshot_after_bytes": "65536", "journal.sync": "process",
            "metrics.enabled": "true", "metrics.port": str(self.http_port),
            "replication.name": name, "replication.port": str(free_port()),
            "replication.secret_file": str(secret), "replication.etcd": etcd.url,
            "replication.lease_s": str(LEASE_S), "replication.reference": f"127.0.0.1:{self.port}",
            "view.token.0.name": "tests", "view.token.0.may": "operate",
            "view.token.0.sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
        }  # fmt: skip
        self._command = [
            str(ROAMCAST), "broker", "--id", "east", "--listen", f"127.0.0.1:{self.port}",
            "--data", str(self.data), "--peer-listen", f"127.0.0.1:{self.link_port}",
        ]  # fmt: skip
        for key, value in settings.items():
            self._command += ["--set", f"{key}={value}"]
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as log:
            self.lines += log

    def status(self) -> dict[str, Any]:
        """What `roamcast broker status` says of replication; nothing while no one answers."""
        try:
            found: dict[str, Any] = next(ask(self.data, 5.0, command="status"))["replication"]
        except InputError:
            return {}
        return found

    def http(self, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        """The answer of the HTTP API."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}/api/v1/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    @property
    def leads(self) -> bool:
        """Whether it leads, and serves clients."""
        return self.status().get("role") == "leader" and self.health() == 200

    def start_as(self, change: str, *arguments: str) -> None:
        """Stop in good order, and start a build that differs by this statement, and other arguments."""
        self.process.terminate()
        self.process.wait()
        program = f"import sys, roamcast; {change}; from roamcast.cli import main; sys.exit(main())"
        before, self._command = self._command, [sys.executable, "-c", program, *self._command[1:], *arguments]
        self.start()
        self._command = before

    def kill(self, *, wipe: bool = False) -> None:
        self.process.kill()
        self.process.wait()
        if wipe:
            shutil.rmtree(self.data)

    def files(self, kind: str) -> list[Path]:
        return sorted((self.data / "journal").glob(f"*.{kind}"))

    def flip_a_bit(self, kind: str, rng: random.Random) -> None:
        """Anywhere in what its newest file of this kind has promised."""
        path = self.files(kind)[-1]
        data = bytearray(path.read_bytes())
        end = read_watermark(path).end if kind == "journal" else len(data)
        start = HEADER_BYTES if kind == "journal" else 0
        place = rng.randrange(start, end)
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)

    def health(self) -> int:
        """The status of /healthz; 0 while nobody answers."""
        try:
            with socket.create_connection(("127.0.0.1", self.http_port), timeout=DEADLINE_S) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return int(connection.recv(4096).split(b" ")[1])
        except (OSError, IndexError):
            return 0


class Site:
    def __init__(self, folder: Path) -> None:
        self.etcd = EtcdProcess(folder / "etcd")
        self.replicas = {name: Replica(folder, name, self.etcd) for name in ("a", "b")}

    def wait(self, happened: Callable[[], bool]) -> None:
        def happened_or_ended() -> bool:
            assert not any(line.startswith("roamcast: ") for one in self for line in one.lines), told()
            return happened()

        def told() -> str:
            return "\n".join(f"{one.name}: {one.status()} {''.join(one.lines)}" for one in self)

        wait_until(happened_or_ended, told)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    def leader(self) -> Replica:
        """The leader, once the other one is in sync."""
        self.wait(lambda: any(one.leads and len(one.status().get("in_sync", ())) == 2 for one in self))
        return next(one for one in self if one.leads)

    def other(self, replica: Replica) -> Replica:
        return next(one for one in self if one is not replica)

    def stop(self) -> None:
        for one in self:
            if one.process.poll() is None:
                one.kill()
        self.etcd.kill()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    found.stop()


def test_a_leader_is_killed_and_its_disk_is_lost(site: Site) -> None:
    leader = site.leader()
    follower = site.other(leader)
    assert (leader.health(), follower.health()) == (200, 503)
    refused = MqttClient("lost", follower.port)
    assert "Use another server" in refused.connected
    away = MqttClient("away", leader.port)
    away.subscribe("news", qos=2)
    away.leave()
    publisher = MqttClient("publisher", leader.port)
    for number in range(200):
        publisher.publish("news", str(number).encode(), qos=2)
    leader.kill(wipe=True)
    killed_at = time.monotonic()
    site.wait(lambda: follower.leads)
    served_after_s = time.monotonic() - killed_at
    again = MqttClient("away", follower.port)
    assert again.present
    again.wait_for_messages(200)
    assert [payload for _, payload in again.messages] == [str(number).encode() for number in range(200)]
    assert served_after_s < LEASE_S + 3.0, served_after_s
    # The one that has lost everything is sent a copy, and can take over.
    leader.start()
    assert site.leader() is follower
    again.leave()
    publisher = MqttClient("publisher", follower.port)
    for number in range(200, 220):
        publisher.publish("news", str(number).encode(), qos=2)
    follower.kill(wipe=True)
    site.wait(lambda: leader.leads)
    again = MqttClient("away", leader.port)
    again.wait_for_messages(20)
    assert [payload for _, payload in again.messages] == [str(number).encode() for number in range(200, 220)]
    again.leave()


@pytest.mark.parametrize("kind", ["journal", "snapshot"])
def test_a_flipped_bit_is_noticed_and_healed_by_the_other_replica(site: Site, kind: str) -> None:
    """In what a follower has, and then in what a leader that was killed has."""
    rng, published = random.Random(kind), 0
    walker = MqttClient("walker", site.leader().port)
    walker.subscribe("news", qos=2)
    walker.leave()
    for role in ("follower", "leader"):
        leader = site.leader()
        publisher = MqttClient("publisher", leader.port)
        for number in range(published, published + 40):
            publisher.publish("news", str(number).encode().ljust(4_000), qos=2)
        published += 40
        victim = leader if role == "leader" else site.other(leader)
        if kind == "snapshot":
            site.wait(lambda victim=victim: any(victim.files(kind)))  # type: ignore[misc]
        victim.kill()
        publisher.paho.loop_stop()
        victim.flip_a_bit(kind, rng)
        site.wait(lambda victim=victim: site.other(victim).leads)  # type: ignore[misc]
        said = len(victim.lines)
        victim.start()
        # An older snapshot may serve instead, if the entries behind it are there; else a copy is sent.
        site.wait(lambda lines=victim.lines, said=said: "damaged" in "".join(lines[said:]))  # type: ignore[misc]
        site.wait(lambda victim=victim: victim.status().get("is_in_sync", False))  # type: ignore[misc]
    # What was healed is as good as what it was healed from.
    healed = site.other(site.leader())
    site.leader().kill(wipe=True)
    site.wait(lambda: healed.leads)
    walker = MqttClient("walker", healed.port)
    walker.wait_for_messages(published)
    heard = [int(payload) for _, payload in walker.messages]
    assert heard == list(range(published))
    walker.leave()


def test_an_operator_promotes_and_removes_replicas(site: Site) -> None:
    leader = site.leader()
    follower = site.other(leader)
    told = next(ask(leader.data, 5.0, command="promote", replica=follower.name))
    assert told["promoted"] == follower.name
    site.wait(lambda: follower.leads)
    assert site.leader() is follower
    next(ask(follower.data, 5.0, command="remove-replica", replica=leader.name))
    site.wait(lambda: follower.status().get("in_sync") == [follower.name])
    assert follower.status()["removed"] == [leader.name]
    client = MqttClient("c", follower.port)
    client.subscribe("news")
    client.publish("news", b"without a follower")
    next(ask(follower.data, 5.0, command="add-replica", replica=leader.name))
    assert site.leader() is follower
    client.publish("news", b"with a follower")
    client.wait_for_messages(2)
    client.leave()


def test_the_network_view_shows_followers_and_promotes_one(site: Site) -> None:
    leader = site.leader()
    follower = site.other(leader)
    (broker,) = leader.http("network")["brokers"]
    assert (broker["id"], broker["role"]) == ("east", "leader")
    followers = leader.http("brokers/east")["status"]["replication"]["followers"]
    assert followers[follower.name]["in_sync"]
    answer = leader.http("actions/promote", {"broker": "east", "to": follower.name})
    assert answer == {"done": True, "text": f"replica {follower.name} takes over east"}
    site.wait(lambda: follower.leads)
    assert site.leader() is follower
    leader.kill()
    site.wait(lambda: follower.http("network")["alerts"] != [])
    (alert,) = follower.http("network")["alerts"]
    assert alert["kind"] == "replica"
    assert alert["text"] == f"broker east: replicas are disconnected or out of sync: {leader.name}"


def test_etcd_is_away_for_longer_than_the_lease(site: Site) -> None:
    leader = site.leader()
    client = MqttClient("c", leader.port)
    client.subscribe("news", qos=2)
    client.publish("news", b"before", qos=2)
    site.etcd.kill()
    site.wait(lambda: not any(one.leads for one in site))
    client.leave()
    site.etcd.start()
    again = MqttClient("c", site.leader().port)
    assert again.present
    again.publish("news", b"after", qos=2)
    again.wait_for_messages(1)
    assert [payload for _, payload in again.messages][-1] == b"after"
    again.leave()


def test_a_peer_follows_the_leader(site: Site, tmp_path: Path) -> None:
    leader = site.leader()
    follower = site.other(leader)
    ports = [one.link_port for one in site]
    west = BrokerProcess(
        tmp_path, "west", "peer.0.id=east", f"peer.0.address=127.0.0.1:{ports[0]}",
        f"peer.0.addresses=127.0.0.1:{ports[1]}",
    )  # fmt: skip
    try:
        west.wait_for_link("east")
        subscriber = MqttClient("far", west.port)
        subscriber.subscribe("news", qos=2)
        publisher = MqttClient("near", leader.port)
        for number in range(50):
            publisher.publish("news", str(number).encode(), qos=2)
        leader.kill(wipe=True)
        site.wait(lambda: follower.leads)
        west.wait_for_link("east")
        publisher = MqttClient("near", follower.port)
        for number in range(50, 100):
            publisher.publish("news", str(number).encode(), qos=2)
        subscriber.wait_for_messages(100)
        assert [payload for _, payload in subscriber.messages] == [b"%d" % number for number in range(100)]
        subscriber.leave()
        publisher.leave()
    finally:
        west.kill()


def test_a_promoted_replica_does_not_wait_for_its_peers(site: Site, tmp_path: Path) -> None:
    leader = site.leader()
    follower = site.other(leader)
    west = BrokerProcess(
        tmp_path, "west", "peer.0.id=east", f"peer.0.address=127.0.0.1:{leader.link_port}"
    )  # fmt: skip
    try:
        west.wait_for_link("east")
    finally:
        west.kill()
    leader.kill(wipe=True)
    site.wait(lambda: follower.leads)
    leads_since = time.monotonic()
    client = MqttClient("", follower.port, lasting=False)
    assert client.connected == "Success"
    assert time.monotonic() - leads_since < Mobility().meet_timeout_s / 2
    client.leave()


def test_a_site_is_upgraded_while_it_serves(site: Site) -> None:
    """Follower, failover, follower."""
    subscriber = MqttClient("away", site.leader().port)
    subscriber.subscribe("news", qos=2)
    subscriber.leave()
    published = 0

    def publish() -> None:
        nonlocal published
        site.wait(lambda: any(one.leads for one in site))
        publisher = MqttClient("publisher", next(one for one in site if one.leads).port)
        for _ in range(20):
            publisher.publish("news", str(published).encode(), qos=2)
            published += 1
        publisher.leave()

    publish()
    for old in (site.other(site.leader()), site.leader()):
        if old.leads:
            next(ask(old.data, 5.0, command="promote", replica=site.other(old).name))
            site.wait(lambda old=old: site.other(old).leads)  # type: ignore[misc]
        old.start_as("roamcast.__version__ = '9.9.9'")
        publish()
        site.leader()
    publish()
    upgraded = site.leader()
    assert next(ask(upgraded.data, 5.0, command="status"))["version"] == "9.9.9"
    subscriber = MqttClient("away", upgraded.port)
    subscriber.wait_for_messages(published)
    assert [int(payload) for _, payload in subscriber.messages] == list(range(published))
    subscriber.leave()


@pytest.mark.parametrize(
    ("change", "argument", "line"),
    [
        ("import roamcast.broker.inputs as inputs; inputs.REPLAY = 99", "", "by other rules than"),
        ("", "mobility.protocol=roam", "it cannot become 'east' with roam"),
        ("", "replication.secret_file={other}", "the shared secrets differ"),
    ],
    ids=["replay", "protocol", "secret"],
)
def test_a_replica_that_does_not_fit_says_why_and_does_not_join(
    site: Site, tmp_path: Path, change: str, argument: str, line: str
) -> None:
    leader = site.leader()
    follower = site.other(leader)
    other = tmp_path / "other"
    other.write_text("the secret of another site")
    other.chmod(0o600)
    follower.kill(wipe="REPLAY" in change)
    follower.start_as(change or "pass", *(["--set", argument.format(other=other)] if argument else []))
    wait_until(lambda: any(line in one for each in site for one in each.lines), lambda: f"{follower.lines}")
    client = MqttClient("c", leader.port)
    client.subscribe("news", qos=1)
    client.publish("news", b"served")
    client.wait_for_messages(1)
    client.leave()
    assert leader.status()["in_sync"] == [leader.name]
