"""A coordinator as a process of its own, and requests to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from demo.preloaded import ForkedProcess
from demo.server_process import FORKED, preloaded


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Reply(NamedTuple):
    status: int
    body: Any


class CoordinatorProcess:
    """`with CoordinatorProcess(folder) as coordinator:`; started again with `start` after `kill`."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        headers: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` go with every request.  `environment`: variables beside those of this process."""
        self.headers = dict(headers or {})
        self.context: ssl.SSLContext | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.flags = ("--port", str(self.port), "--state", str(folder / "state.db"), *flags)
        self.log = folder / "coordinator.log"
        self._environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[str] | ForkedProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)

    def start(self) -> None:
        command = [sys.executable, "-m", "lmcache_core", "coordinator", *self.flags]
        with self.log.open("a") as log:
            if FORKED in self._environment:
                self.process = preloaded().popen(command, self._environment, log, piped=False)
            else:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment, text=True)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if self.ask("GET", "/healthz").status == 200:
                    return
            except OSError:
                pass
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"the coordinator does not answer: {self.log.read_text()}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {**self.headers, **(headers or {})}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self.context) as answer:
                return Reply(answer.status, _read(answer.read()))
        except urllib.error.HTTPError as error:
            return Reply(error.code, _read(error.read()))


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body
