"""TLS of the channel `tcp`.

A server makes a certificate at its start, and its fingerprint goes to other servers inside the authenticated hello.  That is
all a reader trusts, so that certificates need not be distributed.  With an operator's own authority both sides show
certificates of it, and the fingerprint is compared as well.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import ssl
import tempfile
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lmcache_core import ConfigError, LMCacheError
from lmcache_p2p.settings import TcpSettings

VALID_DAYS: Final = 3650
"""A server that runs longer makes no new connections.  Nothing outlives the server."""


class Tls:
    """What one server shows, and what it believes.  Safe from any thread."""

    def __init__(self, settings: TcpSettings) -> None:
        """Raises ConfigError for files that are not a certificate, its key, or certificates of an authority."""
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.check_hostname = False  # the fingerprint says more than a name
        self.client.verify_mode = ssl.CERT_NONE
        self.server.num_tickets = 0
        for context in (self.server, self.client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        if settings.tls_cert is None or settings.tls_key is None:
            with tempfile.TemporaryDirectory() as folder:
                self._show(*new_certificate(Path(folder)))
            return
        try:
            self._show(settings.tls_cert, settings.tls_key)
            if settings.tls_ca is not None:
                for context in (self.server, self.client):
                    context.load_verify_locations(settings.tls_ca)
                    context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--p2p-tls-cert, --p2p-tls-key and --p2p-tls-ca: {error}; give a certificate, its key, and those of its "
                "authority, as PEM files that this server may read"
            ) from None

    def _show(self, certificate: Path, key: Path) -> None:
        """Raises OSError and ValueError."""
        for context in (self.server, self.client):
            context.load_cert_chain(certificate, key)
        first = x509.load_pem_x509_certificate(certificate.read_bytes())
        self.fingerprint: bytes = first.fingerprint(hashes.SHA256())


def check_fingerprint(connection: ssl.SSLSocket, expected: bytes) -> None:
    """Raises LMCacheError where another one than was said in the hello has answered."""
    shown = connection.getpeercert(binary_form=True) or b""
    if not hmac.compare_digest(hashlib.sha256(shown).digest(), expected):
        raise LMCacheError("its certificate is not the one that its hello has named")


def new_certificate(folder: Path) -> tuple[Path, Path]:
    """Files of a certificate that has signed itself, and of its key: `ssl` takes them out of files alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lmcache peer")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    descriptor = os.open(paths[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(private)
    return paths
