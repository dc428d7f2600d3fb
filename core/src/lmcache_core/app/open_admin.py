"""The admin API over the parts of a server."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

from lmcache_core.admin.cache_ports import CachePorts
from lmcache_core.admin.ports import AdminPorts
from lmcache_core.admin.server import AdminServer
from lmcache_core.app.admin_api import AdminApi
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.log_levels import LogLevels
from lmcache_core.app.open_changes import Changes
from lmcache_core.app.open_http_routes import RoutesContext, open_http_routes
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.missing_modules import missing_modules
from lmcache_core.app.plugins.plugin_report import record
from lmcache_core.app.server import Server
from lmcache_core.app.thread_list import thread_list
from lmcache_core.contracts.hookspecs import CONTRACT_VERSION
from lmcache_core.contracts.server_control import ServerControl
from lmcache_core.server.chunk_addresses import ChunkAddresses
from lmcache_core.storage.l2_deletions import L2Deletions
from lmcache_core.storage.l2_keys import L2Keys
from lmcache_http.admin_api.server import Version
from lmcache_http.tokens import open_tokens


def open_admin(
    common: CommonParts,
    tiers: Tiers,
    addresses: ChunkAddresses,
    changes: Changes,
    server: Callable[[], Server],
) -> AdminApi:
    """`server` is asked for when a request comes, because the server owns the admin API.  Raises LMCacheError."""
    objects = _objects(common, tiers, addresses)
    context = RoutesContext(lambda: server().view, {name: asked.own for name, asked in common.subscribers.items()})
    routes = open_http_routes(common.offers.http_routes, common.plugins, context)
    settings = common.settings
    if not settings.http_enabled:
        return AdminApi(None, routes, objects)
    tokens = open_tokens(settings.http_token_file, os.environ)
    ports = _ports(common, tiers, objects, changes, server)
    admin = AdminServer(settings.http_host, settings.http_port, tokens, ports, routes)
    common.undo.callback(admin.stop)
    return AdminApi(admin, routes, objects)


def _objects(common: CommonParts, tiers: Tiers, addresses: ChunkAddresses) -> CachePorts:
    storage, keys = tiers.storage, L2Keys(lambda: tiers.l2.clients)
    return CachePorts(
        l1=storage.l1_objects,
        l2=keys,
        deletions=L2Deletions(keys, common.clock),
        pins=storage.pins,
        prefetches=storage.orders,
        addresses=addresses,
        chunk_tokens=common.settings.chunk_size,
        boot=common.boot_id,
    )


def _ports(
    common: CommonParts,
    tiers: Tiers,
    objects: CachePorts,
    changes: Changes,
    server: Callable[[], Server],
) -> AdminPorts:
    control = ServerControl(
        quotas=tiers.quotas,
        cache=tiers.storage,
        adapters=changes.adapters,
        settings=changes.settings,
        log_levels=LogLevels(common.clock, common.bus),
        plugins=lambda: plugin_rows(common.plugins),
        threads=lambda: thread_list(server().status()["threads"]),
        hide=common.hidden.data,
    )
    return AdminPorts(
        status=lambda: server().status(),
        conditions=lambda: server().conditions(),
        version=lambda: Version(
            version=server().info.version,
            contract=CONTRACT_VERSION,
            python=platform.python_version(),
            native=common.kernels.native,
            instance_id=server().info.instance_id,
        ),
        control=control,
        objects=objects,
    )


def plugin_rows(plugins: LoadedPlugins) -> list[Mapping[str, Any]]:
    """As in `lmcache plugins list`, with hooks and without tracebacks, which may quote secrets."""
    known = plugins.rows()
    rows: list[Mapping[str, Any]] = []
    for row, absent in zip(known, missing_modules(known), strict=True):
        about = record(row, absent)
        del about["traceback"]
        rows.append({**about, "hooks": plugins.hooks_of(row.candidate.name)})
    return rows
