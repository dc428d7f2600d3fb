"""A circuit breaker: pauses calls to a backend that is down, and probes whether it is back.

            `threshold` failures in a row              cool-down is over
    CLOSED ---------------------------------> OPEN -----------------------> HALF_OPEN
       ^                                        ^    the probe failed: twice    |   |
       |                                        +------ the cool-down ----------+   |
       +------------------------- the probe succeeded ------------------------------+

Failures in a row, and not a share of a window: that needs neither a clock nor a lock while all is well, a dead backend
is known after `threshold` calls however rare they are, and one that fails now and then still serves what it can.
"""

from __future__ import annotations

import threading
from typing import Final, NewType

from lmcache_core import CircuitState, CircuitStatus, Clock

FAILURES_MAX: Final = 10
COOL_DOWN_SECONDS: Final = 1.0
COOL_DOWN_SECONDS_MAX: Final = 60.0

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
        self._permit: Permit | None = self._period  # for everybody; None: ask under the lock
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
