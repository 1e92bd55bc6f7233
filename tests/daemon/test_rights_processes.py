"""Rights that change while clients are there: real brokers, real clients, SIGHUP."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.broker_process import BrokerProcess, wait_until
from tests.daemon.brokers import free_port
from tests.daemon.raw_client import Raw, payloads

from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reasons import Reason
from roamcast.net.users import changing_users, hash_password

PASSWORDS = {"alice": "open sesame", "bob": "builder"}
EFFECT_S_MAX = 1.0
"""A change of rules takes effect within this time."""
REALM = 'realm = "fleet"\nrealm_brokers = ["*"]\n'
NO_SECRETS = '[[access.rule]]\nverdict = "deny"\nuser = "alice"\ntopic = "secret/#"\n'


class Site:
    """A broker with users; `reload` gives it other settings, rules or users."""

    def __init__(
        self, folder: Path, id: str, link_port: int, peers: dict[str, int], settings: str = ""
    ) -> None:
        self.id, self._link_port, self._peers = id, link_port, peers
        self._clients: list[Raw] = []
        self.folder = folder / id
        self.folder.mkdir()
        with changing_users(str(self.folder / "users")) as users:
            users.update((name, hash_password(word.encode())) for name, word in PASSWORDS.items())
        secret = self.folder / "secret"
        secret.write_text("all brokers know this secret")
        secret.chmod(0o600)
        self._process = BrokerProcess(self.folder, self._config(settings))
        self.port = self._process.port
        self.lines = self._process.lines

    def _config(self, settings: str) -> str:
        peers = "".join(
            f'[[peer]]\nid = "{peer}"\naddress = "127.0.0.1:{port}"\n' for peer, port in self._peers.items()
        )
        return (
            f'id = "{self.id}"\ndata = "data"\n[[listener]]\nport = 0\n{peers}'
            f'[link]\nport = {self._link_port}\nsecret_file = "secret"\n'
            f'reconnect_max_s = 0.5\n[journal]\nsync = "process"\n'
            f'[access]\nusers = "users"\ndefault = "allow"\n{settings}'
        )

    def reload(self, settings: str = "", without: str = "") -> float:
        """Other settings, and one user less; gives the time at which the broker was told."""
        (self.folder / "site.toml").write_text(self._config(settings))
        if without:
            with changing_users(str(self.folder / "users")) as users:
                del users[without]
        before = self._reloads()
        asked_at = time.monotonic()
        self._process.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self._reloads() > before, lambda: "".join(self.lines))
        return asked_at

    def _reloads(self) -> int:
        return sum("have been read again" in line for line in self.lines)

    def log_in(self, client: str, user: str, **more: Any) -> Raw:
        password = PASSWORDS[user].encode()
        said = {"expiry": 3600, "clean": False, "username": user, "password": password, **more}
        self._clients.append(Raw(self, client, **said))
        return self._clients[-1]

    def wait_for(self, pattern: str) -> None:
        self._process.wait_for(pattern)

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._process.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    started = Site(tmp_path, "a", free_port(), {})
    yield started
    started.stop()


class Pair:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sites: list[Site] = []

    def start(self, settings_a: str, settings_b: str) -> tuple[Site, Site]:
        ports = {"a": free_port(), "b": free_port()}
        self.sites.append(Site(self._folder, "a", ports["a"], {"b": ports["b"]}, settings_a))
        self.sites.append(Site(self._folder, "b", ports["b"], {"a": ports["a"]}, settings_b))
        for one in self.sites:
            one.wait_for("the link to . is up")
        return self.sites[0], self.sites[1]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    brokers = Pair(tmp_path)
    yield brokers
    for one in brokers.sites:
        one.stop()


def test_a_rule_that_denies_takes_effect_within_a_second(site: Site) -> None:
    alice, bob = site.log_in("phone", "alice"), site.log_in("desk", "bob")
    alice.subscribe("#", qos=1)
    bob.publish("secret/1", b"before", qos=1)
    alice.take(1)
    asked_at = site.reload(NO_SECRETS)
    bob.publish("secret/2", b"denied", qos=1)
    bob.publish("open", b"after", qos=1)
    assert payloads(alice.take(1)) == [b"after"]
    assert time.monotonic() - asked_at < EFFECT_S_MAX
    assert alice.publish("secret/4", b"by alice", qos=1) is Reason.NOT_AUTHORIZED
    site.wait_for(r"client phone \(.*, user alice\) was denied: publish to secret/4")
    site.reload()
    bob.publish("secret/5", b"allowed", qos=1)
    assert payloads(alice.take(1)) == [b"allowed"]


def test_a_removed_user_is_gone_within_a_second(site: Site) -> None:
    alice, away, bob = site.log_in("phone", "alice"), site.log_in("car", "alice"), site.log_in("desk", "bob")
    away.subscribe("cars", qos=1)
    away.close()
    asked_at = site.reload(without="alice")
    assert alice.end() is Reason.NOT_AUTHORIZED
    assert time.monotonic() - asked_at < EFFECT_S_MAX
    bob.ping()
    with changing_users(str(site.folder / "users")) as users:
        users["alice"] = hash_password(PASSWORDS["alice"].encode())
    site.reload()
    again = site.log_in("car", "alice")
    assert not again.connack.session_present, "the session of a removed user is for nobody"


def test_a_changed_password_ends_connections_and_keeps_the_session(site: Site) -> None:
    alice, bob = site.log_in("phone", "alice"), site.log_in("desk", "bob")
    with changing_users(str(site.folder / "users")) as users:
        users["alice"] = hash_password(b"another one")
    site.reload()
    assert alice.end() is Reason.NOT_AUTHORIZED
    bob.ping()
    again = site.log_in("phone", "alice", password=b"another one")
    assert again.connack.session_present


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto_sub is not installed")
def test_mosquitto_sub_is_narrowed_too(site: Site) -> None:
    command = ["mosquitto_sub", "-p", str(site.port), "-i", "standard", "-u", "alice",
               "-P", PASSWORDS["alice"], "-V", "5", "-t", "#", "-q", "1", "-v", "-W", "60"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        bob = site.log_in("desk", "bob")
        try:
            bob.publish("start", b"x", qos=1, retain=True)  # It waits for a subscription that comes late.
            assert reader.stdout.readline() == "start x\n"
            site.reload(NO_SECRETS)
            bob.publish("secret/1", b"x", qos=1)
            bob.publish("end", b"x", qos=1)
            seen: list[str] = []
            while "end x" not in seen:
                line = reader.stdout.readline()
                assert line, seen
                seen.append(line.strip())
            assert set(seen) <= {"start x", "end x"}
        finally:
            reader.terminate()


def test_a_session_meets_the_rules_of_the_broker_it_roams_to(pair: Pair) -> None:
    a, b = pair.start(REALM, REALM + NO_SECRETS)
    alice, bob = a.log_in("phone", "alice"), a.log_in("desk", "bob")
    alice.subscribe("#", qos=1)
    alice.close()
    bob.publish("secret/1", b"queued", qos=1)
    bob.publish("open", b"one", qos=1)
    alice = b.log_in("phone", "alice")
    assert alice.connack.session_present
    assert payloads(alice.take(1)) == [b"one"]
    bob.publish("secret/2", b"live", qos=1)
    bob.publish("open", b"two", qos=1)
    assert payloads(alice.take(1)) == [b"two"]
    alice.ping()  # What she acknowledged is not sent again.
    alice.close()
    alice = a.log_in("phone", "alice")
    bob.publish("secret/3", b"three", qos=1)
    assert payloads(alice.take(1)) == [b"three"], "it comes back where it is allowed"


@pytest.mark.slow
def test_a_reload_narrows_everything_that_a_session_gets_where_it_has_roamed(pair: Pair) -> None:
    a, b = pair.start(REALM, REALM)
    will = packets.Will("secret/will", b"gone", 1)
    bob, watcher = a.log_in("desk", "bob"), a.log_in("watcher", "bob")
    watcher.subscribe("secret/will", qos=1)
    bob.publish("secret/kept", b"kept", qos=1, retain=True)
    alice = a.log_in("phone", "alice", will=will)
    alice.subscribe("#", qos=1)
    alice.subscribe("$share/g/secret/shared", qos=1)
    assert payloads(alice.take(1)) == [b"kept"]
    alice.leave()
    alice, mate = b.log_in("phone", "alice", will=will), b.log_in("tablet", "bob")
    assert alice.connack.session_present
    mate.subscribe("$share/g/secret/shared", qos=1)
    asked_at = b.reload(REALM + NO_SECRETS)
    bob.publish("secret/live", b"denied", qos=1)
    for number in range(4):
        bob.publish("secret/shared", b"%d" % number, qos=1)
    bob.publish("open", b"after", qos=1)
    assert payloads(alice.take(1)) == [b"after"]
    assert payloads(mate.take(4)) == [b"0", b"1", b"2", b"3"], "the group leaves her out"
    assert time.monotonic() - asked_at < EFFECT_S_MAX
    # What is retained or queued for her is judged as well, and so is what she leaves behind.
    assert alice.subscribe("secret/kept", "+/kept") == (Reason.NOT_AUTHORIZED,) * 2
    alice.close()
    b.wait_for("client phone .*was denied: its will to secret/will")
    bob.publish("secret/queued", b"denied", qos=1)
    bob.publish("secret/will", b"no will came", qos=1)
    assert payloads(watcher.take(1)) == [b"no will came"]
    alice = b.log_in("phone", "alice")
    bob.publish("open", b"again", qos=1)
    assert payloads(alice.take(1)) == [b"again"]


def test_a_user_of_the_same_name_elsewhere_does_not_get_the_session(pair: Pair) -> None:
    a, b = pair.start("", "")
    alice = a.log_in("phone", "alice")
    alice.subscribe("private", qos=1)
    alice.close()
    thief = b.log_in("phone", "alice")
    assert thief.connack.reason is Reason.NOT_AUTHORIZED
    assert "access.realm" in (thief.connack.reason_string or "")
    b.wait_for("client phone refused .*access.realm")
    thief = b.log_in("phone", "alice", clean=True)
    assert thief.connack.reason is Reason.NOT_AUTHORIZED, "nor can it end the session"
    alice = a.log_in("phone", "alice")
    assert alice.connack.session_present


@pytest.mark.slow
def test_provisional_sessions_of_two_users_stay_apart(tmp_path: Path) -> None:
    """A broker that may hold the session is away, and another user has the client id meanwhile."""
    serve = REALM + '[mobility]\nunreachable = "serve"\nlocate_timeout_s = 0.5\n'
    ports = {"a": free_port(), "b": free_port()}
    folder = tmp_path
    a = Site(folder, "a", ports["a"], {"b": ports["b"]}, serve)
    b = Site(folder, "b", ports["b"], {"a": ports["a"]}, serve)
    rules = '[[access.rule]]\nverdict = "deny"\nuser = "alice"\ntopic = "private/#"\naction = "subscribe"\n'
    try:
        b.wait_for("the link to . is up")
        alice = a.log_in("car", "alice")
        alice.subscribe("open/#", qos=1)
        alice.close()
        a.stop()
        b.reload(serve + rules)
        bob = b.log_in("car", "bob")
        assert bob.connack.reason is Reason.SUCCESS
        bob.subscribe("private/#", qos=1)
        a = RestartedSite(a, serve)
        assert bob.end() is Reason.NOT_AUTHORIZED
        alice = b.log_in("car", "alice")
        assert alice.connack.session_present
        publisher = b.log_in("desk", "bob")
        publisher.publish("private/1", b"for bob", qos=1)
        publisher.publish("open/1", b"for alice", qos=1)
        assert payloads(alice.take(1)) == [b"for alice"]
    finally:
        a.stop()
        b.stop()


class RestartedSite(Site):
    """The same broker with its data, once more."""

    def __init__(self, before: Site, settings: str) -> None:
        self.id, self._link_port, self._peers = before.id, before._link_port, before._peers
        self._clients = []
        self.folder = before.folder
        self._process = BrokerProcess(self.folder, self._config(settings))
        self.port = self._process.port
        self.lines = self._process.lines


def test_rules_for_connect_bind_client_ids(site: Site) -> None:
    alice = site.log_in("phone", "alice")
    site.reload(
        '[[access.rule]]\nverdict = "allow"\naction = "connect"\nuser = "user:*"\nclient = ["%u", "%u-*"]\n'
    )
    assert alice.end() is Reason.NOT_AUTHORIZED
    assert site.log_in("bob-1", "alice").connack.reason is Reason.NOT_AUTHORIZED
    with site.log_in("alice-1", "alice") as allowed:
        assert allowed.connack.reason is Reason.SUCCESS


def test_failed_logins_are_logged_once_with_user_and_address(site: Site) -> None:
    for _ in range(3):
        with Raw(site, "x", username="alice", password=b"wrong") as refused:
            assert refused.connack.reason is Reason.BAD_USER_NAME_OR_PASSWORD
    site.wait_for("login of user 'alice' from 127.0.0.1 failed: bad user name or password")
    assert sum("login of user 'alice'" in line for line in site.lines) == 1


@pytest.mark.slow
def test_guessing_does_not_lock_out_who_shares_the_address(site: Site) -> None:
    for number in range(300):
        with Raw(site, "x", username=f"user-{number}", password=b"wrong") as refused:
            assert refused.connack.reason is not Reason.SUCCESS
    came_in: list[Reason] = []

    def try_again() -> bool:
        with site.log_in("phone", "alice") as alice:
            came_in.append(alice.connack.reason)
        return came_in[-1] is Reason.SUCCESS

    wait_until(try_again, lambda: f"{came_in}")


def test_one_user_cannot_have_all_sessions(tmp_path: Path) -> None:
    site = Site(tmp_path, "a", free_port(), {}, "[quotas]\nsessions_per_user_max = 3\n")
    try:
        reasons = []
        for number in range(5):
            with site.log_in(f"c{number}", "alice") as client:
                reasons.append(client.connack.reason)
        assert reasons == [Reason.SUCCESS] * 3 + [Reason.QUOTA_EXCEEDED] * 2
        with site.log_in("desk", "bob") as bob:
            assert bob.connack.reason is Reason.SUCCESS
    finally:
        site.stop()


@pytest.mark.slow
def test_a_broker_applies_its_bound_to_sessions_that_are_pushed_to_it(pair: Pair) -> None:
    bound = REALM + "[quotas]\nsessions_per_user_max = 3\n"
    a, b = pair.start(bound, bound)
    for number in range(6):
        with a.log_in(f"c{number}", "alice") as pushed:
            pushed.subscribe("t", qos=1)
            goes = (("roamcast-destination", "b"),)
            pushed.send(packets.Disconnect(Reason.NORMAL_DISCONNECTION, user_properties=goes))
            pushed.end()
    for number in (3, 4, 5):
        b.wait_for(f"client c{number} ended .*too many sessions of @fleet/user:alice")
    with b.log_in("desk", "bob") as bob:
        assert bob.connack.reason is Reason.SUCCESS


def test_an_auth_that_nobody_asked_for_is_refused(site: Site) -> None:
    alice = site.log_in("phone", "alice")
    alice.send(packets.Auth(Reason.RE_AUTHENTICATE, "SCRAM-SHA-256", b"n,,n=alice,r=x"))
    assert alice.end() is Reason.PROTOCOL_ERROR


@pytest.mark.slow
def test_a_user_removed_while_the_broker_was_down_has_no_session_left(tmp_path: Path) -> None:
    before = Site(tmp_path, "a", free_port(), {})
    for client, user in (("phone", "alice"), ("desk", "bob")):
        before.log_in(client, user).close()
    before.stop()
    with changing_users(str(before.folder / "users")) as users:
        stored = users.pop("alice")
    after = RestartedSite(before, "")
    try:
        after.wait_for("ending connections and sessions of 1 removed users: a/user:alice")
        with changing_users(str(after.folder / "users")) as users:
            users["alice"] = stored
        after.reload()
        assert not after.log_in("phone", "alice").connack.session_present
        assert after.log_in("desk", "bob").connack.session_present
    finally:
        after.stop()
