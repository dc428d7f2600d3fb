"""A policy and how it fares.  One that fails three times in a row is replaced by the built-in one of its kind."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.controllers.conditions import counts_of
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.model.error_message import error_message

logger = logging.getLogger(__name__)

FAILURES_MAX: Final = 3
"""In a row, of one method."""

Policy = TypeVar("Policy")


class PolicySeat(Generic[Policy]):
    """`policy` is the one that decides now.  `conditions` and `failures` are for any thread, everything else for the one
    that owns the policy."""

    def __init__(
        self, subject: str, policy: Policy, clock: Clock, built_in: Callable[[], Policy] | None = None
    ) -> None:
        """`subject` is what conditions are about, such as `store policy`.  Without `built_in`, a policy that fails stays."""
        self.subject: Final = subject
        self.policy = policy
        self._built_in = built_in
        self._faults = FaultLog(logger, clock, f"policy={subject.removesuffix(' policy')}")
        self._in_a_row: Counter[str] = Counter()
        self._last_error = ""
        self._was_replaced = False
        self.failures = 0
        """Since the start."""

    def worked(self, method: str) -> None:
        if self._in_a_row:
            del self._in_a_row[method]

    def failed(self, method: str, error: BaseException) -> Policy | None:
        """While the exception is handled.  The built-in policy, where it is to take over: see `take`."""
        self.failures += 1
        self._in_a_row[method] += 1
        self._last_error = f"{method}: {type(error).__name__}: {error_message(error)}"
        self._faults.exception(f"{self.subject} failed method={method}")
        if self._in_a_row[method] < FAILURES_MAX or self._was_replaced or self._built_in is None:
            return None
        return self._built_in()

    def take(self, policy: Policy, *, because_it_failed: bool = False) -> None:
        """This one decides from now on: an operator wants it, or the one before has failed."""
        self.policy = policy
        self._was_replaced = because_it_failed
        self._in_a_row.clear()

    def conditions(self) -> Iterator[Condition]:
        if self._was_replaced:
            yield Condition(
                "policy_replaced",
                Severity.WARNING,
                f"it failed {FAILURES_MAX} times in a row, and the built-in policy decides instead ({self._last_error})",
                "report it to the author of the plugin; it is used again after a restart, or when it is set again",
                self.subject,
                counts_of(failures=self.failures),
            )
        elif row := max(self._in_a_row.copy().values(), default=0):
            yield Condition(
                "policy_fails",
                Severity.WARNING,
                f"it failed {row} times in a row ({self._last_error})",
                "report it to the author of the plugin; the log has its stack",
                self.subject,
                counts_of(failures=self.failures),
            )
