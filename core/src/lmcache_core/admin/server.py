"""The admin API on its port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmcache_core.admin.plugin_calls import ANSWER_SECONDS, PluginCalls
from lmcache_core.admin.plugin_route import PluginRoute
from lmcache_core.admin.ports import AdminPorts
from lmcache_http.server import LIMITS, HttpLimits, HttpServer
from lmcache_http.tokens import Tokens

if TYPE_CHECKING:
    from litestar import Litestar


class AdminServer:
    """The port is bound when this is made.  All methods belong to the thread that starts and stops the server."""

    def __init__(
        self,
        host: str,
        port: int,
        tokens: Tokens | None,
        ports: AdminPorts,
        plugins: Sequence[PluginRoute] = (),
        limits: HttpLimits = LIMITS,
        plugin_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`plugin_seconds`: how long a plugin's route may take to answer."""
        self._calls = PluginCalls(plugin_seconds)

        def app() -> Litestar:
            from lmcache_core.admin.api import build_api  # on the server's thread: it imports the web framework

            return build_api(tokens, ports, plugins, self._calls)

        self.http = HttpServer(host, port, tokens, app, name="admin", hide=ports.control.hide, limits=limits)

    @property
    def endpoint(self) -> str:
        """Where it answers, with the port that was really bound."""
        return self.http.endpoint

    def start(self) -> None:
        """Begin to answer soon, and return at once."""
        self.http.start()

    def stop(self) -> None:
        """As `HttpServer.stop`."""
        self.http.stop()
        self._calls.close()
