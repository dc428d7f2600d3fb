"""Starts the programs beside the server, looks after them, and stops them."""

from __future__ import annotations

import logging
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from lmcache_core.app.runtime.program import Program, ProgramState
from lmcache_core.jobs.inbox import Inbox

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0
"""How long programs may take to end once they are asked to; then they are killed."""
HASTY_STOP_SECONDS: Final = 1.0
"""The same for a server that does not wait for anything."""
KILLED_SECONDS: Final = 1.0
"""How long that may take."""
LOOK_SECONDS: Final = 0.5
"""How often the end of a program is looked for."""
KILL_AGAIN_SECONDS: Final = 0.02
_TIMED: Final = (ProgramState.WAITING, ProgramState.RUNNING)


class RuntimePlugins:
    """`run` is the body of the one thread that owns the programs; everything else may be called by any."""

    def __init__(self, programs: Sequence[Program], now: Callable[[], float] = time.monotonic) -> None:
        self._programs, self._now = programs, now
        self._wakes: Inbox[None] = Inbox()
        self._stop_at: float | None = None
        """Programs that are there then are killed."""
        self._has_run = False
        self._over = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        self._has_run = True
        try:
            while self._stop_at is None:
                self._step()
            for program in self._programs:
                program.stop()
            self._await_end()
        finally:
            if self._stop_at is not None:
                self._over.set()

    def stop(self, grace_seconds: float) -> None:
        """Ask the programs to end, and kill those that have not after the grace; asked again, the shorter one counts."""
        stop_at = self._now() + grace_seconds
        self._stop_at = stop_at if self._stop_at is None else min(stop_at, self._stop_at)
        self._wakes.wake()

    def wait_stopped(self) -> bool:
        """After `stop`.  False when a program, or the thread, is still there although it was killed."""
        if not self._has_run or self._stop_at is None:
            return True
        return self._over.wait(max(0.0, self._stop_at - self._now()) + KILLED_SECONDS)

    def close(self) -> None:
        """Give back what `run` waits with, after it has ended."""
        self._wakes.close()

    def status(self) -> list[dict[str, Any]]:
        return [program.status() for program in self._programs]

    def _step(self) -> None:
        """Look after the programs once, and wait until there is something to do."""
        now = self._now()
        for program in self._programs:
            program.look_for_end()
            if program.state is ProgramState.WAITING and program.due_at <= now and self._stop_at is None:
                program.start()
        self._wait(LOOK_SECONDS)

    def _await_end(self) -> None:
        while not all(program.is_gone for program in self._programs):
            left = (self._stop_at or 0.0) - self._now()
            if left <= -KILLED_SECONDS:
                names = [program.name for program in self._programs if not program.is_gone]
                logger.warning("runtime plugins cannot be killed names=%s", ",".join(names))
                return
            if left <= 0:
                for program in self._programs:
                    program.send(signal.SIGKILL)
            self._wait(min(LOOK_SECONDS, left) if left > 0 else KILL_AGAIN_SECONDS)
            for program in self._programs:
                program.look_for_end()

    def _wait(self, seconds: float) -> None:
        """Until somebody has written something, `stop` is called, a program is due, or the time is over."""
        now = self._now()
        due = [program.due_at - now for program in self._programs if program.state in _TIMED and program.due_at > now]
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        readers = {}
        for program in self._programs:
            if (fd := program.output_fd) is not None:
                readers[fd] = program
                poll.register(fd, select.POLLIN | select.POLLHUP)
        for fd, _ in poll.poll(1000 * min([seconds, *due])):
            if fd in readers:
                readers[fd].read()
            else:
                self._wakes.clear_wakes()
