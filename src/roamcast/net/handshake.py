"""Handshake of two brokers: they authenticate each other and check that their settings are compatible.

    dialer                                  listener
    preface, HandshakeHello         ->
                           <-               preface, HandshakeHello
    Proof                  ->
                           <-               Proof, Terms
    Terms, Offering        ->
                           <-               Offering, Accept
    Accept                 ->

Either side may send `Refuse` instead and close. The dialer proves first that it has the secret of this link,
so strangers who connect learn only the broker's id. The secret itself is never sent; a proof is an HMAC over
both ids, both nonces and the role, so that it is valid only for this connection and direction. While a secret
is replaced, an end has two: the dialer proves both, and the listener answers with the one that it has too.
With TLS the certificates prove the ids, and a configured secret must be proved, too. Without TLS everything
behind the proofs is sealed with keys that follow from the secret and the hellos (`net/sealing.py`).

Each hello lists the versions of the link protocol that its sender speaks; the highest common version is used.
Builds of different age can read each other's handshake: new fields come last and have defaults, and a proof
covers the bytes of both hellos as they were sent, including unknown fields. A receiver ignores unknown steps
and terms whose name begins with "?".

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
"""Version of the handshake alone. It changes only if older builds could not read the handshake."""
PREFACE = MAGIC + HANDSHAKE_FORMAT.to_bytes(2, "big")

NONCE_BYTES = 32
SECRETS_MAX = 8
"""Maximum number of secrets that one end may try."""
STRANGER_BYTES_MAX = 1024
"""Maximum size of a frame before its sender is authenticated."""
TEXT_MAX = 500
"""Maximum number of characters of a peer's text in the log."""


class _Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One step of the handshake. New fields come last and have defaults."""


class HandshakeHello(_Frame, frozen=True):
    id: str
    boot: bytes
    """Drawn when the process starts: the same for all connections of one run of a broker."""
    nonce: bytes
    version_min: int = 1
    version_max: int = 1
    """The highest version of the link protocol that the sender speaks."""
    meets: str = ""
    """The broker that the sender wants to be connected with; "" for the listener itself."""


class Proof(_Frame, frozen=True):
    proof: bytes
    others: tuple[bytes, ...] = ()
    """Proofs with the sender's other secrets."""


class Terms(_Frame, frozen=True):
    """Settings that must be equal at all brokers of a network, by name; "?…" only if both ends have them."""

    terms: dict[str, str]


class Offering(_Frame, frozen=True):
    offer: Offer


class Accept(_Frame, frozen=True):
    pass


class Waiting(_Frame, frozen=True):
    """Sent by a listener that carries links: the dialer is connected when the other broker asks for it."""


REASONS = {
    "secret": "the shared secrets differ",
    "certificate": "the certificate is not for that broker id",
    "identity": "the broker ids do not fit",
    "unlisted": "the broker is not in the list of peers",
    "version": "there is no version of the link protocol that both ends speak",
    "terms": "the brokers' settings differ",
    "duplicate": "there is another connection already",
    "link": "the links do not fit together",
    "history": "the history of this broker differs from the one it had before",
    "relay": "it does not carry links of this broker",
}
"""Texts of reasons that come without a text. Newer builds may have more reasons."""


class Refuse(_Frame, frozen=True):
    """Refuses the link. `text` is believed only from an authenticated peer."""

    reason: str
    text: str = ""


