"""An HTTP proxy before any backend that answers some requests otherwise: with an error, with half of it, or altered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.remote.loop_server import HOST, READ_BYTES, LoopServer, reset

HEAD_END: Final = b"\r\n\r\n"
NO_BODY: Final = frozenset({204, 304})
REASONS: Final = {
    400: "BadRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    412: "PreconditionFailed",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}


class Head(NamedTuple):
    """What comes before a body; `raw` with the empty line that ends it."""

    raw: bytes
    first_line: str
    body_bytes: int | None
    """None where the body comes in chunks that tell their own lengths."""

    @property
    def method(self) -> str:
        """Of a request."""
        return self.first_line.split(" ")[0]

    @property
    def path(self) -> str:
        """Of a request, with its query."""
        return self.first_line.split(" ")[1]

    @property
    def status(self) -> int:
        """Of an answer."""
        return int(self.first_line.split(" ")[1])


@dataclass(frozen=True, slots=True)
class Status:
    """The request is answered with this status and an error as S3 words it; the backend never sees it."""

    code: int
    error: str = ""
    """The error's code; empty: the usual one of this status."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """The backend's answer with this many bytes of its body, though its Content-Length says more; then the end of the
    connection."""

    body_bytes: int


@dataclass(frozen=True, slots=True)
class Altered:
    """The backend's answer, but for one bit of this byte of its body.  A shorter body passes as it is."""

    at: int


Answer = Status | Truncated | Altered
Rule = Callable[[Head], Answer | None]


def every(answer: Answer, *methods: str, path: str = "/") -> Rule:
    """This answer for requests of these methods (none named: of all) whose path contains `path`."""

    def rule(request: Head) -> Answer | None:
        return answer if (not methods or request.method in methods) and path in request.path else None

    return rule


class HttpFaults(LoopServer):
    """Passes requests on to `port` on this machine as they are, but for those that `rule` answers otherwise."""

    def __init__(self, backend_port: int) -> None:
        super().__init__()
        self._backend_port = backend_port
        self._rule: Rule | None = None
        self.answered: Final[Counter[Answer]] = Counter()
        """Requests that got an answer of a rule's."""

    def switch(self, rule: Rule | None) -> None:
        """From the return of this on, the rule decides on requests that come; None: all pass."""
        self._rule = rule

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_backend, to_backend = await asyncio.open_connection(HOST, self._backend_port, limit=READ_BYTES)
        try:
            while await self._exchange(reader, writer, from_backend, to_backend):
                pass
            writer.close()
            await writer.wait_closed()
        finally:
            reset(to_backend)

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_backend: asyncio.StreamReader,
        to_backend: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer.  False when the connection is over."""
        request = await _head(reader)
        answer = self._rule(request) if self._rule is not None else None
        if answer is not None:
            self.answered[answer] += 1
        if isinstance(answer, Status):
            if _expects(request):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await _pass_body(reader, None, request.body_bytes)
            writer.write(_error(answer, with_body=request.method != "HEAD"))
            await writer.drain()
            return True
        if _expects(request):  # the backend's own 100 would come between: say it here, and ask for none there
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        to_backend.write(_without(request.raw, b"expect"))
        await _pass_body(reader, to_backend, request.body_bytes)
        reply = await _head(from_backend)
        while reply.status == 100:
            reply = await _head(from_backend)
        writer.write(reply.raw)
        body = 0 if request.method == "HEAD" or reply.status in NO_BODY else reply.body_bytes
        if isinstance(answer, Truncated) and body is not None and body > answer.body_bytes:
            await _pass_body(from_backend, writer, answer.body_bytes)
            return False
        if isinstance(answer, Altered) and body is not None and body > answer.at:
            await _pass(from_backend, writer, answer.at)
            (byte,) = await from_backend.readexactly(1)
            writer.write(bytes((byte ^ 0x10,)))
            body -= answer.at + 1
        await _pass_body(from_backend, writer, body)
        return b"connection: close" not in reply.raw.lower()


async def _head(reader: asyncio.StreamReader) -> Head:
    raw = await reader.readuntil(HEAD_END)
    lines = raw.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    chunked = "chunked" in fields.get("transfer-encoding", "").lower()
    return Head(raw, lines[0], None if chunked else int(fields.get("content-length", "0")))


def _expects(request: Head) -> bool:
    return b"\r\nexpect: 100-continue" in request.raw.lower()


def _without(raw: bytes, name: bytes) -> bytes:
    return b"\r\n".join(line for line in raw.split(b"\r\n") if not line.lower().startswith(name + b":"))


async def _pass_body(source: asyncio.StreamReader, sink: asyncio.StreamWriter | None, size: int | None) -> None:
    """A body of `size` bytes, or of chunks; no sink: it is read and thrown away."""
    if size is not None:
        await _pass(source, sink, size)
        return
    while True:
        line = await source.readuntil(b"\r\n")
        if sink is not None:
            sink.write(line)
        length = int(line.partition(b";")[0], 16)
        if length:
            await _pass(source, sink, length + 2)
            continue
        while line != b"\r\n":  # trailers, and the empty line that ends them
            line = await source.readuntil(b"\r\n")
            if sink is not None:
                sink.write(line)
        if sink is not None:
            await sink.drain()
        return


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter | None, size: int) -> None:
    while size:
        data = await source.read(min(size, READ_BYTES))
        if not data:
            raise asyncio.IncompleteReadError(data, size)
        size -= len(data)
        if sink is not None:
            sink.write(data)
            await sink.drain()


def _error(answer: Status, *, with_body: bool) -> bytes:
    reason = answer.error or REASONS[answer.code]
    body = f'<?xml version="1.0"?><Error><Code>{reason}</Code><Message>as the test asked</Message></Error>'.encode()
    head = f"HTTP/1.1 {answer.code} {reason}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return head + (body if with_body else b"")
