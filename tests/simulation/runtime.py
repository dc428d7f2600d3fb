"""Threads, clock and blocking calls of Python, simulated: every thread is a greenlet, and one seed decides which runs next.

Inside of `Runtime.installed` the modules of the project find simulated stand-ins where they imported `threading`, `time`,
`select`, `queue`, `concurrent.futures`, `os` (descriptors of events only) and `zmq`.  Their code runs as it is: its `run`
loops, its locks, its time-outs.  A thread gives way where it blocks, and now and then where it takes a lock, so that two
threads meet in the middle of each other as they do on a machine.

Threads belong to processes.  A process can be frozen, as by SIGSTOP, and killed, as by SIGKILL.  Time passes with each step,
and jumps to the next deadline when nothing can run.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import heapq
import os
import queue
import random
import select
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from greenlet import getcurrent, greenlet

PREEMPT_ONE_IN: Final = 24
"""A thread gives way at one lock in so many."""
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
        self.thread: Thread | None = None
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
        except BaseException as error:  # noqa: BLE001 - a thread's end by an exception is a finding of its own
            runtime.crashed.append((self, error))
        finally:
            self.alive = False
            self.process.tasks.pop(self, None)
            runtime.by_greenlet.pop(self.greenlet, None)
            for joiner in self.joiners:
                runtime.wake(joiner)


_current: Runtime | None = None


def the_runtime() -> Runtime:
    assert _current is not None, "no simulation is installed"
    return _current


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

    # --- putting it in place

    @contextmanager
    def installed(self, packages: Sequence[str], replaced: Sequence[tuple[object, object]]) -> Iterator[None]:
        """The imported modules of these packages see the simulation, until the end, and what else is `replaced`: pairs of
        what they have and what stands in for it."""
        global _current
        swaps = _swaps(replaced)
        undo: list[Callable[[], None]] = []
        _current = self
        for name, module in sorted(sys.modules.items()):
            if name.partition(".")[0] in packages and not name.startswith("lmcache_core.testing"):
                _swap_globals(module, swaps, undo)
        try:
            yield
        finally:
            for function in reversed(undo):
                function()
            _current = None


def _swaps(replaced: Sequence[tuple[object, object]]) -> dict[int, tuple[object, object]]:
    """By identity: what modules have of the standard library, and what stands in for it."""
    sim_threading = _Module(
        threading, **{cls.__name__: cls for cls in (Lock, RLock, Condition, Event, Semaphore, Thread)}
    )
    sim_threading.get_ident = lambda: the_ident()
    sim_threading.current_thread = the_thread
    sim_time = _Module(
        time, monotonic=_now, perf_counter=_now, thread_time=_now, sleep=lambda s: the_runtime().sleep(s)
    )
    sim_time.time = _wall
    sim_time.time_ns = lambda: int(_wall() * 1e9)
    sim_time.monotonic_ns = lambda: int(_now() * 1e9)
    sim_futures = _Module(concurrent.futures, Future=Future, wait=wait_for_futures)
    pairs: list[tuple[object, object]] = [
        (threading, sim_threading),
        (threading.Lock, Lock),
        (threading.RLock, RLock),
        (threading.Condition, Condition),
        (threading.Event, Event),
        (threading.Thread, Thread),
        (time, sim_time),
        (time.monotonic, _now),
        (time.perf_counter, _now),
        (time.time_ns, sim_time.time_ns),
        (select, _Module(select, poll=Poll)),
        (queue, _Module(queue, SimpleQueue=SimpleQueue, Queue=SimpleQueue)),
        (queue.SimpleQueue, SimpleQueue),
        (concurrent.futures, sim_futures),
        (concurrent.futures.Future, Future),
        (concurrent.futures.wait, wait_for_futures),
        (os, _Module(os, eventfd=new_eventfd, eventfd_read=eventfd_read, eventfd_write=eventfd_write, close=close)),
    ]
    return {id(real): (real, stand_in) for real, stand_in in (*pairs, *replaced)}


def _swap_globals(
    module: types.ModuleType, swaps: dict[int, tuple[object, object]], undo: list[Callable[[], None]]
) -> None:
    lock_types = (type(threading.Lock()), type(threading.RLock()))
    for name, value in list(vars(module).items()):
        stand_in: object
        if id(value) in swaps:
            stand_in = swaps[id(value)][1]
        elif isinstance(value, lock_types):
            stand_in = Lock()
        else:
            if isinstance(value, (type, types.FunctionType)) and value.__module__ == module.__name__:
                _swap_defaults(value, swaps, undo)
            continue
        setattr(module, name, stand_in)
        undo.append(partial(setattr, module, name, value))


def _swap_defaults(value: object, swaps: dict[int, tuple[object, object]], undo: list[Callable[[], None]]) -> None:
    """Default arguments, and the factories of dataclasses' fields, were bound when functions were defined."""
    for function in list(vars(value).values()) if isinstance(value, type) else [value]:
        if not isinstance(function, types.FunctionType):
            continue
        defaults = function.__defaults__
        if defaults and any(id(each) in swaps for each in defaults):
            function.__defaults__ = tuple(swaps[id(each)][1] if id(each) in swaps else each for each in defaults)
            undo.append(partial(setattr, function, "__defaults__", defaults))
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                bound = cell.cell_contents
                if id(bound) in swaps:
                    cell.cell_contents = swaps[id(bound)][1]
                    undo.append(partial(setattr, cell, "cell_contents", bound))


