"""How two brokers find out who is at the other end of a connection, and whether they fit together.

    dialer                                  listener
    preface, HandshakeHello         ->
                           <-               preface, HandshakeHello
    Proof                  ->
                           <-               Proof, Terms
    Terms, Offering        ->
                           <-               Offering, Accept
    Accept                 ->

Either side may say `Refuse` instead and close. The dialer proves first that it
has the secret of this link: strangers who connect learn nothing but the broker's id.
The secret itself is never sent; a proof is an HMAC over both ids, both nonces and
the role, so that it serves for this one connection and this direction. While a
secret is replaced, an end has two: the dialer proves both, and the listener answers
with the one that it has too. With TLS the certificates prove the ids, and a secret, if
there is one, is asked for too. Without TLS everything behind the proofs is sealed with
keys that follow from the secret and the hellos (`net/sealing.py`).

Each hello says which versions of the link protocol its sender speaks; the highest
that both speak is used. Builds of different age can read each other's handshake: new
fields come last and have defaults, and a proof covers the bytes of both hellos as they
were sent, whoever knows what of them. A step or a term whose name begins with "?" is
passed over by who does not know it.

A hello may name a third broker (`meets`): its sender does not want a link with the listener, but one with
that broker, carried by the listener (`net/relay.py`). Then `Waiting` follows the proofs, and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from roamcast.broker.links.frames import FRAME_BYTES_MAX
from roamcast.broker.links.links import Offer
from roamcast.config.sections import NAME_PATTERN
from roamcast.errors import InputError
from roamcast.net.sealing import LinkKeys, link_keys
from roamcast.protocol.codec import LENGTH_BYTES, OPTIONAL, VERSION_MAX, VERSION_MIN

MAGIC = b"roamlink"
HANDSHAKE_FORMAT = 2
"""Of the handshake alone. Only a change that older builds could not read would need another number."""
PREFACE = MAGIC + HANDSHAKE_FORMAT.to_bytes(2, "big")

NONCE_BYTES = 32
SECRETS_MAX = 8
"""Secrets that one end may try at once."""
STRANGER_BYTES_MAX = 1024
"""No frame may be longer before its sender has proved who it is."""
TEXT_MAX = 500
"""Characters of what a peer says that may come into the log."""


class _Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One step of the handshake. New fields come last and have defaults."""


class HandshakeHello(_Frame, frozen=True):
    id: str
    boot: bytes
    """Drawn when the process starts: the same for all connections of one life of a broker."""
    nonce: bytes
    version_min: int = 1
    version_max: int = 1
    """The versions of the link protocol that the sender speaks."""
    meets: str = ""
    """The broker that the sender wants to be connected with; "" for the listener itself."""


class Proof(_Frame, frozen=True):
    proof: bytes
    others: tuple[bytes, ...] = ()
    """With the other secrets that the sender has."""


class Terms(_Frame, frozen=True):
    """What all brokers of a network must agree on, by name; "?…" only where both ends have it."""

    terms: dict[str, str]


class Offering(_Frame, frozen=True):
    offer: Offer


class Accept(_Frame, frozen=True):
    pass


class Waiting(_Frame, frozen=True):
    """The listener carries links: the dialer is connected as soon as the other broker asks for it."""


REASONS = {
    "secret": "the shared secrets differ",
    "certificate": "the certificate is not for that broker id",
    "identity": "the broker ids do not fit",
    "unlisted": "the broker is not in the list of peers",
    "version": "there is no version of the link protocol that both ends speak",
    "terms": "the brokers' settings differ",
    "duplicate": "there is another connection already",
    "link": "the links do not fit together",
    "history": "the history of this broker is not the one that it had",
    "relay": "it does not carry links of this broker",
}
"""What to say for a reason that comes without a text. Newer builds may have more reasons."""


class Refuse(_Frame, frozen=True):
    """`text` is believed only from a peer that has proved who it is."""

    reason: str
    text: str = ""


