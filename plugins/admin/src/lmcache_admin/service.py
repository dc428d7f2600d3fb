"""The admin API as a service of the server."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmcache_admin.parts import AdminParts, open_parts
from lmcache_admin.settings import AdminSettings, is_loopback
from lmcache_core import ConfigError, PluginRoute, ServerInfo, Service, ServiceContext
from lmcache_http.admin_api.paths import ADMIN_PATHS
from lmcache_http.plugin_calls import ANSWER_SECONDS, PluginCalls
from lmcache_http.route_checks import route_check
from lmcache_http.server import LIMITS, HttpLimits, HttpServer
from lmcache_http.tokens import TOKEN_VARIABLE, Tokens, open_tokens

if TYPE_CHECKING:
    from litestar.types import ASGIApp

logger = logging.getLogger(__name__)


class AdminService(Service):
    """The port is bound when this is made; requests are answered a moment after `start`, when the web framework is imported,
    and until `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        tokens: Tokens | None,
        parts: AdminParts,
        plugins: Sequence[PluginRoute] = (),
        limits: HttpLimits = LIMITS,
        plugin_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`plugin_seconds`: how long a plugin's route may take to answer.  Raises ResourceError for a port in use."""
        self._calls = PluginCalls(plugin_seconds)
        self._parts, self._plugins = parts, plugins

        def app() -> ASGIApp:
            from lmcache_admin.api import build_api  # on the server's thread: it imports the web framework

            return build_api(tokens, parts, plugins, self._calls)

        self.http = HttpServer(host, port, tokens, app, name="admin", hide=parts.control.hide, limits=limits)

    @property
    def endpoints(self) -> Mapping[str, str]:
        return {"http": self.http.endpoint}

    def start(self, server: ServerInfo) -> None:
        self.http.start()

    def stop(self, seconds: float) -> None:
        self._parts.openings.stop()

    def close(self) -> None:
        self.http.stop()
        self._calls.close()
        self._parts.deletions.stop()

    def status(self) -> Mapping[str, Any]:
        return {
            "http_routes": [
                {
                    "plugin": each.plugin,
                    "offer": each.offer,
                    "method": each.route.method,
                    "path": each.route.path,
                    "open": each.route.open,
                }
                for each in self._plugins
            ]
        }


def open_admin(settings: AdminSettings, context: ServiceContext) -> AdminService:
    """Raises ConfigError for tokens that cannot be read, ResourceError for a port in use."""
    if settings.port == context.value_at("port"):
        raise ConfigError(f"--port and --http-port are both {settings.port}; choose another one for --http-port")
    tokens = open_tokens(settings.token_file, os.environ)
    if tokens is None and not is_loopback(settings.host):
        logger.warning(
            "--http-allow-unauthenticated: every client that reaches %s:%d may use it", settings.host, settings.port
        )
    context.control.hide_also({token for token in (os.environ.get(TOKEN_VARIABLE),) if token})
    routes = context.http_routes(route_check({"lmcache-admin": ADMIN_PATHS}))
    parts = open_parts(lambda: context.server, context.control)
    return AdminService(settings.host, settings.port, tokens, parts, routes)
