"""One sidecar program: its process, its output, how it ended, and when it is started again."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from lmcache_sidecar.output_log import OutputLog
from lmcache_sidecar.program_files import ProgramFile

logger = logging.getLogger(__name__)

PAUSE_FIRST_SECONDS: Final = 1.0
PAUSE_MAX_SECONDS: Final = 60.0
PAUSE_FORGOTTEN_SECONDS: Final = 300.0
"""After a run of this length the first pause is used again."""
READ_SECONDS: Final = 0.05
READ_BYTES: Final = 8192
"""The server reads this many bytes every READ_SECONDS: a program that writes more waits, and the server does not."""
LAST_READS_MAX: Final = 32
"""More than a pipe holds, unless a process that has left the process group goes on writing."""
RECENT_SECONDS: Final = 60.0
RESTARTS_KEPT: Final = 64
"""More than the pauses allow in RECENT_SECONDS."""
_LAUNCHER: Final = Path(__file__).with_name("launcher.py")


class ProgramState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    """Not started yet, or until it is started again."""
    DONE = "done"
    """It ended by itself with exit code 0, and is not started again."""
    STOPPED = "stopped"
    """With the server."""


class Program:
    """Used by one thread, which must live as long as the server: when the thread that started a process ends, the kernel
    kills the process.  Any thread may call `status` and `recent_restarts`."""

    def __init__(
        self,
        file: ProgramFile,
        environment: Mapping[str, str],
        hide: Callable[[str], str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hide` takes secrets out of what is logged."""
        self.name = file.name
        self.state = ProgramState.WAITING
        self.due_at = now()
        """While it waits: when it is to be started.  While it runs: when its output may be read."""
        self._file, self._environment, self._hide, self._now = file, dict(environment), hide, now
        self._process: subprocess.Popen[bytes] | None = None
        self._output = OutputLog(self._log_line, now)
        self._pause = PAUSE_FIRST_SECONDS
        self._starts = 0
        self._started_at = now()
        self._last_exit: dict[str, Any] | None = None
        self._restarted: deque[float] = deque(maxlen=RESTARTS_KEPT)

    @property
    def output_fd(self) -> int | None:
        """To wait for; None while there is no output or it may not be read yet."""
        process = self._process
        if process is None or process.stdout is None or process.stdout.closed or self._now() < self.due_at:
            return None
        return process.stdout.fileno()

    def start(self) -> None:
        if self._starts:
            self._restarted.append(self._now())
        command = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), *self._file.command]
        self._starts += 1
        self._started_at = self.due_at = self._now()
        try:
            self._process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._last_exit = {"code": None, "signal": None, "error": str(error.strerror)}
            self._start_again()
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self.state = ProgramState.RUNNING
        logger.info("sidecar program started name=%s pid=%d", self.name, self._process.pid)

    def read(self) -> bool:
        """Log some of what it has written.  False when there is no more now."""
        process = self._process
        if process is None or process.stdout is None or process.stdout.closed:
            return False
        self.due_at = self._now() + READ_SECONDS
        data = process.stdout.read(READ_BYTES)
        if data:
            self._output.feed(data)
        elif data == b"":
            process.stdout.close()
        return bool(data)

    def look_for_end(self) -> None:
        """Where the process has ended: end what it left behind, and wait for the next start where there is one."""
        process = self._process
        if process is None or not _has_ended(process.pid):
            return
        self.send(signal.SIGKILL)  # before the process is reaped, as its number may be another's afterwards
        code = process.wait()
        for _ in range(LAST_READS_MAX):  # why it ended comes last
            if not self.read():
                break
        if process.stdout is not None:
            process.stdout.close()
        self._output.end()
        self._process = None
        name = signal.Signals(-code).name if code < 0 else None
        self._last_exit = {"code": code if code >= 0 else None, "signal": name, "error": ""}
        if self.state is ProgramState.STOPPED:
            logger.info("sidecar program stopped name=%s exit=%s", self.name, name or code)
        elif code == 0:
            self.state = ProgramState.DONE
            logger.info("sidecar program is done name=%s", self.name)
        else:
            self._start_again()

    def stop(self) -> None:
        """Ask it to end; it is not started again."""
        if self.state is not ProgramState.DONE:
            self.state = ProgramState.STOPPED
        self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        """To the process and what it has started, if it runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    @property
    def is_gone(self) -> bool:
        return self._process is None

    def status(self) -> dict[str, Any]:
        process = self._process
        return {
            "name": self.name,
            "file": str(self._file.path),
            "pid": None if process is None else process.pid,
            "state": str(self.state),
            "restarts": max(0, self._starts - 1),
            "last_exit": self._last_exit,
            "uptime_seconds": 0.0 if process is None else round(self._now() - self._started_at, 1),
            "dropped_lines": self._output.dropped_lines,
        }

    def recent_restarts(self) -> int:
        """How often it was started again in the last minute."""
        since = self._now() - RECENT_SECONDS
        return sum(at > since for at in tuple(self._restarted))

    def _start_again(self) -> None:
        now = self._now()
        if now - self._started_at > PAUSE_FORGOTTEN_SECONDS:
            self._pause = PAUSE_FIRST_SECONDS
        self.state, self.due_at = ProgramState.WAITING, now + self._pause
        self._pause = min(2 * self._pause, PAUSE_MAX_SECONDS)

    def _log_line(self, line: str) -> None:
        logger.info("[%s] %s", self.name, self._hide(line))


def _has_ended(pid: int) -> bool:
    """Without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # something else in this process has reaped it
        return True
