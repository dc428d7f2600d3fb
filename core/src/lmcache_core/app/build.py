"""The composition root: with its `open_*` files, what knows all parts.  It reads like docs/internals/architecture.md."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import lmcache_core
from lmcache_core.app.adapter_changes import AdapterChanges
from lmcache_core.app.common_parts import CommonParts, open_common
from lmcache_core.app.masking import Hidden
from lmcache_core.app.open_arena import open_preallocation
from lmcache_core.app.open_engine_port import EnginePort, open_engine_port, open_modules, open_port
from lmcache_core.app.open_services import open_control, open_services
from lmcache_core.app.open_tiers import open_tiers
from lmcache_core.app.parts import Parts
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.server import Server
from lmcache_core.app.server_conditions import watch_server
from lmcache_core.app.setting_changes import SettingChanges
from lmcache_core.app.settings import ServerSettings
from lmcache_core.app.shown_settings import all_secrets
from lmcache_core.contracts.server_view import ServerInfo
from lmcache_core.controllers.adapter_jobs import CompletionThread
from lmcache_core.controllers.supervisor import Supervisor


def build(
    settings: ServerSettings, plugins: LoadedPlugins, hidden: Hidden | None = None, *, is_served: bool = True
) -> Server:
    """Make every part and open every resource, in the order in which they need each other; nothing runs before
    `Server.start`.  `hidden` receives the secrets of the configuration, and those that come later.  Unless `is_served`,
    nothing listens for engines.  Raises LMCacheError, with everything given back, when something is not available."""
    hidden = hidden or Hidden()
    hidden.learn(all_secrets(settings, plugins))
    with ExitStack() as undo:
        common = open_common(settings, plugins, hidden, undo)
        tiers = open_tiers(common)
        engine_port = open_engine_port(common, tiers)
        if is_served:
            open_port(common, engine_port, settings.host, settings.port, undo)
        elif common.offers.services:  # which look for modules
            open_modules(common, engine_port, undo)
        supervisor, completions = Supervisor(), CompletionThread(tiers.l2.clients, common.clock, common.bus)
        adapters = AdapterChanges(common, tiers, completions, supervisor)
        changes = SettingChanges(common, tiers, engine_port.gate)
        running: list[Server] = []  # services show the server, and the server owns the services
        control = open_control(common, tiers, engine_port.addresses, adapters, changes)
        services = open_services(common, control, lambda: running[0] if running else None, engine_port.modules, tiers)
        info = _info(common, engine_port, services.endpoints)
        parts = Parts(
            common=common,
            info=info,
            tiers=tiers,
            preallocation=open_preallocation(settings, tiers.arena, common.clock),
            engine_port=engine_port,
            completions=completions,
            supervisor=supervisor,
            adapters=adapters,
            settings=changes,
            services=services,
            control=control,
        )
        watch_server(parts)
        running.append(Server(parts))
        undo.pop_all()
        return running[0]


def _info(common: CommonParts, engine_port: EnginePort, endpoints: Mapping[str, str]) -> ServerInfo:
    return ServerInfo(
        instance_id=common.instance_id,
        boot_id=common.boot_id,
        engine_endpoint=engine_port.endpoint,
        http_endpoint=endpoints.get("http"),
        chunk_tokens=common.settings.chunk_size,
        version=lmcache_core.__version__,
        endpoints=endpoints,
    )
