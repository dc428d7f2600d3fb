"""Requests of members to a coordinator: one connection that is kept open, with time limits.  One thread."""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from lmcache_client.errors import ConfigError, LMCacheError

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024


class UnreachableError(LMCacheError):
    """The coordinator was not reached, or did not answer in time.  What was asked may have been done."""


class RefusedError(LMCacheError):
    """The coordinator has answered with an error."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{detail} (HTTP {status})")
        self.status = status


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        """Raises RefusedError for a body that is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise RefusedError(self.status, "the answer is not JSON; is this a coordinator?") from None


class _Until(io.RawIOBase):
    """What a socket receives until a moment of the monotonic clock; a socket's own time limit begins anew with each byte."""

    def __init__(self, raw: io.RawIOBase, connected: socket.socket, until: float) -> None:
        self._raw = raw
        self._connected = connected
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._connected.settimeout(left)
        read: int | None = self._raw.readinto(buffer)
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, connected: socket.socket, *, until: float, **about: Any) -> None:
        super().__init__(connected, **about)
        self.fp = io.BufferedReader(_Until(self.fp.detach(), connected, until))


class HttpConnection:
    """Connects when it is first needed, and again after an error."""

    def __init__(
        self,
        url: str,
        token: Callable[[], str | None] = lambda: None,
        address: str | None = None,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        seconds: float | None = None,
    ) -> None:
        """`address`: connect to this one of the host's.  `tls` is called for each connection to an https URL; what it raises
        comes out of `ask`.  `seconds`: the most for connecting, and for a whole answer."""
        parts = urlsplit(url)
        self.url = url
        self._tls = tls if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._address = address or self._host
        self._token = token
        self._connect_seconds, self._answer_seconds = seconds or CONNECT_SECONDS, seconds or ANSWER_SECONDS
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer of a request that succeeded.  Raises UnreachableError and RefusedError."""
        token = self._token()
        all_headers = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        is_kept = self._connection is not None
        try:
            answer = self._once(method, path, body, all_headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not is_kept:
                raise UnreachableError(f"{self.url}: {error or type(error).__name__}") from None
            # It may have been closed since the last request: once more, on a new one.
            try:
                answer = self._once(method, path, body, all_headers)
            except (OSError, http.client.HTTPException) as again:
                self.close()
                raise UnreachableError(f"{self.url}: {again or type(again).__name__}") from None
        if not 200 <= answer.status < 300:
            raise RefusedError(answer.status, _detail(answer.body))
        return answer

    def _connected(self) -> http.client.HTTPConnection:
        made = http.client.HTTPConnection(self._host, self._port)
        connected = socket.create_connection((self._address, self._port), self._connect_seconds)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.settimeout(self._answer_seconds)
            if self._tls is not None:
                connected = self._tls().wrap_socket(connected, server_hostname=self._host)
        except BaseException:
            connected.close()
            raise
        made.sock = connected
        return made

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _once(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        if self._connection is None or self._connection.sock is None:  # the last answer has ended it
            self._connection = self._connected()
        until = time.monotonic() + self._answer_seconds
        self._connection.response_class = partial(_Response, until=until)  # type: ignore[assignment]
        self._connection.sock.settimeout(self._answer_seconds)
        self._connection.request(method, path, body, dict(headers))
        response = self._connection.getresponse()
        data = response.read(ANSWER_BYTES_MAX + 1)
        if len(data) > ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        return Answer(response.status, data)


def token_in(path: str | None, flag: str = "--coordinator-token-file") -> str | None:
    """The first word of the file, which is read each time: tokens are changed while servers run."""
    if path is None:
        return None
    try:
        words = Path(path).read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {path}: cannot be read: {error}") from None
    if not words:
        raise ConfigError(f"{flag} {path}: there is no token in it")
    return words[0]


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Read for each connection: certificates are renewed while servers run."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--coordinator-ca {ca}: cannot be read: {error}") from None
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--coordinator-cert {cert}: cannot be read, or its key: {error}") from None
    return context


def secured(
    url: str,
    token_file: str | None,
    ca: str | None,
    cert: str | None,
    key: str | None,
    address: str | None = None,
    seconds: float | None = None,
) -> HttpConnection:
    """A connection by the files that `--coordinator-*` names."""
    return HttpConnection(url, lambda: token_in(token_file), address, lambda: tls_context(ca, cert, key), seconds)


def _detail(body: bytes) -> str:
    """Of a problem answer (RFC 9457), or the beginning of what is there."""
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return repr(body[:100])
