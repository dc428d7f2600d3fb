"""Between members and one coordinator: loses, doubles, cuts and reorders what members post."""

from __future__ import annotations

import http.client
import random
import threading
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, NamedTuple, Self

FORWARD_SECONDS: Final = 20.0


class Fate(StrEnum):
    ARRIVES = "arrives"
    LOST = "lost"
    UNANSWERED = "unanswered"
    DOUBLED = "doubled"
    LATE = "late"
    """It arrives after messages that were sent later."""
    CUT = "cut"


class _Message(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class MessageProxy(ThreadingHTTPServer):
    """Everything arrives, until `disturb`."""

    daemon_threads = True

    def __init__(self, backend_port: int, chooser: random.Random) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._backend_port = backend_port
        self._chooser = chooser
        self._lock = threading.Lock()  # guards all below
        self._fates: tuple[Fate, ...] = (Fate.ARRIVES,)
        self._late: list[_Message] = []
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return self.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()

    def disturb(self, *fates: Fate) -> None:
        """From now on each post has one of them.  None: everything arrives, also what is late."""
        with self._lock:
            self._fates = fates or (Fate.ARRIVES,)
            late, self._late = ([], self._late) if fates else (self._late, [])
        self._forward_late(late)

    def pass_on(self, message: _Message) -> tuple[int, bytes] | None:
        """The answer that the member sees; None: it sees a connection that ends."""
        is_post = message.method == "POST" and message.path.startswith("/fleet/")
        with self._lock:
            fate = self._chooser.choice(self._fates) if is_post else Fate.ARRIVES
            if fate is Fate.LATE:
                self._late.append(message)
                return None
            late = [self._late.pop(self._chooser.randrange(len(self._late)))] if self._late and is_post else []
        match fate:
            case Fate.LOST:
                return None
            case Fate.CUT:
                self._forward(message._replace(body=message.body[: len(message.body) // 2]))
                return None
            case Fate.DOUBLED:
                self._forward(message)
        answer = self._forward(message)
        self._forward_late(late)
        return None if fate is Fate.UNANSWERED else answer

    def _forward_late(self, messages: list[_Message]) -> None:
        for message in messages:
            self._forward(message)

    def _forward(self, message: _Message) -> tuple[int, bytes] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._backend_port, timeout=FORWARD_SECONDS)
        try:
            connection.request(message.method, message.path, message.body or None, message.headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A member that was killed."""


class _Handler(BaseHTTPRequestHandler):
    server: MessageProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length")
        }
        answer = self.server.pass_on(_Message(self.command, self.path, headers, body))
        if answer is None:
            self.close_connection = True
            return
        status, data = answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = _pass  # noqa: N815 - names of the base class

    def log_message(self, format: str, *args: object) -> None: ...
