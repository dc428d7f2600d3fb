"""One client's connection: HTTP/1.1 within limits of size and time.

uvicorn's own protocol waits for a request, and for a client that reads nothing, for as long as either takes.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmcache_http.access import CLIENT_NAMES, names_in
from lmcache_http.gate import problem_body
from lmcache_http.server import HttpLimits

_STILL_SENDING: Final = (h11.IDLE, h11.SEND_BODY)


class Connection(H11Protocol):
    """Lives on the event loop of the admin API.  Subclassed for its limits."""

    limits: ClassVar[HttpLimits] = HttpLimits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._request_deadline: asyncio.TimerHandle | None = None
        self._reading_deadline: asyncio.TimerHandle | None = None
        self._since = 0.0
        """When it began to wait for a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self.app_state = {**self.app_state, CLIENT_NAMES: names_in(tls.getpeercert() or {})}
        self._since = self.loop.time()
        if len(self.connections) > self.limits.connections and not self._make_room():
            transport.abort()
            return
        self._await_request()

    def _make_room(self) -> bool:
        """Hang up on the connection that has kept the server waiting for a request for longest, so that clients that send
        slowly, or nothing, cannot keep others out.  False where all are being answered."""
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        waiting = [each for each in others if not each.is_being_answered]
        if not waiting:
            return False
        min(waiting, key=lambda each: each._since).transport.abort()
        return True

    @property
    def is_being_answered(self) -> bool:
        """A whole request has come, and its answer is not complete."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return is_answering and self.conn.their_state not in _STILL_SENDING

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_request()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._request_deadline is None:
            self._since = self.loop.time()
            self._await_request()
        super().data_received(data)
        if self.conn.their_state not in _STILL_SENDING:
            self._forget_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._forget_request()  # between two requests, uvicorn's own patience counts

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_deadline = self.loop.call_later(self.limits.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._reading_deadline is not None:
            self._reading_deadline.cancel()
            self._reading_deadline = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn, which says it in plain text, for what is not HTTP or has too long headers."""
        self._hang_up(
            HTTPStatus.BAD_REQUEST,
            f"this is not an HTTP request, or one with more than {self.limits.header_bytes} bytes of headers",
        )

    def _await_request(self) -> None:
        self._request_deadline = self.loop.call_later(self.limits.request_seconds, self._was_too_slow)

    def _forget_request(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None

    def _was_too_slow(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self.transport.abort()
        elif self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()  # it never said anything
        else:
            limit = self.limits.request_seconds
            self._hang_up(HTTPStatus.REQUEST_TIMEOUT, f"a request is sent within {limit:g} seconds")

    def _hang_up(self, status: HTTPStatus, detail: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = problem_body(status, detail)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
