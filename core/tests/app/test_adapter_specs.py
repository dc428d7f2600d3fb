"""`--l2-adapter`: common keys, the adapter's own, and what is wrong with either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.plugins import load_plugins
from lmcache_core.builtin.memory_l2 import MemorySettings
from lmcache_core.contracts.settings import PluginSettings, validate
from lmcache_core.model.errors import ConfigError

Install = Callable[..., Path]


def test_several_adapters_of_one_type_have_names_of_their_own() -> None:
    given: list[dict[str, Any]] = [{"type": "memory"}, {"type": "memory", "max_size_gb": 2, "persist_enabled": False}]
    first, second = adapter_specs(given, load_plugins())
    assert (first.name, second.name) == ("memory", "memory-2")
    assert first.persist_enabled
    assert not second.persist_enabled
    assert isinstance(second.settings, MemorySettings)
    assert second.settings.max_size_gb == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "--l2-adapter[1]: field 'type' is missing"),
        ({"tpye": "memory"}, "did you mean it by 'tpye'?"),
        ({"type": 3}, "--l2-adapter[1]: field 'type' must be the name of an adapter"),
        ({"type": "memry"}, "--l2-adapter[1]: no L2 adapter is called 'memry'; did you mean 'memory'?"),
        ({"type": "s3"}, "s3 -> pip install lmcache-l2-s3"),
        (
            {"type": "memory", "max_size": 1},
            "--l2-adapter[1]: no field is called 'max_size'; did you mean 'max_size_gb'?",
        ),
        ({"type": "memory", "max_size_gb": -1}, "--l2-adapter[1]: field 'max_size_gb' is -1: input should be greater"),
        ({"type": "memory", "eviction": {}}, "--l2-adapter[1]: field 'eviction' is not supported by this version"),
        ({"type": "memory", "serde": "x"}, "--l2-adapter[1]: field 'serde' is not supported by this version"),
        ({"type": "memory", "persist_enabled": "no"}, "field 'persist_enabled' is 'no': must be true or false"),
    ],
)
def test_a_wrong_adapter_is_one_line_that_says_which_and_what(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        adapter_specs([{"type": "memory"}, values], load_plugins(["builtin"]))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_adapter_that_knows_persist_enabled_is_told(install: Install) -> None:
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
