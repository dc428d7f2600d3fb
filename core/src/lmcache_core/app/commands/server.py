"""`lmcache server`: from a configuration to a running server, and from a signal to its end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, Protocol

from lmcache_client.errors import LMCacheError
from lmcache_core.app.configuration import ServerFlags, advice, read_settings
from lmcache_core.app.console.command_line import CommandParser, command_selection, server_selection
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.log_output import hide_in_logs, log_to_stderr
from lmcache_core.app.masking import Hidden
from lmcache_core.app.plugins.catalogue import not_installed
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.server_view import ServerInfo

logger = logging.getLogger(__name__)

AT_ONCE_SECONDS: Final = 5.0
"""After a second signal the process is gone within this time, whatever hangs."""
SAME_SIGNAL_SECONDS: Final = 1.0
"""A signal that follows the first within this time is the same one: `timeout` and terminals send it to a process and to
its group."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class RunningServer(Protocol):
    """What `app.build.build` returns, as far as this file needs it."""

    @property
    def info(self) -> ServerInfo:
        """Where it answers, as soon as it is built."""

    def start(self) -> None:
        """Returns when the engine port answers."""

    def stop(self, drain_seconds: float) -> bool:
        """False when not everything that waited for L2 got there.  May be called again after it was interrupted."""


Build = Callable[[ServerSettings, LoadedPlugins], RunningServer]


class _StopAtOnce(BaseException):
    """A second signal came."""


class StopSignals:
    """SIGTERM and SIGINT: the first asks for a stop, a later one raises `_StopAtOnce` in the main thread."""

    def __init__(self) -> None:
        self._asked: int | None = None
        self._first: float | None = None
        self._wakes, self._waker = socket.socketpair()

    def install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._received)
        # The kernel may give a signal to any thread, and handlers run in the main one: a wait on a lock would not end.
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)

    def wait(self) -> str:
        """Block until the first one.  Returns its name."""
        while self._asked is None:
            self._wakes.recv(64)
        return signal.Signals(self._asked).name

    def ignore(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _received(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._asked = number
        elif now - self._first > SAME_SIGNAL_SECONDS:
            self.ignore()
            raise _StopAtOnce


def parsers() -> list[CommandParser]:
    return [ServerFlags(command_selection().load())]


def run(arguments: Sequence[str]) -> ExitCode:
    hidden = Hidden()

    def build_server(settings: ServerSettings, plugins: LoadedPlugins) -> RunningServer:
        # here, so that a wrong flag is answered before the whole server has been imported
        from lmcache_core.app.build import build

        return build(settings, plugins, hidden)

    try:
        plugins = server_selection(arguments).load(strict=True)
        flags = ServerFlags(plugins, has_help="-h" in arguments or "--help" in arguments)
        settings = read_settings(flags.given(arguments), plugins)
        return serve(settings, plugins, build_server, hidden)
    except LMCacheError as error:
        error.args = (hidden.text(str(error)),)  # it may quote what a client library said
        raise


def serve(settings: ServerSettings, plugins: LoadedPlugins, build: Build, hidden: Hidden | None = None) -> ExitCode:
    """Run a server until it is stopped.  `hidden`: secrets that `build` comes to know, and that are kept out of the
    log.  Main thread only.  Raises LMCacheError when it cannot be started."""
    log_to_stderr(settings.log_level, settings.log_style)
    take_turns()
    hide_in_logs(hidden or Hidden(), logging.root.handlers)
    signals = StopSignals()
    signals.install()
    server = None
    try:
        for line in advice(settings, os.environ):
            logger.warning("%s", line)
        server = _built(build, settings, plugins)
        if hint := not_installed(row.candidate.distribution or "" for row in plugins.rows()):
            logger.info("%s", hint)
        elif server.info.http_endpoint is None:
            logger.info("No HTTP API is served: its plugin is switched off, blocked, or not among those of --plugin")
        return _run(server, signals, settings.drain_seconds)
    except _StopAtOnce:
        logger.warning("stopping at once, as a second signal asks")
        _leave_within(AT_ONCE_SECONDS)
        if server is not None:
            server.stop(0.0)
        return ExitCode.NOT_DRAINED


def _built(build: Build, settings: ServerSettings, plugins: LoadedPlugins) -> RunningServer:
    """Warnings come after it, so that the line that a start fails with is not said twice."""
    reason = ""
    try:
        return build(settings, plugins)
    except LMCacheError as error:
        reason = str(error)
        raise
    finally:
        for line in plugins.warnings:
            if line not in reason:
                logger.warning("%s", line)


def _run(server: RunningServer, signals: StopSignals, drain_seconds: float) -> ExitCode:
    try:
        server.start()
    except Exception:
        server.stop(0.0)
        raise
    settle()
    name = signals.wait()
    logger.info("stopping signal=%s drain_seconds=%.1f", name, drain_seconds)
    return ExitCode.STOPPED if server.stop(drain_seconds) else ExitCode.NOT_DRAINED


def _leave_within(seconds: float) -> None:
    """End the process by force unless it ends by itself."""
    timer = threading.Timer(seconds, os._exit, (ExitCode.NOT_DRAINED,))
    timer.daemon = True
    timer.start()


SWITCH_SECONDS: Final = 0.0002
"""How long a thread may compute while another one waits to: a request must not wait for the router through several turns
of a thread that hashes or copies.  Beside one busy thread, a thread that wakes up begins after 11 ms (median) with Python's own
5 ms, after 1.2 ms with 1 ms, 0.7 ms with 0.5 ms, and 0.1 ms with this; the busy one gets as much done, down to 0.05 ms."""
GARBAGE_THRESHOLDS: Final = (2_000, 10, 100)
"""Full collections stop all threads for as long as it takes to look at everything that waits somewhere, tens of
milliseconds beside a backlog.  They come after 2 million objects more than were freed, not after a quarter more.  Nothing on
the request path is part of a cycle; what a plugin leaves in cycles takes some hundred MB at most."""


def take_turns() -> None:
    """Set once, before the first thread."""
    sys.setswitchinterval(SWITCH_SECONDS)


def settle() -> None:
    """What was loaded so far stays.  With it, each full collection stops all threads for 25 ms; without, for less than
    one."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
