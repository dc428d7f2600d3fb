"""Objects in parts with checksums, over TLS, as a role, and by what is in the environment."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lmcache_core import HEADER_BYTES, Outcome, ResourceError
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_s3.adapter import S3Adapter
from lmcache_l2_s3.config import S3Settings
from tests.remote.s3_servers import S3Server, rclone_server


def round_trip(settings: dict[str, object], payload_bytes: int = 10_000) -> None:
    memory = BorrowedMemory(64 * 2**20)
    adapter = S3Adapter(S3Settings.model_validate(settings), adapter_context(memory, name="s3"))
    try:
        driver = L2Driver(adapter)
        key = object_key(1)
        stored = memory.sealed(key, payload_of(1, payload_bytes))
        loaded = memory.lend(HEADER_BYTES + payload_bytes)
        assert driver.store((key, stored)) == (Outcome.DONE,)
        assert driver.store((key, stored)) == (Outcome.DONE,)
        assert driver.verified_load((key, loaded)) == (Outcome.DONE,)
        assert loaded.view == stored.view
        assert driver.delete(key) == (Outcome.DONE,)
    finally:
        adapter.close(10)


@pytest.mark.parametrize("checksum", ["none", "crc32c", "crc64nvme"])
def test_objects_in_parts_with_checksums(moto: S3Server, checksum: str) -> None:
    round_trip(moto.settings(part_size_mb=5, checksum=checksum, prefix=f"{checksum}/"), 20 * 2**20)


def test_what_is_asked_of_new_objects_is_said(moto: S3Server) -> None:
    more = {"storage_class": "STANDARD_IA", "server_side_encryption": "aws:kms", "sse_kms_key_id": "key-1"}
    memory = BorrowedMemory()
    adapter = S3Adapter(S3Settings.model_validate(moto.settings(prefix="asked/", **more)), adapter_context(memory))
    key = object_key(2)
    assert L2Driver(adapter).store((key, memory.sealed(key, b"x"))) == (Outcome.DONE,)
    client = moto.client()
    (listed,) = (
        each
        for each in client.list_objects_v2(Bucket=moto.bucket, Prefix="asked/")["Contents"]
        if each["Key"].endswith(".kv")
    )
    about = client.head_object(Bucket=moto.bucket, Key=listed["Key"])
    assert (about["StorageClass"], about["ServerSideEncryption"]) == ("STANDARD_IA", "aws:kms")
    assert "key-1" in about["SSEKMSKeyId"]
    client.close()
    adapter.close(10)


def test_a_role_is_assumed(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto.url)
    round_trip(moto.settings(role_arn="arn:aws:iam::123456789012:role/kv", prefix="role/"))


def test_credentials_of_the_environment_and_none_at_all(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = moto.settings(prefix="environment/")
    del settings["aws_access_key_id"], settings["aws_secret_access_key"]
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ResourceError, match="no credentials were found"):
        round_trip(settings)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    round_trip(settings)


def test_a_wrong_secret_is_reported_without_being_shown(rclone: S3Server) -> None:
    with pytest.raises(ResourceError, match=r"check the credentials|check what the credentials may do") as refused:
        round_trip(rclone.settings(aws_secret_access_key="wrong-secret"))
    assert "wrong-secret" not in str(refused.value)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("tls")
    with rclone_server(folder, tls=_certificate(folder)) as server:
        yield server


@pytest.mark.parametrize("http2", [True, False])
def test_over_tls_with_a_certificate_of_ones_own(encrypted: S3Server, http2: bool) -> None:
    round_trip(encrypted.settings(s3_prefer_http2=http2, owner_lease_seconds=2, prefix=f"tls-{http2}/"))


def test_an_untrusted_certificate_is_refused(encrypted: S3Server) -> None:
    settings = encrypted.settings()
    del settings["ca_file"]
    with pytest.raises(ResourceError, match="SSLError"):
        round_trip(settings)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Of 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
