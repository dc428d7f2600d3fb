"""What every request passes before its route: limits, checks against browsers that are used against their user, and headers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from litestar.types import ASGIApp, Message, Receive, Send

from lmcache_http.access import OPEN
from lmcache_http.server import HttpLimits

_READING: Final = frozenset(("GET", "OPTIONS"))
_SECOND_SPELLINGS: Final = (b"//", b"%2f")
"""What routing takes for one slash, and a proxy that allows or forbids paths in front of this server does not."""
_WITHOUT_BODY: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_NOBODYS: Final = "TRACE"
"""A method that no route has: it is refused with those that the path has."""
_PAGE_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}
"""On every answer that has none of its own."""

Headers = Iterable[tuple[bytes, bytes]]


class Gate:
    """An ASGI application around another one.

    `local_only`: no token is needed and only this machine reaches the port.  Then a web page that has its own name point to
    this machine could do whatever its visitor may, so that only names of this machine are answered.
    `tokenless`: then browsers are let change nothing on behalf of other pages."""

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        bound: str,
        hide: Callable[[bytes], bytes],
        *,
        tokenless: bool,
        local_only: bool,
    ) -> None:
        """`hide` takes secrets out of an answer."""
        self._app, self._limits, self._bound = app, limits, bound.strip("[]").lower()
        self._hide = hide
        self._tokenless, self._local_only = tokenless, local_only
        self._running = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # answered as GET is, with the length of what is left out
            send = _without_body(send)
            scope = {**scope, "method": "GET"}
        send = _with_headers(_without_secrets(send, self._hide, scope.setdefault("state", {})))
        if refusal := self._refusal(scope):
            await _refuse(send, *refusal)
            return
        if scope["method"] == "OPTIONS":  # litestar's own answer knows the methods of one handler only
            scope = {**scope, "method": _NOBODYS}
        self._running += 1
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the server ends, and has waited for this answer for long enough
            with contextlib.suppress(RuntimeError):  # the answer had begun
                await _refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, "the server ends")
        finally:
            self._running -= 1

    def _refusal(self, scope: Any) -> tuple[HTTPStatus, str] | None:
        limits, headers = self._limits, scope["headers"]
        if self._running >= limits.requests:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"{limits.requests} requests are being answered; try again"
        if len(scope["raw_path"]) + len(scope["query_string"]) > limits.target_bytes:
            return HTTPStatus.REQUEST_URI_TOO_LONG, f"path and query have at most {limits.target_bytes} bytes"
        if any(each in scope["raw_path"].lower() for each in _SECOND_SPELLINGS):
            return HTTPStatus.NOT_FOUND, HTTPStatus.NOT_FOUND.phrase
        if _header(headers, b"transfer-encoding") is not None and _header(headers, b"content-length") is not None:
            # a proxy in front may go by the other one, and take the rest of the body for a request
            return HTTPStatus.BAD_REQUEST, "a request has content-length or transfer-encoding, and not both"
        if len(headers) > limits.header_count:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {limits.header_count} headers"
        if _head_bytes(scope) > limits.header_bytes:  # h11 has this limit for headers that come in pieces alone
            return (
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"request line and headers have at most {limits.header_bytes} bytes",
            )
        host = _header(headers, b"host")
        if self._local_only and host is not None and not self._is_ours(host):
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                (
                    "without a token only names of this machine are answered, such as localhost; "
                    "give the server a --http-token-file to call it by other names"
                ),
            )
        if self._tokenless and scope["method"] not in _READING and _is_of_another_page(headers, host):
            return (
                HTTPStatus.FORBIDDEN,
                (
                    "a page of another site asks a browser to change this server, which it may not; "
                    "programs leave the headers Origin and Sec-Fetch-Site out"
                ),
            )
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            about = urlsplit(f"//{host}")
            name = (about.hostname or "").rstrip(".")
        except ValueError:
            return False
        if about.username is not None:
            return False
        return name in ("localhost", self._bound) or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _is_of_another_page(headers: Headers, host: str | None) -> bool:
    """Browsers say which page asks; programs say nothing."""
    if _header(headers, b"sec-fetch-site") not in (None, "same-origin", "none"):
        return True
    origin = _header(headers, b"origin")
    return origin is not None and origin.partition("://")[2].lower() != (host or "").lower()


def _head_bytes(scope: Any) -> int:
    """Of the request line and the headers, as they are sent."""
    line = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"]) + len("  HTTP/1.1\r\n")
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])


def _header(headers: Headers, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key == name), None)


def _without_secrets(send: Send, hide: Callable[[bytes], bytes], state: Mapping[str, Any]) -> Send:
    """The head of a whole answer is kept back until its body is known.  Open pages are sent as they are: there is no data in
    them, and a password that is a word of HTML would break them.  An answer in parts is sent as it comes; secrets are taken
    out of each part by itself."""
    start: Any = None

    async def answer(message: Any) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        if start is not None:
            is_data = not state.get(OPEN) or "json" in (_header(start["headers"], b"content-type") or "")
            body = message["body"] = hide(message["body"]) if is_data else message["body"]
            others = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            has_length = start["status"] not in _WITHOUT_BODY and not message.get("more_body")
            length = [(b"content-length", str(len(body)).encode())] if has_length else []
            start["headers"] = [*others, *length]
            await send(start)
            start = None
        elif message["type"] == "http.response.body":
            message["body"] = hide(message["body"])
        await send(message)

    return answer


def _without_body(send: Send) -> Send:
    async def answer(message: Any) -> None:
        if message["type"] == "http.response.body":
            message["body"] = b""
        await send(message)

    return answer


def _with_headers(send: Send) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            own = {name.lower() for name, _ in given}
            is_page = (_header(given, b"content-type") or "").startswith("text/html")
            added = {**_HEADERS, **({b"content-security-policy": _PAGE_POLICY} if is_page else {})}
            message["headers"] = [*given, *((name, value) for name, value in added.items() if name not in own)]
        await send(message)

    return answer


async def _refuse(send: Send, status: HTTPStatus, detail: str) -> None:
    body = problem_body(status, detail)
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *([(b"retry-after", b"1")] if status is HTTPStatus.SERVICE_UNAVAILABLE else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def problem_body(status: HTTPStatus, detail: str) -> bytes:
    about = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    return json.dumps(about).encode()
