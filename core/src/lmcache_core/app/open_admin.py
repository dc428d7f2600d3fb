"""The admin API over the parts of a server."""

from __future__ import annotations

import os
from collections.abc import Callable

from lmcache_core.admin.cache_ports import CachePorts
from lmcache_core.admin.ports import AdminPorts
from lmcache_core.admin.server import AdminServer
from lmcache_core.admin.token import open_tokens
from lmcache_core.app.admin_api import AdminApi
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.log_levels import LogLevels
from lmcache_core.app.open_changes import Changes
from lmcache_core.app.open_http_routes import RoutesContext, open_http_routes
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.app.running_configuration import AdapterInUse, RunningConfiguration, server_version
from lmcache_core.app.server import Server
from lmcache_core.app.thread_list import thread_list
from lmcache_core.server.chunk_addresses import ChunkAddresses
from lmcache_core.storage.l2_deletions import L2Deletions
from lmcache_core.storage.l2_keys import L2Keys


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
    storage, keys = tiers.storage, L2Keys(lambda: tiers.l2.ports)
    return CachePorts(
        l1=storage.objects,
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
    configuration = RunningConfiguration(
        common.settings,
        common.plugins,
        lambda: [AdapterInUse(each.port.index, each.name, each.spec.given) for each in tiers.l2.adapters],
        changes.settings.changed,
    )
    return AdminPorts(
        status=lambda: server().status(),
        conditions=lambda: server().conditions(),
        quotas=tiers.quotas,
        cache=tiers.storage,
        version=lambda: server_version(server().info, common.kernels),
        config=configuration,
        plugins=configuration.plugins,
        threads=lambda: thread_list(server().status()["threads"]),
        log_levels=LogLevels(common.clock, common.bus),
        hide=common.hidden.data,
        objects=objects,
        adapters=changes.adapters,
        settings=changes.settings,
    )
