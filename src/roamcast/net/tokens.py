"""Tokens (JWT) as passwords: their signature, expiry and rights."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from roamcast.config.private_files import check_readable
from roamcast.config.sections import Jwt
from roamcast.errors import InputError
from roamcast.mqtt.server.access import Grants, check_grants
from roamcast.net.users import check_name

KEYS_BYTES_MAX = 1 << 20
GRANTS_CLAIM = "roamcast"
"""The claim with the client's rights: {"publish": [FILTER, …], "subscribe": [FILTER, …]}."""
PEM_END = "-----END PUBLIC KEY-----"


class TokenRefused(Exception):
    """Raised if a token is not accepted; the text is the reason."""


class Token(NamedTuple):
    """Content of a token."""

    user: str
    grants: Grants | None
    expires_at: float
    """Expiry, Unix time."""
    key: str
    """The fingerprint of the key that signed the token."""


class SigningKey(NamedTuple):
    id: str
    """Name of the key in the token's header; "" if it has none."""
    key: Any
    fingerprint: str


class Tokens:
    """Checks tokens against the keys of a file."""

    def __init__(self, settings: Jwt, keys: list[SigningKey], clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._keys = keys
        self._clock = clock

    def has_key(self, fingerprint: str) -> bool:
        return any(one.fingerprint == fingerprint for one in self._keys)

    def read(self, text: bytes) -> Token:
        """Return the content of a token that is valid now."""
        import jwt

        try:
            named = jwt.get_unverified_header(text).get("kid", "")
        except jwt.PyJWTError:
            raise TokenRefused("the token is malformed") from None
        # A token that names its key is tried with that key, and with keys that have no name.
        why = "no known key has signed the token"
        for one in self._keys:
            if named and one.id and one.id != named:
                continue
            try:
                claims = self._decode(text, one.key)
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, TypeError, ValueError) as error:
                why = f"the token is not valid: {error}"
                continue
            return self._token(claims, one.fingerprint)
        raise TokenRefused(why)

    def _decode(self, text: bytes, key: Any) -> dict[str, Any]:
        import jwt

        settings = self._settings
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=list(settings.algorithms),
            audience=settings.audience or None,
            issuer=settings.issuer or None,
            leeway=settings.leeway_s,
            options={"require": ["exp"], "verify_aud": bool(settings.audience)},
        )
        return claims

    def _token(self, claims: dict[str, Any], key: str) -> Token:
        settings = self._settings
        try:
            user = check_name(msgspec.convert(claims.get(settings.user_claim), str))
            grants = msgspec.convert(claims.get(GRANTS_CLAIM), Grants | None)
            if grants is not None:
                check_grants(grants)
        except (msgspec.ValidationError, InputError) as error:
            raise TokenRefused(f"the token's claims cannot be used: {error}") from None
        expires_at = float(claims["exp"]) + settings.leeway_s
        if expires_at <= self._clock():
            raise TokenRefused("the token has expired")
        return Token(user, grants, expires_at, key)


def is_token(password: bytes | None) -> bool:
    """Return true for what can only be a token: three parts, the first of which is encoded JSON."""
    return password is not None and password.startswith(b"eyJ") and password.count(b".") == 2


def load_keys(settings: Jwt) -> Tokens | None:
    """Load the keys of the file; None if there is no file, InputError if they cannot be used."""
    path = settings.keys
    if not path:
        return None
    try:
        import jwt
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise InputError('access.jwt.keys: tokens need PyJWT; install "roamcast[auth]"') from None
    check_readable(path, "access.jwt.keys")
    content = Path(path).read_bytes()[: KEYS_BYTES_MAX + 1]
    try:
        if len(content) > KEYS_BYTES_MAX:
            raise ValueError("it is too large")
        text = content.decode()
        if text.lstrip().startswith("{"):
            found = jwt.PyJWKSet.from_json(text).keys
            keys = [SigningKey(one.key_id or "", one.key, _fingerprint(one.key)) for one in found]
        else:
            blocks = [block + PEM_END for block in text.split(PEM_END)[:-1]]
            made = [load_pem_public_key(block.encode()) for block in blocks]
            keys = [SigningKey("", key, _fingerprint(key)) for key in made]
        if not keys:
            raise ValueError("it holds no key")
    except (jwt.PyJWTError, ValueError, AttributeError) as error:
        raise InputError(
            f"access.jwt.keys = {path}: holds no public keys, as PEM or JWKS ({error})"
        ) from None
    return Tokens(settings, keys)


def _fingerprint(key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
