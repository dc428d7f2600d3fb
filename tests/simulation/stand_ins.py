"""Stand-ins of the standard library, put in place where modules of the project imported it.

They find them for `threading`, `time`, `select`, `queue`, `concurrent.futures`, `os` (descriptors of events only) and what
else is named, such as `zmq`.
"""

from __future__ import annotations

import concurrent.futures
import os
import queue
import select
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from tests.simulation.descriptors import Poll, close, eventfd_read, eventfd_write, new_eventfd
from tests.simulation.runtime import Runtime, current_runtime, now, the_runtime
from tests.simulation.threads import (
    Condition,
    Event,
    Future,
    Lock,
    RLock,
    Semaphore,
    SimpleQueue,
    Thread,
    the_ident,
    the_thread,
    wait_for_futures,
)


@contextmanager
def installed(runtime: Runtime, packages: Sequence[str], replaced: Sequence[tuple[object, object]]) -> Iterator[None]:
    """The imported modules of these packages see the simulation, until the end, and what else is `replaced`: pairs of
    what they have and its replacement."""
    swaps = _swaps(replaced)
    undo: list[Callable[[], None]] = []
    with current_runtime(runtime):
        for name, module in sorted(sys.modules.items()):
            if name.partition(".")[0] in packages:
                _swap_globals(module, swaps, undo)
        try:
            yield
        finally:
            for function in reversed(undo):
                function()


def _swaps(replaced: Sequence[tuple[object, object]]) -> dict[int, tuple[object, object]]:
    """By identity: what modules have of the standard library, and its replacement."""
    sim_threading = _Module(
        threading, **{cls.__name__: cls for cls in (Lock, RLock, Condition, Event, Semaphore, Thread)}
    )
    sim_threading.get_ident = lambda: the_ident()
    sim_threading.current_thread = the_thread
    sim_time = _Module(time, monotonic=now, perf_counter=now, thread_time=now, sleep=lambda s: the_runtime().sleep(s))
    sim_time.time = _wall
    sim_time.time_ns = lambda: int(_wall() * 1e9)
    sim_time.monotonic_ns = lambda: int(now() * 1e9)
    sim_futures = _Module(concurrent.futures, Future=Future, wait=wait_for_futures)
    pairs: list[tuple[object, object]] = [
        (threading, sim_threading),
        (threading.Lock, Lock),
        (threading.RLock, RLock),
        (threading.Condition, Condition),
        (threading.Event, Event),
        (threading.Thread, Thread),
        (time, sim_time),
        (time.monotonic, now),
        (time.perf_counter, now),
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
    """Default arguments, the factories of dataclasses' fields and static methods were bound when they were defined."""
    members: dict[str, object] = dict(vars(value)) if isinstance(value, type) else {"": value}
    for name, function in members.items():
        if isinstance(function, staticmethod) and id(function.__func__) in swaps:
            setattr(value, name, staticmethod(swaps[id(function.__func__)][1]))  # type: ignore[arg-type]
            undo.append(partial(setattr, value, name, function))
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


def _wall() -> float:
    return 1.7e9 + the_runtime().now
