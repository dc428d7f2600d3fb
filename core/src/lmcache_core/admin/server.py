"""Runs the admin API beside the engine port, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from lmcache_client.errors import ResourceError
from lmcache_core.admin.daemon_pool import DaemonPool
from lmcache_core.admin.limits import HttpLimits
from lmcache_core.admin.plugin_calls import PluginCalls
from lmcache_core.admin.plugin_route import PluginRoute
from lmcache_core.admin.ports import AdminPorts
from lmcache_core.admin.token import Tokens

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 3.0
"""How long answers that are under way may take once the server stops."""
SETTLE_SECONDS: Final = 0.02
CALL_THREADS: Final = 16
"""For core's own routes, which take locks and now and then ask a backend."""
LIMITS: Final = HttpLimits()
_BACKLOG: Final = 128


class AdminServer:
    """The port is bound when this is made, so that one which is taken is known before anything else is started; nobody
    is answered before `start`.  All methods belong to the thread that starts and stops the server."""

    def __init__(
        self,
        host: str,
        port: int,
        tokens: Tokens | None,
        ports: AdminPorts,
        plugins: Sequence[PluginRoute] = (),
        limits: HttpLimits = LIMITS,
    ) -> None:
        self._host, self._tokens, self._ports = host, tokens, ports
        self._plugins, self._limits = plugins, limits
        self._plugin_calls = PluginCalls(limits.plugin_seconds)
        self._socket = _bind(host, port)
        bound = self._socket.getsockname()
        self.endpoint = f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
        """Where it answers, with the port that was really bound."""
        self._is_loopback = ip_address(bound[0].partition("%")[0]).is_loopback
        self._server: uvicorn.Server | None = None
        self._wake: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None
        self._asked_to_stop = threading.Event()

    def start(self) -> None:
        """Begin to answer soon, and return at once: the web framework is imported on the thread."""
        self._thread = threading.Thread(target=self._run, name="admin-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the answers that are under way, within `STOP_SECONDS`, and give the port back.  Again: nothing."""
        self._asked_to_stop.set()
        if self._server is not None:
            self._server.should_exit = True
        with contextlib.suppress(RuntimeError):  # its loop has ended by itself
            self._wake()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS + 1.0)
            if self._thread.is_alive():
                logger.warning("admin API did not stop in time endpoint=%s", self.endpoint)
        self._plugin_calls.close()
        self._socket.close()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:  # the top of a thread; the cache goes on without its admin API
            logger.exception("admin API failed endpoint=%s", self.endpoint)

    def _serve(self) -> None:
        # here, because the engine port must not wait for a web framework to be imported
        import uvicorn

        from lmcache_core.admin.api import build_api
        from lmcache_core.admin.connection import Connection
        from lmcache_core.admin.gate import Gate

        class LimitedConnection(Connection):
            limits = self._limits

        api = build_api(self._tokens, self._ports, self._plugins, self._plugin_calls)
        config = uvicorn.Config(
            Gate(
                api,
                self._limits,
                self._host,
                self._ports.control.hide,
                tokenless=self._tokens is None,
                local_only=self._tokens is None and self._is_loopback,
            ),
            http=LimitedConnection,
            h11_max_incomplete_event_size=self._limits.header_bytes,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # whatever clients send wrong is theirs to know
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=int(STOP_SECONDS),
        )
        ending = asyncio.Event()

        class Server(uvicorn.Server):
            """uvicorn looks ten times a second whether it should end; this one is told, and idles meanwhile."""

            async def main_loop(self) -> None:
                await self.on_tick(0)
                await ending.wait()

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                # a connection that is being accepted while its server is closed would never be closed itself
                await asyncio.sleep(SETTLE_SECONDS)
                await super().shutdown(sockets)

        async def run(server: uvicorn.Server) -> None:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(DaemonPool("admin-call", CALL_THREADS))
            self._wake = lambda: loop.call_soon_threadsafe(ending.set)
            if not self._asked_to_stop.is_set():
                # on any thread but the main one uvicorn leaves signals alone
                await server.serve(sockets=[self._socket])

        self._server = Server(config)
        asyncio.run(run(self._server))


def _bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet.  Raises ResourceError."""
    where = f"--http-host {host} --http-port {port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ResourceError(f"{where}: the host is not known here: {error.strerror}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ResourceError(
            f"{where}: cannot be bound: {error.strerror}; stop who has it, or choose another --http-port, or --no-http"
        ) from None
    return bound
