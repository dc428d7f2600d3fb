"""A program that runs beside us, with its log in a file: what the handles of servers and engines share."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from demo.preloaded import ForkedProcess, Preloaded
from demo.shared_memory import group_is_stopped, group_runs

TAIL_LINES = 30
GROUP_SECONDS = 30.0
"""A killed process ends when the kernel has taken its memory back: a second or two for an engine's."""


class ChildError(Exception):
    """A child died, did not answer in time, or answered nonsense.  The message ends with the last lines of its log."""


class ChildProcess:
    """Starts, stops and kills one program, again and again.  Not thread-safe.

    Each start gets a process group of its own, so that a kill takes the program's own children along, and an interrupt
    from the terminal reaches only us.  All starts append to the same log.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
        preloaded: Preloaded | None = None,
    ) -> None:
        """`preloaded` starts it, where there is one."""
        self.name = name
        self.log_path = log_path
        self._command = list(command)
        self._environment = dict(environment)
        self._preloaded = preloaded
        self._process: subprocess.Popen[str] | ForkedProcess | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ended(self) -> bool:
        """False before it was started."""
        return self._process is not None and self._process.poll() is not None

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def stdin(self) -> IO[str]:
        pipe = self._started().stdin
        assert pipe is not None
        return pipe

    @property
    def stdout(self) -> IO[str]:
        pipe = self._started().stdout
        assert pipe is not None
        return pipe

    def start(self, *, piped: bool = False) -> None:
        """`piped` gives the child pipes for stdin and stdout; otherwise stdout goes to the log, as stderr always does.

        The reader of `stdout` owns it: it ends when the child does, and is closed by its reader.
        """
        assert not self.running, f"{self.name} runs already"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("a") as log:
            if self._preloaded is not None:
                self._process = self._preloaded.popen(self._command, self._environment, log, piped=piped)
                return
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                env=self._environment,
                text=True,
                start_new_session=True,
            )

    def stop(self, timeout_seconds: float) -> int:
        """SIGTERM, then wait; returns the exit status.  One that does not go in time is killed, and that is an error."""
        process = self._started()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise self.error(f"still ran {timeout_seconds:.0f} s after SIGTERM, and was killed") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to the program and its children; returns when all are gone, with the ports that they listened on.  Harmless
        when they already are."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        until = time.monotonic() + GROUP_SECONDS
        while group_runs(self._process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def pause(self) -> None:
        """SIGSTOP to the program and its children, which do nothing from the return on until `resume` or the end."""
        os.killpg(self.pid, signal.SIGSTOP)
        until = time.monotonic() + GROUP_SECONDS
        while not group_is_stopped(self.pid):
            if time.monotonic() > until:
                raise self.error(f"still ran {GROUP_SECONDS:.0f} s after SIGSTOP")
            time.sleep(0.001)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def wait(self, timeout_seconds: float) -> bool:
        """True when the program has ended by itself within this time."""
        try:
            self._started().wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def error(self, what: str) -> ChildError:
        """An error to raise, with what the log ends with."""
        tail = self.log_path.read_text(errors="replace").splitlines()[-TAIL_LINES:] if self.log_path.exists() else []
        shown = "\n".join(f"    {line}" for line in tail)
        return ChildError(f"{self.name} {what}; the end of its log ({self.log_path}):\n{shown}")

    def _started(self) -> subprocess.Popen[str] | ForkedProcess:
        assert self._process is not None, f"{self.name} was never started"
        return self._process
