"""A pool whose threads are daemons: what hangs on one keeps no process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Final, ParamSpec, TypeVar

Given = ParamSpec("Given")
Value = TypeVar("Value")


class DaemonPool(ThreadPoolExecutor):
    """Threads are started when they are needed.  A `ThreadPoolExecutor`, because an event loop takes no other kind; of its
    methods these are for any thread, and the others are not to be used."""

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(threads, name)
        self._name, self._threads_max = name, threads
        self._calls: Final[SimpleQueue[Callable[[], None] | None]] = SimpleQueue()
        self._counting = threading.Lock()  # guards the next two
        self._started = 0
        self._unanswered = 0

    @property
    def unanswered(self) -> int:
        """Calls that wait or run."""
        return self._unanswered

    def submit(self, fn: Callable[Given, Value], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Value]:
        future: Future[Value] = Future()
        with self._counting:
            if self._unanswered >= self._started < self._threads_max:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{self._started + 1}", daemon=True)
                thread.start()
                self._started += 1
            self._unanswered += 1
        self._calls.put(partial(_settle, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Threads end when nothing waits any more.  Returns at once, whatever is said."""
        for _ in range(self._threads_max):
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # an idle thread holds nothing
            with self._counting:
                self._unanswered -= 1


def _settle(future: Future[Value], call: Callable[[], Value]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = call()
    except BaseException as error:  # noqa: BLE001 - handed to the waiter
        future.set_exception(error)
    else:
        future.set_result(value)
