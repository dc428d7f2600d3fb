"""The simulation's scheduler: every thread is a greenlet, and one seed decides which runs next.

The code of the project runs as it is: its `run` loops, its locks, its time-outs (stand_ins.py, threads.py, descriptors.py).
A thread gives way where it blocks, and now and then where it takes a lock, so that two threads meet in the middle of each
other as they do on a machine.

Threads belong to processes.  A process can be frozen, as by SIGSTOP, and killed, as by SIGKILL.  Time passes with each step,
and jumps to the next deadline when nothing can run.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from greenlet import getcurrent, greenlet

PREEMPT_ONE_IN: Final = 24
"""A thread yields at one lock in this number."""
STEP_SECONDS: Final = 0.0004
"""How much time a step takes on average."""
FIRST_DESCRIPTOR: Final = 1 << 20
"""Simulated descriptors have numbers that no real one has."""
_graveyard: list[object] = []
"""Threads of killed processes: they must not run their `finally`, as a garbage collector would have them do."""


class DeadlockError(AssertionError):
    """Nothing can run, and no deadline is pending."""


class Process:
    """What is frozen, thawed and killed as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.thawed_at = 0.0
        self.parked: list[Task] = []
        self.tasks: dict[Task, None] = {}
        self.on_killed: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return self.name


class Task:
    """A simulated thread."""

    __slots__ = (
        "_body",
        "alive",
        "daemon",
        "greenlet",
        "ident",
        "joiners",
        "name",
        "process",
        "ready",
        "thread",
        "turn",
        "woken",
    )

    def __init__(self, runtime: Runtime, process: Process, name: str, body: Callable[[], None]) -> None:
        self.ident = next(runtime.idents)
        self.name = name
        self.process = process
        self.daemon = True
        self.alive = True
        self.joiners: list[Task] = []
        self.thread: object | None = None
        self.ready = False
        self.turn = 0
        """Counts its waits, so that the time-out of an earlier one does not end a later one."""
        self.woken = False
        self._body = body
        self.greenlet = greenlet(self._run, runtime.hub)
        runtime.by_greenlet[self.greenlet] = self

    def _run(self) -> None:
        runtime = the_runtime()
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001 - a thread's end by an exception is a violation of its own
            runtime.crashed.append((self, error))
        finally:
            self.alive = False
            self.process.tasks.pop(self, None)
            runtime.by_greenlet.pop(self.greenlet, None)
            for joiner in self.joiners:
                runtime.wake(joiner)


_current: list[Runtime] = []


def the_runtime() -> Runtime:
    assert _current, "no simulation is installed"
    return _current[-1]


@contextmanager
def current_runtime(runtime: Runtime) -> Iterator[None]:
    """It is `the_runtime` inside."""
    _current.append(runtime)
    try:
        yield
    finally:
        _current.remove(runtime)


def now() -> float:
    return the_runtime().now


