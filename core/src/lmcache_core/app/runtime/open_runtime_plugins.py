"""From settings to the programs beside the server; nothing is started yet."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmcache_core.app.masking import Hidden
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.runtime.program import Program
from lmcache_core.app.runtime.program_environment import named_secrets, program_environment
from lmcache_core.app.runtime.program_files import FLAG, ProgramFile, find_programs
from lmcache_core.app.runtime.runtime_plugins import RuntimePlugins
from lmcache_core.app.shown_settings import all_secrets
from lmcache_core.contracts.server_info import ServerInfo

if TYPE_CHECKING:
    from lmcache_core.app.settings import ServerSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuntimePluginSpecs:
    """Programs that were found, and the secrets that they get."""

    files: tuple[ProgramFile, ...]
    secrets: Mapping[str, Any]


def runtime_plugin_specs(settings: ServerSettings, environment: Mapping[str, str]) -> RuntimePluginSpecs:
    """Raises ConfigError before anything is opened."""
    if settings.safe_mode and settings.runtime_plugin_locations:
        logger.warning("--safe-mode: the programs of %s are not started", FLAG)
        return RuntimePluginSpecs((), {})
    return RuntimePluginSpecs(find_programs(settings.runtime_plugin_locations), named_secrets(settings, environment))


def open_runtime_plugins(
    specs: RuntimePluginSpecs,
    settings: ServerSettings,
    plugins: LoadedPlugins,
    info: ServerInfo,
    environment: Mapping[str, str],
) -> RuntimePlugins | None:
    """None where there are no programs."""
    if not specs.files:
        return None
    told = program_environment(settings, plugins, info, specs.secrets, environment)
    secrets = all_secrets(settings, plugins, environment) | {str(value) for value in specs.secrets.values()}
    hidden = Hidden(secrets - set(specs.secrets))  # the places are none, whatever they are called
    return RuntimePlugins([Program(file, told, hidden.text) for file in specs.files])
