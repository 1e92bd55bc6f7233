"""SCRAM-SHA-256 (RFC 5802, RFC 7677): both sides prove that they know a password, and neither sends it.

What a server keeps is a verifier, in the form that PostgreSQL uses too:
`SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY`, each part in base64. Salts and nonces are passed in.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from hashlib import pbkdf2_hmac, sha256
from typing import NamedTuple

from roamcast.errors import InputError

METHOD = "SCRAM-SHA-256"
ITERATIONS = 100_000
"""RFC 7677 requires 4,096 at least. A client computes them once per connection."""
ITERATIONS_MAX = 10_000_000
SALT_BYTES = 16
NONCE_BYTES = 18
MESSAGE_BYTES_MAX = 4096
HEADERS = ("n,,", "y,,")
"""GS2 headers without channel binding: the client does not support it, or believes that the server does
not."""


class ScramError(Exception):
    """A message of the exchange is malformed, or requests an unsupported feature."""


class ScramVerifier(NamedTuple):
    """The server's stored form of a password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: bytes, salt: bytes, iterations: int = ITERATIONS) -> ScramVerifier:
        salted = pbkdf2_hmac("sha256", password, salt, iterations)
        stored_key = sha256(_hmac(salted, b"Client Key")).digest()
        return cls(iterations, salt, stored_key, _hmac(salted, b"Server Key"))

    @classmethod
    def read(cls, text: str) -> ScramVerifier:
        try:
            method, first, second = text.split("$")
            iterations, salt = first.split(":")
            stored_key, server_key = second.split(":")
            decoded = [b64decode(one, validate=True) for one in (salt, stored_key, server_key)]
            found = cls(int(iterations), *decoded)
        except (ValueError, TypeError):
            raise InputError(f"a SCRAM verifier is {METHOD}$ITERATIONS:SALT$STORED_KEY:SERVER_KEY") from None
        if method != METHOD or not 4096 <= found.iterations <= ITERATIONS_MAX or len(found.stored_key) != 32:
            raise InputError(f"a SCRAM verifier must use {METHOD} with 4096 to {ITERATIONS_MAX} iterations")
        return found

    @property
    def text(self) -> str:
        salt, stored_key, server_key = (_encoded(one) for one in self[1:])
        return f"{METHOD}${self.iterations}:{salt}${stored_key}:{server_key}"


class ServerExchange:
    """The server's side of an exchange, from the client's first message on."""

    def __init__(self, client_first: bytes, nonce: bytes) -> None:
        text = _text(client_first)
        header = next((one for one in HEADERS if text.startswith(one)), None)
        if header is None:
            raise ScramError("channel binding and authorization identities are not supported")
        self._header, self._first_bare = header, text[len(header) :]
        fields = _fields(self._first_bare)
        if list(fields)[:2] != ["n", "r"]:
            raise ScramError("the first message names no user, or has no nonce")
        self.user = _name(fields["n"])
        self._nonce = fields["r"] + _encoded(nonce)
        self._server_first = ""
        self._verifier: ScramVerifier | None = None

    def challenge(self, verifier: ScramVerifier) -> bytes:
        self._verifier = verifier
        salt = _encoded(verifier.salt)
        self._server_first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        return self._server_first.encode()

    def finish(self, client_final: bytes) -> bytes | None:
        """Return the server's last message, which authenticates the server; None if the client's proof is
        wrong."""
        verifier = self._verifier
        assert verifier is not None
        text = _text(client_final)
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        if fields.get("c") != _encoded(self._header.encode()) or fields.get("r") != self._nonce:
            raise ScramError("the last message does not belong to the first one")
        try:
            proof = b64decode(proof_text, validate=True)
        except (binascii.Error, ValueError):
            raise ScramError("the proof is not in base64") from None
        message = ",".join((self._first_bare, self._server_first, without_proof)).encode()
        signature = _hmac(verifier.stored_key, message)
        key = bytes(one ^ other for one, other in zip(proof, signature, strict=False))
        if len(proof) != 32 or not hmac.compare_digest(sha256(key).digest(), verifier.stored_key):
            return None
        return b"v=" + _encoded(_hmac(verifier.server_key, message)).encode()


class ClientExchange:
    """The client's side of an exchange."""

    def __init__(self, user: str, password: bytes, nonce: bytes) -> None:
        self._password = password
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._nonce = _encoded(nonce)
        self._first_bare = f"n={escaped},r={self._nonce}"
        self._expected = b""

    def first(self) -> bytes:
        return f"{HEADERS[0]}{self._first_bare}".encode()

    def answer(self, server_first: bytes) -> bytes:
        text = _text(server_first)
        fields = _fields(text)
        try:
            nonce, salt, iterations = fields["r"], b64decode(fields["s"], validate=True), int(fields["i"])
        except (KeyError, ValueError):
            raise ScramError("the server's challenge is malformed") from None
        if not nonce.startswith(self._nonce) or not 4096 <= iterations <= ITERATIONS_MAX:
            raise ScramError(
                "the server's challenge has another nonce, or an iteration count below 4096 or too high"
            )
        salted = pbkdf2_hmac("sha256", self._password, salt, iterations)
        key = _hmac(salted, b"Client Key")
        without_proof = f"c={_encoded(HEADERS[0].encode())},r={nonce}"
        message = ",".join((self._first_bare, text, without_proof)).encode()
        signature = _hmac(sha256(key).digest(), message)
        proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
        self._expected = b"v=" + _encoded(_hmac(_hmac(salted, b"Server Key"), message)).encode()
        return f"{without_proof},p={_encoded(proof)}".encode()

    def is_server(self, server_final: bytes) -> bool:
        """True if the server knows the password, or its verifier."""
        return bool(self._expected) and hmac.compare_digest(server_final, self._expected)


def decoy(user: str, key: bytes) -> ScramVerifier:
    """Return a verifier without password for an unknown user, the same each time."""
    name = user.encode("utf-8", "surrogatepass")
    salt, rest = _hmac(key, b"salt" + name)[:SALT_BYTES], _hmac(key, b"key" + name)
    return ScramVerifier(ITERATIONS, salt, rest, rest)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message that is no UTF-8 text") from None


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if len(name) != 1 or not equals or name in fields or name == "m":
            raise ScramError("a message with unknown or repeated attributes")
        fields[name] = value
    return fields


def _name(text: str) -> str:
    if "=" in text.replace("=2C", "").replace("=3D", ""):
        raise ScramError("the user name is not escaped as it must be")
    return text.replace("=2C", ",").replace("=3D", "=")
