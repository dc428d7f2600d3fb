"""Retries: whether and when to try again, within a budget.

Delays are exponential with full jitter: callers that failed together do not come back together (Brooker, "Exponential
Backoff And Jitter", AWS Architecture Blog, 2015).  A budget bounds retries to a share of the operations ("Handling
Overload" in Site Reliability Engineering, ch. 21, gives 10 % per client); it is a token bucket, as in gRPC's retry
throttling (proposal A6) and Finagle's RetryBudget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Final

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
