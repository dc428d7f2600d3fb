"""An `lmcache server` process on free ports of the loopback interface."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from demo.child_process import ChildProcess
from demo.environment import core_environment, quiet_environment
from demo.preloaded import OURS, Preloaded
from lmcache_client.sockets import open_socket
from lmcache_devkit import free_ports

LMCACHE = Path(sys.executable).with_name("lmcache")
"""The command of the environment that this runs in."""

FORKED = "DEMO_SERVERS_ARE_FORKED"
"""A variable of this process: servers of this environment are forked from one that has their imports."""

HOST = "127.0.0.1"
PING = [b"\x00", b"\x16", b"\xc0"]
"""On the wire: request number 0, operation 22 (ping), no instance."""
PONG = [b"\x00", b"\x16", b"\xc3"]


class ServerProcess:
    """`lmcache server` with these options, started and ended as often as needed, always on the same ports.

    Use it as a context manager: it starts on entry, and on exit whatever still runs is stopped.
    """

    def __init__(
        self,
        options: Sequence[str],
        log_path: Path,
        *,
        executable: Path | None = None,
        environment: Mapping[str, str] | None = None,
        core_alone: bool = False,
    ) -> None:
        """Without `executable` it is LMCACHE, and may be forked.  `core_alone`: it belongs to an installation without
        lmcache-admin and lmcache-observability.  It is given no flag or variable of theirs, and `status` and `wait_written`
        cannot be used."""
        self.port, self.http_port = free_ports(2)
        command = ["server", "--host", HOST, "--port", str(self.port), *options]
        if not core_alone:
            command += ["--http-port", str(self.http_port)]
            if "--plugin" in options:  # which names all that is considered, and the API is a plugin's
                command += ["--plugin", "admin"]
        inherited = core_environment() if core_alone else quiet_environment()
        # An interpreter reads its own variables when it starts.
        forks = FORKED in os.environ and executable is None and not any(map(_is_of_an_interpreter, environment or ()))
        program = [sys.executable, "-m", "lmcache_core"] if forks else [str(executable or LMCACHE)]
        ours = preloaded() if forks else None
        self._child = ChildProcess(
            "lmcache server", [*program, *command], log_path, inherited | dict(environment or {}), ours
        )

    @property
    def running(self) -> bool:
        return self._child.running

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def log(self) -> str:
        """Everything that every start so far has printed."""
        return self._child.log_path.read_text(errors="replace")

    def logs(self, text: str, timeout_seconds: float = 10.0) -> bool:
        """Whether this text has been printed, or is within the time: events reach the log some time after they happened."""
        deadline = time.monotonic() + timeout_seconds
        while text not in self.log:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def start(self, timeout_seconds: float = 60.0) -> None:
        """Returns when the engine port answers a ping; raises ChildError when that takes longer or the server ends."""
        self._child.start()
        deadline = time.monotonic() + timeout_seconds
        while not self.answers_ping(timeout_seconds=0.5):
            if not self.running:
                raise self._child.error("ended before it answered")
            if time.monotonic() > deadline:
                self._child.kill()
                raise self._child.error(f"did not answer within {timeout_seconds:.0f} s")

    def stop(self, timeout_seconds: float = 30.0) -> int:
        """SIGTERM; returns the exit status, raises ChildError when it does not go."""
        return self._child.stop(timeout_seconds)

    def kill(self) -> None:
        """SIGKILL: what a power cut or the kernel's memory killer would do."""
        self._child.kill()

    def pause(self) -> None:
        """Freeze it, wherever it is, until `resume`."""
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def answers_ping(self, timeout_seconds: float) -> bool:
        """Ask on the engine port, as an engine's scheduler does."""
        with zmq.Context() as context, open_socket(context, zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(f"tcp://{HOST}:{self.port}")
            dealer.send_multipart(PING)
            return bool(dealer.poll(int(timeout_seconds * 1000))) and dealer.recv_multipart() == PONG

    def status(self, timeout_seconds: float = 60.0) -> dict[str, Any]:
        """GET /status of the admin API, which comes up a moment after the engine port, on a busy machine many seconds."""
        url, deadline = f"http://{HOST}:{self.http_port}/status", time.monotonic() + timeout_seconds
        while True:
            try:
                with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
                    status: dict[str, Any] = json.load(answer)
                    return status
            except urllib.error.URLError as error:
                if time.monotonic() > deadline or self._child.ended:
                    error.add_note(str(self._child.error("does not answer its admin API")))
                    raise
                time.sleep(0.02)

    def wait_written(self, timeout_seconds: float) -> None:
        """Block until nothing that was stored is on its way to L2; ChildError, which says what is, if that never is."""
        deadline = time.monotonic() + timeout_seconds
        while _writes_l2(status := self.status()):
            if time.monotonic() > deadline:
                raise self._child.error(f"still writes to L2 after {timeout_seconds:.0f} s: {status['store']}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running and kind is None:
            self.stop()
        self.kill()


def _is_of_an_interpreter(variable: str) -> bool:
    return variable.startswith(("PYTHON", "LD_", "MALLOC_"))


@cache
def preloaded() -> Preloaded:
    """What starts our commands: one for all of a process, and as long as it."""
    plugins = {each.module for each in entry_points(group="lmcache.plugins.v1")}  # every command imports them
    ours = [name for name in sorted(plugins) if name.startswith("lmcache_")]  # and none that a test has made
    return Preloaded(Path(sys.executable), quiet_environment(), [*OURS, *ours])


def _writes_l2(status: dict[str, Any]) -> bool:
    return bool(status["store"]["backlog_bytes"] or any(adapter["jobs_in_flight"] for adapter in status["l2"]))
