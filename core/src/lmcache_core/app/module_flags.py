"""Flags of the server that are settings of request modules: core parses them, and whoever offers the module obeys them.

A plugin that offers a module of the same name is handed the same values, as far as its settings model has the fields.
What engines ask for and no module answers is told with the remedy from here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import flag_of
from lmcache_core.app.plugins.known_names import DISTRIBUTIONS_OF_OFFERS
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.settings import PluginSettings

LMCACHE_DRIVEN: Final = "lmcache_driven"


class Use(NamedTuple):
    """`setting` of the server is the setting of the same name of this module."""

    setting: str
    module: str


USES: Final = (
    Use("isolated_ipc", LMCACHE_DRIVEN),
    Use("null_block_id", LMCACHE_DRIVEN),
    Use("separate_object_groups", LMCACHE_DRIVEN),
)
_MODULES: Final = MappingProxyType(
    dict.fromkeys(("register_kv_cache", "unregister_kv_cache", "store", "retrieve"), LMCACHE_DRIVEN)
)
"""Which module answers an operation, by its name."""


def check_module_flags(settings: ServerSettings, plugins: LoadedPlugins, active: Collection[str]) -> None:
    """Raise ConfigError for a flag that was given, asks for something, and has no module in use to obey it."""
    for use in USES:
        if _asks(settings, use.setting) and use.module not in active:
            raise ConfigError(
                f"{_flag(use.setting)} is a setting of request module '{use.module}', which is not in use; "
                f"{_remedy(plugins, use.module)}, or leave it out"
            )


def with_module_flags(
    settings: ServerSettings, module: str, model: type[PluginSettings] | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """`given` (of `--offer-settings`) and what the flags say, for the settings `model` of this module.  Raises ConfigError
    for what is given twice, and for a flag that was given and has no field there."""
    fields = model.model_fields if model else {}
    values = dict(given)
    for setting in (use.setting for use in USES if use.module == module):
        if setting not in settings.model_fields_set:
            continue
        if setting in given:
            where = f"--offer-settings request_module:{module}"
            raise ConfigError(f"{_flag(setting)} and '{setting}' of {where} are the same; leave one of them out")
        if setting in fields:
            values[setting] = getattr(settings, setting)
        elif _asks(settings, setting):
            raise ConfigError(f"{_flag(setting)}: request module '{module}' has no setting '{setting}' for it")
    return values


def operation_remedies(plugins: LoadedPlugins) -> dict[str, str]:
    """What an operator can do so that an operation is answered which nobody here answers, by its name."""
    return {operation: _remedy(plugins, module) for operation, module in _MODULES.items()}


def _remedy(plugins: LoadedPlugins, module: str) -> str:
    """What brings a module into use."""
    if module in {offer.name for offer in plugins.offers(OfferKind.REQUEST_MODULE)}:
        return f"start the server with --supported-transfer-mode auto or {module}"
    return f"pip install {DISTRIBUTIONS_OF_OFFERS[OfferKind.REQUEST_MODULE][module]} and start the server again"


def _asks(settings: ServerSettings, name: str) -> bool:
    return name in settings.model_fields_set and getattr(settings, name) != ServerSettings.model_fields[name].default


def _flag(name: str) -> str:
    return flag_of(name, ServerSettings.model_fields[name])
