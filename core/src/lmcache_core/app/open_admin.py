"""The admin API over the parts of a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmcache_core.admin.cache_ports import CachePorts
from lmcache_core.admin.plugin_route import PluginRoute
from lmcache_core.admin.ports import AdminPorts, CachePort, QuotaPort
from lmcache_core.admin.reconfigure_port import AdaptersPort, SettingsPort
from lmcache_core.admin.server import AdminServer
from lmcache_core.admin.token import open_tokens
from lmcache_core.app.log_levels import LogLevels
from lmcache_core.app.masking import Hidden
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.running_configuration import AdapterInUse, RunningConfiguration, server_version
from lmcache_core.app.server import Server
from lmcache_core.app.settings import ServerSettings
from lmcache_core.app.thread_list import thread_list
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher


def admin_ports(
    settings: ServerSettings,
    plugins: LoadedPlugins,
    server: Callable[[], Server],
    adapters: Callable[[], Sequence[AdapterInUse]],
    clock: Clock,
    events: Publisher,
    *,
    quotas: QuotaPort,
    cache: CachePort,
    objects: CachePorts,
    hidden: Hidden,
    changed: Callable[[], Mapping[str, Any]] = dict,
    adapter_changes: AdaptersPort | None = None,
    setting_changes: SettingsPort | None = None,
) -> AdminPorts:
    """`server` is asked for when a request comes, because the server owns the admin API.  `changed`: settings that were
    changed while it ran.  `hidden`: what no answer has in it, whichever error message it got into."""
    configuration = RunningConfiguration(settings, plugins, adapters, changed)
    return AdminPorts(
        status=lambda: server().status(),
        health=lambda: server().health(),
        quotas=quotas,
        cache=cache,
        version=lambda: server_version(server().info, server().kernels),
        config=configuration,
        plugins=configuration.plugins,
        threads=lambda: thread_list(server().status()["threads"]),
        log_levels=LogLevels(clock, events),
        hide=hidden.data,
        objects=objects,
        adapters=adapter_changes,
        settings=setting_changes,
    )


def open_admin(settings: ServerSettings, ports: AdminPorts, routes: Sequence[PluginRoute]) -> AdminServer | None:
    """None with --no-http.  Raises ConfigError and ResourceError."""
    if not settings.http_enabled:
        return None
    tokens = open_tokens(settings.http_token_file, os.environ)
    return AdminServer(settings.http_host, settings.http_port, tokens, ports, routes)
