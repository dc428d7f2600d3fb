"""The flags of peers, and what they turn on."""

from __future__ import annotations

import pytest

from lmcache_client.errors import ConfigError, ProtocolError
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.offer_specs import offer_specs
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_p2p.identity import KeyPair, PeerUrl
from lmcache_p2p.settings import PeerFlags, apply

ADDRESS = ("--p2p-advertise-url", "tcp://127.0.0.1:7600")


def adapters(*flags: str) -> list[str]:
    plugins = load_plugins()
    settings = read_settings(ServerFlags(plugins).given(flags), plugins)
    found = adapter_specs(settings.l2_adapter, plugins, offer_specs(settings, plugins).l2_adapters)
    return [spec.name for spec in found]


def test_without_an_address_there_is_nothing() -> None:
    assert apply(PeerFlags.model_validate({}), frozenset()) == {}
    assert adapters() == []


def test_the_adapter_is_the_first_of_the_cascade() -> None:
    assert adapters(*ADDRESS, "--l2-adapter", '{"type": "memory", "max_size_gb": 1}') == ["p2p", "memory"]


def test_the_adapter_has_the_place_where_it_is_named() -> None:
    given = ("--l2-adapter", '{"type": "memory", "max_size_gb": 1}', "--l2-adapter", '{"type": "p2p"}')
    assert adapters(*ADDRESS, *given) == ["memory", "p2p"]


def test_other_flags_need_the_address() -> None:
    with pytest.raises(ConfigError, match="--p2p-lookup-timeout has no effect without --p2p-advertise-url"):
        apply(PeerFlags.model_validate({}), frozenset({"p2p_lookup_timeout"}))


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:7600",
        "http://a:1",
        "tcp://a",
        "tcp://a:1/x",
        "tcp://:1",
        "tcp://a:1#00",
        "tcp://a:0",
        "tcp://0.0.0.0:7600",
        "tcp://[::]:7600",
    ],
)
def test_an_address_is_one(url: str) -> None:
    with pytest.raises(ConfigError, match="--p2p-advertise-url"):
        adapters("--p2p-advertise-url", url)


def test_the_eviction_of_another_servers_objects_is_refused() -> None:
    with pytest.raises(ConfigError, match="read only"):
        adapters("--l2-adapter", '{"type": "p2p", "eviction": {"eviction_policy": "LRU"}}')


def test_a_registered_address_is_read_back() -> None:
    url = PeerUrl("tcp://10.0.0.7:7600", KeyPair.new().public)
    assert PeerUrl.read(str(url)) == url


@pytest.mark.parametrize(
    "text", ["", "tcp://a:1", "tcp://a:1#zz", "tcp://a:1#" + "00" * 31, "tcp://a:99999#" + "00" * 32]
)
def test_anything_else_is_not_read(text: str) -> None:
    with pytest.raises(ProtocolError):
        PeerUrl.read(text)
