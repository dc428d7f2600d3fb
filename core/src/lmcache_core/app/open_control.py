"""What services may do to the server, over its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmcache_core.app.adapter_changes import AdapterChanges
from lmcache_core.app.commands.plugins_list import record
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.setting_changes import SettingChanges
from lmcache_core.contracts.server_control import ServerControl
from lmcache_core.server.chunk_addresses import ChunkAddresses
from lmcache_core.storage.cache_control import OperatorCache


def open_control(
    common: CommonParts, tiers: Tiers, addresses: ChunkAddresses, adapters: AdapterChanges, settings: SettingChanges
) -> ServerControl:
    hidden = common.hidden
    return ServerControl(
        quotas=tiers.quotas,
        cache=OperatorCache(tiers.cache, tiers.storage, tiers.prefetch, common.clock),
        resolve=addresses.resolve,
        freeze=tiers.storage.freeze,
        adapters=adapters,
        settings=settings,
        plugins=lambda: plugin_rows(common.plugins),
        events=common.bus,
        native=common.kernels.native,
        hide=hidden.data,
        hide_also=hidden.learn,
    )


def plugin_rows(plugins: LoadedPlugins) -> list[Mapping[str, Any]]:
    """As in `lmcache plugins list`, with hooks and without tracebacks, which may quote secrets."""
    rows: list[Mapping[str, Any]] = []
    for row in plugins.rows():
        about = record(row)
        del about["traceback"]
        rows.append({**about, "hooks": plugins.hooks_of(row.candidate.name)})
    return rows
