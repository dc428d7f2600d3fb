"""The service that starts sidecar programs, looks after them, and stops them."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lmcache_core import Condition, ServerInfo, Service, ServiceContext, Severity
from lmcache_sidecar.environment import named_secrets, program_environment
from lmcache_sidecar.program import Program, ProgramState
from lmcache_sidecar.program_files import ProgramFile, find_programs
from lmcache_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0
"""How long programs may take to end after SIGTERM; then they are killed."""
HASTY_STOP_SECONDS: Final = 1.0
"""The same for a server that does not wait for anything."""
KILLED_SECONDS: Final = 1.0
"""How long a killed program may take to end."""
LOOK_SECONDS: Final = 0.5
"""How often the end of a program is looked for."""
KILL_AGAIN_SECONDS: Final = 0.02
_TIMED: Final = (ProgramState.WAITING, ProgramState.RUNNING)


class Programs:
    """`run` is the body of the one thread that owns the programs; any thread may call everything else."""

    def __init__(self, programs: Sequence[Program], now: Callable[[], float] = time.monotonic) -> None:
        self._programs, self._now = programs, now
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when `stop` was called."""
        self._stop_at: float | None = None
        """Programs that still run at this time are killed."""
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
        """Ask the programs to end, and kill those that run after the grace.  Called again, the shorter grace counts."""
        stop_at = self._now() + grace_seconds
        self._stop_at = stop_at if self._stop_at is None else min(stop_at, self._stop_at)
        if self._event >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self._event, 1)

    def wait_stopped(self) -> bool:
        """After `stop`.  False when a program, or the thread, is still there although it was killed."""
        if not self._has_run or self._stop_at is None:
            return True
        return self._over.wait(max(0.0, self._stop_at - self._now()) + KILLED_SECONDS)

    def close(self) -> None:
        """Close what `run` waits with.  To be called after `run` has ended."""
        event, self._event = self._event, -1
        if event >= 0:
            os.close(event)

    def status(self) -> list[dict[str, Any]]:
        return [program.status() for program in self._programs]

    def conditions(self) -> list[Condition]:
        return [condition for program in self._programs if (condition := _condition(program))]

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
                logger.warning("sidecar programs cannot be killed names=%s", ",".join(names))
                return
            if left <= 0:
                for program in self._programs:
                    program.send(signal.SIGKILL)
            self._wait(min(LOOK_SECONDS, left) if left > 0 else KILL_AGAIN_SECONDS)
            for program in self._programs:
                program.look_for_end()

    def _wait(self, seconds: float) -> None:
        """Until a program has written something, `stop` is called, a program is due, or the time is over."""
        now = self._now()
        due = [program.due_at - now for program in self._programs if program.state in _TIMED and program.due_at > now]
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        readers = {}
        for program in self._programs:
            if (fd := program.output_fd) is not None:
                readers[fd] = program
                poll.register(fd, select.POLLIN | select.POLLHUP)
        for fd, _ in poll.poll(1000 * min([seconds, *due])):
            if fd in readers:
                readers[fd].read()
            else:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)


class SidecarService(Service):
    """Without programs it has no thread and does nothing."""

    def __init__(self, files: Sequence[ProgramFile], config: Mapping[str, Any], context: ServiceContext) -> None:
        """Raises ConfigError for secrets that do not exist."""
        self._files, self._config, self._context = files, config, context
        self._secrets = named_secrets(config, context)
        self._programs: Programs | None = None

    def start(self, server: ServerInfo) -> None:
        """Raises ConfigError for a configuration that no environment variable can hold."""
        if self._files:
            environment = program_environment(self._config, self._secrets, server, self._context)
            mask = self._context.masking({str(value) for value in self._secrets.values()})
            self._programs = Programs([Program(file, environment, mask) for file in self._files])

    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {"programs": self._programs.run} if self._programs else {}

    def stop(self, seconds: float) -> None:
        if self._programs:
            self._programs.stop(STOP_SECONDS if seconds else HASTY_STOP_SECONDS)

    def close(self) -> None:
        if self._programs:
            self._programs.stop(STOP_SECONDS)
            if self._programs.wait_stopped():
                self._programs.close()

    def status(self) -> Mapping[str, Any]:
        return {"programs": self._programs.status() if self._programs else []}

    def conditions(self) -> Sequence[Condition]:
        return self._programs.conditions() if self._programs else ()


def open_sidecar(settings: SidecarSettings, context: ServiceContext) -> Service:
    """Raises ConfigError for a location where there is no program, or one that every user can change."""
    return SidecarService(find_programs(settings.locations), settings.config, context)


def _condition(program: Program) -> Condition | None:
    """A program that fails again and again."""
    status, restarts = program.status(), program.recent_restarts()
    is_waiting = status["state"] == ProgramState.WAITING and status["last_exit"] is not None
    if not (restarts or is_waiting):
        return None
    return Condition(
        "program_fails",
        Severity.WARNING if is_waiting else Severity.INFO,
        f"{status['state']}, started again {restarts} times in the last minute; last {_exit(status['last_exit'] or {})}",
        "its own output is in the log",
        f"program {program.name}",
        {"restarts": restarts},
    )


def _exit(last: Mapping[str, Any]) -> str:
    if last.get("error"):
        return str(last["error"])
    if last.get("signal") is not None:
        return f"killed by {last['signal']}"
    return f"exit code {last['code']}" if last.get("code") is not None else "exit unknown"
