"""One etcd-server of the system, for as long as a test needs it; it keeps its port and its data when it is started again."""

from __future__ import annotations

import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from lmcache_devkit.ports import free_ports
from tests.remote.redis_servers import wait_for


class EtcdServer:
    def __init__(self, folder: Path) -> None:
        client, peer = free_ports(2)
        self.url: Final = f"http://127.0.0.1:{client}"
        self._peer: Final = f"http://127.0.0.1:{peer}"
        self._folder: Final = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        program = shutil.which("etcd")
        if program is None:
            pytest.skip("etcd-server is not installed")
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [
            *(program, "--name", "one", "--data-dir", str(self._folder / "data"), "--logger", "zap"),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer),
            *("--initial-cluster", f"one={self._peer}"),
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self._answers, f"etcd did not start; see {self._folder / 'log'}")

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """It answers nothing until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return b"true" in answer.read()
        except (OSError, urllib.error.HTTPError):
            return False


@contextmanager
def etcd_server(folder: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