class LinkRefusal(Exception):
    """Raised if the handshake ended without a link; the text is one line for the log."""

    def __init__(self, text: str, reason: str | None = None, is_told: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        """Reason to send to the other side; None if it would not understand any."""
        self.is_told = is_told
        """True if the other side refused."""


class Ended(Exception):
    """Raised if the connection was closed during the handshake."""


class Pipe(Protocol):
    """The connection, as the handshake sees it."""

    is_dialer: bool
    frame_bytes_max: int

    async def read(self, size: int) -> bytes: ...
    async def read_frame(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def seal(self, keys: LinkKeys) -> None:
        """Seal everything written from now on, and verify everything read."""


class Own(msgspec.Struct, frozen=True):
    """This broker's data for every handshake."""

    id: str
    boot: bytes
    terms: dict[str, str]
    versions: tuple[int, int] = (VERSION_MIN, VERSION_MAX)
    """The lowest and the highest version of the link protocol that this broker speaks."""


class Agreed(NamedTuple):
    """Result of a handshake."""

    peer: str
    offer: Offer
    """The peer's offer."""
    version: int
    """Version of the link protocol."""


class Prover(Protocol):
    """Decides whom to trust."""

    def secrets(self, peer: HandshakeHello) -> tuple[str, ...]:
        """Return the secrets shared with this broker; raise LinkRefusal if it must not connect."""

    def admits(self, peer: HandshakeHello) -> bool:
        """Return whether this authenticated broker may be linked or carried."""


class Host(Prover, Protocol):
    """Decides about the link itself."""

    def terms(self, peer: str) -> dict[str, str]:
        """Return the terms of this link alone."""

    async def claim(self, peer: HandshakeHello) -> bool:
        """Return whether this connection becomes the peer's only one; a worse one is closed first.

        Raise LinkRefusal if another process with that id is connected.
        """

    def offer(self, peer: str) -> Offer: ...
    def doubt(self, peer: str, offer: Offer) -> str:
        """Return why the history of the peer is refused; "" if it is accepted."""

    def refusal(self, peer: str, offer: Offer) -> str: ...


encoded = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(list[Any]).decode
_decode = msgspec.msgpack.Decoder(
    HandshakeHello | Proof | Terms | Offering | Accept | Waiting | Refuse
).decode
_Step = TypeVar("_Step", bound=_Frame)


def frame(step: _Frame) -> bytes:
    data = encoded(step)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def proof(secret: str, role: str, dialer: bytes, listener: bytes) -> bytes:
    """Return a proof that the sender has the secret and takes part in this handshake, in this role.

    `dialer` and `listener` are their hellos, as they were sent.
    """
    said = encoded(("roamcast link", HANDSHAKE_FORMAT, role, dialer, listener))
    return hmac.new(secret.encode(), said, hashlib.sha256).digest()


def _is_optional(data: bytes) -> bool:
    """Return whether an unknown step may be ignored."""
    head = _decode_head(data)
    return bool(head) and isinstance(head[0], str) and head[0].startswith(OPTIONAL)


def common_version(own: Own, peer: HandshakeHello) -> int:
    """Return the highest version that both speak."""
    low, high = own.versions
    version = min(high, peer.version_max)
    if version < max(low, peer.version_min):
        older = own.id if high < peer.version_min else peer.id
        ends = sorted([(own.id, low, high), (peer.id, peer.version_min, peer.version_max)])
        said = [f"{id} speaks {first} to {last}" for id, first, last in ends]
        raise LinkRefusal(f"versions of the link protocol: {', '.join(said)}; upgrade {older}", "version")
    return version


def line(text: str) -> str:
    """Return the peer's text in a form safe for logs."""
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
        """`expected` is the configured id; `is_certified` checks the peer's certificate.

        `meets`: this end asks a relay for a connection with that broker.
        """
        self._pipe = pipe
        self._own = own
        self._hello = HandshakeHello(own.id, own.boot, nonce, *own.versions, meets)
        self._expected = expected
        self._is_certified = is_certified
        self.peer: HandshakeHello | None = None
        """The identity that the other side claims."""
        self.is_authenticated = False
        """True once the other side has proved its identity."""
        self.secret = ""
        """The secret that the other side has proved."""

    async def run(self, host: Host) -> Agreed | None:
        """Return the peer and its offer, once both sides have accepted; None if the connection is to be
        carried."""
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
        """Authenticate the dialed relay, and check that it carries links of this broker."""
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
            raise LinkRefusal("the other end does not speak the link protocol")
        if not self._pipe.is_dialer:
            self._pipe.write(PREFACE)
        format = int.from_bytes(preface[len(MAGIC) :], "big")
        if format != HANDSHAKE_FORMAT:
            older = "the peer" if format < HANDSHAKE_FORMAT else "this broker"
            raise LinkRefusal(
                f"its handshake has format {format}, this broker has {HANDSHAKE_FORMAT}; upgrade {older}"
            )

    def _check_identity(self, peer: HandshakeHello) -> None:
        if not re.fullmatch(NAME_PATTERN, peer.id) or len(peer.nonce) != NONCE_BYTES:
            raise LinkRefusal("the other end sent no valid broker id", "identity")
        if peer.meets and (self._pipe.is_dialer or not re.fullmatch(NAME_PATTERN, peer.meets)):
            raise LinkRefusal("the other end asks for an invalid broker id", "identity")
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
            raise LinkRefusal("the other end does not speak the link protocol") from None
        if isinstance(step, Refuse):
            known = REASONS.get(step.reason, f"a reason that this version does not know, {line(step.reason)}")
            text = line(step.text) if self.is_authenticated and step.text else known
            raise LinkRefusal(text, step.reason, is_told=True)
        if not isinstance(step, wanted):
            raise LinkRefusal("the other end does not speak the link protocol")
        return step, data
