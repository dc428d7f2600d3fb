"""`--l2-adapter`: common keys, the adapter's own, and what is wrong with either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.builtin.memory_l2 import MemorySettings
from lmcache_core.contracts.settings import PluginSettings, validate

Install = Callable[..., Path]


def test_several_adapters_of_one_type_have_names_of_their_own() -> None:
    given: list[dict[str, Any]] = [{"type": "memory"}, {"type": "memory", "max_size_gb": 2, "persist_enabled": False}]
    first, second = adapter_specs(given, load_plugins())
    assert (first.name, second.name) == ("memory", "memory-2")
    assert (first.eviction, second.eviction) == (None, None)
    assert isinstance(second.settings, MemorySettings)
    assert second.settings.max_size_gb == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "--l2-adapter[1]: field 'type' is missing"),
        ({"tpye": "memory"}, "did you mean it by 'tpye'?"),
        ({"type": 3}, "--l2-adapter[1]: field 'type' must be the name of an adapter"),
        ({"type": "memry"}, "--l2-adapter[1]: no L2 adapter is called 'memry'; did you mean 'memory'?"),
        ({"type": "s3"}, "plugin 's3' is not among those that --plugin names"),
        (
            {"type": "memory", "max_size": 1},
            "--l2-adapter[1]: no field is called 'max_size'; did you mean 'max_size_gb'?",
        ),
        ({"type": "memory", "max_size_gb": -1}, "--l2-adapter[1]: field 'max_size_gb' is -1: input should be greater"),
        ({"type": "memory", "eviction": {}}, "--l2-adapter[1].eviction: field 'eviction_policy' is required"),
        ({"type": "memory", "eviction": "LRU"}, "--l2-adapter[1].eviction is 'LRU': expected an object such as"),
        (
            {"type": "memory", "eviction": {"eviction_policy": "LRU", "watermark": 1}},
            "--l2-adapter[1].eviction: no field is called 'watermark'; did you mean 'trigger_watermark'?",
        ),
        (
            {"type": "memory", "eviction": {"eviction_policy": "LRU", "x": 1}},
            "--l2-adapter[1].eviction: no field is called 'x'; known: eviction_policy, trigger_watermark, eviction_ratio",
        ),
        (
            {"type": "memory", "eviction": {"eviction_policy": "LRU", "trigger_watermark": 1.5}},
            "--l2-adapter[1].eviction: field 'trigger_watermark' is 1.5: input should be less than or equal to 1",
        ),
        (
            {"type": "memory", "eviction": {"eviction_policy": "LRV"}},
            "--l2-adapter[1].eviction.eviction_policy: no eviction policy is called 'LRV'; did you mean 'LRU'?",
        ),
        (
            {"type": "memory", "eviction": {"eviction_policy": {"type": "LRU", "depth": 1}}},
            "--l2-adapter[1].eviction.eviction_policy: eviction policy 'LRU' takes no settings; leave out 'depth'",
        ),
        (
            {"type": "memory", "eviction": {"eviction_policy": {"depth": 1}}},
            '--l2-adapter[1].eviction: field \'eviction_policy\': expected a name, or a JSON object such as {"type": "LRU"}',
        ),
        ({"type": "memory", "serde": "zstd9"}, "--l2-adapter[1].serde: no serde is called 'zstd9'"),
        ({"type": "memory", "serde": {"typ": "x"}}, "--l2-adapter[1].serde: expected the name of a serde"),
        ({"type": "memory", "serde": [7]}, "--l2-adapter[1].serde[0]: expected the name of a serde"),
        ({"type": "memory", "serde": []}, "--l2-adapter[1].serde: 0 serdes; name 1 to 7"),
        ({"type": "memory", "serde": ["x"] * 8}, "--l2-adapter[1].serde: 8 serdes; name 1 to 7"),
        ({"type": "memory", "serde_workers": 2}, "--l2-adapter[1]: field 'serde_workers' is for serdes"),
        ({"type": "memory", "persist_enabled": "no"}, "field 'persist_enabled' is 'no': must be true or false"),
    ],
)
def test_a_wrong_adapter_is_one_line_that_says_which_and_what(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        adapter_specs([{"type": "memory"}, values], load_plugins(["builtin", "policies"]))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_adapter_that_knows_persist_enabled_receives_it(install: Install) -> None:
    source = """
        from lmcache_core import Offer, PluginSettings, hookimpl

        class AcmeSettings(PluginSettings):
            persist_enabled: bool = True

        @hookimpl
        def lmcache_l2_adapters():
            return [Offer("acme", "s", "acme_plugin:o", "acme_plugin:AcmeSettings"), Offer("bare", "s", "acme_plugin:o")]
        """
    install("acme", source)
    (spec,) = adapter_specs([{"type": "acme", "persist_enabled": False}], load_plugins())
    assert spec.settings is not None
    assert spec.settings.model_dump() == {"persist_enabled": False}
    with pytest.raises(ConfigError, match="'bare' takes no settings; leave out 'size'"):
        adapter_specs([{"type": "bare", "size": 1}], load_plugins())


def test_what_is_not_a_path_is_said_without_a_word_of_python() -> None:
    class PathSettings(PluginSettings):
        base_path: Path

    with pytest.raises(ConfigError) as caught:
        validate(PathSettings, {"base_path": 3}, "--l2-adapter[0]")
    assert str(caught.value) == "--l2-adapter[0]: field 'base_path' is 3: it is not a path"


def test_an_eviction_has_its_policy() -> None:
    given = [{"type": "memory", "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.9}}]
    (spec,) = adapter_specs(given, load_plugins())
    assert spec.eviction is not None
    assert (spec.eviction.policy.kind, spec.eviction.policy.name) == (OfferKind.EVICTION_POLICY, "LRU")
    assert (spec.eviction.eviction.kind, spec.eviction.eviction.name) == ("l2_eviction", "watermark")


def test_a_plugin_s_eviction_is_asked_for_by_its_type(install: Install) -> None:
    source = """
        from lmcache_core import L2EvictionSettings, Offer, hookimpl

        class Settings(L2EvictionSettings):
            depth: int

        @hookimpl(optionalhook=True)
        def lmcache_l2_evictions():
            return [Offer("deep", "s", "acme_plugin:o", "acme_plugin:Settings")]
        """
    install("acme", source)
    plugins = load_plugins()
    eviction = {"type": "deep", "eviction_policy": "LRU", "depth": 3}
    (spec,) = adapter_specs([{"type": "memory", "eviction": eviction}], plugins)
    assert spec.eviction is not None
    assert (spec.eviction.eviction.name, spec.eviction.eviction.settings.depth) == ("deep", 3)  # type: ignore[union-attr]
    for wrong, said in ((3, "must be the name of an eviction of L2"), ("deap", "did you mean 'deep'")):
        with pytest.raises(ConfigError, match=said):
            adapter_specs([{"type": "memory", "eviction": {**eviction, "type": wrong}}], plugins)


def test_an_eviction_without_its_plugin_names_the_remedy() -> None:
    given = [{"type": "memory", "eviction": {"eviction_policy": "LRU"}}]
    with pytest.raises(ConfigError) as caught:
        adapter_specs(given, load_plugins(blocked=["policies"]))
    assert str(caught.value).startswith(
        "--l2-adapter[0].eviction: l2 eviction 'watermark' is not available: plugin 'policies'"
    )


def test_an_adapter_that_keeps_everything_is_not_believed_to_forget_it(install: Install) -> None:
    source = """
        from lmcache_core import Capability, Offer, hookimpl

        @hookimpl
        def lmcache_l2_adapters():
            return [
                Offer("vault", "s", "acme_plugin:o", capabilities=Capability.DURABLE),
                Offer("slate", "s", "acme_plugin:o"),
            ]
        """
    install("acme", source)
    plugins = load_plugins()
    assert adapter_specs([{"type": "vault", "persist_enabled": True}], plugins)
    assert adapter_specs([{"type": "slate", "persist_enabled": False}], plugins)
    with pytest.raises(ConfigError, match="adapter 'vault' always keeps what it stored; leave the field out"):
        adapter_specs([{"type": "vault", "persist_enabled": False}], plugins)
