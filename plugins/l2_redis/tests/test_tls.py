"""TLS with certificates of a test's own."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lmcache_core import Outcome, ResourceError
from lmcache_devkit import free_port
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import put
from tests.remote.redis_servers import HOST, redis_server

DONE = Outcome.DONE
BIG = 3_000_001
OpenRedis = Callable[..., L2Driver]


class Certificates(NamedTuple):
    authority: Path
    certificate: Path
    key: Path
    strange_authority: Path


class TlsServer(NamedTuple):
    port: int
    certificates: Certificates

    def settings(self, **more: Any) -> dict[str, Any]:
        own = self.certificates
        files = {"tls_ca": own.authority, "tls_cert": own.certificate, "tls_key": own.key}
        return {"host": HOST, "port": self.port, "tls": True, **files, **more}


def authority_of(name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return signed(subject, key, subject, key, is_authority=True), key


def signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("kv.example")]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """Asks for a certificate of the client's, too."""
    folder = tmp_path_factory.mktemp("tls")
    authority, authority_key = authority_of("authority of tests")
    strange, _ = authority_of("strange authority")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server of tests")])
    certificate = signed(subject, key, authority.subject, authority_key, is_authority=False)
    found = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem", folder / "strange.pem")
    pem = serialization.Encoding.PEM
    found.authority.write_bytes(authority.public_bytes(pem))
    found.certificate.write_bytes(certificate.public_bytes(pem))
    found.strange_authority.write_bytes(strange.public_bytes(pem))
    found.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    port = free_port()
    options = (
        "--tls-port", str(port), "--tls-ca-cert-file", str(found.authority), "--tls-cert-file", str(found.certificate),
        "--tls-key-file", str(found.key),
    )  # fmt: skip
    with redis_server(folder / "s", *options):
        yield TlsServer(port, found)


def test_objects_of_many_records_come_back_over_tls(
    tls_server: TlsServer, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(**tls_server.settings(num_connections=3))
    keys = [object_key(number) for number in range(4)]
    wholes = [memory.sealed(key, payload_of(number, BIG)) for number, key in enumerate(keys)]
    assert driver.store(*zip(keys, wholes, strict=True)) == (DONE,) * 4
    buffers = [memory.lend(wholes[0].length) for _ in range(2)]
    for start in (0, 2):
        two = keys[start : start + 2]
        assert driver.verified_load(*zip(two, buffers, strict=True)) == (DONE,) * 2
    assert driver.delete(*keys) == (DONE,) * 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tls_ca": "strange"}, "TLS failed.*VERIFY_FAILED"),
        ({"tls_ca": None}, "TLS failed.*VERIFY_FAILED"),
        ({"tls_server_name": "other.example"}, "TLS failed.*VERIFY_FAILED"),
        ({"tls_cert": None, "tls_key": None}, "tls_|cannot be reached|server closed"),
        (
            {"tls": False, "tls_ca": None, "tls_cert": None, "tls_key": None},
            "with TLS or without|cannot be reached|closed",
        ),
        ({"tls_ca": "missing"}, "PEM"),
        ({"tls_key": "ca"}, "PEM"),
    ],
    ids=["another authority", "the system's", "another name", "no certificate", "no tls", "no file", "no key"],
)
def test_who_cannot_be_trusted_is_refused(
    tls_server: TlsServer, open_at: OpenRedis, changed: dict[str, Any], said: str
) -> None:
    own = tls_server.certificates
    files = {"strange": own.strange_authority, "missing": own.authority.with_name("missing.pem"), "ca": own.authority}
    changed = {name: files.get(value, value) if isinstance(value, str) else value for name, value in changed.items()}
    with pytest.raises(ResourceError, match=said):
        open_at(**tls_server.settings(**changed))


def test_another_name_and_no_verification_are_what_one_may_ask_for(
    tls_server: TlsServer, open_at: OpenRedis, memory: BorrowedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    put(open_at(**tls_server.settings(tls_server_name="kv.example")), memory, 1)
    strange = tls_server.settings(tls_ca=tls_server.certificates.strange_authority, tls_verify=False)
    put(open_at(**strange, key_prefix="unverified/"), memory, 1)
    assert "tls_verify is off" in caplog.text


def test_a_url_may_ask_for_tls(tls_server: TlsServer, open_at: OpenRedis, memory: BorrowedMemory) -> None:
    settings = tls_server.settings(url=f"rediss://{HOST}:{tls_server.port}")
    for name in ("host", "port", "tls"):
        del settings[name]
    put(open_at(**settings), memory, 1)
