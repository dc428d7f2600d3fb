"""Simulated descriptors: eventfds and `select.poll`."""

from __future__ import annotations

import os
import select
from typing import Any

from tests.simulation.runtime import FIRST_DESCRIPTOR, Task, the_runtime


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
