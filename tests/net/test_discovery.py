"""Brokers that look for each other: whom they believe, and that they meet, over multicast on loopback."""

from __future__ import annotations

import contextlib
import logging
import socket
from pathlib import Path

import msgspec
import pytest
from tests.net.link_node import QUICK, SECRET, Node, live, until

from roamcast.config.sections import Config, Discovery, Link, Peer
from roamcast.daemon.config import load
from roamcast.errors import InputError
from roamcast.net.announcement import DATAGRAM_BYTES_MAX, Announcement, Sightings, Unbelieved, sign
from roamcast.net.discovery import LocalDiscovery, address_of

SAID = Announcement("net", "b", "127.0.0.1:7001", started_ns=5, number=1, sent_at=1000.0)


def sightings(**settings: object) -> Sightings:
    return Sightings("a", "net", Discovery(**settings))  # type: ignore[arg-type]


def take(
    memory: Sightings, said: Announcement, now: float = 0.0, secret: str = SECRET
) -> Announcement | None:
    return memory.take(now, said.sent_at, sign(said, secret), SECRET)


# --- whom to believe ---


def test_a_broker_is_news_when_it_is_new_elsewhere_or_back() -> None:
    memory = sightings(interval_s=1.0)
    assert take(memory, SAID) == SAID
    again = [msgspec.structs.replace(SAID, number=number) for number in range(2, 10)]
    assert take(memory, again[0], now=1.0) is None
    moved = msgspec.structs.replace(SAID, number=4, address="10.0.0.9:7001")
    assert take(memory, moved, now=2.0) == moved
    back = msgspec.structs.replace(moved, number=6)
    assert take(memory, back, now=5.5) == back, "after three silent intervals"
    restarted = msgspec.structs.replace(moved, number=1, started_ns=6)
    assert take(memory, restarted, now=5.6) == restarted


def test_nothing_is_believed_that_is_not_signed_with_the_secret() -> None:
    memory = sightings()
    with pytest.raises(Unbelieved, match="not signed with the secret"):
        take(memory, SAID, secret="another secret of the tests")
    datagram = sign(SAID, SECRET)
    for place in range(len(datagram)):
        forged = datagram[:place] + bytes([datagram[place] ^ 1]) + datagram[place + 1 :]
        with contextlib.suppress(Unbelieved):
            assert memory.take(0.0, 1000.0, forged, SECRET) is None
    for garbage in (b"", b"x", datagram[:20], datagram[:60], datagram + bytes(DATAGRAM_BYTES_MAX)):
        assert memory.take(0.0, 1000.0, garbage, SECRET) is None
    assert not memory.brokers


def test_what_was_recorded_is_not_believed_again() -> None:
    memory = sightings(clock_error_max_s=60.0)
    old = sign(SAID, SECRET)
    moved = msgspec.structs.replace(SAID, number=2, address="127.0.0.1:7002")
    assert take(memory, SAID)
    assert take(memory, moved)
    assert memory.take(50.0, 1050.0, old, SECRET) is None
    assert memory.brokers["b"].announcement == moved
    earlier_life = msgspec.structs.replace(SAID, number=99, started_ns=4, address="127.0.0.1:7009")
    assert take(memory, earlier_life) is None
    fresh = sightings(clock_error_max_s=60.0)
    with pytest.raises(Unbelieved, match="clock differs"):
        fresh.take(0.0, 1061.0, old, SECRET)
    assert sightings(clock_error_max_s=None).take(0.0, 9e9, old, SECRET) == SAID


def test_others_networks_and_this_broker_itself_are_not_heard() -> None:
    memory = sightings()
    assert take(memory, msgspec.structs.replace(SAID, network="other"), secret="theirs") is None
    assert take(memory, msgspec.structs.replace(SAID, id="a")) is None
    with pytest.raises(Unbelieved):
        take(memory, msgspec.structs.replace(SAID, id="no name"))
    with pytest.raises(Unbelieved):
        take(memory, msgspec.structs.replace(SAID, address="127.0.0.1"))
    with pytest.raises(Unbelieved, match="without a secret, only brokers on this machine"):
        memory.take(0.0, 1000.0, sign(msgspec.structs.replace(SAID, address="10.0.0.1:1"), ""), "")
    assert not memory.brokers


def test_a_limited_number_of_brokers_is_remembered() -> None:
    memory = sightings(brokers_max=3, forget_s=10.0)
    for number in range(3):
        take(memory, msgspec.structs.replace(SAID, id=f"b{number}"), now=float(number))
    with pytest.raises(Unbelieved, match=r"discovery\.brokers_max, 3"):
        take(memory, msgspec.structs.replace(SAID, id="b3"))
    assert memory.silent(10.5) == ["b0"]


# --- over sockets ---


