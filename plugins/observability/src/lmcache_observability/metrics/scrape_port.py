"""A port of its own for scraping, so that Prometheus needs no token and no part of the admin API."""

from __future__ import annotations

import gzip
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from lmcache_observability.metrics.prometheus_text import Exposition

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 8
"""Answered at once; more are closed without an answer."""
HEAD_BYTES_MAX: Final = 8192
HEAD_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0
"""A client that takes longer to read is left."""
_PATH: Final = "/metrics"
_GZIP_LEVEL: Final = 1
_GZIP: Final = re.compile(r"\s*gzip\s*(;\s*q=(1|1\.0*|0?\.0*[1-9]\d*))?\s*", re.IGNORECASE | re.ASCII)
"""With a weight that is not zero, or without one."""


class _Head(NamedTuple):
    method: str
    path: str
    host: str | None
    accept: str
    takes_gzip: bool


class ScrapePort:
    """`GET /metrics`, one request for each connection.  Bound to a loopback address, it answers names of this machine alone.
    Raises OSError where the port is not available."""

    def __init__(self, host: str, port: int, expose: Callable[[str], Exposition]) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.create_server(address[:2], family=family)
        self._host = host.strip("[]").lower()
        self._local_only = ip_address(str(self._socket.getsockname()[0])).is_loopback
        self._expose = expose
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._thread = threading.Thread(target=self._accept, name="metrics-scrapes", daemon=True)
        self._closed = False

    @property
    def port(self) -> int:
        number: int = self._socket.getsockname()[1]
        return number

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Connections that are being answered are left to end by themselves."""
        self._closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        except OSError:
            pass
        self._socket.close()
        if self._thread.is_alive():
            self._thread.join(HEAD_SECONDS)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._closed:
                    logger.warning("metrics cannot be scraped for a moment: %s", error)
                    time.sleep(1.0)  # such as too many open files
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="metrics-scrape", daemon=True).start()
            except RuntimeError as error:  # there are too many threads in this process
                self._room.release()
                connection.close()
                logger.warning("a scrape was not answered: %s", error)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                head = _read_head(connection)
                connection.settimeout(ANSWER_SECONDS)
                connection.sendall(self._answer(head))
        except (OSError, ValueError):
            pass  # a client that went away, was too slow, or speaks no HTTP
        except Exception:
            # the thread of one connection: the next scrape may be fine
            logger.exception("a scrape failed")
        finally:
            self._room.release()

    def _answer(self, head: _Head) -> bytes:
        if self._local_only and head.host is not None and not self._is_ours(head.host):
            # A web page that has its own name point to this machine could read what its visitor may.
            return _message("421 Misdirected Request", b"only names of this machine are answered, such as localhost\n")
        if head.path.partition("?")[0] != _PATH:
            return _message("404 Not Found", b"metrics are at /metrics\n")
        if head.method not in ("GET", "HEAD"):
            return _message("405 Method Not Allowed", b"only GET\n", "Allow: GET, HEAD\r\n")
        media_type, body = self._expose(head.accept)
        more = "Vary: Accept, Accept-Encoding\r\n"
        if head.takes_gzip:
            body, more = gzip.compress(body, _GZIP_LEVEL, mtime=0), f"{more}Content-Encoding: gzip\r\n"
        answer = _message("200 OK", body, more, media_type)
        return answer[: len(answer) - len(body)] if head.method == "HEAD" else answer

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name in ("localhost", self._host) or name.endswith(".localhost"):
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False


def _message(status: str, body: bytes, more: str = "", media_type: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nCross-Origin-Resource-Policy: same-origin\r\nX-Content-Type-Options: nosniff\r\n"
        f"Connection: close\r\n{more}\r\n"
    )
    return head.encode("ascii") + body


def _read_head(connection: socket.socket) -> _Head:
    """Raises ValueError for what is not an HTTP/1 request, OSError where it does not arrive in time."""
    deadline, data = time.monotonic() + HEAD_SECONDS, b""
    while b"\r\n\r\n" not in data:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        more = connection.recv(HEAD_BYTES_MAX)
        data += more
        if not more or len(data) > HEAD_BYTES_MAX or time.monotonic() > deadline:
            raise ValueError("no whole request")
    first, *lines = data.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    method, path, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("not HTTP/1")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    takes_gzip = any(map(_GZIP.fullmatch, headers.get("accept-encoding", "").split(",")))
    return _Head(method, path, headers.get("host"), headers.get("accept", ""), takes_gzip)