class Runtime:
    """One simulation's scheduler.  Everything happens on one real thread."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.steps = 0
        self.hub = getcurrent()
        self.idents = iter(range(1, 1 << 62))
        self.ready: list[Task] = []
        self.by_greenlet: dict[greenlet, Task] = {}
        self.crashed: list[tuple[Task, BaseException]] = []
        self.descriptors: dict[int, Any] = {}
        """Simulated descriptors by number; each has `readable` and `waiters`."""
        self._next_descriptor = FIRST_DESCRIPTOR
        self._timers: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = iter(range(1 << 62))
        self._trace = hashlib.blake2b(digest_size=8)
        self._preempt_in = PREEMPT_ONE_IN

    # --- steps

    def step(self) -> None:
        """Let one thread run until it blocks or gives way; what was due comes before.  Raises DeadlockError."""
        self._fire()
        ready = self.ready
        while not ready:
            if not self._timers:
                raise DeadlockError(f"nothing can run at step {self.steps}")
            self.now = max(self.now, self._timers[0][0])
            self._fire()
        draw = self.random.random()
        index = int(draw * len(ready))
        task = ready[index]
        ready[index] = ready[-1]
        ready.pop()
        task.ready = False
        self.now += draw * 2 * STEP_SECONDS
        self.steps += 1
        self._trace.update(b"%d" % task.ident)
        task.greenlet.switch()

    def _fire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            _, _, function, arguments = heapq.heappop(timers)
            function(*arguments)

    @property
    def trace(self) -> str:
        """A digest of who ran when: equal for equal seeds."""
        return self._trace.hexdigest()

    def at(self, moment: float, function: Callable[..., None], *arguments: Any) -> None:
        """Call this from the scheduler at a time; it must not block."""
        heapq.heappush(self._timers, (moment, next(self._order), function, arguments))

    # --- processes and threads

    def spawn(self, process: Process, name: str, body: Callable[[], None]) -> Task:
        task = Task(self, process, name, body)
        process.tasks[task] = None
        self._make_ready(task)
        return task

    @property
    def current(self) -> Task | None:
        """None on the scheduler's own greenlet."""
        return self.by_greenlet.get(getcurrent())

    def freeze(self, process: Process, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT after so long."""
        if process.dead or process.frozen:
            return
        process.frozen = True
        process.parked += [task for task in self.ready if task.process is process]
        self.ready = [task for task in self.ready if task.process is not process]
        self.at(self.now + seconds, self.thaw, process)

    def thaw(self, process: Process) -> None:
        if not process.frozen:
            return
        process.frozen = False
        process.thawed_at = self.now
        parked, process.parked = process.parked, []
        if not process.dead:
            self.ready += parked

    def kill(self, process: Process) -> None:
        """As SIGKILL.  Not from one of its own threads."""
        process.dead = True
        self.ready = [task for task in self.ready if task.process is not process]
        _graveyard.extend(process.tasks)
        for task in process.tasks:
            self.by_greenlet.pop(task.greenlet, None)
        process.tasks = {}
        for function in process.on_killed:
            function()

    def _make_ready(self, task: Task) -> None:
        if task.process.dead or task.ready:
            return
        task.ready = True
        (task.process.parked if task.process.frozen else self.ready).append(task)

    # --- blocking

    def pass_on(self) -> None:
        """Give way."""
        task = self.by_greenlet.get(getcurrent())
        if task is not None:
            self._make_ready(task)
            self.hub.switch()

    def may_preempt(self) -> None:
        """Called where a lock is taken: give way now and then."""
        self._preempt_in -= 1
        if self._preempt_in <= 0:
            self._preempt_in = int(self.random.random() * 2 * PREEMPT_ONE_IN) + 1
            self.pass_on()

    def block(self, waiters: list[Task], timeout: float | None) -> bool:
        """Wait in this list until woken.  False after the time-out; the caller is in the list no more either way."""
        task = self.by_greenlet.get(getcurrent())
        if task is None:
            raise DeadlockError("the scheduler itself would block")
        task.turn += 1
        task.woken = False
        waiters.append(task)
        if timeout is not None:
            self.at(self.now + max(0.0, timeout), self._time_out, task, task.turn)
        self.hub.switch()
        if not task.woken and task in waiters:
            waiters.remove(task)
        return task.woken

    def wake(self, task: Task) -> None:
        task.woken = True
        self._make_ready(task)

    def _time_out(self, task: Task, turn: int) -> None:
        if task.turn == turn and not task.woken and task.alive:
            self._make_ready(task)

    def sleep(self, seconds: float) -> None:
        if self.by_greenlet.get(getcurrent()) is None:
            self.now += seconds
        else:
            self.block([], seconds)

    # --- descriptors

    def new_descriptor(self, source: Any) -> int:
        self._next_descriptor += 1
        self.descriptors[self._next_descriptor] = source
        return self._next_descriptor

    def poll(self, sources: Sequence[Any], seconds: float | None) -> list[Any]:
        """Those of these sources that are readable, after waiting for one."""
        deadline = None if seconds is None else self.now + seconds
        while True:
            found = [source for source in sources if source.readable]
            if found or (deadline is not None and self.now >= deadline):
                return found
            task = self.current
            for source in sources:
                source.waiters.append(task)
            self.block([], None if deadline is None else deadline - self.now)
            for source in sources:
                if task in source.waiters:
                    source.waiters.remove(task)
