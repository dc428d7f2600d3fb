"""What the distribution offers, and which settings make sense."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_core import ConfigError
from lmcache_core.contracts.settings import validate
from lmcache_l2_redis.adapter import BASE
from lmcache_l2_redis.address import Address
from lmcache_l2_redis.config import RedisSettings
from lmcache_l2_redis.opening import open_redis
from lmcache_l2_redis.plugin import lmcache_l2_adapters

SECRET = "open-sesame-4711"


def test_the_entry_point_leads_to_three_names_of_one_adapter() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="redis")
    assert entry.load().lmcache_l2_adapters is lmcache_l2_adapters
    offers = lmcache_l2_adapters()
    assert [offer.name for offer in offers] == ["redis", "valkey", "resp"]
    for offer in offers:
        assert offer.settings is not None
        assert resolve(offer.settings) is RedisSettings
        assert resolve(offer.open) is open_redis
        assert offer.capabilities == BASE


def test_listing_imports_no_settings_and_no_adapter() -> None:
    code = (
        "import sys, lmcache_l2_redis.plugin as p; p.lmcache_l2_adapters(); "
        "print(sorted({'pydantic', 'ssl', 'lmcache_l2_redis.adapter', 'lmcache_l2_redis.config'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({}, Address("localhost", 6379)),
        ({"host": "kv", "port": 7000}, Address("kv", 7000)),
        ({"socket_path": "/run/redis.sock"}, Address("/run/redis.sock", None)),
        ({"url": "redis://kv"}, Address("kv", 6379)),
        ({"url": "valkeys://:pw@kv:7001/3"}, Address("kv", 7001)),
        ({"url": "redis://[::1]:7002"}, Address("::1", 7002)),
        ({"url": "unix://user:pw@/run/r.sock"}, Address("/run/r.sock", None)),
        ({"url": "unix:///run/r.sock"}, Address("/run/r.sock", None)),
    ],
)
def test_a_single_server_is_named_in_several_ways(values: dict[str, Any], address: Address) -> None:
    assert RedisSettings.model_validate(values).single == address


def test_what_a_url_says_is_understood() -> None:
    url = RedisSettings.model_validate({"url": "rediss://me:p%40ss@kv:7001/3"}).server_url
    assert (url.username, url.password, url.database, url.tls) == ("me", "p@ss", 3, True)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"host": "a", "nodes": ["b"]}, "host and nodes"),
        ({"url": "redis://a", "socket_path": "/a"}, "url and socket_path"),
        ({"sentinels": ["a"]}, "master_name"),
        ({"master_name": "kv"}, "sentinels"),
        ({"nodes": ["a"], "database": 1}, "database 0"),
        ({"username": "me"}, "password"),
        ({"password": "a", "password_file": "/a"}, "password_file"),
        ({"url": "redis://:a@b", "password": "c"}, "url has a password"),
        ({"url": "redis://b/1", "database": 2}, "url has a database"),
        ({"url": "http://b"}, "redis://"),
        ({"url": "unix://host/run/r.sock"}, "unix:///"),
        ({"url": "redis://b?db=1"}, "behind"),
        ({"url": "redis://b/x"}, "number"),
        ({"url": "redis://b:x"}, "cannot be read"),
        ({"url": "redis://me@b"}, "without a password"),
        ({"nodes": ["a:b"]}, "host:port"),
        ({"nodes": ["a:0"]}, "host:port"),
        ({"sentinels": ["[::1"], "master_name": "kv"}, "v6"),
        ({"tls_ca": "/ca.pem"}, "tls_ca has no effect without tls"),
        ({"tls_verify": False}, "tls_verify"),
        ({"tls": True, "tls_cert": "/c.pem"}, "tls_key"),
        ({"tls": True, "socket_path": "/a"}, "Unix socket"),
        ({"value_piece_bytes": 1000}, "value_piece_bytes"),
        ({"num_connections": 0}, "num_connections"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"database": -1}, "database"),
        ({"max_capacity_gb": float("nan")}, "max_capacity_gb"),
        ({"persist_enabled": False}, "ttl_seconds"),
        ({"owner_lease_seconds": 600}, "timeout_seconds"),
        ({"owner": False}, "shared"),
        ({"hosts": "a"}, "hosts"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        RedisSettings.model_validate(values)


@pytest.mark.parametrize(
    "values",
    [
        {"password": SECRET, "hosts": 1},
        {"password": SECRET, "password_file": "/a"},
        {"url": f"http://me:{SECRET}@b"},
        {"url": f"redis://me:{SECRET}@b:x"},
        {"url": f"redis://me:{SECRET}@b?x"},
        {"sentinel_password": SECRET, "sentinels": ["a"]},
    ],
)
def test_no_complaint_and_no_repr_shows_a_secret(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(RedisSettings, values, "--l2-adapter")
    assert SECRET not in str(refused.value)
    settings = RedisSettings.model_validate({"url": f"redis://me:{SECRET}@b", "sentinel_password": SECRET})
    assert SECRET not in repr(settings) + str(settings) + repr(settings.server_url)
    assert SECRET not in settings.model_dump_json()


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in RedisSettings.model_fields.values())


def resolve(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