class _Module:
    """A module with some names replaced."""

    def __init__(self, real: types.ModuleType, **replaced: object) -> None:
        self.__dict__.update(replaced)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = value


def _now() -> float:
    return the_runtime().now


def _wall() -> float:
    return 1.7e9 + the_runtime().now


def the_ident() -> int:
    task = the_runtime().current
    return task.ident if task else 0


def the_thread() -> object:
    task = the_runtime().current
    return (task.thread or task) if task else _HUB


# --- what stands in for the standard library


class Lock:
    def __init__(self) -> None:
        self.owner: Task | bool | None = None
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        runtime = the_runtime()
        runtime.may_preempt()
        deadline = runtime.now + timeout if timeout >= 0 else None
        while self.owner is not None:
            left = None if deadline is None else deadline - runtime.now
            if not blocking or (left is not None and left <= 0):
                return False
            runtime.block(self._waiters, left)
        self.owner = runtime.by_greenlet.get(getcurrent()) or True
        return True

    def release(self) -> None:
        if self.owner is None:
            raise RuntimeError("release of a lock that is not held")
        self.owner = None
        if self._waiters:
            runtime = the_runtime()
            runtime.wake(self._waiters.pop(int(runtime.random.random() * len(self._waiters))))

    def locked(self) -> bool:
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class RLock(Lock):
    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.owner is not None and self.owner is (the_runtime().current or True):
            self._depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._depth = 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            super().release()


class Condition:
    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock if lock is not None else RLock()
        self._waiting: list[Task] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        depth = getattr(self._lock, "_depth", 1)
        for _ in range(depth):
            self._lock.release()
        try:
            return the_runtime().block(self._waiting, timeout)
        finally:
            for _ in range(depth):
                self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else _now() + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - _now()
            if left is not None and left <= 0:
                return result
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for task in self._waiting[:n]:
            the_runtime().wake(task)
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    def __init__(self) -> None:
        self._flag = False
        self._waiters: list[Task] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        waiters, self._waiters = self._waiters, []
        for task in waiters:
            the_runtime().wake(task)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        runtime = the_runtime()
        runtime.may_preempt()
        deadline = None if timeout is None else runtime.now + timeout
        while not self._flag:
            left = None if deadline is None else deadline - runtime.now
            if left is not None and left <= 0:
                return False
            runtime.block(self._waiters, left)
        return True


