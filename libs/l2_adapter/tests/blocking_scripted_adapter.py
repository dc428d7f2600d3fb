"""An adapter of blocking methods that does what a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, ObjectKey, Outcome
from lmcache_devkit.l2_driver import WAIT_SECONDS
from lmcache_l2_adapter import BlockingL2Adapter

DONE = Outcome.DONE


class BlockingScripted(BlockingL2Adapter):
    """Does what the test says, and writes down what it was asked."""

    capabilities = Capability.DELETE

    def __init__(self, context: AdapterContext, workers: int = 2) -> None:
        self.calls: list[tuple[str, ObjectKey]] = []
        self.script: dict[tuple[str, ObjectKey], Callable[[], object]] = {}
        self.was_stopped = threading.Event()
        super().__init__(context, workers)

    def play(self, verb: str, key: ObjectKey, otherwise: object) -> object:
        self.calls.append((verb, key))
        return self.script.get((verb, key), lambda: otherwise)()

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return self.play("store", key, DONE)  # type: ignore[return-value]

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return self.play("load", key, DONE)  # type: ignore[return-value]

    def contains(self, key: ObjectKey) -> bool:
        return self.play("contains", key, True)  # type: ignore[return-value]

    def delete(self, key: ObjectKey) -> Outcome:
        return self.play("delete", key, DONE)  # type: ignore[return-value]

    def stopped(self) -> None:
        self.was_stopped.set()


class BlockingGate:
    """Something that an adapter's thread gets stuck at."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self) -> Outcome:
        self.reached.release()
        assert self.opened.wait(WAIT_SECONDS)
        return DONE

    def wait_reached(self) -> None:
        assert self.reached.acquire(timeout=WAIT_SECONDS)
