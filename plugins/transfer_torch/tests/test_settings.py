"""The flags about server-driven transfer reach the request module, or say what it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.offer_specs import OfferSpec, offer_specs, operation_remedy
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.file_memory import FileMemorySettings
from lmcache_transfer_torch.settings import TransferFlags


def modules(*flags: str) -> dict[str, OfferSpec]:
    plugins = load_plugins(["transfer_torch"])
    settings = read_settings(ServerFlags(plugins).given(flags), plugins)
    return {spec.name: spec for spec in offer_specs(settings, plugins).request_modules}


def settings_of(*flags: str) -> dict[str, Any]:
    settings = modules(*flags)["lmcache_driven"].settings
    assert settings is not None
    return settings.model_dump()


def test_flags_reach_the_module() -> None:
    assert settings_of() == TransferSettings.model_validate({}).model_dump()
    given = settings_of(
        "--isolated-ipc",
        "--null-block-id",
        "5",
        "--separate-object-groups",
        "--offer-settings",
        '{"request_module:lmcache_driven": {"copy_threads": 2}}',
    )
    assert given == {"isolated_ipc": True, "null_block_id": 5, "separate_object_groups": True, "copy_threads": 2}


def test_defaults_of_flags_are_those_of_the_module() -> None:
    assert (
        TransferFlags.model_validate({}).model_dump().items()
        <= TransferSettings.model_validate({}).model_dump().items()
    )


def test_a_flag_and_a_setting_of_the_same_name_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="--null-block-id and 'null_block_id' of --offer-settings request_module:"):
        settings_of(
            "--null-block-id", "5", "--offer-settings", '{"request_module:lmcache_driven": {"null_block_id": 5}}'
        )


def test_a_flag_whose_module_was_not_chosen_names_the_remedy() -> None:
    mode = ("--supported-transfer-mode", "engine_driven")
    assert "lmcache_driven" not in modules("--null-block-id", "0", "--no-isolated-ipc", *mode)
    with pytest.raises(ConfigError, match=r"--isolated-ipc: .*is not in use .*--supported-transfer-mode auto or"):
        modules("--isolated-ipc", *mode)


def test_an_operation_of_the_module_has_a_remedy() -> None:
    remedy = operation_remedy(load_plugins(["transfer_torch"]), "register_kv_cache")
    assert remedy == "start the server with --supported-transfer-mode auto or lmcache_driven"


def l1_memory(*flags: str) -> OfferSpec | None:
    plugins = load_plugins(["transfer_torch"])
    return offer_specs(read_settings(ServerFlags(plugins).given(flags), plugins), plugins).l1_memory


def test_a_path_makes_l1_a_file() -> None:
    assert l1_memory("--no-gds-l1-use-direct-io") is None, "that alone asks for nothing"
    assert l1_memory("--gds-l1-path", "/mnt/nvme", "--no-gds-l1-use-direct-io") == OfferSpec(
        OfferKind.L1_MEMORY, "file", FileMemorySettings(path="/mnt/nvme", use_direct_io=False)
    )


def test_a_file_does_not_go_with_settings_about_memory() -> None:
    said = "--gds-l1-path: L1 does not lie in core's memory, which --shm-name is about; leave one of them out"
    with pytest.raises(ConfigError, match=said):
        l1_memory("--gds-l1-path", "/mnt/nvme", "--shm-name", "a")
