"""Calls of an author's methods: exceptions become outcomes; retries and the circuit breaker are here."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from lmcache_core import BorrowedBuffer, FaultLog, ObjectKey, Outcome
from lmcache_l2_adapter.circuit_breaker import CircuitBreaker
from lmcache_l2_adapter.executor import Executor, Method, Result
from lmcache_l2_adapter.retry import RetryPolicy


class Author(Protocol):
    """The methods of an author, plain or `async`; documented at `BlockingL2Adapter`."""

    @property
    def max_object_bytes(self) -> int | None: ...
    @property
    def contains_is_local(self) -> bool: ...
    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome | Awaitable[Outcome]: ...
    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome | Awaitable[Outcome]: ...
    def contains(self, key: ObjectKey) -> bool | Awaitable[bool]: ...
    def delete(self, key: ObjectKey) -> Outcome | Awaitable[Outcome]: ...
    def discard(self, key: ObjectKey, outcome: Outcome) -> bool | Awaitable[bool]: ...
    def is_transient(self, error: Exception) -> bool: ...
    def unpin(self, keys: Sequence[ObjectKey]) -> None: ...


class BackendCalls:
    """Calls of one adapter that share a breaker.  MISSING, REJECTED, DAMAGED and FOREIGN are answers of a healthy backend;
    what raised and is not retried, or returned what it must not, is FAILED and counts against the backend.  Any thread."""

    def __init__(
        self,
        executor: Executor,
        faults: FaultLog,
        breaker: CircuitBreaker,
        retry: RetryPolicy,
    ) -> None:
        self._executor = executor
        self._awaits = executor.awaits
        self._faults = faults
        self._breaker = breaker
        self._retry = retry
        self._budget = retry.budget

    async def run(
        self, author: Author, kind: type[Result], method: Method[Result], *arguments: object
    ) -> Result | Outcome:
        """Call the method.  Returns its result where that is a `kind`, otherwise FAILED."""
        permit = self._breaker.admit()
        if permit is None:
            return Outcome.FAILED
        self._budget.deposit()
        result: Result | Outcome = Outcome.FAILED
        failures = 0
        try:
            while True:
                try:
                    returned: Any = method(*arguments)
                    if self._awaits:
                        returned = await returned
                    break
                except BaseException as error:  # a plugin's boundary: a fault at one object is its outcome
                    if self._must_pass(error):
                        raise
                    failures += 1
                    delay = self._delay(author, error, failures)
                    if delay is None or not await self._executor.pause(delay) or not self._breaker.is_current(permit):
                        self._faults.exception("an l2 operation raised")
                        return Outcome.FAILED
            result = self._checked(kind, returned)
        finally:  # also where the operation was cancelled because its time was over
            if result is Outcome.FAILED or result is Outcome.TIMED_OUT:
                self._breaker.failed(permit)
            else:
                self._breaker.succeeded(permit)
        return result

    async def run_local(self, kind: type[Result], method: Method[Result], *arguments: object) -> Result | Outcome:
        """The same for a method that asks no backend: without the breaker and without retries."""
        try:
            returned: Any = method(*arguments)
            if self._awaits:
                returned = await returned
        except BaseException as error:  # a plugin's boundary
            if self._must_pass(error):
                raise
            self._faults.exception("an l2 operation raised")
            return Outcome.FAILED
        return self._checked(kind, returned)

    def _checked(self, kind: type[Result], returned: Any) -> Result | Outcome:
        if isinstance(returned, kind):
            return returned
        self._faults.error(f"an l2 operation returned {returned!r} where a value of {kind.__name__} belongs")
        return Outcome.FAILED

    def _must_pass(self, error: BaseException) -> bool:
        """Is this no fault, but how a coroutine is ended?  On threads none ever is: there it came out of a loop of the
        author's own."""
        if not self._awaits:
            return False
        import asyncio  # only adapters of an event loop have it: its import is a large part of a server's start

        return isinstance(error, asyncio.CancelledError | GeneratorExit)

    def _delay(self, author: Author, error: BaseException, failures: int) -> float | None:
        """Seconds until the next attempt; None: leave it."""
        if not isinstance(error, Exception):
            return None
        try:
            may_pass = author.is_transient(error)
        except BaseException:  # noqa: BLE001 - a plugin's boundary
            self._faults.exception("is_transient raised")
            return None
        return self._retry.next_delay(failures) if may_pass else None
