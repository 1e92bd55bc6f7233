"""Builds of different age over real sockets: which version they use, what they skip, what they refuse."""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

import msgspec
import pytest
from tests.net.link_node import QUICK, SECRET, TERMS, Node, joined, live, until

from roamcast.broker.links.frames import FrameCutter
from roamcast.broker.links.links import Offer
from roamcast.config.sections import Link
from roamcast.net.handshake import PREFACE, proof
from roamcast.net.sealing import Opener, Sealer, link_keys
from roamcast.protocol.codec import LENGTH_BYTES
from roamcast.protocol.messages import Message, Settled

Versions = tuple[int, int]


def slow() -> Link:
    """Whoever is refused does not come back during the test."""
    return Link(**{**QUICK, "reconnect_max_s": 1000.0})


@pytest.mark.parametrize(
    ("of_a", "of_b", "used"), [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 5), (1, 2), 2)]
)
@live
async def test_the_highest_version_that_both_speak_is_used(of_a: Versions, of_b: Versions, used: int) -> None:
    a, b = Node("a", versions=of_a), Node("b", versions=of_b)
    await joined(a, b)
    assert a.links.ends["b"].version == b.links.ends["a"].version == used


@pytest.mark.parametrize(("of_a", "of_b", "older"), [((1, 2), (3, 4), "a"), ((7, 9), (1, 6), "b")])
@live
async def test_without_a_common_version_both_say_whom_to_upgrade(
    of_a: Versions, of_b: Versions, older: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Node("a", versions=of_a), Node("b", slow(), versions=of_b)
    await a.start()
    await b.start(a)
    await until(lambda: b.why("a") and "no link with b at" in caplog.text)
    assert a.ups == b.ups == []
    said = f"a speaks {of_a[0]} to {of_a[1]}, b speaks {of_b[0]} to {of_b[1]}; upgrade {older}"
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 2
    assert all(line.endswith(f"versions of the link protocol: {said}") for line in lines)


# --- a handshake by hand ---


class Stranger:
    """Dials a broker and says what a build of another age would say."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.frames = FrameCutter()
        self.sealer: Sealer | None = None
        self.opener: Opener | None = None

    async def dial(self, *hello: object) -> list[object]:
        """Prove who it is; the answer is the listener's hello."""
        port = self.node.peers.port
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.writer.write(PREFACE)
        own = self.say("HandshakeHello", "z", b"boot", b"n" * 32, *hello)
        assert await self.reader.readexactly(len(PREFACE)) == PREFACE
        theirs = await self.read()
        self.say("Proof", proof(SECRET, "dialer", own, theirs), [], "more")
        listener = msgspec.msgpack.decode(await self.read())
        assert listener == ["Proof", proof(SECRET, "listener", own, theirs), []]
        keys = link_keys(SECRET, own, theirs)
        self.sealer, self.opener = Sealer(keys.dialer), Opener(keys.listener)
        self.frames.feed(self.opener.open(self.frames.take_rest()))
        decoded: list[object] = msgspec.msgpack.decode(theirs)
        return decoded

    async def join(self, terms: dict[str, str]) -> None:
        """The rest of the handshake, with more in it than the other end knows."""
        name, asked = msgspec.msgpack.decode(await self.read())
        assert (name, asked | TERMS) == ("Terms", asked)
        self.say("?Rumour", {"anything": [1]})
        self.say("Terms", asked | terms, "more")
        self.say("Offering", [*msgspec.to_builtins(Offer()), "more"], "more")
        assert msgspec.msgpack.decode(await self.read())[0] == "Offering"
        assert msgspec.msgpack.decode(await self.read()) == ["Accept"]
        self.say("Accept", "more")

    def say(self, *step: object) -> bytes:
        data = msgspec.msgpack.encode(step)
        written = len(data).to_bytes(LENGTH_BYTES, "big") + data
        self.writer.write(written if self.sealer is None else self.sealer.seal(written))
        return data

    async def read(self) -> bytes:
        while True:
            frame = self.frames.take_one()
            if frame:
                return frame
            data = await self.reader.read(1 << 16)
            assert data, "the other end closed the connection"
            self.frames.feed(data if self.opener is None else self.opener.open(data))


@pytest.mark.parametrize(
    ("hello", "used"), [((), 1), ((1, 1), 1), ((1, 4), 3), ((2, 9, "", {"deep": []}), 3)]
)
@live
async def test_hellos_of_older_and_newer_builds_are_read(hello: tuple[object, ...], used: int) -> None:
    a = Node("a", versions=(1, 3))
    await a.start()
    stranger = Stranger(a)
    assert (await stranger.dial(*hello))[4:6] == [1, 3]
    await stranger.join({**TERMS, "?a term of a newer build": "x"})
    await until(lambda: a.is_up("z"))
    assert a.links.ends["z"].version == used
    stranger.writer.close()


@live
async def test_a_reason_that_is_not_known_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    a = Node("a")
    await a.start()
    stranger = Stranger(a)
    await stranger.dial()
    stranger.say("Refuse", "weather", "", "more")
    await until(lambda: "no link with z" in caplog.text)
    stranger.writer.close()
    assert "it refuses: a reason that this version does not know, weather" in caplog.text


# --- messages of another age ---


class Hint(Message, frozen=True, tag="?HintOfVersions"):
    """Peers of version 2 know it, and others do well without."""

    text: str
    first_version: ClassVar[int] = 2
    is_optional: ClassVar[bool] = True
    cause: ClassVar[str] = "publish"


@pytest.mark.parametrize(("of_b", "carried"), [((1, 1), 1), ((1, 2), 2)])
@live
async def test_an_optional_message_is_not_sent_to_who_is_older(of_b: Versions, carried: int) -> None:
    a, b = Node("a", versions=(1, 2)), Node("b", versions=of_b)
    await joined(a, b)
    before = a.links.ends["b"].sent
    a.links.send([("b", Hint("x")), ("b", Settled(1))])
    assert a.links.ends["b"].sent - before == carried
    a.flush()
    await until(lambda: b.received("a") == [1])


def send_raw(node: Node, peer: str, *message: object) -> None:
    """Something that this build has no type for, with a number like all others."""
    node.links.ends[peer].send_encoded(msgspec.msgpack.encode(message))
    node.flush()


@live
async def test_an_unknown_optional_message_is_skipped_and_counted() -> None:
    a, b = Node("a"), Node("b")
    await joined(a, b)
    send_raw(b, "a", "?Unheard", 1, [2])
    send_raw(b, "a", "?Unheard", "x" * 1_000_000)
    b.send("a", 1)
    await until(lambda: a.received("b") == [1])
    await until(lambda: b.links.ends["a"].kept_count == 0)
    assert a.links.ends["b"].received == b.links.ends["a"].sent
    await b.restart(a)
    b.send("a", 2)
    await until(lambda: a.received("b") == [1, 2])


@pytest.mark.parametrize(
    "message", [("HandAway", "z"), ("ClientPublish", 1, b""), ("Hello", "c"), ("Unheard", 1)]
)
@live
async def test_a_link_refuses_commands_words_of_clients_and_what_is_unknown(
    message: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Node("a", slow()), Node("b", slow())
    await joined(a, b)
    send_raw(b, "a", *message)
    b.send("a", 1)
    await until(lambda: not a.is_up("b"))
    assert a.received("b") == []
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [
        f"the link to b is down: b sent the message {message[0]!r}, which no broker of this version knows: "
        f"if it is newer, upgrade this broker"
    ]
