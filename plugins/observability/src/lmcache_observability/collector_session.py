"""Requests to a collector: each ends within its time, whatever the collector does, and follows no redirect.

The timeout of an HTTP library is for each read: a collector that answers a byte at a time would hold its caller for hours.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any, Final

from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError, ReadTimeout, TooManyRedirects
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

ANSWER_BYTES_MAX: Final = 1 << 20
_READ_BYTES: Final = 64 << 10
_SECONDS: Final = 10.0
"""For a request that brings no timeout."""
_LOCATION_MAX: Final = 200
_PROVIDER: Final = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_"


class OpenSockets:
    """Second descriptors of the connections that are there, by which another thread can hang up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._there: set[socket.socket] = set()

    def add(self, duplicate: socket.socket) -> None:
        with self._lock:
            self._there.add(duplicate)

    def remove(self, duplicate: socket.socket) -> None:
        with self._lock:
            self._there.discard(duplicate)
            duplicate.close()

    def hang_up(self) -> None:
        with self._lock:
            for duplicate in self._there:
                with contextlib.suppress(OSError):  # the collector was faster
                    duplicate.shutdown(socket.SHUT_RDWR)


class CollectorSession(Session):
    """For one thread at a time, as the exporters use it."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets = OpenSockets()
        self._fault: BaseException | None = None
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(self._sockets))

    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:
        """Raises RequestException for a redirect, for an answer of more than a MiB, and when the time is over."""
        self._close_connections()
        try:
            return self._send(request, **kwargs)
        except Exception as error:
            self._fault = error
            raise

    def _send(self, request: PreparedRequest, **kwargs: Any) -> Response:
        given = kwargs.get("timeout")
        seconds = given if isinstance(given, int | float) else _SECONDS
        is_late = threading.Event()
        timer = threading.Timer(seconds, self._hang_up, (is_late,))
        timer.daemon = True
        timer.start()
        try:
            response = super().send(request, **{**kwargs, "allow_redirects": False, "stream": True})
            _read(response)
        finally:
            timer.cancel()
        if is_late.is_set():  # an answer that ends where we hung up looks like a whole one
            raise ReadTimeout(f"the collector did not answer within {seconds:.1f} s")
        if 300 <= response.status_code < 400:
            place = response.headers.get("location", "nowhere")[:_LOCATION_MAX]
            raise TooManyRedirects(
                f"the collector answers {response.status_code} and points to {place!r}; give its own address"
            )
        return response

    def _close_connections(self) -> None:
        """The exporters keep the last error where its traceback holds them, and with them all that they had to send: a cycle
        of megabytes of which the garbage collector sees a few objects, and so comes after many of them."""
        fault, self._fault = self._fault, None
        while fault is not None:
            fault.__traceback__ = None
            fault = fault.__context__

    def _hang_up(self, is_late: threading.Event) -> None:
        is_late.set()
        self._sockets.hang_up()


def _read(response: Response) -> None:
    """The body, as `Session.send` reads it, but not any amount."""
    parts, size = list[bytes](), 0
    with contextlib.closing(response):
        for part in response.iter_content(_READ_BYTES):
            parts.append(part)
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                raise ChunkedEncodingError(f"the collector answers with more than {ANSWER_BYTES_MAX} bytes")
    response._content = b"".join(parts)


class _Adapter(HTTPAdapter):
    def __init__(self, sockets: OpenSockets) -> None:
        self._pools = _pool_classes(sockets)
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> PoolManager:
        manager: PoolManager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = self._pools
        return manager


class _Noting:
    """Of a connection class: notes the socket of each connection, until that is closed."""

    sockets: OpenSockets
    _duplicate: socket.socket | None = None

    def _new_conn(self) -> socket.socket:
        made: socket.socket = super()._new_conn()  # type: ignore[misc]  # urllib3's, of the class beside this one
        self._duplicate = made.dup()
        self.sockets.add(self._duplicate)
        return made

    def close(self) -> None:
        if self._duplicate is not None:
            self.sockets.remove(self._duplicate)
        super().close()  # type: ignore[misc]


def _pool_classes(sockets: OpenSockets) -> dict[str, Any]:
    """urllib3 makes the connections itself, and takes only classes."""
    noting = {"sockets": sockets}
    plain = type("Connection", (_Noting, HTTPConnection), noting)
    encrypted = type("EncryptedConnection", (_Noting, HTTPSConnection), noting)
    return {
        "http": type("Pool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("EncryptedPool", (HTTPSConnectionPool,), {"ConnectionCls": encrypted}),
    }


def collector_session() -> Session | None:
    """For an exporter; None where a credential provider of OpenTelemetry's makes the session, which then is not bounded."""
    provided = any(name.startswith(_PROVIDER) and name.endswith("_CREDENTIAL_PROVIDER") for name in os.environ)
    return None if provided else CollectorSession()