class Semaphore:
    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._changed = Condition()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._changed:
            if not self._changed.wait_for(lambda: self._value > 0, timeout if blocking else 0):
                return False
            self._value -= 1
            return True

    def release(self) -> None:
        with self._changed:
            self._value += 1
            self._changed.notify()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Thread:
    def __init__(
        self,
        group: None = None,
        target: Callable[..., None] | None = None,
        name: str = "thread",
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self._task: Task | None = None

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        runtime = the_runtime()
        current = runtime.current
        assert current is not None, "threads are started by threads of a process"
        self._task = runtime.spawn(current.process, self.name, self.run)
        self._task.thread = self

    @property
    def ident(self) -> int | None:
        return self._task.ident if self._task else None

    native_id = ident

    def is_alive(self) -> bool:
        return self._task is not None and self._task.alive and not self._task.process.dead

    def join(self, timeout: float | None = None) -> None:
        runtime = the_runtime()
        deadline = None if timeout is None else runtime.now + timeout
        while self.is_alive():
            assert self._task is not None
            left = None if deadline is None else deadline - runtime.now
            if left is not None and left <= 0:
                return
            runtime.block(self._task.joiners, left)


_HUB: Final = types.SimpleNamespace(name="simulation", ident=0, daemon=True)


class SimpleQueue:
    def __init__(self, maxsize: int = 0) -> None:
        self._items: deque[Any] = deque()
        self._waiters: list[Task] = []

    def __class_getitem__(cls, item: object) -> type[SimpleQueue]:
        return cls

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        if self._waiters:
            the_runtime().wake(self._waiters.pop(0))

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        runtime = the_runtime()
        deadline = None if timeout is None else runtime.now + timeout
        while not self._items:
            left = None if deadline is None else deadline - runtime.now
            if not block or (left is not None and left <= 0):
                raise queue.Empty
            runtime.block(self._waiters, left)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)


class Future(concurrent.futures.Future[Any]):
    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()  # type: ignore[assignment]


def wait_for_futures(
    fs: Sequence[Future], timeout: float | None = None, return_when: str = concurrent.futures.ALL_COMPLETED
) -> tuple[set[Future], set[Future]]:
    runtime = the_runtime()
    needed = len(fs) if return_when == concurrent.futures.ALL_COMPLETED else 1
    changed = Event()
    for future in fs:
        future.add_done_callback(lambda _: changed.set())
    deadline = None if timeout is None else runtime.now + timeout
    while sum(future.done() for future in fs) < needed and (deadline is None or runtime.now < deadline):
        changed.clear()
        changed.wait(None if deadline is None else deadline - runtime.now)
    done = {future for future in fs if future.done()}
    return done, set(fs) - done


class _EventCounter:
    """An eventfd."""

    def __init__(self, value: int, blocking: bool) -> None:
        self.value = value
        self.blocking = blocking
        self.waiters: list[Task] = []

    @property
    def readable(self) -> bool:
        return self.value > 0


def notify(source: Any) -> None:
    """Wake who polls this source."""
    if source.waiters:
        waiters, source.waiters = source.waiters, []
        for task in waiters:
            the_runtime().wake(task)


def new_eventfd(value: int, flags: int = 0) -> int:
    return the_runtime().new_descriptor(_EventCounter(value, not flags & os.EFD_NONBLOCK))


def eventfd_write(descriptor: int, value: int) -> None:
    counter = the_runtime().descriptors[descriptor]
    counter.value += value
    notify(counter)


def eventfd_read(descriptor: int) -> int:
    runtime = the_runtime()
    counter = runtime.descriptors[descriptor]
    while not counter.value:
        if not counter.blocking:
            raise BlockingIOError
        runtime.block(counter.waiters, None)
    value, counter.value = counter.value, 0
    return int(value)


def close(descriptor: int) -> None:
    if descriptor >= FIRST_DESCRIPTOR:
        the_runtime().descriptors.pop(descriptor, None)
    else:
        os.close(descriptor)


class Poll:
    """`select.poll`, for simulated descriptors and readability."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def register(self, source: Any, events: int = select.POLLIN) -> None:
        number = source if isinstance(source, int) else source.fileno()
        if number not in self._numbers:
            self._numbers.append(number)

    def unregister(self, source: Any) -> None:
        self._numbers.remove(source if isinstance(source, int) else source.fileno())

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        runtime = the_runtime()
        closed = [(number, select.POLLNVAL) for number in self._numbers if number not in runtime.descriptors]
        if closed:
            return closed
        by_source = {id(runtime.descriptors[number]): number for number in self._numbers}
        seconds = None if timeout is None or timeout < 0 else timeout / 1000
        found = runtime.poll([runtime.descriptors[number] for number in self._numbers], seconds)
        return [(by_source[id(source)], select.POLLIN) for source in found]
