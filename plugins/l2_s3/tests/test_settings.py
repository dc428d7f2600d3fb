"""What an operator may write, and what is answered to what makes no sense."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import Capability, ConfigError
from lmcache_core.contracts.settings import validate
from lmcache_l2_s3.config import S3Settings
from lmcache_l2_s3.endpoint import Endpoint, express_service, parse_endpoint
from lmcache_l2_s3.plugin import lmcache_l2_adapters

BASIC = {"s3_endpoint": "s3://my-bucket", "s3_region": "us-west-2"}
BUCKETS = st.from_regex(r"[a-z0-9][a-z0-9-]{1,40}[a-z0-9]", fullmatch=True)
LABELS = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)
HOSTS = st.lists(LABELS, min_size=1, max_size=3).map(".".join) | st.ip_addresses(v=4).map(str)
PORTS = st.none() | st.integers(1, 65535)


def parse(text: str, bucket: str | None = None, path_style: Any = "auto", disable_tls: bool = False) -> Endpoint:
    return parse_endpoint(text, bucket=bucket, path_style=path_style, disable_tls=disable_tls)


@given(BUCKETS)
def test_a_bucket_of_aws(bucket: str) -> None:
    assert parse(f"s3://{bucket}") == Endpoint(bucket, None, True, False)
    assert parse(f"s3://{bucket}/") == parse(f"s3://{bucket}", bucket=bucket)


@given(HOSTS, PORTS, BUCKETS, st.booleans())
def test_a_bucket_in_the_path_and_one_by_its_own_setting_are_the_same(
    host: str, port: int | None, bucket: str, plain: bool
) -> None:
    authority = host if port is None else f"{host}:{port}"
    wanted = Endpoint(bucket, authority, not plain, True)
    assert parse(f"{authority}/{bucket}", disable_tls=plain) == wanted
    assert parse(authority, bucket=bucket, disable_tls=plain) == wanted
    assert parse(f"{'http' if plain else 'https'}://{authority}/{bucket}/") == wanted
    assert parse(authority, disable_tls=plain) == Endpoint("lmcache", authority, not plain, True)


@given(LABELS.filter(lambda label: len(label) >= 3), st.lists(LABELS, min_size=1, max_size=3), PORTS)
def test_a_bucket_in_front_of_the_host(bucket: str, labels: list[str], port: int | None) -> None:
    host = ".".join(labels) + ("" if port is None else f":{port}")
    wanted = Endpoint(bucket, host, True, False)
    assert parse(f"{bucket}.{host}", path_style=False) == wanted
    assert parse(f"{bucket}.{host}", bucket=bucket, path_style=False) == wanted


@given(
    st.text(max_size=60) | st.from_regex(r"[a-z0-9:/.\[\]-]{0,40}", fullmatch=True),
    st.sampled_from(["auto", True, False]),
)
def test_any_other_text_is_an_endpoint_or_is_refused(text: str, path_style: Any) -> None:
    try:
        endpoint = parse(text, path_style=path_style)
    except ValueError:
        return
    else:
        assert 3 <= len(endpoint.bucket) <= 63
        assert "/" not in (endpoint.service or "") + endpoint.bucket
        assert " " not in (endpoint.service or "") + endpoint.bucket


def test_hosts_of_aws_say_the_bucket_in_their_name() -> None:
    assert parse("my.bucket.s3.eu-west-1.amazonaws.com", path_style=False) == Endpoint(
        "my.bucket", "s3.eu-west-1.amazonaws.com", True, False
    )
    assert parse("my.bucket.s3.eu-west-1.amazonaws.com").path_style  # no certificate covers two labels
    assert parse("s3.us-west-2.amazonaws.com/kv-x") == Endpoint("kv-x", "s3.us-west-2.amazonaws.com", True, False)
    express = parse("kv--usw2-az1--x-s3.s3express-usw2-az1.us-west-2.amazonaws.com")
    assert express == parse("s3://kv--usw2-az1--x-s3")
    assert express_service(express.bucket, "us-west-2") == "s3express-usw2-az1.us-west-2.amazonaws.com"
    assert parse("[::1]:9000/kvcache") == Endpoint("kvcache", "[::1]:9000", True, True)


@pytest.mark.parametrize(
    "flag",
    [
        '{"type": "s3", "s3_endpoint": "s3://my-bucket", "s3_region": "us-west-2"}',
        (
            '{"type": "s3", "s3_endpoint": "s3://my-bucket", "s3_region": "us-west-2", "s3_prefer_http2": false, '
            '"aws_access_key_id": "AKIA...", "aws_secret_access_key": "..."}'
        ),
        (
            '{"type": "s3", "s3_endpoint": "minio.local:9000", "s3_region": "us-east-1", "disable_tls": true, '
            '"aws_access_key_id": "minio", "aws_secret_access_key": "minio123"}'
        ),
    ],
)
def test_what_is_written_for_other_servers_is_taken(flag: str) -> None:
    written = json.loads(flag)
    assert written.pop("type") == "s3"
    settings = S3Settings.model_validate(written)
    assert settings.s3_num_io_threads is None
    assert settings.capacity_bytes is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"s3_endpoint": ""}, "s3_endpoint"),
        ({"s3_endpoint": "ftp://x"}, "not a scheme"),
        ({"s3_endpoint": "s3://my-bucket/kv"}, "prefix"),
        ({"s3_endpoint": "host/a-b/c"}, "more than a bucket"),
        ({"s3_endpoint": "host:0"}, "not a host"),
        ({"s3_endpoint": "host:99999"}, "not a host"),
        ({"s3_endpoint": "s3://x"}, "not a name of a bucket"),
        ({"s3_endpoint": "s3.us-west-2.amazonaws.com"}, "names no bucket"),
        ({"s3_bucket": "other"}, "leave one of them out"),
        ({"s3_endpoint": "10.0.0.1", "path_style": False}, "address"),
        ({"s3_endpoint": "minio", "path_style": False}, "s3_bucket"),
        ({"s3_endpoint": "https://minio", "disable_tls": True}, "leave one of them out"),
        ({"s3_region": "us west"}, "s3_region"),
        ({"aws_access_key_id": "a"}, "both"),
        ({"aws_secret_access_key": "a"}, "both"),
        ({"aws_session_token": "t"}, "aws_session_token"),
        ({"role_arn": "me"}, "role_arn"),
        ({"prefix": "no-slash"}, "prefix"),
        ({"prefix": "/kv/"}, "prefix"),
        ({"prefix": "a/../b/"}, "prefix"),
        ({"part_size_mb": 4}, "part_size_mb"),
        ({"sse_kms_key_id": "k", "server_side_encryption": "AES256"}, "aws:kms"),
        ({"storage_class": "GLACIER"}, "storage_class"),
        ({"storage_class": "EXPRESS_ONEZONE"}, "s3_enable_s3express"),
        ({"s3_enable_s3express": True}, "--x-s3"),
        ({"s3_endpoint": "s3://kv--az1--x-s3"}, "s3_enable_s3express"),
        ({"s3_endpoint": "minio:9000", "s3_enable_s3express": True}, "for AWS"),
        ({"s3_endpoint": "s3://kv--az1--x-s3", "s3_enable_s3express": True, "disable_tls": True}, "TLS"),
        ({"s3_endpoint": "s3://kv--az1--x-s3", "s3_enable_s3express": True, "storage_class": "STANDARD"}, "storage_class"),
        ({"owner": False}, "shared"),
        ({"max_capacity_gb": -1}, "max_capacity_gb"),
        ({"max_capacity_gb": float("inf")}, "max_capacity_gb"),
        ({"s3_num_io_threads": 0}, "s3_num_io_threads"),
        ({"checksum": "md5"}, "checksum"),
        ({"s3_endpont": "x"}, "did you mean 's3_endpoint'"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validate(S3Settings, {**BASIC, **changes}, "s3")


def test_certificates_are_for_connections_that_have_some(tmp_path: Any) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("")
    with pytest.raises(ConfigError, match="disable_tls"):
        validate(S3Settings, {**BASIC, "ca_file": str(file), "disable_tls": True}, "s3")


def test_secrets_are_shown_nowhere() -> None:
    secrets = {"aws_access_key_id": "AKIDX", "aws_secret_access_key": "hush-hush", "aws_session_token": "tok-tok"}
    settings = S3Settings.model_validate({**BASIC, **secrets})
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert not any(secret in shown for secret in secrets.values())
    with pytest.raises(ConfigError) as refused:
        validate(S3Settings, {**BASIC, **secrets, "part_size_mb": 1}, "s3")
    assert not any(secret in str(refused.value) for secret in secrets.values())


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in S3Settings.model_fields.values())


def test_the_entry_point_leads_to_one_offer() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="s3")
    assert entry.load().lmcache_l2_adapters is lmcache_l2_adapters
    (offer,) = lmcache_l2_adapters()
    assert offer.allows(offer.capabilities | Capability.SHARED)


def test_listing_imports_no_client() -> None:
    code = (
        "import sys, lmcache_l2_s3.plugin as p; p.lmcache_l2_adapters(); "
        "print(sorted({'pydantic', 'awscrt', 'boto3', 'botocore', 'lmcache_l2_s3.adapter'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
