"""Messages between clients and proxies, and among proxies: msgpack, framed, versioned.

A connection begins with the preface of both sides, then the handshake:

    client                    proxy         dialing proxy             proxy
    ProxyHello (user, password) ->               ProxyHello (nonce)          ->
                           <- Welcome                              <- Challenge (nonce)
                                            Proof                  ->
                                                                   <- Welcome (proof)

The secret that proxies share is never sent: a proof is an HMAC over both ids, both nonces and the role, so it
is valid for this connection and direction only. Either side may send MoveRefused instead.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from roamcast.errors import InputError
from roamcast.proxy.adapter import ForeignMessage

MAGIC = b"roamprxy"
WIRE_VERSION = 3
PREFACE = MAGIC + WIRE_VERSION.to_bytes(2, "big")
LENGTH_BYTES = 4
STRANGER_BYTES_MAX = 4096
"""Maximum size of a frame before its sender is authenticated."""
FRAME_BYTES_MAX = 8 << 20
NONCE_BYTES = 32

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Ticket = Annotated[str, Meta(min_length=16, max_length=64)]
Filter = Annotated[str, Meta(min_length=1, max_length=4096)]
Text = Annotated[str, Meta(max_length=500)]
Sync = Literal["basic", "delay", "ping"]
Number = Annotated[int, Meta(ge=0)]

Code = Literal[
    "identity", "secret", "version", "unknown", "expired", "quota", "broker", "proxy", "busy", "ping"
]  # fmt: skip


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """One frame."""


class _OfStay(_Message, frozen=True):
    """A request about one stay of a client. The ticket is its secret; the channel is named after it."""

    request: Number
    client: Name
    ticket: Ticket


class MoveRefused(_Message, frozen=True):
    """Ends the request, or with request 0 the connection; the request has changed nothing."""

    request: int
    code: Code
    text: Text


# --- the handshake ---


class ProxyHello(_Message, frozen=True):
    role: Literal["client", "proxy"]
    id: Name
    nonce: Annotated[bytes, Meta(max_length=NONCE_BYTES)] = b""
    user: Annotated[str, Meta(max_length=256)] = ""
    password: Annotated[str, Meta(max_length=1024)] = ""


class Challenge(_Message, frozen=True):
    id: Name
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Proof(_Message, frozen=True):
    proof: bytes


class Welcome(_Message, frozen=True):
    site: Name
    kind: str = ""
    """Kind and URL of the foreign broker of this site, as clients reach it; both empty for other proxies."""
    url: str = ""
    proof: bytes = b""


class Echo(_Message, frozen=True):
    """Returned unchanged, to measure the round trip to a proxy."""

    number: int


# --- a client and its proxy ---


class MoveOut(_OfStay, frozen=True):
    """Asks the proxy to listen for the client. The ticket is the client's secret; repeating the request
    changes nothing."""

    filters: Annotated[tuple[Filter, ...], Meta(max_length=10_000)]
    sync: Sync = "basic"
    delay_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    lease_s: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds to keep the buffer; 0 lets the proxy decide, which also has a maximum."""
    bytes_max: Number = 0
    is_unique: bool = True
    """Whether a message with an identity is kept once, even if the foreign broker delivers it several
    times."""


class StandIn(_OfStay, frozen=True):
    """Asks the proxy to listen on a channel that the client has left suspended at the broker of that site.

    Answered with MovedOut; then it is a handler like any other. The proxy forwards the request to the other
    site, for the user that it has authenticated.
    """

    filters: Annotated[tuple[Filter, ...], Meta(max_length=10_000)]
    lease_s: Annotated[float, Meta(ge=0)] = 0.0
    bytes_max: Number = 0
    is_unique: bool = True
    site: Annotated[str, Meta(max_length=256)] = ""
    user: Annotated[str, Meta(max_length=256)] = ""


class MovedOut(_Message, frozen=True):
    """Says that the proxy listens: messages are kept from now on, within the granted limits."""

    request: Number
    lease_s: float
    bytes_max: int


class Download(_OfStay, frozen=True):
    """Asks to end the handler at that site and to send its messages: the client is back and listens
    itself."""

    site: Annotated[str, Meta(max_length=256)] = ""
    """Site of the move-out; empty means here."""
    user: Annotated[str, Meta(max_length=256)] = ""
    """As in StandIn: set by the proxy that forwards the request, and ignored in messages of clients."""


class Batch(_Message, frozen=True):
    request: Number
    first: Number
    """Number of the first message; messages are numbered without gaps."""
    messages: tuple[ForeignMessage, ...]


