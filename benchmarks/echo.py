"""The least that a server on this socket can do: take each request, send its envelope back.

.venv/bin/python -m benchmarks.echo PORT

Everything above its figures is what a server adds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import zmq

from benchmarks.peer import BenchmarkError
from demo.child_process import ChildProcess
from demo.environment import quiet_environment
from demo.server_process import HOST, PING
from lmcache_client.sockets import open_socket
from lmcache_devkit import free_port

ENVELOPE_FRAMES = 3
"""Connection, number and operation of the request."""


def serve(port: int) -> None:
    context = zmq.Context()
    router = open_socket(context, zmq.ROUTER)
    router.bind(f"tcp://{HOST}:{port}")
    receive, send = router.recv_multipart, router.send_multipart
    while True:
        send(receive()[:ENVELOPE_FRAMES])


class EchoProcess:
    """That loop in a process of its own."""

    def __init__(self, log_path: Path) -> None:
        self.port = free_port()
        self.http_port = 0
        command = [sys.executable, "-m", "benchmarks.echo", str(self.port)]
        self._child = ChildProcess("echo", command, log_path, quiet_environment())

    @property
    def pid(self) -> int:
        return self._child.pid

    def start(self, timeout_seconds: float = 30.0) -> None:
        self._child.start()
        deadline = time.monotonic() + timeout_seconds
        with zmq.Context() as context, open_socket(context, zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(f"tcp://{HOST}:{self.port}")
            dealer.send_multipart(PING)
            while not dealer.poll(100):
                if not self._child.running or time.monotonic() > deadline:
                    self._child.kill()
                    raise BenchmarkError("the echo did not start")

    def stop(self) -> int:
        self._child.kill()
        return 0


if __name__ == "__main__":
    serve(int(sys.argv[1]))
