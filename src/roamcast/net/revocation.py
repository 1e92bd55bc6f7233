"""Detects client certificates that were revoked, or whose authority was replaced, after their connection was
made.

TLS checks a certificate once, in the handshake. Later changes are detected here, when the files are read
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from roamcast.config.sections import Listener
from roamcast.errors import InputError

if TYPE_CHECKING:
    from cryptography.x509 import CertificateRevocationList

PEM_END = b"-----END X509 CRL-----"

Place = tuple[str, int, str]


class Revocations:
    """Authorities and revocation lists of the listeners, as last read."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._authorities: dict[Place, bytes] = {}
        self._replaced: dict[Place, None] = {}
        self._lists: dict[Place, list[CertificateRevocationList]] = {}
        self.read(listeners)

    def read(self, listeners: Iterable[Listener]) -> None:
        """Read the files again; InputError if they cannot be used, and then nothing changes."""
        listeners = list(listeners)
        lists = {place_of(one): read_lists(one.crl, "listener.crl") for one in listeners if one.crl}
        found = {place_of(one): _digest(one.client_ca) for one in listeners}
        known, self._authorities, self._lists = self._authorities, found, lists
        self._replaced = {place: None for place in found if known.get(place, found[place]) != found[place]}

    def objection(self, listener: Listener, certificate: bytes | None) -> str:
        """Return why a client with this certificate (DER) would be refused now; "" if it would be
        accepted."""
        place = place_of(listener)
        if not certificate:
            return ""
        if place in self._replaced:
            return "the authorities of client certificates were changed"
        lists = self._lists.get(place)
        if not lists:
            return ""
        from cryptography.x509 import load_der_x509_certificate

        shown = load_der_x509_certificate(certificate)
        is_revoked = any(
            one.issuer == shown.issuer
            and one.get_revoked_certificate_by_serial_number(shown.serial_number) is not None
            for one in lists
        )
        return "its certificate was revoked" if is_revoked else ""


def place_of(listener: Listener) -> Place:
    return listener.address, listener.port, listener.kind


def read_lists(path: str, key: str) -> list[CertificateRevocationList]:
    """Read the revocation lists in a PEM file."""
    try:
        from cryptography.x509 import load_pem_x509_crl
    except ImportError:
        raise InputError(f'{key}: revocation lists need cryptography; install "roamcast[auth]"') from None
    try:
        blocks = [block + PEM_END for block in Path(path).read_bytes().split(PEM_END)[:-1]]
        lists = [load_pem_x509_crl(block) for block in blocks]
    except OSError as error:
        raise InputError(f"{key} = {path}: cannot be read ({error.strerror}); name a file") from None
    except ValueError as error:
        raise InputError(f"{key} = {path}: holds a revocation list that is damaged ({error})") from None
    if not lists:
        raise InputError(f"{key} = {path}: holds no revocation list in PEM")
    return lists


def _digest(path: str) -> bytes:
    try:
        return sha256(Path(path).read_bytes()).digest() if path else b""
    except OSError as error:
        raise InputError(f"listener.client_ca = {path}: cannot be read ({error.strerror})") from None
