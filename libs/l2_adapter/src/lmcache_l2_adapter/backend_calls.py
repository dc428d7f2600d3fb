"""Calls of an author's methods: exceptions become outcomes, failed calls are retried within a budget, and a circuit breaker
pauses calls to a backend that is down.

Delays of retries are exponential with full jitter: callers that failed together do not come back together (Brooker,
"Exponential Backoff And Jitter", AWS Architecture Blog, 2015).  A budget bounds retries to a share of the operations
("Handling Overload" in Site Reliability Engineering, ch. 21, gives 10 % per client); it is a token bucket, as in gRPC's
retry throttling (proposal A6) and Finagle's RetryBudget.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final, NewType, Protocol

from lmcache_core import BorrowedBuffer, CircuitState, CircuitStatus, Clock, FaultLog, ObjectKey, Outcome
from lmcache_l2_adapter.executor import Executor, Method, Result

FAILURES_MAX: Final = 10
COOL_DOWN_SECONDS: Final = 1.0
COOL_DOWN_SECONDS_MAX: Final = 10.0
"""One call in this time is little for a backend that is down, and one that is back is used again soon."""

Permit = NewType("Permit", int)
"""Which period of the breaker a call belongs to.  The result of a call from an earlier one changes nothing."""


class CircuitBreaker:
    """Any thread; never blocks.  Every call that was admitted must end in `succeeded` or `failed`."""

    def __init__(
        self,
        clock: Clock,
        *,
        threshold: int = FAILURES_MAX,
        cool_down_seconds: float = COOL_DOWN_SECONDS,
        cool_down_seconds_max: float = COOL_DOWN_SECONDS_MAX,
    ) -> None:
        if threshold < 1 or not 0 < cool_down_seconds <= cool_down_seconds_max:
            raise ValueError(
                "a circuit breaker needs threshold >= 1 and 0 < cool_down_seconds <= cool_down_seconds_max"
            )
        self._clock = clock
        self._threshold = threshold
        self._first_cool_down = cool_down_seconds
        self._cool_down_max = cool_down_seconds_max
        self._lock = threading.Lock()  # guards changes of all below
        self._state = CircuitState.CLOSED
        self._period = Permit(0)
        self._permit: Permit | None = self._period  # for all; None: ask under the lock
        self._failures = 0
        self._openings = 0
        self._cool_down = cool_down_seconds
        self._retry_at = 0.0

    @property
    def status(self) -> CircuitStatus:
        with self._lock:
            waiting = self._state is CircuitState.OPEN
            retry_in = max(self._retry_at - self._clock.monotonic(), 0.0) if waiting else None
            return CircuitStatus(self._state, self._failures, self._openings, retry_in)

    def admit(self) -> Permit | None:
        """A permit to call the backend now; None where it may not be called.  Once a cool-down is over, one
        caller gets a permit as the probe, and another one for every cool-down that it takes."""
        permit = self._permit
        if permit is not None:
            return permit
        with self._lock:
            now = self._clock.monotonic()
            if self._state is CircuitState.CLOSED:
                return self._period
            if now < self._retry_at:
                return None
            if self._state is CircuitState.OPEN:
                self._enter(CircuitState.HALF_OPEN)
            self._retry_at = now + self._cool_down
            return self._period

    def is_current(self, permit: Permit) -> bool:
        """False once the breaker has opened or closed since this call was admitted."""
        return permit == self._period

    def succeeded(self, permit: Permit) -> bool:
        """The backend answered.  True when that closes the breaker."""
        if not self._failures or permit != self._period:
            return False
        with self._lock:
            if permit != self._period:
                return False
            self._failures = 0
            if self._state is CircuitState.CLOSED:
                return False
            self._enter(CircuitState.CLOSED)
            self._cool_down = self._first_cool_down
            return True

    def failed(self, permit: Permit) -> float | None:
        """The backend did not answer, or with an error.  The cool-down in seconds when that opens the breaker."""
        with self._lock:
            if permit != self._period:
                return None
            self._failures += 1
            if self._state is CircuitState.HALF_OPEN:
                self._cool_down = min(self._cool_down * 2, self._cool_down_max)
            elif self._failures < self._threshold:
                return None
            self._enter(CircuitState.OPEN)
            self._openings += 1
            self._retry_at = self._clock.monotonic() + self._cool_down
            return self._cool_down

    def _enter(self, state: CircuitState) -> None:
        self._state = state
        self._period = Permit(self._period + 1)
        self._permit = self._period if state is CircuitState.CLOSED else None


ATTEMPTS_MAX: Final = 3
DELAY_SECONDS: Final = 0.05
DELAY_SECONDS_MAX: Final = 1.0
OPERATIONS_PER_RETRY: Final = 10
RESERVE_RETRIES: Final = 10


class RetryBudget:
    """Retries never exceed `reserve` plus one for every `operations_per_retry` operations.  Any thread; never blocks.

    The reserve lets a quiet adapter retry at all; it is there at the start, and unspent retries beyond it are lost."""

    def __init__(self, operations_per_retry: int = OPERATIONS_PER_RETRY, reserve: int = RESERVE_RETRIES) -> None:
        if operations_per_retry < 1 or reserve < 1:
            raise ValueError("a retry budget needs operations_per_retry >= 1 and reserve >= 1")
        self._price = operations_per_retry
        self._full = operations_per_retry * reserve
        self._lock = threading.Lock()  # guards the one below
        self._tokens = self._full  # an operation brings one, a retry costs _price

    @property
    def retries_left(self) -> int:
        return self._tokens // self._price

    def deposit(self) -> None:
        """One operation begins."""
        if self._tokens == self._full:
            return  # no lock while all is well; a withdrawal at this very moment costs this operation its token
        with self._lock:
            self._tokens = min(self._tokens + 1, self._full)

    def withdraw(self) -> bool:
        """Pay for one retry.  False, and nothing is paid, where the budget does not allow it."""
        with self._lock:
            if self._tokens < self._price:
                return False
            self._tokens -= self._price
            return True


class RetryPolicy:
    """Up to `attempts` tries of one operation, the retries within one budget.  Decides; waiting is the caller's."""

    def __init__(
        self,
        attempts: int = ATTEMPTS_MAX,
        *,
        delay_seconds: float = DELAY_SECONDS,
        delay_seconds_max: float = DELAY_SECONDS_MAX,
        budget: RetryBudget | None = None,
        random_fraction: Callable[[], float] | None = None,
    ) -> None:
        """`random_fraction` returns a number in [0, 1); None: a generator of its own."""
        if attempts < 1 or not 0 <= delay_seconds <= delay_seconds_max:
            raise ValueError("a retry policy needs attempts >= 1 and 0 <= delay_seconds <= delay_seconds_max")
        self.budget: Final = budget or RetryBudget()
        self._attempts = attempts
        self._delay = delay_seconds
        self._delay_max = delay_seconds_max
        self._random = random_fraction or Random().random

    def next_delay(self, failures: int) -> float | None:
        """An operation failed for the `failures`th time in a way that may pass: seconds until it is tried again, which
        the budget has paid for; None: leave it."""
        if failures >= self._attempts or not self.budget.withdraw():
            return None
        return self._random() * min(self._delay * 2.0 ** min(failures - 1, 100), self._delay_max)


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
