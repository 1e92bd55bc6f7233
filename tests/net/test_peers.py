"""Links over real sockets: who may connect, which connection survives, and what passes over cuts."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.net.certificates import Authority
from tests.net.link_node import QUICK, SECRET, TERMS, Node, Relay, dialed_over_relay, joined, live, until

from roamcast.broker.links.links import Links
from roamcast.config.sections import Link, Peer
from roamcast.errors import InputError
from roamcast.net.handshake import HANDSHAKE_FORMAT, MAGIC, PREFACE, HandshakeHello, encoded, frame, proof
from roamcast.net.peers import STRANGERS_MAX, STRANGERS_PER_HOST_MAX
from roamcast.net.tls import link_contexts
from roamcast.protocol.messages import Fleeting
from roamcast.protocol.snapshot import freeze, thaw


def address_of(node: Node) -> Peer:
    return Peer(id=node.id, address=f"127.0.0.1:{node.peers.port}")


def slow(**settings: object) -> Link:
    """Whoever is refused does not come back during the test by itself."""
    return Link(**{**QUICK, "reconnect_max_s": 1000.0, **settings})


# --- links that work ---


@live
async def test_a_link_carries_messages_both_ways() -> None:
    a, b = Node("a"), Node("b")
    await joined(a, b)
    a.send("b", 1, 2, 3)
    b.send("a", 7, 8)
    await until(lambda: b.received("a") == [1, 2, 3] and a.received("b") == [7, 8])
    await until(lambda: a.links.ends["b"].kept_count == b.links.ends["a"].kept_count == 0)


@pytest.mark.parametrize("ids", ["ab", "ba"])
@live
async def test_when_both_dial_the_connection_of_the_lower_id_survives(ids: str) -> None:
    first, second = Node(ids[0]), Node(ids[1])
    a, b = sorted((first, second), key=lambda node: node.id)
    await a.start()
    await b.start()
    for one, other in ((first, second), (second, first)):
        one.peers.reload(one.link, [address_of(other)])
    await until(lambda: a.has_joined("b") and b.has_joined("a"))
    a.send("b", *range(100))
    b.send("a", *range(100))
    await until(lambda: b.received("a") == a.received("b") == list(range(100)))
    (here,), (there,) = a.peers.statuses(), b.peers.statuses()
    assert here.address == f"127.0.0.1:{b.peers.port}", "a dialed"
    assert there.address != f"127.0.0.1:{a.peers.port}", "b was dialed"


@live
async def test_a_tree_of_brokers_started_in_any_order_becomes_one_network() -> None:
    nodes = {name: Node(name) for name in "abcde"}
    for node in nodes.values():
        await node.start()
    for here, there in ("ea", "eb", "ec", "ed"):
        nodes[here].peers.reload(
            nodes[here].link, [address_of(nodes[name]) for name in "abcd" if here == "e"]
        )
        nodes[there].peers.reload(nodes[there].link, [address_of(nodes[here])])
    await until(lambda: all(node.has_joined(*nodes.keys() - {node.id}) for node in nodes.values()))


@live
async def test_a_link_without_secret_stays_on_this_machine() -> None:
    a, b = Node("a", Link(**{**QUICK, "secret": ""})), Node("b", Link(**{**QUICK, "secret": ""}))
    await a.start()
    await b.start(a)
    await until(lambda: a.has_joined("b"))


@live
async def test_a_port_in_use_is_one_line() -> None:
    a = Node("a")
    await a.start()
    b = Node("b", Link(**{**QUICK, "port": a.peers.port}))
    with pytest.raises(InputError, match=r"link.address = 127.0.0.1:\d+: cannot listen"):
        await b.start()


# --- cuts, crashes, stops ---


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@live
async def test_whatever_is_cut_each_message_arrives_once_and_in_order(loop: str) -> None:
    a, b = Node("a"), Node("b")
    rng = random.Random(3)
    await a.start()
    relay = await dialed_over_relay(b, a)
    sent = 0
    for _ in range(25):
        await until(lambda: a.is_up("b") and b.is_up("a"))
        for _ in range(rng.randrange(1, 30)):
            a.send("b", *range(sent, sent + 100))
            b.send("a", *range(sent, sent + 100))
            sent += 100
            await asyncio.sleep(0)
        relay.cut()
    await until(lambda: a.received("b") == b.received("a") == list(range(sent)))
    await relay.close()


@live
async def test_a_broker_that_was_restarted_goes_on_where_it_was() -> None:
    a, b = Node("a"), Node("b")
    await joined(a, b)
    for life in range(5):
        b.send("a", life)
        await b.restart(a)
        a.send("b", life)
    await until(lambda: a.received("b") == b.received("a") == [0, 1, 2, 3, 4])


@live
async def test_a_peer_that_gives_no_sign_of_life_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    a, b = Node("a", Link(**{**QUICK, "timeout_s": 0.3})), Node("b", Link(**{**QUICK, "timeout_s": 0.3}))
    caplog.set_level(logging.INFO)
    await a.start()
    relay = await dialed_over_relay(b, a)
    await until(lambda: a.has_joined("b") and b.has_joined("a"))
    relay.stop()
    a.send("b", 1)
    await until(lambda: not a.is_up("b") and not b.is_up("a"))
    assert "the link to b is down: no sign of life for 0." in caplog.text
    relay.go_on()
    await until(lambda: b.received("a") == [1])
    await relay.close()


@live
async def test_a_peer_that_does_not_read_stops_the_writer_and_loses_nothing() -> None:
    a, b = Node("a"), Node("b")
    await joined(a, b)
    b.peers.pause_reading("a")
    body = Fleeting("p", 0, 0, b"\x80", 0.0, (b"x" * 100_000,))
    for _ in range(500):
        a.links.send([("b", body)])
        a.flush()
    assert not a.peers.is_writable("b")
    dropped = a.links.ends["b"].dropped_fleeting
    assert 300 < dropped < 500, "what the sockets hold and the lane holds is not dropped"
    a.send("b", *range(1000))
    b.peers.resume_reading("a")
    await until(lambda: b.received("a") == list(range(1000)))
    assert a.links.ends["b"].dropped_fleeting == dropped
    assert a.ups == ["b"], "its silence was not taken for death"


# --- links that must not be ---


@live
async def test_another_secret_is_refused_on_both_sides_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b, c = Node("a"), Node("b", slow(secret="quite another secret")), Node("c")
    await a.start()
    await c.start(a)
    relay = await dialed_over_relay(b, a)
    await until(lambda: b.why("a") and "calls itself b" in caplog.text)
    await until(lambda: a.has_joined("c"))
    assert b.why("a") == "it refuses: the shared secrets differ"
    assert a.ups == ["c"]
    assert b.link.secret.encode() not in relay.heard
    await relay.close()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 2
    assert any("who calls itself b" in line and "the shared secrets differ" in line for line in lines)


@live
async def test_a_proof_serves_only_once() -> None:
    """Someone who has listened to a handshake says the same again."""
    a, b = Node("a"), Node("b")
    await a.start()
    relay = await dialed_over_relay(b, a)
    await until(lambda: a.has_joined("b"))
    heard = relay.heard
    await b.peers.stop()
    await until(lambda: not a.is_up("b"))
    reader, writer = await asyncio.open_connection("127.0.0.1", a.peers.port)
    writer.write(heard)
    answer = await reader.read()
    assert b"secret" in answer[-20:], "refused"
    assert a.ups == ["b"]
    writer.close()
    await relay.close()


def test_a_proof_is_bound_to_ids_nonces_versions_and_role() -> None:
    hello = HandshakeHello("y", b"2", b"m" * 32)
    x, y = encoded(HandshakeHello("x", b"1", b"n" * 32)), encoded(hello)
    proofs = [
        proof(SECRET, "dialer", x, y),
        proof(SECRET, "listener", x, y),
        proof(SECRET, "dialer", y, x),
        proof(SECRET, "dialer", x, encoded(msgspec.structs.replace(hello, nonce=b"o" * 32))),
        proof(SECRET, "dialer", x, encoded(msgspec.structs.replace(hello, id="z"))),
        proof(SECRET, "dialer", x, encoded(msgspec.structs.replace(hello, version_max=9))),
        proof("another", "dialer", x, y),
    ]
    assert len(set(proofs)) == len(proofs)


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({**TERMS, "network": "other"}, "network: a has test, b has other"),
        ({**TERMS, "mobility protocol": "durable"}, "mobility protocol: a has none, b has durable"),
        ({**TERMS, "routing": "simple"}, "routing: a has nothing, b has simple"),
    ],
)
@live
async def test_brokers_that_disagree_say_in_what(
    terms: dict[str, str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Node("a"), Node("b", slow(), terms=terms)
    await a.start()
    await b.start(a)
    await until(lambda: b.why("a") and "no link with b at" in caplog.text)
    assert a.ups == b.ups == []
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert sum(line.startswith("no link with a at ") for line in lines) == 1
    assert all(line.endswith(why) for line in lines)


@live
async def test_the_broker_at_an_address_must_be_the_one_that_is_configured() -> None:
    a, b = Node("a"), Node("b", slow())
    await a.start()
    await b.start()
    b.peers.reload(b.link, [Peer(id="z", address=f"127.0.0.1:{a.peers.port}")])
    await until(lambda: b.why("z"))
    assert b.why("z") == "it has the id a, but z is configured"
    assert a.ups == []


@live
async def test_two_brokers_with_one_id_are_refused() -> None:
    a, b = Node("a"), Node("a", slow())
    await a.start()
    await b.start()
    b.peers.reload(b.link, [Peer(id="x", address=f"127.0.0.1:{a.peers.port}")])
    await until(lambda: "which is that of this broker" in b.why("x"))


@live
async def test_a_link_that_would_close_a_cycle_is_refused_on_both_sides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b, c = Node("a"), Node("b"), Node("c", slow())
    await a.start()
    await b.start(a)
    await c.start(b)
    await until(lambda: a.has_joined("b", "c") and c.has_joined("a", "b"))
    c.peers.reload(c.link, [address_of(b), address_of(a)])
    await until(lambda: c.refusals and a.refusals)
    assert a.refusals == [
        ("c", "the link between a and c would close a cycle: a reaches c through b already")
    ]
    assert "would close a cycle" in c.why("a")
    a.send("b", 1)
    await until(lambda: b.received("a") == [1])


@live
async def test_a_broker_that_lost_its_journal_is_refused_until_it_is_forgotten() -> None:
    a, b = Node("a", slow()), Node("b", slow())
    await joined(a, b)
    await until(lambda: a.links.ends["b"].received and b.links.ends["a"].received)
    await b.peers.stop()
    b.links = Links("b", b.links._codec)
    await b.start(a)
    await until(lambda: a.refusals and b.refusals)
    assert "b has restarted this link" in a.refusals[0][1]
    assert "b has restarted this link" in b.why("a")
    a.take(a.links.forget("b"))
    b.peers.reload(b.link, [address_of(a)])
    await until(lambda: a.has_joined("b") and b.has_joined("a"))


@live
async def test_a_refused_dialer_tries_again_at_once_when_told_to() -> None:
    a, b = Node("a"), Node("b", slow(secret="another secret, yes"))
    await a.start()
    relay = await dialed_over_relay(b, a)
    await until(lambda: "secrets differ" in b.why("a"))
    b.peers.reload(slow(), [relay.peer()])
    await until(lambda: a.has_joined("b"))
    assert relay.accepted == 2
    await relay.close()


# --- strangers ---


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x10\x1e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x11",
        b"\0" * 100_000,
        PREFACE + b"\xff\xff\xff\xff",
        PREFACE + b"\0\0\0\x05hello",
        PREFACE + b"\0\0\x04\x00" + b"\xc1" * 1024,
        PREFACE + b"\0\0\x04\x00" + b"\x91" * 1024,
        PREFACE + b"\0\0\0\x01\x90",
        PREFACE + frame(HandshakeHello("x\ny", b"", b"n" * 32)),
        PREFACE + frame(HandshakeHello("x", b"", b"short")),
    ],
)
@live
async def test_garbage_is_closed_and_logged_once_and_nobody_is_disturbed(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Node("a"), Node("b")
    await joined(a, b)
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", a.peers.port)
        writer.write(said)
        with suppress(ConnectionResetError):
            assert len(await reader.read()) < 200
        writer.close()
    a.send("b", 1)
    await until(lambda: b.received("a") == [1])
    assert a.ups == ["b"]
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1, lines
    assert "\n" not in lines[0]


@live
async def test_another_format_of_the_handshake_is_named_on_both_sides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a = Node("a")
    await a.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", a.peers.port)
    writer.write(MAGIC + (HANDSHAKE_FORMAT + 1).to_bytes(2, "big") + b"whatever that format says")
    assert await reader.read() == PREFACE
    writer.close()
    said = f"format {HANDSHAKE_FORMAT + 1}, this broker has {HANDSHAKE_FORMAT}; upgrade this broker"
    assert said in caplog.text


@live
async def test_what_is_no_broker_is_dialed_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    b = Node("b", slow())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ready\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    await b.start()
    b.peers.reload(b.link, [Peer(id="a", address=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")])
    await until(lambda: b.why("a") == "the other end does not speak the link protocol")
    server.close()


async def stranger(node: Node, host: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection from another address of this machine."""
    local = (f"127.0.0.{host}", 0)
    return await asyncio.open_connection("127.0.0.1", node.peers.port, local_addr=local)


