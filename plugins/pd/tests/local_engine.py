"""An engine's HTTP server without an engine: it answers as vLLM does, or misbehaves as it is asked to."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

PARTS = [f'data: {{"choices": [{{"text": "t{number}"}}]}}\n\n'.encode() for number in range(4)]
DONE = b"data: [DONE]\n\n"


class Asked(NamedTuple):
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


class LocalEngine:
    """`faults` says what it does to the next requests, one after the other; it behaves when there is none left."""

    def __init__(self, name: str = "e") -> None:
        self.name = name
        self.asked: list[Asked] = []
        self.faults: list[str] = []
        self.tokens: list[int] = []
        self.is_healthy = True
        self.closed_on = threading.Event()
        """A client closed a connection that waited for an answer."""
        self.go_on = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def completions(self) -> list[Asked]:
        return [each for each in self.asked if each.path.startswith("/v1/")]

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body.get("kv_transfer_params") or {}
        handed = {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": f"engine-{self.name}",
            "remote_request_id": f"request-{len(self.asked)}", "remote_host": "10.9.8.7", "remote_port": 5600,
            "remote_num_tokens": 5, "remote_block_ids": [[1, 2]],
        }  # fmt: skip
        parameters = handed if given.get("do_remote_decode") else None
        return {"choices": [{"text": f"from {self.name}"}], "kv_transfer_params": parameters}


def _handler(engine: LocalEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            self._whole(200 if engine.is_healthy else 503, b"")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            engine.asked.append(Asked(self.path, dict(self.headers), body))
            if self.path == "/tokenize":
                self._whole(200, json.dumps({"tokens": engine.tokens}).encode())
                return
            fault = engine.faults.pop(0) if engine.faults else ""
            if handled := getattr(self, f"_{fault}", None):
                handled(body)
            else:
                self._answer(body)

        def _answer(self, body: dict[str, Any]) -> None:
            if body.get("stream"):
                self._stream([*PARTS, DONE])
                self._part(b"")
            else:
                self._whole(200, json.dumps(engine.answer(body)).encode())

        def _whole(self, status: int, data: bytes, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data) if length is None else length))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, parts: list[bytes]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for part in parts:
                self._part(part)

        def _part(self, part: bytes) -> None:
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.flush()

        # Faults

        def _error(self, body: dict[str, Any]) -> None:
            self._whole(500, b'{"error": "planted"}')

        def _refuse(self, body: dict[str, Any]) -> None:
            self._whole(400, b'{"error": "too long"}')

        def _cut(self, body: dict[str, Any]) -> None:
            """In the middle: of a stream behind its second part, of a whole answer behind some bytes."""
            if body.get("stream"):
                self._stream(PARTS[:2])
            else:
                self._whole(200, b'{"choices": ', 500)
            self._close()

        def _cut_head(self, body: dict[str, Any]) -> None:
            """When the head was sent."""
            self._stream([])
            self._close()

        def _no_answer(self, body: dict[str, Any]) -> None:
            self._close()

        def _garbage(self, body: dict[str, Any]) -> None:
            self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
            self._close()

        def _not_json(self, body: dict[str, Any]) -> None:
            self._whole(200, b"<html>")

        def _twice(self, body: dict[str, Any]) -> None:
            self._answer(body)
            self._whole(200, b'{"choices": [{"text": "the second answer"}]}')

        def _slow(self, body: dict[str, Any]) -> None:
            for part in (*PARTS, DONE):
                if part is PARTS[0]:
                    self._stream([])
                engine.go_on.wait(0.1)
                self._part(part)
            self._part(b"")

        def _hang(self, body: dict[str, Any]) -> None:
            """Until the client leaves."""
            self._wait_for_end()

        def _hang_inside(self, body: dict[str, Any]) -> None:
            self._stream(PARTS[:1])
            self._wait_for_end()

        def _wait_for_end(self) -> None:
            self.connection.settimeout(30)
            try:
                if self.connection.recv(1) == b"":
                    engine.closed_on.set()
            except OSError:
                pass
            self._close()

        def _close(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()

    return Handler
