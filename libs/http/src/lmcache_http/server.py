"""Runs an HTTP API on a thread of its own, within limits."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from ipaddress import ip_address
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lmcache_client.errors import ConfigError, ResourceError
from lmcache_http.daemon_pool import DaemonPool
from lmcache_http.tokens import Tokens


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one client may cost a server.  A request beyond one of them is refused with a problem; where that cannot be sent any
    more, the connection is closed."""

    header_bytes: int = 16 * 1024
    """Request line and headers together."""
    header_count: int = 100
    target_bytes: int = 8 * 1024
    """Path and query, as they are sent."""
    request_seconds: float = 10.0
    """From a connection's first moment, or a further request's first byte, to the last byte of its body."""
    stalled_seconds: float = 20.0
    """How long a client may leave an answer unread."""
    idle_seconds: float = 5.0
    """How long a connection is kept without a request."""
    connections: int = 256
    """Beyond them, the one that has kept the server waiting for a request for longest is hung up on."""
    requests: int = 64
    """That are being answered at once."""


class TlsFiles(NamedTuple):
    """In PEM."""

    certificate: str
    key: str
    client_ca: str | None = None
    """With it, only clients are let in that have a certificate from here."""


if TYPE_CHECKING:
    import uvicorn
    from litestar.types import ASGIApp

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 3.0
"""How long answers that are under way may take once the server stops."""
SETTLE_SECONDS: Final = 0.02
CALL_THREADS: Final = 16
"""For routes that take locks, and now and then ask a backend."""
LIMITS: Final = HttpLimits()
_BACKLOG: Final = 128


class HttpServer:
    """The port is bound when this is made, so that a port in use is an error before anything else is started; requests are
    answered from `start` on.  All methods belong to the thread that starts and stops the server."""

    def __init__(
        self,
        host: str,
        port: int,
        tokens: Tokens | None,
        app: Callable[[], ASGIApp],
        *,
        name: str,
        flags: str = "http",
        hide: Callable[[bytes], bytes] = bytes,
        limits: HttpLimits = LIMITS,
        tls: TlsFiles | None = None,
        beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`app` is called on the server's own thread, so that the start does not wait for a web framework to be imported.
        `name` is the beginning of the names of threads; `flags` that of the flags that messages name (`--http-port`;
        empty: `--port`).
        `hide` takes secrets out of an answer.  `beside` runs on the server's event loop, and is cancelled when the server
        stops.  Raises ResourceError, and ConfigError for `tls` that cannot be used."""
        self._tls = _checked(tls)
        self._host, self._tokens, self._app, self._name = host, tokens, app, name
        self._hide, self._limits, self._beside = hide, limits, beside
        self._socket = _bind(host, port, flags)
        bound = self._socket.getsockname()
        self.endpoint = f"{'https' if tls else 'http'}://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
        """Where it answers, with the port that was really bound."""
        self._is_loopback = ip_address(bound[0].partition("%")[0]).is_loopback
        self._server: uvicorn.Server | None = None
        self._wake: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None
        self._asked_to_stop = threading.Event()

    def start(self) -> None:
        """Begin to answer soon, and return at once: the web framework is imported on the thread."""
        self._thread = threading.Thread(target=self._run, name=f"{self._name}-http", daemon=True)
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
                logger.warning("HTTP server did not stop in time name=%s endpoint=%s", self._name, self.endpoint)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:  # the top of a thread; the process goes on without its HTTP API
            logger.exception("HTTP server failed name=%s endpoint=%s", self._name, self.endpoint)

    def _serve(self) -> None:
        # imported here, because the start must not wait for an event loop and a web framework
        import asyncio

        import uvicorn

        from lmcache_http.connection import Connection
        from lmcache_http.gate import Gate

        class LimitedConnection(Connection):
            limits = self._limits

        config = uvicorn.Config(
            Gate(
                self._app(),
                self._limits,
                self._host,
                self._hide,
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
            timeout_keep_alive=ceil(self._limits.idle_seconds),
            **self._tls,
            timeout_graceful_shutdown=int(STOP_SECONDS),
        )
        ending = asyncio.Event()

        class Server(uvicorn.Server):
            """uvicorn looks ten times a second whether it should end; this one is notified, and idles meanwhile."""

            async def main_loop(self) -> None:
                await self.on_tick(0)
                await ending.wait()

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                # a connection that is being accepted while its server is closed would never be closed itself
                await asyncio.sleep(SETTLE_SECONDS)
                await super().shutdown(sockets)

        async def run(server: uvicorn.Server) -> None:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(DaemonPool(f"{self._name}-call", CALL_THREADS))
            self._wake = lambda: loop.call_soon_threadsafe(ending.set)
            if not self._asked_to_stop.is_set():
                beside = asyncio.ensure_future(self._beside()) if self._beside else None
                # on any thread but the main one uvicorn leaves signals alone
                await server.serve(sockets=[self._socket])
                if beside is not None:
                    beside.cancel()
                    await asyncio.gather(beside, return_exceptions=True)

        self._server = Server(config)
        asyncio.run(run(self._server))


def _checked(tls: TlsFiles | None) -> dict[str, Any]:
    """uvicorn's settings.  Raises ConfigError."""
    if tls is None:
        return {}
    import ssl  # here, because few servers have a certificate

    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_ca)
        context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        names = ", ".join(each for each in tls if each)
        raise ConfigError(f"TLS cannot be used with {names}: {error}; give PEM files that belong together") from None
    client = {"ssl_ca_certs": tls.client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED} if tls.client_ca else {}
    return {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key, **client}


def _bind(host: str, port: int, flags: str) -> socket.socket:
    """A socket that is bound and does not listen yet.  Raises ResourceError."""
    flag = f"--{flags}-" if flags else "--"
    where = f"{flag}host {host} {flag}port {port}"
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
        remedy = f"stop the process that has it, or choose another {flag}port" + (f", or --no-{flags}" if flags else "")
        raise ResourceError(f"{where}: cannot be bound: {error.strerror}; {remedy}") from None
    return bound