@live
async def test_strangers_of_one_host_keep_no_peer_out_not_even_one_of_that_host() -> None:
    a, b = Node("a", Link(**{**QUICK, "timeout_s": 1000.0})), Node("b")
    await a.start()
    silent = [await stranger(a, 1) for _ in range(STRANGERS_PER_HOST_MAX)]
    reader, writer = await stranger(a, 1)
    silent.append((reader, writer))
    assert await silent[0][0].read() == b"", "one too many of this host: the oldest gives way"
    assert not reader.at_eof()
    await b.start(a)  # Also from 127.0.0.1.
    await until(lambda: a.has_joined("b") and b.has_joined("a"))
    for _, writer in silent:
        writer.close()
    await until(lambda: not len(a.peers._strangers))


@live
async def test_strangers_that_say_nothing_are_limited_in_number_and_time() -> None:
    a, b = Node("a", Link(**{**QUICK, "timeout_s": 0.3})), Node("b")
    await a.start()
    silent = [await stranger(a, 2 + number // STRANGERS_PER_HOST_MAX) for number in range(STRANGERS_MAX)]
    reader, writer = await stranger(a, 100)
    assert await silent[0][0].read() == b"", "one too many: the oldest gives way"
    assert not reader.at_eof()
    writer.close()
    assert [await reader.read() for reader, _ in silent] == [b""] * STRANGERS_MAX, "too slow"
    for _, writer in silent:
        writer.close()
    await b.start(a)
    await until(lambda: a.has_joined("b"))


# --- TLS ---


def secured(authority: Authority, name: str, ca: str = "") -> tuple[Link, dict[str, object]]:
    certificate, key = authority.sign(name)
    link = slow(secret="", tls=True, certificate=certificate, key=key, ca=ca or authority.path)
    return link, {"contexts": link_contexts(link)}


def tls_node(id: str, authority: Authority, name: str = "", ca: str = "") -> Node:
    link, more = secured(authority, name or id, ca)
    return Node(id, link, **more)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@live
async def test_certificates_prove_ids(loop: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    a, b = tls_node("a", authority), tls_node("b", authority)
    await joined(a, b)
    a.send("b", *range(20_000))
    await until(lambda: b.received("a") == list(range(20_000)))


@live
async def test_a_certificate_for_another_id_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    a, b = tls_node("a", authority), tls_node("b", authority, name="c")
    await a.start()
    await b.start(a)
    await until(lambda: "its certificate is not for b" in caplog.text and b.why("a"))
    assert b.why("a") == "it refuses: the certificate is not for that broker id"


@live
async def test_a_certificate_of_a_stranger_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    a, b = tls_node("a", authority), tls_node("b", other, ca=authority.path)
    caplog.set_level(logging.INFO)
    await a.start()
    await b.start(a)
    await until(lambda: "TLS failed: CERTIFICATE_VERIFY_FAILED" in caplog.text and b.why("a"))
    assert a.ups == b.ups == []


@live
async def test_plain_text_on_a_tls_port_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, b = tls_node("a", Authority(tmp_path)), Node("b", slow())
    await a.start()
    await b.start(a)
    await until(lambda: "TLS failed" in caplog.text)
    await until(lambda: "if its links use TLS, set link.tls = true here, too" in b.why("a"))


@live
async def test_tls_on_a_plain_port_is_told_so(tmp_path: Path) -> None:
    a, b = Node("a", slow()), tls_node("b", Authority(tmp_path))
    await a.start()
    await b.start(a)
    await until(lambda: "set link.tls to the same value at both ends" in b.why("a"))


# --- one broker, one process ---


@live
async def test_a_second_process_with_the_same_id_is_refused_while_the_first_is_alive() -> None:
    a, first, second = Node("a"), Node("b"), Node("b", slow())
    await a.start()
    await first.start(a)
    await until(lambda: a.has_joined("b"))
    await second.start(a)
    await until(lambda: second.fences == [("a", "b runs twice")])
    assert a.is_up("b")
    assert first.is_up("a")
    a.send("b", 1)
    await until(lambda: first.received("a") == [1])
    assert second.received("a") == []
    assert first.fences == []


@live
async def test_a_process_that_takes_the_place_of_a_silent_one_is_linked() -> None:
    """The machine of the first one lost its power: its connection is there, and says nothing any more."""
    a, first, second = Node("a"), Node("b"), Node("b")
    relay = Relay(a)
    await a.start()
    await relay.start()
    first.peers = first.new_peers([relay.peer()])
    await first.peers.start()
    await until(lambda: a.has_joined("b"))
    relay.stop()
    second.links = thaw(freeze(first.links))
    second.links.disconnected("a")
    await second.start(a)
    await until(lambda: second.is_up("a"))
    a.send("b", 1)
    await until(lambda: second.received("a") == [1])
    assert second.fences == []
    await relay.close()


@live
async def test_a_history_that_is_refused_is_told_to_both_ends() -> None:
    a, b = Node("a"), Node("b", slow())
    a.doubts["b"] = "b is older than it was"
    await a.start()
    await b.start(a)
    await until(lambda: b.fences == [("a", "b is older than it was")])
    assert a.refusals == [("b", "b is older than it was")]
    assert a.fences == []
    assert not b.is_up("a")
