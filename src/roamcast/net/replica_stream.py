"""The connection between two replicas of a site: authenticated as links are, with messages of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable

import msgspec

from roamcast.broker.links.end import LinkError
from roamcast.net.handshake import NONCE_BYTES, REASONS, Ended, Handshake, HandshakeHello, LinkRefusal, Own
from roamcast.net.peer_connection import PeerConnection
from roamcast.protocol.codec import LENGTH_BYTES
from roamcast.replication.messages import Acknowledged, AnyMessage, Message, Records, decode, encode

PIECE_BYTES = 512 * 1024
_MORE, _LAST = b"\x00", b"\x01"
_ONE_OF_BYTES = b"\x91\xc6"
"""MessagePack header of an array with one item of bytes; the length follows in four bytes."""


class ReplicaStream:
    """One connection. `on_messages` gets messages that arrived together, `on_lost` is called once at the
    end."""

    def __init__(self, is_dialer: bool, name: str, boot: str, secret: str) -> None:
        self.connection = PeerConnection(self, is_dialer)
        self.peer = ""
        """The name of the replica at the other end, once it is authenticated."""
        self.on_messages: Callable[[list[AnyMessage]], None] = lambda messages: None
        self.on_lost: Callable[[], None] = lambda: None
        self.sign_of_life: Callable[[], Message] = lambda: Acknowledged(0)
        self._name = name
        self._own = Own(name, boot.encode(), {})
        self._secret = secret
        self._pieces: list[bytes] = []

    async def open(self, timeout_s: float) -> None:
        """Authenticate the other end; raise LinkRefusal, Ended or TimeoutError if that fails."""
        shake = Handshake(self.connection, self._own, secrets.token_bytes(NONCE_BYTES))
        try:
            async with asyncio.timeout(timeout_s):
                peer = await shake.authenticate(self)
        except LinkRefusal as refused:
            self.connection.close(str(refused))
            raise
        except (TimeoutError, Ended):
            self.connection.close("no handshake")
            raise
        self.connection.peer = peer
        self.peer = peer.id

    def begin(self, heartbeat_s: float, timeout_s: float) -> None:
        """Pass messages to `on_messages` from now on."""
        self.connection.begin(heartbeat_s, timeout_s)
        self.connection.flush()

    @property
    def is_open(self) -> bool:
        return self.connection.state != "closed"

    def close(self, why: str) -> None:
        self.connection.close(why)

    # --- whom to believe (see handshake.Prover) ---

    def secrets(self, peer: HandshakeHello) -> tuple[str, ...]:
        if not self._secret:
            if not self.connection.is_local:
                raise LinkRefusal(REASONS["secret"], "secret")
            return ()
        # A broker that has the same secret for its links is not a replica.
        return (f"replica of a site: {self._secret}",)

    def admits(self, peer: HandshakeHello) -> bool:
        return True

    # --- messages ---

    def send(self, *messages: Message) -> None:
        self.connection.write(_frames(messages))

    def send_now(self, message: Message) -> None:
        """Send before this process blocks for long, so that the other one need not wait."""
        self.connection.write_now(_frames((message,)))

    def send_entry_now(self, number: int, entry: bytes) -> None:
        """Like `send_now` for one entry, whose bytes are not copied, since most entries are large."""
        head = encode(Records(number, []))[:-1] + _ONE_OF_BYTES + len(entry).to_bytes(4, "big")
        view, start, parts = memoryview(entry), 0, list[bytes | memoryview]()
        while head or start < len(entry):
            piece = view[start : start + PIECE_BYTES - len(head)]
            start += len(piece)
            mark = _LAST if start == len(entry) else _MORE
            length = len(mark) + len(head) + len(piece)
            parts += [length.to_bytes(LENGTH_BYTES, "big") + mark + head, piece]
            head = b""
        self.connection.write_now(*parts)

    def arrived(self, connection: PeerConnection, frames: bytes) -> None:
        messages: list[AnyMessage] = []
        view, at = memoryview(frames), 0
        try:
            while at < len(frames):
                start = at + LENGTH_BYTES
                at = start + int.from_bytes(frames[at:start], "big")
                piece = view[start + 1 : at]
                if frames[start : start + 1] != _LAST:
                    self._pieces.append(bytes(piece))
                elif not self._pieces:
                    messages.append(decode(piece))
                else:
                    messages.append(decode(b"".join((*self._pieces, piece))))
                    self._pieces = []
        except msgspec.MsgspecError:
            raise LinkError("invalid message from a replica") from None
        if messages:
            self.on_messages(messages)

    def heartbeat(self, connection: PeerConnection) -> bytes:
        return _frames((self.sign_of_life(),))

    def writable(self, connection: PeerConnection) -> None:
        """Do nothing: the memory of the replicas bounds what is streamed."""

    def lost(self, connection: PeerConnection) -> None:
        self.on_lost()


def _frames(messages: Iterable[Message]) -> bytes:
    """Each message in pieces that fit into frames."""
    parts = []
    for message in messages:
        data = encode(message)
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            mark = _LAST if start + PIECE_BYTES >= len(data) else _MORE
            parts += [(len(piece) + 1).to_bytes(LENGTH_BYTES, "big"), mark, piece]
    return b"".join(parts)
