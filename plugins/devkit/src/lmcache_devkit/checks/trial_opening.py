"""Opens what is to be checked once, before any requirement: a backend that cannot be reached is one fault, not one per
requirement."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack, closing, suppress
from traceback import format_exception

from lmcache_client.errors import ConfigError, LMCacheError, ResourceError
from lmcache_core.app.common_parts import open_subscribers
from lmcache_core.app.console.command_line import selection_from
from lmcache_core.app.offer_specs import offer_spec
from lmcache_core.app.open_http_routes import RoutesContext, open_http_routes
from lmcache_core.app.open_l2 import open_adapter
from lmcache_core.app.open_modules import open_request_modules
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.l1_memory import L1Memory, L1MemoryContext
from lmcache_core.contracts.l2_eviction import L2Eviction
from lmcache_core.contracts.service import Service
from lmcache_core.contracts.transfer_channel import ChannelContext, TransferChannel
from lmcache_core.model.errors import PluginError
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.check_limit import CHECK_SECONDS_MAX, CheckLimit, CheckTimedOut
from lmcache_devkit.check_reporter import Unopened
from lmcache_devkit.checks.check_request import CheckRequest
from lmcache_devkit.fake_server_view import no_server_yet
from lmcache_devkit.l2_eviction_suite import FullAdapter, L2EvictionSuite, eviction_context
from lmcache_devkit.module_bench import ModuleBench
from lmcache_devkit.service_suite import FakeServiceContext
from lmcache_http.admin_api.paths import ADMIN_PATHS
from lmcache_http.route_checks import route_check

_CLOSE_SECONDS = 10.0


def try_to_open(check: CheckRequest) -> Unopened | None:
    """Open it as a server does, and close it again.  What is wrong, if anything is."""
    try:
        with CheckLimit().limit(CHECK_SECONDS_MAX):
            _open(check)
    except LMCacheError as error:
        return _unopened(error)
    except CheckTimedOut as error:
        return Unopened("plugin", f"opening and closing it once: {error}", "".join(format_exception(error)))
    return None


def _open(check: CheckRequest) -> None:
    """Open it and close it again.  A close may fail: the requirements of closing say what is wrong."""
    plugins, kind = selection_from(os.environ).load(), OfferKind(check.kind)
    spec = offer_spec(plugins, kind, check.name, check.settings, "--settings")
    if kind is OfferKind.SERDE and plugins.offer(kind, check.name).wraps:
        raise ConfigError(
            f"serde '{check.name}' puts other serdes around an adapter; check one of those, such as serde:zstd"
        )
    match kind:
        case OfferKind.L2_ADAPTER:
            context = adapter_context(BorrowedMemory(1 << 20), name=check.name)
            adapter = open_adapter(check.name, spec.settings, plugins, context)
            with suppress(Exception):
                adapter.close(_CLOSE_SECONDS)
        case OfferKind.REQUEST_MODULE:
            with ModuleBench() as bench, ExitStack() as stack:
                open_request_modules([spec], plugins, bench.context, stack)
        case OfferKind.SUBSCRIBER:
            for asked in open_subscribers([spec], plugins).values():
                with suppress(Exception):
                    asked.subscriber.close()
        case OfferKind.HTTP_ROUTES:
            routes = RoutesContext(no_server_yet, {}, dict)
            open_http_routes([spec], plugins, routes, route_check({"lmcache-admin": ADMIN_PATHS}))
        case OfferKind.L1_MEMORY:
            memory = spec.open_as(L1Memory, plugins, L1MemoryContext(1 << 20, 4096, "trial", "trial"))
            with suppress(Exception), closing(memory):
                memory.unlink()
        case OfferKind.TRANSFER_CHANNEL:
            with closing(BorrowedMemory(1 << 20, shared=True)) as shared:
                where = ChannelContext(shared.region, "127.0.0.1", "trial", SystemClock(), logging.getLogger("trial"))
                channel = spec.open_as(TransferChannel, plugins, where)
                with suppress(Exception):
                    channel.close(_CLOSE_SECONDS)
        case OfferKind.SERVICE:
            service = spec.open_as(Service, plugins, FakeServiceContext())
            with suppress(Exception):
                service.close()
        case L2EvictionSuite.kind:
            with closing(FullAdapter()) as full:
                spec.open_as(L2Eviction, plugins, eviction_context(full)).stop()
        case _:
            spec.open(plugins)


def _unopened(error: LMCacheError) -> Unopened:
    match error:
        case ResourceError():
            return Unopened("resource", str(error), "")
        case ConfigError():
            return Unopened("config", str(error), "")
        case PluginError() if error.__cause__ is None:  # its text says all: no exception of the plugin is behind it
            return Unopened("plugin", str(error), "")
        case _:
            return Unopened("plugin", str(error), "".join(format_exception(error.__cause__ or error)))
