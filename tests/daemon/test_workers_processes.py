"""A site of real worker processes behind one port: clients move between them, and everything restarts.

To come to one worker, a client connects from a source port that the system sends there.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.brokers import ROAMCAST, BrokerProcess, free_port, roamcast, roamcast_json, wait_until

from roamcast.bench.mqtt_load import LoadConnection
from roamcast.bench.worker_doors import WorkerDoor, find_doors
from roamcast.mqtt.codec import packets
from roamcast.storage.kept_out import KeptOut, Who

Doors = dict[str, WorkerDoor]
EACH = 6


class Site(BrokerProcess):
    """A site of workers."""

    def start(self) -> None:
        super().start()
        if any(one.startswith("workers=") for one in self._command):
            try:
                self.wait_for(rf"site {self.id} serves on")
            except BaseException:
                self.kill()
                raise

    def doors(self, count: int = 2) -> Doors:
        return find_doors(self.port, count, EACH)

    def ask(self, *command: str) -> dict[str, Any]:
        return roamcast_json(*command, "--data", str(self.data))

    def status(self) -> dict[str, Any]:
        return self.ask("broker", "status")

    def processes(self) -> dict[str, int]:
        return {one["worker"]: one["process"] for one in self.status()["workers"] if one["up"]}

    def restart(self, *settings: str) -> None:
        """Stop, and start with these settings besides those before."""
        self.stop()
        for one in settings:
            self._command += ["--set", one]
        self.start()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, "a", "workers=2")
    yield made
    made.stop()


def come(door: WorkerDoor | int, client: str, *, is_lasting: bool = True) -> LoadConnection:
    return LoadConnection(door, client, 5, is_lasting=is_lasting)


def publish(door: WorkerDoor | int, topic: str, *payloads: bytes, qos: int = 1) -> None:
    with closing(come(door, "publisher", is_lasting=False)) as publisher:
        for number, payload in enumerate(payloads, start=1):
            publisher.send_all(packets.Publish(topic, payload, qos=qos, packet_id=number if qos else 0))
            if qos:
                assert isinstance(publisher.receive_packet(), packets.Puback)
        publisher.ping()


def take(client: LoadConnection) -> bytes:
    """The next message, acknowledged."""
    packet = client.receive_packet()
    assert isinstance(packet, packets.Publish), packet
    if packet.qos:
        client.send_all(packets.Puback(packet.packet_id))
    return packet.payload


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_gone(processes: list[int]) -> None:
    wait_until(lambda: all(map(is_gone, processes)), lambda: f"some of {processes} are still there")


@pytest.mark.slow  # 4 s: two processes start.
def test_clients_move_between_workers_of_one_port(site: Site) -> None:
    first, second = site.doors().values()
    mover = come(first, "mover")
    mover.subscribe(["t"], 1)
    mover.close()
    publish(second, "t", b"1", b"2")
    with closing(come(second, "mover")) as mover:
        assert mover.is_resumed
        assert [take(mover), take(mover)] == [b"1", b"2"]
        # It comes again elsewhere, while its connection is open.
        with closing(come(first, "mover")) as again:
            assert again.is_resumed
            left = mover.receive_packet()
            assert isinstance(left, packets.Disconnect), left
            publish(second, "t", b"3")
            assert take(again) == b"3"
    told = site.status()
    assert [one["worker"] for one in told["workers"]] == ["a", "a.2"]
    assert (told["sessions"], told["journal"]) == (1, "ok")
    status, page = site.get("/metrics")
    assert status == 200
    assert 'roamcast_info{worker="a.2",broker="a.2"' in page
    assert 'roamcast_link_up{worker="a",peer="a.2"} 1.0' in page
    status, health = site.get("/healthz")
    assert (status, '"workers":{"a.2":"ok"}' in health) == (200, True)
    assert stat.S_IMODE((site.data / "workers.secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((site.data / "workers.socket").stat().st_mode) == 0o600


@pytest.mark.slow  # 4 s: two processes start.
def test_a_connection_goes_to_the_worker_that_has_the_session(site: Site) -> None:
    first, second = site.doors().values()
    come(first, "sticks").close()

    def handed_over() -> float:
        # Until the other worker has been told of the session, it fetches it instead.
        come(second, "sticks").close()
        come(first, "sticks").close()
        return max(
            site.metric(f'roamcast_connections_handed_over_total{{worker="{id}"}}') for id in ("a", "a.2")
        )

    wait_until(lambda: handed_over() > 0, lambda: site.get("/metrics")[1])
    held_by = site.ask("where", "sticks")["broker"]
    for door in (first, second):
        with closing(come(door, "sticks")) as client:
            assert client.is_resumed
            told = site.ask("where", "sticks")
            assert (told["broker"], told["state"]) == (held_by, "attached")
    clients = [line for line in site.lines if "client sticks connected (127.0.0.1:" in line]
    assert clients, "the address is the client's own"


@pytest.mark.slow  # 4 s: two processes start.
def test_groups_qos_0_and_operators_do_not_care_where_a_client_is(site: Site) -> None:
    first, second = site.doors().values()
    with closing(come(first, "m1")) as one, closing(come(second, "m2")) as two:
        for member in (one, two):
            member.subscribe(["end", "$share/g/job"], 1)
        publish(second, "job", *(b"%d" % number for number in range(10)))
        publish(second, "end", b"end")
        jobs = [list(iter(lambda member=member: take(member), b"end")) for member in (one, two)]  # type: ignore[misc]
        assert sorted(jobs[0] + jobs[1], key=int) == [b"%d" % number for number in range(10)]
        two.subscribe(["quick"], 0)
        publish(first, "quick", b"now", qos=0)
        assert take(two) == b"now"
        assert roamcast("kick", "m2", "--data", str(site.data)).returncode == 0
        left = two.receive_packet()
        assert isinstance(left, packets.Disconnect), left
    broker = site.ask("clients")
    assert broker["clients"] == []
    assert "is a worker of this site" in roamcast("broker", "forget", "a.2", "--data", str(site.data)).stderr


@pytest.mark.slow  # 6 s: three processes start.
def test_a_worker_that_is_killed_comes_back_alone_with_its_sessions(site: Site) -> None:
    first, second = site.doors().values()
    away = come(second, "away")
    away.subscribe(["t"], 1)
    away.close()
    before = site.processes()
    with closing(come(first, "stays")) as stays:
        stays.subscribe(["t"], 1)
        os.kill(before["a.2"], signal.SIGKILL)
        publish(first, "t", b"1")
        assert take(stays) == b"1"
        wait_until(lambda: site.processes().get("a.2") not in (None, before["a.2"]), lambda: str(site.lines))
        stays.ping()
    assert site.processes()["a"] == before["a"]
    with closing(come(site.doors()["a"], "away")) as back:
        assert (back.is_resumed, take(back)) == (True, b"1")


@pytest.mark.slow  # 6 s: three processes start.
def test_the_first_worker_that_is_killed_comes_back_while_the_other_serves(site: Site) -> None:
    first, second = site.doors().values()
    away = come(first, "away")
    away.subscribe(["t"], 1)
    away.close()
    before = site.processes()
    with closing(come(second, "stays")) as stays:
        stays.subscribe(["t"], 1)
        os.kill(before["a"], signal.SIGKILL)
        publish(second, "t", b"1")
        assert take(stays) == b"1"
        wait_until(lambda: "a" in comes_up(site), lambda: str(site.lines))
        stays.ping()
    assert comes_up(site)["a"] != before["a"]
    wait_until(
        lambda: site.ask("where", "away").get("broker") == "a", lambda: "the session is not found any more"
    )
    with closing(come(site.doors()["a.2"], "away")) as back:
        assert (back.is_resumed, take(back)) == (True, b"1")


def comes_up(site: Site) -> dict[str, int]:
    """The processes, as soon as the first worker answers; nothing before."""
    done = roamcast("broker", "status", "--data", str(site.data), "--json")
    return site.processes() if done.returncode == 0 else {}


@pytest.mark.slow  # 10 s: seven processes start.
def test_another_number_of_workers_at_the_next_start(tmp_path: Path) -> None:
    site = Site(tmp_path, "a")  # One process, as ever.
    assert "workers" not in site.status()
    try:
        mover = come(site.port, "mover")
        mover.subscribe(["t"], 1)
        mover.close()
        site.restart("workers=3")
        doors = site.doors(3)
        with closing(come(doors["a.3"], "mover")) as mover:
            assert mover.is_resumed
        publish(doors["a.2"], "t", b"1")
        site.restart("workers=1")
        left = [site.data / "worker-2", site.data / "worker-3"]
        wait_until(lambda: not any(one.exists() for one in left), lambda: "".join(site.lines))
        wait_until(lambda: len(site.status()["workers"]) == 1, lambda: str(site.status()))
        assert site.status()["history"]["known"] == {}
        site.restart("workers=2")
        with closing(come(site.doors()["a.2"], "mover")) as mover:
            assert (mover.is_resumed, take(mover)) == (True, b"1")
    finally:
        site.stop()


@pytest.mark.slow  # 4 s: two processes start.
def test_every_worker_reads_the_configuration_again(tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text('[access]\ndefault = "allow"\n')
    site = Site(tmp_path, "a", "workers=2", config=str(config))
    try:
        doors = site.doors()
        config.write_text(
            '[[access.rule]]\nverdict = "deny"\ntopic = "secret"\n[access]\ndefault = "allow"\n'
        )
        before = count(site, "have been read again")
        site.process.send_signal(signal.SIGHUP)
        wait_until(lambda: count(site, "have been read again") == before + 2, lambda: "".join(site.lines))
        for door in doors.values():
            with closing(come(door, "reader", is_lasting=False)) as reader:
                reader.send_all(packets.Subscribe(1, (packets.SubscriptionEntry("secret", 1),)))
                answer = reader.receive_packet()
                assert isinstance(answer, packets.Suback)
                assert answer.reasons[0] >= 0x80
    finally:
        site.stop()


def count(site: Site, text: str) -> int:
    return sum(text in line for line in list(site.lines))


@pytest.mark.slow  # 6 s: four processes start.
def test_all_end_together_and_nobody_else_can_have_the_port(site: Site, tmp_path: Path) -> None:
    workers = list(site.processes().values())
    second = roamcast(
        "broker",
        "--id",
        "b",
        "--data",
        str(tmp_path / "b"),
        "--workers",
        "2",
        "--listen",
        f"127.0.0.1:{site.port}",
    )
    assert second.returncode == 75
    assert second.stderr.count("\n") == 1
    assert f"listener.0 127.0.0.1:{site.port}: cannot listen" in second.stderr
    again = roamcast(
        "broker", "--id", "a", "--data", str(site.data), "--workers", "2", "--listen", "127.0.0.1:0"
    )
    assert again.returncode == 2
    assert "in use by process" in again.stderr
    site.stop()
    assert all(map(is_gone, workers))
    site.start()
    workers = list(site.processes().values())
    site.process.kill()
    wait_gone(workers)


@pytest.mark.slow  # 8 s: three processes start, and users log in.
def test_other_sites_link_to_the_site_and_take_its_sessions(tmp_path: Path) -> None:
    port = free_port()
    a = Site(tmp_path, "a", "workers=2", link_port=port, peers={"b": 0})
    b = BrokerProcess(tmp_path, "b", peers={"a": port})
    try:
        wait_until(lambda: b.metric('roamcast_link_up{peer="a"}') == 1, lambda: "".join(b.lines))
        mover = come(a.doors()["a.2"], "mover")
        mover.subscribe(["t"], 1)
        mover.close()
        publish(b.port, "t", b"1")
        with closing(come(b.port, "mover")) as mover:
            assert (mover.is_resumed, take(mover)) == (True, b"1")
        with closing(come(a.doors()["a.2"], "mover")) as mover:
            assert mover.is_resumed
        moved = a.ask("broker", "drain", "--to", "b")
        assert (moved["to"], moved["empty"]) == ("b", True)
        assert a.status()["sessions"] == 0
        assert roamcast_json("where", "mover", "--data", str(b.data))["broker"] == "b"
    finally:
        b.stop()
        a.stop()


@pytest.mark.slow  # 4 s: two processes start.
def test_operators_let_in_again_who_is_kept_out_by_any_worker(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "worker-2"
    folder.mkdir(parents=True)
    before = KeptOut(folder, time.time)
    before.blame(Who("client", "rude"), "it is said to have stopped a worker")
    before.save()
    site = Site(tmp_path, "a", "workers=2")
    try:
        assert [who["name"] for who in site.status()["kept_out"]] == ["rude"]
        assert site.ask("broker", "readmit", "rude")["readmitted"] == [{"kind": "client", "name": "rude"}]
        assert site.status()["kept_out"] == []
        refused = roamcast("broker", "readmit", "nobody", "--data", str(site.data))
        assert (refused.returncode, "nobody is not kept out" in refused.stderr) == (2, True)
    finally:
        site.stop()


@pytest.mark.slow  # 5 s: two processes start, and a password is checked.
def test_users_of_a_realm_have_their_sessions_at_every_worker(tmp_path: Path) -> None:
    users, config = tmp_path / "users", tmp_path / "site.toml"
    command = [str(ROAMCAST), "user", "add", "bob", "--file", str(users), "--password-stdin"]
    subprocess.run(command, input="a long pass phrase\n", text=True, check=True)
    # Those who look for ways to the workers have no name.
    config.write_text(f'[access]\nusers = "{users}"\nrealm = "town"\nanonymous = "loopback"\n')
    site = Site(tmp_path, "a", "workers=2", config=str(config))
    try:
        # The session moves as long as the other worker has not been told of it, and is gone to afterwards.
        for number, door in enumerate([*site.doors().values()] * 4):
            with closing(log_in(door, "bob", b"a long pass phrase")) as client:
                assert client.is_resumed is bool(number)
                if not number:
                    client.subscribe(["town/news"], 1)
                publish(door, "town/news", b"%d" % number)
                assert take(client) == b"%d" % number
    finally:
        site.stop()


def log_in(door: WorkerDoor, user: str, password: bytes) -> LoadConnection:
    """The same client each time, as this user."""
    return LoadConnection(door, "car", 5, is_lasting=True, login=(user, password))
