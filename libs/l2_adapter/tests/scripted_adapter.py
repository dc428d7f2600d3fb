"""An adapter of coroutines that does what a test says, and what closes such an adapter behind the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import pytest

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, ObjectKey, Outcome, StoreItem
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_devkit.l2_driver import WAIT_SECONDS
from lmcache_l2_adapter import AsyncL2Adapter

DONE = Outcome.DONE


class Scripted(AsyncL2Adapter):
    """Does what the test says, and writes down what it was asked."""

    capabilities = Capability.DELETE

    def __init__(self, context: AdapterContext, concurrency: int = 2, timeout_seconds: float = WAIT_SECONDS) -> None:
        self.calls: list[tuple[str, ObjectKey]] = []
        self.script: dict[tuple[str, ObjectKey], Callable[[], Awaitable[object]]] = {}
        self.was_stopped = threading.Event()
        super().__init__(context, concurrency, timeout_seconds)

    async def play(self, verb: str, key: ObjectKey, otherwise: object) -> object:
        self.calls.append((verb, key))
        step = self.script.get((verb, key))
        return otherwise if step is None else await step()

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return await self.play("store", key, DONE)  # type: ignore[return-value]

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return await self.play("load", key, DONE)  # type: ignore[return-value]

    async def contains(self, key: ObjectKey) -> bool:
        return await self.play("contains", key, True)  # type: ignore[return-value]

    async def delete(self, key: ObjectKey) -> Outcome:
        return await self.play("delete", key, DONE)  # type: ignore[return-value]

    async def stopped(self) -> None:
        self.was_stopped.set()


class Gate:
    """Something that a coroutine waits at.  A stubborn one is not left when it is cancelled."""

    def __init__(self, result: object = DONE, *, is_stubborn: bool = False) -> None:
        self.reached = threading.Semaphore(0)
        self.opened = threading.Event()
        self.cancelled = threading.Semaphore(0)
        self._result = result
        self._is_stubborn = is_stubborn

    async def __call__(self) -> object:
        self.reached.release()
        while not self.opened.is_set():
            try:
                await asyncio.sleep(0.002)
            except asyncio.CancelledError:
                self.cancelled.release()
                if not self._is_stubborn:
                    raise
        return self._result

    def wait_reached(self) -> None:
        assert self.reached.acquire(timeout=WAIT_SECONDS)


def items(memory: BorrowedMemory, *numbers: int) -> list[StoreItem]:
    return [StoreItem(object_key(number), memory.lend(64)) for number in numbers]


def having(**settings: float) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("adapter", [settings], indirect=True)


class Stoppable(Protocol):
    """A scripted adapter of either kind."""

    was_stopped: threading.Event

    def close(self, deadline_seconds: float) -> None: ...


Adapter = TypeVar("Adapter", bound=Stoppable)


@contextmanager
def closed_behind(adapter: Adapter) -> Iterator[Adapter]:
    yield adapter
    adapter.close(WAIT_SECONDS)
    assert adapter.was_stopped.wait(WAIT_SECONDS)
