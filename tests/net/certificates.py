"""Certificates made for a test: an authority, and what it signs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates and leaves them as PEM files in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.path = self._write(f"{name}.pem", self._signed(self._name, self._key, authority=True))

    def sign(
        self, name: str, *, dns: tuple[str, ...] = (), email: str = "", days: int = 1
    ) -> tuple[str, str]:
        """The files of a certificate and of its key; the key is readable by its owner only."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
        certificate = self._signed(subject, key, dns, email, days=days)
        stem = name or "nameless"
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return self._write(f"{stem}.pem", certificate), self._write(f"{stem}.key", pem)

    def revoke(self, *certificates: str) -> str:
        """The file of a list that has these certificates."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(now - timedelta(hours=1)).next_update(now + timedelta(days=1))
        for path in certificates:
            serial = x509.load_pem_x509_certificate(Path(path).read_bytes()).serial_number
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(one)
        signed = builder.sign(self._key, hashes.SHA256())
        return self._write("revoked.pem", signed.public_bytes(serialization.Encoding.PEM))

    def sign_encrypted(self, name: str) -> str:
        """The file of a key that needs a password."""
        pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
        return self._write(f"{name}.key", pem)

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        dns: tuple[str, ...] = (),
        email: str = "",
        *,
        days: int = 1,
        authority: bool = False,
    ) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        names: list[x509.GeneralName] = [x509.DNSName(one) for one in dns]
        names += [x509.RFC822Name(email)] if email else []
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not subject.rdns)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(0o600)
        return str(path)
