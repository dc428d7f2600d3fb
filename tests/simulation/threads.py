"""Simulated threads, locks, queues and futures, with the interface of the standard library's."""

from __future__ import annotations

import concurrent.futures
import queue
import types
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from greenlet import getcurrent

from tests.simulation.runtime import Task, now, the_runtime

HUB: Final = types.SimpleNamespace(name="simulation", ident=0, daemon=True)


def the_ident() -> int:
    task = the_runtime().current
    return task.ident if task else 0


def the_thread() -> object:
    task = the_runtime().current
    return (task.thread or task) if task else HUB


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
        deadline = None if timeout is None else now() + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - now()
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