def multicast_port() -> int:
    """A free port; on a machine without multicast on loopback there is nothing to test."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        try:
            group = socket.inet_aton("239.255.73.70") + socket.inet_aton("127.0.0.1")
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        except OSError as error:
            pytest.skip(f"no multicast on loopback here: {error}")
        port: int = probe.getsockname()[1]
        return port


class Seeker(Node):
    """A node that looks for others."""

    def __init__(self, id: str, port: int, secret: str = SECRET, **settings: object) -> None:
        super().__init__(id, Link(**{**QUICK, "secret": secret}))
        discovery = Discovery(enabled=True, port=port, interval_s=0.05, **settings)  # type: ignore[arg-type]
        self.config = Config(id=id, discovery=discovery, link=self.link)

    async def start(self, *peers: Node) -> None:
        await super().start(*peers)
        self.discovery = LocalDiscovery(self.config, self.peers.port, self.peers)
        await self.discovery.start()

    async def stop(self) -> None:
        await self.discovery.stop()
        await self.peers.stop()


@live
async def test_brokers_meet_and_meet_again_elsewhere() -> None:
    port = multicast_port()
    a, b = Seeker("a", port), Seeker("b", port)
    await a.start()
    await b.start()
    await until(lambda: a.is_up("b") and b.is_up("a"))
    assert a.discovery.known() == ["b"]
    first = b.peers.port
    await b.stop()
    await until(lambda: not a.is_up("b"))
    for end in b.links.ends.values():
        end.down()
    await b.start()
    assert b.peers.port != first
    await until(lambda: a.is_up("b") and b.is_up("a"))
    assert a.ups.count("b") == 2, "no needless connection between"
    await a.discovery.stop()
    await b.discovery.stop()


@live
async def test_a_broker_that_says_it_is_elsewhere_is_dialed_there_at_once() -> None:
    port = multicast_port()
    a, b = Seeker("a", port), Node("b")
    await a.start()
    await b.start()
    old, said = b.peers, Announcement("roamcast", "b", f"127.0.0.1:{b.peers.port}", 1, 1, 0.0)
    a.peers.found(said.id, said.address)
    await until(lambda: a.is_up("b"))
    b.peers = b.new_peers([])  # It has another address; the connection of before does not end by itself.
    await b.peers.start()
    a.peers.found("b", f"127.0.0.1:{b.peers.port}")
    await until(lambda: a.ups.count("b") == 2 and a.is_up("b"))
    assert a.peers.statuses()[0].address == f"127.0.0.1:{b.peers.port}"
    await old.stop()
    await a.discovery.stop()


@live
async def test_a_broker_of_the_list_that_moved_is_dialed_at_its_new_address() -> None:
    a, b = Node("a"), Node("b")
    await b.start()
    await a.start(b)
    await until(lambda: a.is_up("b"))
    old, b.peers = b.peers, b.new_peers([])
    await b.peers.start()
    a.peers.reload(a.link, [Peer(id="b", address=f"127.0.0.1:{b.peers.port}")])
    await until(lambda: a.ups.count("b") == 2 and a.is_up("b"))
    await old.stop()


@live
async def test_who_is_not_heard_for_long_is_not_dialed_any_more() -> None:
    port = multicast_port()
    a, b = Seeker("a", port, forget_s=0.3), Seeker("b", port)
    await a.start()
    await b.start()
    await until(lambda: a.is_up("b"))
    await b.stop()
    await until(lambda: not a.discovery.known() and not a.peers.statuses())
    await a.discovery.stop()


@live
async def test_another_secret_is_told_once_and_nobody_is_dialed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    port = multicast_port()
    a, b, c = Seeker("a", port), Seeker("b", port, secret="not the secret at all"), Seeker("c", port)
    for node in (a, b, c):
        await node.start()
    await until(lambda: a.is_up("c") and "is not believed" in caplog.text)
    assert not a.is_up("b")
    assert not b.peers.statuses()
    for node in (a, b, c):
        await node.discovery.stop()
    lines = [record.message for record in caplog.records if "not believed" in record.message]
    assert set(lines) == {
        "an announcement from 127.0.0.1 is not believed: it is not signed with the secret of this network"
    }
    assert len(lines) <= 3, "each of them says it once"


@live
async def test_an_interface_that_is_not_there_is_one_line() -> None:
    nowhere = Seeker("a", 7370, interface="nothing0")
    with pytest.raises(InputError, match="nothing0: multicast cannot be used there"):
        await nowhere.start()


def test_an_interface_has_an_address() -> None:
    assert address_of("lo") == "127.0.0.1" == address_of("127.0.0.1")
    with pytest.raises(OSError, match="No such device"):
        address_of("nothing0")


# --- configuration ---


MFT = {"mobility.protocol": "mft", "discovery.enabled": "true", "link.port": "0"}


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"discovery.enabled": "true"}, "links are permanent, and peers are listed; valid .* are mft"),
        ({**MFT, "link.port": "none"}, "nobody could connect; set link.port"),
        ({**MFT, "discovery.interface": "eth0"}, "must be signed; set link.secret_file"),
        ({**MFT, "discovery.group": "10.0.0.1"}, "valid is an address from 224.0.0.0"),
        ({**MFT, "discovery.group": "239.0.0.999"}, "239.0.0.999: not an IPv4 address"),
        ({**MFT, "discovery.grup": "239.0.0.1"}, "did you mean"),
        ({"mobility.protocol": "recursive_migration"}, "it promises nothing.*valid .* are mft"),
        ({"mobility.protocol": "mft", "mobility.routing": "simple"}, "knows the way to every subscriber"),
        ({"mobility.protocol": "mtf"}, "did you mean"),
    ],
)
def test_what_cannot_work_is_refused(flags: dict[str, str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        load(None, {}, flags)


def test_discovery_past_this_machine_needs_a_secret_and_an_address(tmp_path: Path) -> None:
    flags = {**MFT, "discovery.interface": "eth0"}
    environment = {"ROAMCAST_LINK_SECRET": "a secret of all these brokers"}
    with pytest.raises(InputError, match=r"nobody there could connect to link.address = 127.0.0.1"):
        load(None, environment, flags)
    config = load(None, environment, {**flags, "link.address": "0.0.0.0"})
    assert config.discovery.enabled
    assert config.discovery.interface == "eth0"
