"""A proxy as a process of its own, or on a thread of this one."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from demo.server_process import preloaded
from lmcache_devkit import free_port
from lmcache_pd.command import open_server, parser

TIMEOUT_SECONDS = 60.0
COMPLETIONS = "/v1/completions"


class Reply(NamedTuple):
    status: int
    data: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.data)


class ProxyProcess:
    """`with ProxyProcess(folder, [prefill], [decode]) as proxy:`"""

    def __init__(self, folder: Path, prefill: Sequence[str], decode: Sequence[str], *flags: str) -> None:
        self.port = free_port()
        engines = [*(f"--prefill={url}" for url in prefill), *(f"--decode={url}" for url in decode)]
        self.arguments = [*engines, "--port", str(self.port), *flags]
        self.log = folder / f"proxy-{self.port}.log"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "lmcache_core", "pd-proxy", *self.arguments]
        with self.log.open("ab") as log:
            self.process = preloaded().popen(command, os.environ, log, piped=False)
        self._wait_ready(lambda: self.process.poll() is None)
        return self

    def _wait_ready(self, runs: Callable[[], bool]) -> None:
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            try:
                self.ask("GET", "/health")
            except OSError:
                assert runs(), self.log.read_text()
                time.sleep(0.05)
            else:
                return
        raise AssertionError(f"the proxy does not answer: {self.log.read_text()}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """Raises IncompleteRead for an answer that was cut off."""
        connection = self.connect()
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return Reply(answer.status, answer.read())
        finally:
            connection.close()

    def complete(self, **more: Any) -> Reply:
        return self.ask("POST", COMPLETIONS, {"model": "m", "prompt": "hello", "max_tokens": 4, **more})

    def wait(self, condition: Any) -> dict[str, Any]:
        """The first answer of /health that it is true of."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            health: dict[str, Any] = self.ask("GET", "/health").body
            if condition(health):
                return health
            time.sleep(0.02)
        raise AssertionError(f"it never was: {health}, {self.log.read_text()}")


class ProxyThread(ProxyProcess):
    """The same without the start of a process, with the log lines of this distribution."""

    def __enter__(self) -> Self:
        self._logger = logging.getLogger("lmcache_pd")
        self._lines = logging.FileHandler(self.log)
        self._logger.addHandler(self._lines)
        self._server = open_server(parser().parse_all(self.arguments))
        self._server.start()
        self._wait_ready(lambda: True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        self._logger.removeHandler(self._lines)
        self._lines.close()
