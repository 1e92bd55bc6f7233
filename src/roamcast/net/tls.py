"""TLS: contexts from the configuration, and certificates that are replaced while the broker runs.

A listening socket keeps the context it was opened with. So the context stays, and each handshake switches to
the newest one at its beginning; present connections continue unchanged.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from roamcast.config.private_files import check_private, check_readable
from roamcast.config.sections import Link, Listener, Metrics
from roamcast.errors import InputError

PeerCertificate = dict[str, Any]
"""What `SSLObject.getpeercert()` gives."""

NAME_FIELDS = {"dns": "DNS", "email": "email", "uri": "URI"}


class ServerContext:
    """The context of a listener; `reload` replaces what later handshakes use, or changes nothing."""

    def __init__(self, make: Callable[[], ssl.SSLContext]) -> None:
        self.context = make()
        """The context that the listening socket is opened with."""
        self._newest = self.context
        self.context.sni_callback = self._choose

    def reload(self, make: Callable[[], ssl.SSLContext]) -> None:
        """Use other files from now on; if they cannot be used, raise InputError and keep the old ones."""
        newest = make()
        # Whether certificates are requested and checked is decided before `_choose` is called.
        self.context.verify_mode = newest.verify_mode
        self.context.verify_flags = newest.verify_flags
        self._newest = newest

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._newest


class LinkContexts(NamedTuple):
    """Both directions of links to peers."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    digest: bytes
    """Digest of the files used: if it differs, peers must authenticate again."""


def http_context(metrics: Metrics) -> ssl.SSLContext:
    """A context for HTTPS."""
    files = Listener(kind="wss", certificate=metrics.certificate, key=metrics.key)
    return listener_context(files, "metrics")


def listener_context(listener: Listener, key: str) -> ssl.SSLContext:
    """A context for clients; the key names the listener in error lines."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"] if listener.is_websocket else ["mqtt"])
    load_own(context, listener.certificate, listener.key, key)
    if listener.client_ca:
        load_authorities(context, listener.client_ca, f"{key}.client_ca")
        context.verify_mode = ssl.CERT_REQUIRED if listener.require_certificate else ssl.CERT_OPTIONAL
        refuse_resumption(context)
    if listener.crl:
        load_revoked(context, listener.crl, f"{key}.crl")
    return context


def link_contexts(link: Link) -> LinkContexts:
    """Contexts for peers: both ends show a certificate, both must be signed by link.ca and not revoked."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Certificates name brokers, not hosts: `is_broker` checks that, once the handshake is done.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        load_own(context, link.certificate, link.key, "link")
        load_authorities(context, link.ca, "link.ca")
        if link.crl:
            load_revoked(context, link.crl, "link.crl")
    refuse_resumption(server)
    digest = hashlib.sha256()
    for path in filter(None, (link.certificate, link.key, link.ca, link.crl)):
        digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
    return LinkContexts(server, client, digest.digest())


def load_revoked(context: ssl.SSLContext, path: str, key: str) -> None:
    """Refuse certificates in these lists, and any certificate whose signer has no list among them."""
    check_readable(path, key)
    before = context.cert_store_stats()
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise InputError(
            f"{key} = {path}: not a revocation list in PEM format ({error.reason or 'PEM'})"
        ) from None
    after = context.cert_store_stats()
    if after["crl"] == before["crl"] or after["x509"] != before["x509"]:
        raise InputError(f"{key} = {path}: must hold revocation lists in PEM, and nothing else")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def refuse_resumption(context: ssl.SSLContext) -> None:
    """Require a full handshake for every connection: a resumed one would outlive a replaced authority."""
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def load_own(context: ssl.SSLContext, certificate: str, key_file: str, key: str) -> None:
    check_readable(certificate, f"{key}.certificate")
    check_private(key_file, f"{key}.key")
    load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, f"{key}.certificate")

    def refuse_encrypted() -> NoReturn:
        raise InputError(
            f"{key}.key = {key_file}: is encrypted, and its password cannot be asked for; "
            f"decrypt it with: openssl pkey -in {key_file}"
        )

    try:
        context.load_cert_chain(certificate, key_file, refuse_encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InputError(
                f"{key}.key = {key_file}: does not belong to {key}.certificate = {certificate}"
            ) from None
        raise InputError(
            f"{key}.key = {key_file}: holds no private key in PEM, or {certificate} no certificate that this "
            f"version of OpenSSL accepts ({error.reason or 'PEM'})"
        ) from None


def load_authorities(context: ssl.SSLContext, path: str, key: str) -> None:
    check_readable(path, key)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise InputError(f"{key} = {path}: holds no certificate in PEM ({error.reason or 'PEM'})") from None


# --- who is there ---


def certificate_name(certificate: PeerCertificate | None, field: str) -> str:
    """Return the client's name in its certificate, by the listener's `certificate_name`; "" if it has
    none."""
    if not certificate:
        return ""
    if field == "common_name":
        return next(iter(common_names(certificate)), "")
    return next(iter(alternative_names(certificate, NAME_FIELDS[field])), "")


def is_broker(certificate: PeerCertificate | None, id: str) -> bool:
    """Return whether a peer's certificate is for the broker with this id."""
    if not certificate:
        return False
    return id in [*alternative_names(certificate, "DNS"), *common_names(certificate)]


def has_fingerprint(certificate: bytes | None, fingerprints: Collection[str]) -> bool:
    """Return whether a certificate (DER) has one of these SHA-256 hashes; true if none is given."""
    if not fingerprints:
        return True
    shown = hashlib.sha256(certificate or b"").hexdigest()
    return any(one.replace(":", "").lower() == shown for one in fingerprints)


def common_names(certificate: PeerCertificate) -> list[str]:
    return [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]


def alternative_names(certificate: PeerCertificate, kind: str) -> list[str]:
    return [value for name, value in certificate.get("subjectAltName", ()) if name == kind]
