"""`lmcache coordinator`"""

from __future__ import annotations

import ctypes
import gc
import logging
import resource
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lmcache_client.errors import ConfigError
from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.settings import is_loopback, parser, read_settings, view_settings
from lmcache_coordinator.views import Views, installed
from lmcache_core import Command, CommandContext, EvictionPolicy, HttpRoute, SystemClock
from lmcache_fleet.state import open_state
from lmcache_fleet.view import Question
from lmcache_http.plugin_calls import PluginCalls
from lmcache_http.server import HttpLimits, HttpServer, TlsFiles
from lmcache_http.tokens import Scope, Tokens

if TYPE_CHECKING:
    from litestar.types import ASGIApp

logger = logging.getLogger(__name__)

FILES: Final = 256
"""Beside connections."""
SWITCH_SECONDS: Final = 0.0005
"""An answer waits for at most this long for each thread that takes in a page."""
LIMITS: Final = HttpLimits(idle_seconds=60.0, connections=4096, requests=2048)
"""Each member keeps a connection, and sends at least once per heartbeat interval.  All may send at once, after a pause."""
COLLECTOR: Final = (5_000, 20, 50)
"""With 1,000 connections a full collection takes 20 to 90 ms; with Python's own thresholds there was one in each second."""

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Of glibc's mallopt."""
LARGE_BYTES: Final = 128 * 1024
"""Of a buffer that goes back to the system at once."""
ARENAS: Final = 2


def run(arguments: Sequence[str], context: CommandContext) -> int:
    """Runs until SIGTERM or SIGINT.  Raises ConfigError."""
    settings = read_settings(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s LMCache %(levelname)s: %(message)s")
    names = [offer.name for offer in installed(context.plugins)]
    views = Views.open(context.plugins, view_settings(settings, names))
    tokens = Tokens(settings.token_file, scopes=tuple(Scope), flag="--token-file") if settings.token_file else None

    def new_policy() -> EvictionPolicy:
        policy: EvictionPolicy = context.plugins.open("eviction_policy", settings.eviction_policy, {})
        return policy

    try:
        new_policy()
    except ConfigError as error:
        raise ConfigError(f"--eviction-policy: {error}") from None
    state = open_state(settings.state, context.plugins)
    coordinator = Coordinator(settings, state, new_policy, SystemClock(), views)
    calls = PluginCalls()
    app = _app(coordinator, tokens, calls)
    server = HttpServer(
        settings.host,
        settings.port,
        tokens,
        lambda: app,
        name="coordinator",
        flags="",
        limits=LIMITS,
        tls=TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        if settings.tls_cert and settings.tls_key
        else None,
    )
    if tokens is None and not is_loopback(settings.host):
        logger.warning("--allow-unauthenticated: every client that reaches %s may use it", server.endpoint)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sys.setswitchinterval(SWITCH_SECONDS)
    give_memory_back()
    gc.collect()
    gc.freeze()  # what there is now stays: the collector is not to look through it while members wait
    gc.set_threshold(*COLLECTOR)
    _allow_files(LIMITS.connections + FILES)
    server.start()
    coordinator.start()
    logger.info("MP coordinator listening on %s", server.endpoint)
    stop.wait()
    server.stop()
    calls.close()
    coordinator.stop()
    views.close()
    state.close()
    return 0


def give_memory_back() -> None:
    """Have freed memory go back to the system.  By itself glibc keeps buffers of sizes that it has seen before in the heaps of
    threads, where smaller objects keep them from going back.  No effect with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((TRIM_THRESHOLD, LARGE_BYTES), (MMAP_THRESHOLD, LARGE_BYTES), (ARENA_MAX, ARENAS)):
            mallopt(option, value)


def _allow_files(wanted: int) -> None:
    """As many as the machine lets this process have: a shell's limit is often 1,024, and each member keeps a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < LIMITS.connections:
        logger.warning("%d files can be open at a time, and so at most that many servers be connected", wanted)


def _app(coordinator: Coordinator, tokens: Tokens | None, calls: PluginCalls) -> ASGIApp:
    """Raises ConfigError."""
    # imported here: the command's flags are read without a web framework
    from lmcache_coordinator.routes import ABOUT, coordinator_routes
    from lmcache_coordinator.routes.requests import ASKS
    from lmcache_http.application import http_app
    from lmcache_http.plugin_routes import Allowance, described_plugin_routes, plugin_routes

    def allow(route: HttpRoute) -> Allowance:
        return Allowance(ASKS, route.body_bytes_max) if isinstance(route, Question) else Allowance()

    routes = coordinator_routes(coordinator)
    added = coordinator.views.routes(path for route in routes for path in route.paths)
    return http_app(ABOUT, routes, tokens, plugin_routes(added, calls, allow), described_plugin_routes(added, allow))


COMMAND: Final = Command(run, lambda: [parser()])
