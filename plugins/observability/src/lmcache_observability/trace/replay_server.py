"""A server of its own for a replay."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import BinaryIO, Final

from lmcache_core import ConfigError, EngineClient, LMCacheError, ResourceError

_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0
_DYING_SECONDS: Final = 1.0
_LAST_BYTES: Final = 64 << 10
_OURS: Final = ("--host", "--port", "--http-host", "--http-port")


@contextmanager
def replay_server(flags: Sequence[str], chunk_tokens: int) -> Iterator[str]:
    """Runs while the context does; gives the endpoint for engines.

    Raises ConfigError for flags that name ports, ResourceError where the server does not start, or has ended when the
    context ends with an LMCacheError.  On the main thread, because SIGTERM ends the context."""
    for flag in (each.partition("=")[0] for each in flags):
        if flag in _OURS:
            raise ConfigError(f"{flag}: a replay's server has ports of its own; --engine names one that runs already")
    port, http_port = _free_ports(2)
    ports = ["--host", _HOST, "--port", str(port), "--http-port", str(http_port), "--prometheus-port", "0"]
    command = [sys.executable, "-m", "lmcache_core", "server", *ports, "--chunk-size", str(chunk_tokens), *flags]
    with tempfile.TemporaryFile(prefix="lmcache-replay-") as log, _ended_by_sigterm() as end_at_sigterm:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            end_at_sigterm()
            endpoint = f"tcp://{_HOST}:{port}"
            if not _answers(server, endpoint):
                raise ResourceError(f"the server for the replay did not start: {_last_words(log)}")
            yield endpoint
        except LMCacheError as error:
            if isinstance(error, ResourceError) or not _has_ended(server):
                raise
            raise ResourceError(
                f"the server for the replay ended with exit code {server.returncode}: {_last_words(log)}"
            ) from error
        finally:
            server.terminate()
            try:
                server.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


@contextmanager
def _ended_by_sigterm() -> Iterator[Callable[[], None]]:
    """SIGTERM raises SystemExit once the function that this gives was called: before that, the process that was just started
    would stay behind."""
    raises, received = False, 0

    def end(number: int, frame: object) -> None:
        nonlocal received
        received = number
        if raises:
            raise SystemExit(128 + number)

    def begin() -> None:
        nonlocal raises
        raises = True
        if received:
            raise SystemExit(128 + received)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield begin
    finally:
        signal.signal(signal.SIGTERM, before)


def _has_ended(server: subprocess.Popen[bytes]) -> bool:
    """A process that was killed is there until the last of its threads is gone, although it answers no more."""
    try:
        server.wait(_DYING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _last_words(log: BinaryIO) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _answers(server: subprocess.Popen[bytes], endpoint: str) -> bool:
    deadline = monotonic() + _START_SECONDS
    with EngineClient(endpoint) as client:
        while server.poll() is None and monotonic() < deadline:
            try:
                return client.ping(timeout_seconds=0.5)
            except LMCacheError:  # not yet
                continue
    return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((_HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
