"""Authenticate what two brokers say over a connection without TLS, write by write.

Both ends derive two keys, one for each direction, from the secret and from the hellos of the handshake, which
hold fresh nonces. Every write becomes a record: its length, its bytes, and a keyed hash of the bytes and of
the record's number. So changed bytes, omitted, repeated or moved records, and records of another connection
or direction are detected. Nothing is encrypted: use TLS for that.

The hash is BLAKE2b with a key, from the standard library: it costs about 1 ns a byte and 1 us a record. No
fresh Diffie-Hellman key goes into it: anyone with the secret could impersonate either end anyway, and a
recording is useless outside its connection.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from roamcast.broker.links.end import LinkError
from roamcast.protocol.codec import LENGTH_BYTES

RECORD_BYTES_MAX = 256 * 1024
"""Larger writes are split into records of this size, so that the receiver need not wait for all of it."""
TAG_BYTES = 16
KEY_BYTES = 32


class LinkKeys(NamedTuple):
    """The keys of one connection, one for each direction."""

    dialer: bytes
    listener: bytes


def link_keys(secret: str, dialer: bytes, listener: bytes) -> LinkKeys:
    """Derive keys from the secret with HKDF (RFC 5869, SHA-256); `dialer` and `listener` are their hellos
    as they were sent."""
    salt = hashlib.sha256(len(dialer).to_bytes(4, "big") + dialer + listener).digest()
    key = hmac.digest(salt, secret.encode(), "sha256")
    first = hmac.digest(key, b"roamcast link dialer\x01", "sha256")
    second = hmac.digest(key, b"roamcast link listener\x01", "sha256")
    return LinkKeys(first, second)


class Sealer:
    """Turns the writes of one end into records."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def seal(self, data: bytes) -> bytes:
        if len(data) <= RECORD_BYTES_MAX:
            return self._record(data)
        starts = range(0, len(data), RECORD_BYTES_MAX)
        return b"".join([self._record(data[start : start + RECORD_BYTES_MAX]) for start in starts])

    def _record(self, data: bytes) -> bytes:
        self._number += 1
        return len(data).to_bytes(LENGTH_BYTES, "big") + data + tag(self._key, self._number, data)


class Opener:
    """Takes the bytes of a connection and returns the verified content of every whole record."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._bytes = b""

    def open(self, data: bytes) -> bytes:
        """Raise LinkError if anything was changed, omitted, repeated or moved."""
        if self._bytes:
            data = self._bytes + data
        opened: list[bytes] = []
        at = 0
        while len(data) - at >= LENGTH_BYTES:
            start = at + LENGTH_BYTES
            length = int.from_bytes(data[at:start], "big")
            if not 0 < length <= RECORD_BYTES_MAX:
                raise LinkError(CHANGED)
            end = start + length
            if len(data) < end + TAG_BYTES:
                break
            self._number += 1
            content = data[start:end]
            if not hmac.compare_digest(tag(self._key, self._number, content), data[end : end + TAG_BYTES]):
                raise LinkError(CHANGED)
            opened.append(content)
            at = end + TAG_BYTES
        self._bytes = data[at:]
        return opened[0] if len(opened) == 1 else b"".join(opened)


CHANGED = "received data was changed, omitted, repeated or moved on its way; reconnecting"


def tag(key: bytes, number: int, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=TAG_BYTES, key=key, salt=number.to_bytes(16, "big")).digest()
