"""Who may be linked, with which secret or certificate, and what a third party on the way can do."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.net.certificates import Authority
from tests.net.link_node import QUICK, Node, dialed_over_relay, live, until

from roamcast.broker.links.end import LinkError
from roamcast.config.sections import Link, Peer
from roamcast.errors import InputError
from roamcast.net.sealing import CHANGED, RECORD_BYTES_MAX, TAG_BYTES, Opener, Sealer, link_keys
from roamcast.net.tls import link_contexts


def closed(**settings: Any) -> Link:
    """Only brokers that are listed."""
    return Link(**{**QUICK, "unlisted": "refuse", "reconnect_max_s": 1000.0, **settings})


def secret_file(folder: Path, name: str, secret: str) -> str:
    path = folder / name
    path.write_text(secret)
    path.chmod(0o600)
    return str(path)


# --- who ---


@live
async def test_an_unlisted_broker_with_the_right_secret_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    a, b, x = Node("a", closed()), Node("b", closed()), Node("x", closed())
    await a.start()
    a.peers.reload(a.link, [Peer(id="b")])
    await x.start(a)
    await until(lambda: x.why("a"))
    assert x.why("a") == "it refuses: x is not in the list of peers of a; list it there as [[peer]]"
    await b.start(a)
    await until(lambda: a.has_joined("b") and b.has_joined("a"))
    assert a.ups == ["b"]
    assert "no link with x at" in caplog.text


@live
async def test_without_a_secret_a_stranger_does_not_learn_who_is_listed() -> None:
    a = Node("a", closed())
    listed, unlisted = (Node(name, closed(secret="a secret of somebody else")) for name in "bx")
    await a.start()
    a.peers.reload(a.link, [Peer(id="b")])
    await listed.start(a)
    await unlisted.start(a)
    await until(lambda: listed.why("a") and unlisted.why("a"))
    assert listed.why("a") == unlisted.why("a") == "it refuses: the shared secrets differ"


def test_loopback_without_any_proof_is_open_unless_that_is_refused() -> None:
    assert Link().accepts_unlisted
    assert not Link(secret="x" * 16).accepts_unlisted
    assert not Link(tls=True).accepts_unlisted
    assert not Link(unlisted="refuse").accepts_unlisted
    assert Link(secret="x" * 16, unlisted="accept").accepts_unlisted


@live
async def test_a_peer_that_is_removed_loses_its_link_at_once() -> None:
    a, b = Node("a", closed()), Node("b", closed(reconnect_max_s=0.1))
    await a.start()
    a.peers.reload(a.link, [Peer(id="b")])
    await b.start(a)
    await until(lambda: a.has_joined("b") and b.is_up("a"))
    a.peers.reload(a.link, [])
    assert not a.is_up("b")
    await until(lambda: "not in the list" in b.why("a"))
    a.peers.reload(a.link, [Peer(id="b")])
    b.peers.reload(b.link, [Peer(id="a", address=f"127.0.0.1:{a.peers.port}")])
    await until(lambda: a.is_up("b"))


# --- secrets ---


@live
async def test_a_peer_with_a_secret_of_its_own_cannot_use_the_networks(tmp_path: Path) -> None:
    own = secret_file(tmp_path, "of-b", "the secret of a and b")
    a, b, late = Node("a", closed()), Node("b", closed()), Node("b", closed())
    await a.start()
    a.peers.reload(a.link, [Peer(id="b", secret_files=(own,))])
    await late.start(a)
    await until(lambda: late.why("a") == "it refuses: the shared secrets differ")
    await b.start()
    address = f"127.0.0.1:{a.peers.port}"
    b.peers.reload(b.link, [Peer(id="a", address=address, secret_files=(own,))])
    await until(lambda: a.has_joined("b") and b.has_joined("a"))


@live
async def test_a_secret_is_replaced_without_a_gap_and_the_old_one_ends_what_was_made_with_it(
    tmp_path: Path,
) -> None:
    old = secret_file(tmp_path, "old", "the secret of last year")
    new = secret_file(tmp_path, "new", "the secret of this year")
    a, b = Node("a", closed(reconnect_max_s=0.1)), Node("b", closed(reconnect_max_s=0.1))
    await a.start()
    await b.start()

    def use(node: Node, peer: Node, *files: str) -> None:
        address = f"127.0.0.1:{peer.peers.port}" if node is b else ""
        node.peers.reload(node.link, [Peer(id=peer.id, address=address, secret_files=files)])

    use(a, b, old)
    use(b, a, old)
    await until(lambda: a.is_up("b") and b.is_up("a"))
    use(b, a, new, old)
    assert b.is_up("a"), "the old one is valid still"
    b.peers.close("a", "to connect again")
    use(b, a, new, old)
    await until(lambda: a.ups == ["b", "b"] and b.is_up("a"))
    use(a, b, new, old)
    assert a.is_up("b")
    use(a, b, new)
    assert not a.is_up("b"), "the link was made with the old one"
    await until(lambda: a.is_up("b") and b.is_up("a"))
    use(b, a, new)
    assert b.is_up("a"), "and now with the new one"


@live
async def test_a_link_ends_when_the_networks_secret_changes(caplog: pytest.LogCaptureFixture) -> None:
    a, b = Node("a", closed()), Node("b", closed())
    await a.start()
    a.peers.reload(a.link, [Peer(id="b")])
    await b.start(a)
    await until(lambda: a.is_up("b") and b.is_up("a"))
    a.peers.reload(closed(secret="the new secret of all"), [Peer(id="b")])
    assert not a.is_up("b")
    assert a.why("b") == "the secret that b proved itself with is not valid any more"


# --- certificates ---


def tls_link(authority: Authority, name: str, **settings: Any) -> Link:
    certificate, key = authority.sign(name, dns=(name,))
    files = {"certificate": certificate, "key": key, "ca": authority.path}
    return closed(secret="", tls=True, **files, **settings)


def tls_node(id: str, link: Link) -> Node:
    return Node(id, link, contexts=link_contexts(link))


@live
async def test_only_the_pinned_certificate_of_a_peer_is_accepted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    link_a, link_b = tls_link(authority, "a"), tls_link(authority, "b")
    der = ssl.PEM_cert_to_DER_cert(Path(link_b.certificate).read_text())
    pin = hashlib.sha256(der).hexdigest()
    a, b = tls_node("a", link_a), tls_node("b", link_b)
    # Somebody else with a certificate that the same authority gave to the id.
    (tmp_path / "more").mkdir()
    other = tls_link(_elsewhere(authority, tmp_path / "more"), "b")
    x = tls_node("b", other)
    await a.start()
    peers = [Peer(id="b", certificate_sha256=(pin.upper(),))]
    a.peers.reload(link_a, peers, link_contexts(link_a))
    await x.start(a)
    await until(lambda: "certificate" in x.why("a"))
    await b.start(a)
    await until(lambda: a.is_up("b") and b.is_up("a"))
    a.peers.reload(link_a, [Peer(id="b", certificate_sha256=("00" * 32,))], link_contexts(link_a))
    assert not a.is_up("b")


def _elsewhere(authority: Authority, folder: Path) -> Authority:
    """The same authority, which writes its files somewhere else."""
    other = object.__new__(Authority)
    other.__dict__.update(authority.__dict__)
    other.folder = folder
    return other


@live
async def test_a_revoked_certificate_ends_its_link_and_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    link_a, link_b = tls_link(authority, "a"), tls_link(authority, "b")
    a, b = tls_node("a", link_a), tls_node("b", link_b)
    await a.start()
    a.peers.reload(link_a, [Peer(id="b")], link_contexts(link_a))
    await b.start(a)
    await until(lambda: a.is_up("b") and b.is_up("a"))
    a.peers.reload(link_a, [Peer(id="b")], link_contexts(link_a))
    assert a.is_up("b"), "nothing has changed"
    crl = authority.revoke(link_b.certificate)
    revoking = tls_link(authority, "a", crl=crl)
    a.peers.reload(revoking, [Peer(id="b")], link_contexts(revoking))
    assert not a.is_up("b")
    b.peers.reload(link_b, [Peer(id="a", address=f"127.0.0.1:{a.peers.port}")], link_contexts(link_b))
    await until(lambda: b.why("a"))
    assert a.ups == ["b"]


def test_a_file_without_a_revocation_list_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with pytest.raises(InputError, match=r"link.crl = .*: must hold revocation lists in PEM, and nothing"):
        link_contexts(tls_link(authority, "a", crl=authority.path))


# --- who sits between the two ---

Change = Callable[[bytes], bytes]
CHANGES: dict[str, Change] = {
    "changed": lambda data: data[:-1] + bytes((data[-1] ^ 1,)),
    "changed in a length": lambda data: bytes((data[0] ^ 1,)) + data[1:],
    "left out": lambda data: b"",
    "cut": lambda data: data[:-3],
    "repeated": lambda data: data + data,
    "inserted": lambda data: b"\0\0\0\x01x" + b"\0" * TAG_BYTES + data,
}


@pytest.mark.parametrize("name", CHANGES)
@live
async def test_what_is_changed_on_the_way_ends_the_connection_and_the_link_resumes(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Node("a"), Node("b")
    await a.start()
    relay = await dialed_over_relay(b, a)
    await until(lambda: a.has_joined("b") and b.has_joined("a"))
    b.send("a", 1)
    await until(lambda: a.received("b") == [1])
    relay.change = CHANGES[name]
    b.send("a", 2)
    b.send("a", 3)
    await until(lambda: a.received("b") == [1, 2, 3])
    assert relay.accepted == 2, "on another connection"
    await relay.close()
    assert caplog.text.count(CHANGED) == 1


def test_two_writes_in_another_order_do_not_pass() -> None:
    keys = link_keys("secret", b"x", b"y")
    sealer, opener = Sealer(keys.dialer), Opener(keys.dialer)
    first, second = sealer.seal(b"first"), sealer.seal(b"second")
    with pytest.raises(LinkError):
        opener.open(second + first)


def test_records_are_of_one_connection_and_one_direction() -> None:
    keys = link_keys("secret", b"x", b"y")
    record = Sealer(keys.dialer).seal(b"data")
    others = [keys.listener, *link_keys("secret", b"x", b"z"), *link_keys("secreu", b"x", b"y")]
    for key in others:
        with pytest.raises(LinkError):
            Opener(key).open(record)
    assert Opener(keys.dialer).open(record) == b"data"


def test_any_write_cut_anywhere_is_opened_whole() -> None:
    keys = link_keys("secret", b"x", b"y")
    for size in (1, 100, RECORD_BYTES_MAX, RECORD_BYTES_MAX + 1, 3 * RECORD_BYTES_MAX):
        data = bytes(range(256)) * (size // 256 + 1)
        sealed = Sealer(keys.dialer).seal(data[:size])
        for step in (1 if size < 200 else 9973, len(sealed)):
            opener = Opener(keys.dialer)
            opened = b"".join(opener.open(sealed[at : at + step]) for at in range(0, len(sealed), step))
            assert opened == data[:size]


# --- quotas ---


@pytest.mark.parametrize("quota", [{"bytes_per_s": 20_000.0}, {"messages_per_s": 1000.0}])
@live
async def test_a_peer_that_sends_too_much_is_read_from_more_slowly(quota: dict[str, float]) -> None:
    a, b = Node("a"), Node("b")
    await a.start()
    a.peers.reload(a.link, [Peer(id="b", **quota)])  # type: ignore[arg-type]
    await b.start(a)
    await until(lambda: a.has_joined("b") and b.has_joined("a"))
    for start in range(0, 2000, 10):
        b.send("a", *range(start, start + 10))
        await asyncio.sleep(0)
    # More than the quota lets through at once; all of it arrives in the end.
    await until(lambda: a.peers._slots["b"]._reading_again is not None)
    await until(lambda: len(a.received("b")) == 2000)
    assert a.is_up("b")