class LinkRefusal(Exception):
    """The handshake ended without a link; the text is one line for the log."""

    def __init__(self, text: str, reason: str | None = None, is_told: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        """What to tell the other side; None: nothing that it would understand."""
        self.is_told = is_told
        """Whether it was the other side that refused."""


class Ended(Exception):
    """The connection was closed before the handshake was over."""


class Pipe(Protocol):
    """The connection, as far as the handshake concerns it."""

    is_dialer: bool
    frame_bytes_max: int

    async def read(self, size: int) -> bytes: ...
    async def read_frame(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def seal(self, keys: LinkKeys) -> None:
        """Seal what is written from now on, and open what is read."""


class Own(msgspec.Struct, frozen=True):
    """What this broker brings into every handshake."""

    id: str
    boot: bytes
    terms: dict[str, str]
    versions: tuple[int, int] = (VERSION_MIN, VERSION_MAX)
    """The lowest and the highest version of the link protocol that this broker speaks."""


class Agreed(NamedTuple):
    """What a handshake has come to."""

    peer: str
    offer: Offer
    """The peer's."""
    version: int
    """Version of the link protocol."""


class Prover(Protocol):
    """Who decides whom to believe."""

    def secrets(self, peer: HandshakeHello) -> tuple[str, ...]:
        """What this broker may prove itself with; LinkRefusal if it must not be asked."""

    def admits(self, peer: HandshakeHello) -> bool:
        """Whether this broker may be linked, or carried, once it has proved who it is."""


class Host(Prover, Protocol):
    """Who decides what the handshake is about."""

    def terms(self, peer: str) -> dict[str, str]:
        """What this link alone must be agreed on."""

    async def claim(self, peer: HandshakeHello) -> bool:
        """Whether this connection is the one for the peer; another one that is not is closed first.

        LinkRefusal if another process has that id, and is connected.
        """

    def offer(self, peer: str) -> Offer: ...
    def doubt(self, peer: str, offer: Offer) -> str:
        """Why the history of the peer is refused; "" if it is not."""

    def refusal(self, peer: str, offer: Offer) -> str: ...


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(list[Any]).decode
_decode = msgspec.msgpack.Decoder(
    HandshakeHello | Proof | Terms | Offering | Accept | Waiting | Refuse
).decode
_Step = TypeVar("_Step", bound=_Frame)


def frame(step: _Frame) -> bytes:
    data = encoded(step)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def encoded(step: _Frame) -> bytes:
    return _encode(step)


def proof(secret: str, role: str, dialer: bytes, listener: bytes) -> bytes:
    """That the sender has the secret and takes part in this very handshake, in this role.

    `dialer` and `listener` are their hellos, as they were sent.
    """
    said = _encode(("roamcast link", HANDSHAKE_FORMAT, role, dialer, listener))
    return hmac.new(secret.encode(), said, hashlib.sha256).digest()


def _is_optional(data: bytes) -> bool:
    """Whether a step may be passed over."""
    head = _decode_head(data)
    return bool(head) and isinstance(head[0], str) and head[0].startswith(OPTIONAL)


def common_version(own: Own, peer: HandshakeHello) -> int:
    """The highest version that both speak."""
    low, high = own.versions
    version = min(high, peer.version_max)
    if version < max(low, peer.version_min):
        older = own.id if high < peer.version_min else peer.id
        ends = sorted([(own.id, low, high), (peer.id, peer.version_min, peer.version_max)])
        said = [f"{id} speaks {first} to {last}" for id, first, last in ends]
        raise LinkRefusal(f"versions of the link protocol: {', '.join(said)}; upgrade {older}", "version")
    return version


def line(text: str) -> str:
    """What a peer said, fit for a log."""
    return text[:TEXT_MAX].encode("unicode_escape").decode()


class Handshake:
    """One handshake over one connection."""

    def __init__(
        self,
        pipe: Pipe,
        own: Own,
        nonce: bytes,
        expected: str = "",
        is_certified: Callable[[str], bool] | None = None,
        meets: str = "",
    ) -> None:
        """`expected` is the id that the configuration names; `is_certified` asks the peer's certificate.

        `meets`: this end asks a relay for a connection with that broker.
        """
        self._pipe = pipe
        self._own = own
        self._hello = HandshakeHello(own.id, own.boot, nonce, *own.versions, meets)
        self._expected = expected
        self._is_certified = is_certified
        self.peer: HandshakeHello | None = None
        """Who the other side says that it is."""
        self.is_authenticated = False
        """Whether it has proved that."""
        self.secret = ""
        """What it has proved that with."""

    async def run(self, host: Host) -> Agreed | None:
        """The peer and what it offers, once both sides have accepted; None if it is to be carried."""
        try:
            peer = await self.authenticate(host)
            if peer.meets:
                self._write(Waiting())
                return None
            version = common_version(self._own, peer)
            return Agreed(peer.id, await self._agree(peer, host), version)
        except LinkRefusal as refused:
            if refused.reason is not None and not refused.is_told:
                text = str(refused) if self.is_authenticated else ""
                self._write(Refuse(refused.reason, text))
            raise

    async def ask(self, prover: Prover) -> None:
        """Find out that the relay that was dialed is there, and that it carries links of this broker."""
        await self.authenticate(prover)
        try:
            await self._read(Waiting)
        except LinkRefusal as refused:
            if refused.is_told:
                raise
            raise LinkRefusal("it does not carry links; upgrade it") from None

    # --- who is there ---

    async def authenticate(self, host: Prover) -> HandshakeHello:
        pipe, own = self._pipe, encoded(self._hello)
        if pipe.is_dialer:
            pipe.write(PREFACE + frame(self._hello))
            await self._read_preface()
            peer, said = await self._read_with_bytes(HandshakeHello)
        else:
            await self._read_preface()
            peer, said = await self._read_with_bytes(HandshakeHello)
            self._write(self._hello)
        self.peer = peer
        self._check_identity(peer)
        secrets = host.secrets(peer) or ("",)
        dialer, listener = hellos = (own, said) if pipe.is_dialer else (said, own)
        if pipe.is_dialer:
            first, *others = [proof(secret, "dialer", *hellos) for secret in secrets]
            self._write(Proof(first, tuple(others)))
            self._check(await self._read(Proof), secrets, "listener", dialer, listener)
        else:
            self._check(await self._read(Proof), secrets, "dialer", dialer, listener)
            self._write(Proof(proof(self.secret, "listener", *hellos)))
        if self.secret and self._is_certified is None:
            pipe.seal(link_keys(self.secret, dialer, listener))
        if not host.admits(peer):
            if peer.meets:
                raise LinkRefusal(REASONS["relay"], "relay")
            raise LinkRefusal(
                f"{peer.id} is not in the list of peers of {self._own.id}; list it there as [[peer]]",
                "unlisted",
            )
        return peer

    async def _read_preface(self) -> None:
        preface = await self._pipe.read(len(PREFACE))
        if not preface.startswith(MAGIC):
            raise LinkRefusal("what is there does not speak as brokers do to each other")
        if not self._pipe.is_dialer:
            self._pipe.write(PREFACE)
        format = int.from_bytes(preface[len(MAGIC) :], "big")
        if format != HANDSHAKE_FORMAT:
            older = "the peer" if format < HANDSHAKE_FORMAT else "this broker"
            raise LinkRefusal(
                f"its handshake has format {format}, and here it is {HANDSHAKE_FORMAT}; upgrade {older}"
            )

    def _check_identity(self, peer: HandshakeHello) -> None:
        if not re.fullmatch(NAME_PATTERN, peer.id) or len(peer.nonce) != NONCE_BYTES:
            raise LinkRefusal("what is there says no valid broker id", "identity")
        if peer.meets and (self._pipe.is_dialer or not re.fullmatch(NAME_PATTERN, peer.meets)):
            raise LinkRefusal("what is there asks for no valid broker id", "identity")
        if peer.id == self._own.id:
            raise LinkRefusal(f"it has the id {peer.id}, which is that of this broker", "identity")
        if self._expected and peer.id != self._expected:
            raise LinkRefusal(f"it has the id {peer.id}, but {self._expected} is configured", "identity")
        if self._is_certified is not None and not self._is_certified(peer.id):
            raise LinkRefusal(f"its certificate is not for {peer.id}", "certificate")

    def _check(self, given: Proof, secrets: Iterable[str], role: str, dialer: bytes, listener: bytes) -> None:
        proofs = (given.proof, *given.others[: SECRETS_MAX - 1])
        for secret in secrets:
            right = proof(secret, role, dialer, listener)
            if any(hmac.compare_digest(one, right) for one in proofs):
                self.secret = secret
                self.is_authenticated = True
                self._pipe.frame_bytes_max = FRAME_BYTES_MAX
                return
        raise LinkRefusal(REASONS["secret"], "secret")

    # --- whether the two fit together ---

    async def _agree(self, peer: HandshakeHello, host: Host) -> Offer:
        terms = {**self._own.terms, **host.terms(peer.id)}
        if self._pipe.is_dialer:
            self._check_terms(peer.id, terms, await self._read(Terms))
            await self._claim(peer, host)
            self._write(Terms(terms))
            self._write(Offering(host.offer(peer.id)))
            offer = (await self._read(Offering)).offer
            await self._read(Accept)
            self._check_offer(peer.id, offer, host)
            self._write(Accept())
        else:
            self._write(Terms(terms))
            self._check_terms(peer.id, terms, await self._read(Terms))
            offer = (await self._read(Offering)).offer
            await self._claim(peer, host)
            self._write(Offering(host.offer(peer.id)))
            self._check_offer(peer.id, offer, host)
            self._write(Accept())
            await self._read(Accept)
        return offer

    def _check_terms(self, peer: str, own: dict[str, str], given: Terms) -> None:
        sides = sorted([(self._own.id, own), (peer, given.terms)])
        for name in sorted({**own, **given.terms}):
            if name.startswith(OPTIONAL) and not (name in own and name in given.terms):
                continue
            if own.get(name) != given.terms.get(name):
                said = [f"{id} has {line(terms.get(name, 'nothing'))}" for id, terms in sides]
                raise LinkRefusal(f"{line(name)}: {', '.join(said)}", "terms")

    async def _claim(self, peer: HandshakeHello, host: Host) -> None:
        if not await host.claim(peer):
            raise LinkRefusal(REASONS["duplicate"], "duplicate")

    def _check_offer(self, peer: str, offer: Offer, host: Host) -> None:
        doubt = host.doubt(peer, offer)
        if doubt:
            raise LinkRefusal(doubt, "history")
        refusal = host.refusal(peer, offer)
        if refusal:
            raise LinkRefusal(refusal, "link")

    # --- frames ---

    def _write(self, step: _Frame) -> None:
        self._pipe.write(frame(step))

    async def _read(self, wanted: type[_Step]) -> _Step:
        return (await self._read_with_bytes(wanted))[0]

    async def _read_with_bytes(self, wanted: type[_Step]) -> tuple[_Step, bytes]:
        try:
            data = await self._pipe.read_frame()
            while _is_optional(data):
                data = await self._pipe.read_frame()
            step = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InputError):
            raise LinkRefusal("what is there does not speak as brokers do to each other") from None
        if isinstance(step, Refuse):
            known = REASONS.get(step.reason, f"a reason that this version does not know, {line(step.reason)}")
            text = line(step.text) if self.is_authenticated and step.text else known
            raise LinkRefusal(text, step.reason, is_told=True)
        if not isinstance(step, wanted):
            raise LinkRefusal("what is there does not speak as brokers do to each other")
        return step, data