class Taken(_Message, frozen=True):
    """Acknowledges all messages up to this number."""

    request: Number
    number: Number


class Downloaded(_Message, frozen=True):
    """Ends the download. `dropped` messages came while the buffer was full."""

    request: Number
    dropped: Number = 0
    missing: Text = ""
    """Why more messages may come later: then the handler stays, and can be asked again."""


# --- proxies among themselves ---


class Locate(_Message, frozen=True):
    """Asks whether a site's MQTT endpoint holds the session of this client; a clean one is ended."""

    request: Number
    client: Name
    user: Annotated[str, Meta(max_length=256)] = ""
    is_clean: bool = False


class Surround(_OfStay, frozen=True):
    """Asks a neighbour to listen for this client as well: it has moved out here and may go there (ahead.py).

    Answered with MovedOut. The copy's ticket is derived from this one.
    """

    user: Annotated[str, Meta(max_length=256)]
    filters: Annotated[tuple[Filter, ...], Meta(max_length=10_000)]
    lease_s: Annotated[float, Meta(ge=0)]
    bytes_max: Number
    is_unique: bool


class Prefix(_OfStay, frozen=True):
    """Asks for the messages that the handler had before this ping of the copy; the handler keeps them."""

    user: Annotated[str, Meta(max_length=256)]
    ping: Annotated[bytes, Meta(max_length=64)]


class Forget(_OfStay, frozen=True):
    """Ends this handler or copy: the client has its messages, or gets them elsewhere."""

    user: Annotated[str, Meta(max_length=256)]


class Held(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A session that a site holds, complete or still being adopted."""

    ticket: Annotated[str, Meta(max_length=64)]
    filters: dict[str, str]
    source: Annotated[str, Meta(max_length=64)]
    """The ticket of the session from which this one is being adopted; empty if it is complete."""
    is_promised: bool
    """True if another site was told of the session before."""
    seen: Annotated[tuple[str, ...], Meta(max_length=10_000)] = ()
    """Identities of the last messages received there, to recognise copies still on their way to the next
    site."""
    passing: dict[int, tuple[str, bool]] = {}
    """QoS 2 publishes of the client that are not released: see buffers.py."""


class Located(_Message, frozen=True):
    """Sessions of a client at a site: none, one, or several while one is moving."""

    request: Number
    held: tuple[Held, ...] = ()


Message = (
    MoveRefused
    | ProxyHello
    | Challenge
    | Proof
    | Welcome
    | Echo
    | MoveOut
    | StandIn
    | MovedOut
    | Download
    | Batch
    | Taken
    | Downloaded
    | Locate
    | Located
    | Surround
    | Prefix
    | Forget
)

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def frame(message: Message) -> bytes:
    data = _encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def decode(data: bytes) -> Message:
    """Decode a message; raise InputError if it is not valid in this version."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"not a message of a mobility proxy ({str(error)[:200]})") from None


def refusal_in(message: Message) -> str:
    """Say why an answer is not the expected one."""
    return message.text if isinstance(message, MoveRefused) else f"unexpected answer {type(message).__name__}"


def proof(secret: str, role: str, dialer: ProxyHello, listener: Challenge) -> bytes:
    """Prove that the sender has the secret and takes part in this handshake, in this role."""
    said = _encode(("roamcast proxy", WIRE_VERSION, role, dialer, listener))
    return hmac.new(secret.encode(), said, hashlib.sha256).digest()


def is_proof(given: bytes, secret: str, role: str, dialer: ProxyHello, listener: Challenge) -> bool:
    return bool(secret) and hmac.compare_digest(given, proof(secret, role, dialer, listener))


def channel_name(client: str, ticket: str) -> str:
    """Name of a stay or a handler at the foreign broker; anyone with the ticket can continue it."""
    digest = hashlib.sha256(f"{client}\0{ticket}".encode()).hexdigest()
    return f"roamcast-{digest[:20]}"


def ahead_ticket(ticket: str, site: str) -> str:
    """The ticket of a site's copy of a handler: anyone with the handler's ticket can derive it."""
    return hashlib.sha256(f"roamcast ahead {site} {ticket}".encode()).hexdigest()[:32]


# --- pings, which travel through the foreign broker ---

PING_LEVELS = ("roamcast", "ping")
PING_BODY_MAX = 64


def ping_key(ticket: str) -> str:
    """The common part of the topics of a ticket's pings; it does not reveal the ticket."""
    return hashlib.sha256(b"roamcast ping " + ticket.encode()).hexdigest()[:24]
