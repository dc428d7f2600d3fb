"""Flags of the server that are settings of request modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_client.operations import KNOWN_REQUESTS
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.flags import ServerFlags
from lmcache_core.app.module_flags import USES, operation_remedies
from lmcache_core.app.offer_specs import OfferSpec, offer_specs
from lmcache_core.app.plugins.discovery import Origin, discover
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings

Install = Callable[..., Path]
SOURCE = """
    from lmcache_core import Offer, PluginSettings, hookimpl

    class Settings(PluginSettings):
        isolated_ipc: bool = False
        null_block_id: int = 0
        copy_threads: int = 1

    def open_it(settings, context):
        return settings

    @hookimpl
    def lmcache_request_modules():
        return [Offer("lmcache_driven", "t", "acme_plugin:open_it", "acme_plugin:Settings")]
    """


@pytest.fixture
def acme(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's module, and nothing else beside core."""
    install("acme", SOURCE)
    kept = [each for each in discover() if each.name == "acme" or each.origin is Origin.BUILTIN]
    monkeypatch.setattr("lmcache_core.app.plugins.loading.discover", lambda: kept)


def modules(*flags: str) -> dict[str, OfferSpec]:
    settings = read_settings(ServerFlags().given(flags))
    return {spec.name: spec for spec in offer_specs(settings, load_plugins(settings.plugins)).request_modules}


def told(*flags: str) -> dict[str, Any]:
    settings = modules(*flags)["lmcache_driven"].settings
    assert settings is not None
    return settings.model_dump()


def test_every_setting_and_operation_of_the_tables_exists(only_core: None) -> None:
    assert {use.setting for use in USES} <= set(ServerSettings.model_fields)
    assert set(operation_remedies(load_plugins(()))) <= {known.name for known in KNOWN_REQUESTS}


def test_flags_reach_the_module(acme: None) -> None:
    assert told() == {"isolated_ipc": False, "null_block_id": 0, "copy_threads": 1}
    given = told(
        "--isolated-ipc",
        "--null-block-id",
        "5",
        "--offer-settings",
        '{"request_module:lmcache_driven": {"copy_threads": 2}}',
    )
    assert given == {"isolated_ipc": True, "null_block_id": 5, "copy_threads": 2}


def test_a_flag_and_a_setting_of_the_same_name_are_one_too_many(acme: None) -> None:
    with pytest.raises(ConfigError, match="--null-block-id and 'null_block_id' of --offer-settings request_module:"):
        told("--null-block-id", "5", "--offer-settings", '{"request_module:lmcache_driven": {"null_block_id": 5}}')


def test_a_module_without_the_setting_is_not_skipped_in_silence(acme: None) -> None:
    assert "lmcache_driven" in modules("--supported-transfer-mode", "lmcache_driven", "--no-separate-object-groups")
    with pytest.raises(ConfigError, match="--separate-object-groups: request module 'lmcache_driven' has no setting"):
        modules("--supported-transfer-mode", "lmcache_driven", "--separate-object-groups")


def test_a_flag_without_its_module_names_the_remedy(only_core: None) -> None:
    assert "lmcache_driven" not in modules("--null-block-id", "0", "--no-isolated-ipc")
    with pytest.raises(ConfigError, match=r"--isolated-ipc .* pip install lmcache-transfer-torch .* or leave it out"):
        modules("--isolated-ipc")


def test_a_flag_whose_module_was_not_chosen_names_the_remedy(acme: None) -> None:
    with pytest.raises(ConfigError, match="not in use; start the server with --supported-transfer-mode auto"):
        modules("--isolated-ipc", "--supported-transfer-mode", "engine_driven")


@pytest.mark.parametrize(
    ("flag", "name"), [("--supported-transfer-mode", "lmcache_driven"), ("--engine-type", "acme_engine")]
)
def test_a_module_that_is_not_installed_is_told_by_the_flag_that_names_it(
    only_core: None, flag: str, name: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{flag}: no request module is called '{name}'"):
        modules(flag, name)
