"""Links that a third broker carries while the direct way is cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.net.certificates import Authority
from tests.net.link_node import QUICK, Node, Relay, live, until

from roamcast.config.sections import Detour, Link, Peer
from roamcast.config.sections import Relay as RelaySection
from roamcast.net.handshake import Handshake, Offering, Terms
from roamcast.net.peer_connection import PeerConnection
from roamcast.net.relay import DATA, hop_frame, hop_frames
from roamcast.net.sealing import CHANGED
from roamcast.net.tls import link_contexts

PATIENT = {**QUICK, "timeout_s": 60.0}
"""Silence alone ends no connection in these tests."""
CARRIES = RelaySection(brokers=("a", "b"))


def secret_file(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text(f"a secret of {name}, which is long")
    path.chmod(0o600)
    return str(path)


class Triangle:
    """Brokers a and b with a link that can be cut, and others that may carry it."""

    def __init__(self, relays: str = "c", section: RelaySection = CARRIES, **more: Any) -> None:
        self.a, self.b = self.node("a", **more), self.node("b", **more)
        self.relays = {id: self.node(id, relay=section, **more) for id in relays}
        self.direct = Relay(self.a)
        self.secret_files: tuple[str, ...] = ()

    def node(self, id: str, **more: Any) -> Node:
        return Node(id, Link(**(QUICK if "relay" in more else PATIENT)), **more)

    @property
    def all(self) -> list[Node]:
        return [self.a, self.b, *self.relays.values()]

    @property
    def c(self) -> Node:
        return self.relays["c"]

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[None]:
        """All brokers run, and a and b are linked directly."""
        for node in self.all:
            await node.start()
        await self.direct.start()
        detours = [Detour(id=id, address=self.address(one)) for id, one in self.relays.items()]
        to_b = Peer(id="b", secret_files=self.secret_files)
        to_a = msgspec.structs.replace(self.direct.peer(), secret_files=self.secret_files)
        self.a.peers.reload(self.a.link, [to_b], self.a.peers.contexts, detours)
        self.b.peers.reload(self.b.link, [to_a], self.b.peers.contexts, detours)
        await until(lambda: self.a.has_joined("b") and self.b.has_joined("a"))
        try:
            yield
        finally:
            await self.direct.close()

    def address(self, node: Node) -> str:
        return f"127.0.0.1:{node.peers.port}"

    def cut(self) -> None:
        self.direct.is_open = False
        self.direct.cut()

    def over(self, node: Node, peer: str) -> str | None:
        """Who carries the link; None while it is down."""
        return next((one.over for one in node.peers.statuses() if one.peer == peer and one.is_up), None)

    async def until_over(self, relay: str) -> None:
        await until(lambda: self.over(self.a, "b") == self.over(self.b, "a") == relay)

    async def talk(self, *numbers: int) -> None:
        """Both say these numbers, and hear everything that was said so far."""
        self.a.send("b", *numbers)
        self.b.send("a", *numbers)
        await until(lambda: self.a.received("b")[-1:] == self.b.received("a")[-1:] == [*numbers][-1:])


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@live
async def test_a_link_goes_over_a_third_broker_while_the_direct_way_is_cut(loop: str) -> None:
    triangle = Triangle()
    async with triangle.linked():
        await triangle.talk(*range(100))
        triangle.cut()
        await triangle.talk(*range(100, 200))
        await triangle.until_over("c")
        assert triangle.c.peers.relay.links == [("a", "b")]
        assert triangle.b.why("a"), "says why the direct way is cut"
        # Much, so that every buffer on the way is full at some time.
        await triangle.talk(*range(200, 60_000))
        triangle.direct.is_open = True
        await triangle.until_over("")
        await triangle.talk(60_000)
        await until(lambda: not triangle.c.peers.relay.links)
        for node, peer in ((triangle.a, "b"), (triangle.b, "a")):
            assert node.received(peer) == list(range(60_001)), "each once, and in order"
        assert not triangle.c.links.ends, "who carries a link has none itself"


@live
async def test_a_way_that_is_silent_gives_way_to_a_detour() -> None:
    triangle = Triangle()
    async with triangle.linked():
        triangle.direct.stop()
        await triangle.talk(*range(100))
        await triangle.until_over("c")
        triangle.direct.go_on()


@live
async def test_the_broker_in_the_middle_is_lost_and_another_one_takes_over() -> None:
    triangle = Triangle("cd")
    async with triangle.linked():
        triangle.cut()
        await until(lambda: triangle.over(triangle.a, "b"))
        first = triangle.over(triangle.a, "b")
        assert first
        other = "d" if first == "c" else "c"
        await triangle.relays[first].peers.stop()
        await triangle.talk(*range(100))
        await triangle.until_over(other)


@live
async def test_a_relay_carries_only_who_is_listed_there(caplog: pytest.LogCaptureFixture) -> None:
    triangle = Triangle(section=RelaySection(brokers=("a", "x")))
    async with triangle.linked():
        triangle.cut()
        why = "no detour to a over c: it does not carry links of this broker"
        await until(lambda: why in caplog.text)
        assert triangle.over(triangle.b, "a") is None
        assert not triangle.c.peers.relay.waiting
        # The operator of c changes their mind.
        triangle.c.peers.reload(triangle.c.link, [], relay=CARRIES)
        for node in (triangle.a, triangle.b):
            await node.restart()
        await until(lambda: not triangle.c.peers.relay.waiting)


@live
async def test_links_end_when_they_are_not_carried_any_more() -> None:
    triangle = Triangle()
    async with triangle.linked():
        triangle.cut()
        await triangle.until_over("c")
        triangle.c.peers.reload(triangle.c.link, [])
        await until(lambda: triangle.over(triangle.a, "b") is None)
        assert not triangle.c.peers.relay.links


@live
async def test_a_peer_decides_who_may_carry_its_links(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    triangle = Triangle()
    async with triangle.linked():
        triangle.cut()
        await triangle.until_over("c")
        triangle.a.peers.reload(triangle.a.link, [Peer(id="b")])
        await until(lambda: triangle.over(triangle.b, "a") is None)
        assert "the link to b is down: c may not carry the link to b any more" in caplog.text


@live
async def test_a_relay_has_room_for_so_many() -> None:
    triangle = Triangle(section=msgspec.structs.replace(CARRIES, connections_max=1))
    async with triangle.linked():
        triangle.cut()
        await until(lambda: triangle.c.peers.relay.waiting)
        assert not triangle.c.peers.relay.links


@live
async def test_a_relay_takes_so_many_bytes_and_the_rest_waits() -> None:
    triangle = Triangle(section=msgspec.structs.replace(CARRIES, bytes_per_s=20_000.0))
    async with triangle.linked():
        triangle.cut()
        await triangle.until_over("c")
        relay = triangle.c.peers.relay
        triangle.a.send("b", *range(3000))
        await until(lambda: any(one._reading_again is not None for one in relay._others))
        await until(lambda: len(triangle.b.received("a")) == 3000)
        assert triangle.over(triangle.a, "b") == "c"


# --- the broker in the middle is not trusted ---


def meddle(node: Node) -> list[str]:
    """The broker changes a byte of a large frame, and later makes one up; what it did so far."""
    done: list[str] = []
    relay, arrived = node.peers.relay, node.peers.relay.arrived

    def changed(connection: PeerConnection, frames: bytes) -> None:
        if len(frames) > 1000 and not done:
            done.append("changed")
            frames = frames[:500] + bytes((frames[500] ^ 1,)) + frames[501:]
        elif len(frames) > 1000 and len(done) == 1:
            done.append("injected")
            inner = next(data for kind, data in hop_frames(frames) if kind == DATA)
            frames = hop_frame(DATA, inner) + frames
        arrived(connection, frames)

    relay.arrived = changed  # type: ignore[method-assign]
    return done


@pytest.mark.parametrize("kind", ["secret", "tls"])
@live
async def test_what_a_relay_changes_or_adds_is_not_believed(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    triangle = Triangle()
    if kind == "tls":
        authority = Authority(tmp_path)
        secured = {}
        for id in "abc":
            certificate, key = authority.sign(id)
            tls = {"secret": "", "tls": True, "certificate": certificate, "key": key, "ca": authority.path}
            link = Link(**{**(QUICK if id == "c" else PATIENT), **tls})
            more: dict[str, Any] = {"relay": CARRIES} if id == "c" else {}
            secured[id] = Node(id, link, contexts=link_contexts(link), **more)
        triangle.a, triangle.b, triangle.relays = secured["a"], secured["b"], {"c": secured["c"]}
        triangle.direct = Relay(triangle.a)
    else:
        triangle.secret_files = (secret_file(tmp_path, "a-and-b"),)
    async with triangle.linked():
        triangle.cut()
        await triangle.until_over("c")
        done = meddle(triangle.c)
        for start in range(0, 3000, 1000):
            await triangle.talk(*range(start, start + 1000))
        assert done == ["changed", "injected"]
        for node, peer in ((triangle.a, "b"), (triangle.b, "a")):
            assert node.received(peer) == list(range(3000))
    if kind == "secret":
        assert caplog.text.count(f"is down: {CHANGED}") == 2


# --- brokers of another age ---


@live
async def test_an_older_broker_carries_nothing_and_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    triangle = Triangle(section=RelaySection())
    run_now = Handshake.run

    async def run_as_before(shake: Handshake, host: Any) -> Any:
        """Takes no notice of the last field of a hello."""
        if host._peers.id != "c":
            return await run_now(shake, host)
        peer = await shake.authenticate(host)
        shake._write(Terms({}))
        await shake._read(Offering)
        raise AssertionError(f"{peer.id} went on")

    monkeypatch.setattr(Handshake, "run", run_as_before)
    monkeypatch.setattr(type(triangle.c.peers), "admits", lambda self, peer: True)
    async with triangle.linked():
        triangle.cut()
        await until(lambda: "no detour to a over c: it does not carry links; upgrade it" in caplog.text)
        triangle.direct.is_open = True
        await triangle.until_over("")
