"""Policies of a running server: a policy that fails is replaced by the built-in one, and one eviction policy follows another
without forgetting what L1 holds."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.contracts.policies import EvictionDemand, EvictionPolicy, InsertFacts, RequestFacts
from lmcache_core.controllers.conditions import counts_of
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import Accessed, Inserted, LogEntry, Removed
from lmcache_core.l1.journal import PAUSE_SECONDS
from lmcache_core.model.errors import error_message

logger = logging.getLogger(__name__)


FAILURES_MAX: Final = 3
"""In a row, of one method."""

Policy = TypeVar("Policy")
Result = TypeVar("Result")


class GuardedPolicy(Generic[Policy]):
    """`policy` is the one that decides now.  `conditions` and `failures` are for any thread, everything else for the one
    that owns the policy."""

    def __init__(
        self,
        subject: str,
        policy: Policy,
        clock: Clock,
        built_in: Callable[[], Policy] | None = None,
        take_over: Callable[[Policy], None] | None = None,
    ) -> None:
        """`subject` is what conditions are about, such as `store policy`.  Without `built_in`, a policy that fails stays.
        `take_over` gets the built-in policy where it has to learn something before it can decide: see `take`.  Without,
        it decides at once."""
        self.subject: Final = subject
        self.policy = policy
        self._built_in = built_in
        self.take_over = take_over
        self._faults = FaultLog(logger, clock, f"policy={subject.removesuffix(' policy')}")
        self._in_a_row: Counter[str] = Counter()
        self._last_error = ""
        self._was_replaced = False
        self.failures = 0
        """Since the start."""

    def call(self, method: str, function: Callable[[Policy], Result], default: Result) -> Result:
        """What `function` returns, which calls this method of the policy; `default` where it raises.  A policy that fails
        again and again is replaced by the built-in one, which is asked the same unless it has to learn before."""
        try:
            result = function(self.policy)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin boundary
            if (built_in := self._failed(method, error)) is None:
                return default
            if self.take_over is not None:
                self.take_over(built_in)
                return default
            self.take(built_in, because_it_failed=True)
            return self.call(method, function, default)
        if self._in_a_row:
            del self._in_a_row[method]
        return result

    def take(self, policy: Policy, *, because_it_failed: bool = False) -> None:
        """This one decides from now on: an operator wants it, or the one before has failed."""
        self.policy = policy
        self._was_replaced = because_it_failed
        self._in_a_row.clear()

    def _failed(self, method: str, error: BaseException) -> Policy | None:
        """The built-in policy, where it is to take over."""
        self.failures += 1
        self._in_a_row[method] += 1
        self._last_error = f"{method}: {type(error).__name__}: {error_message(error)}"
        self._faults.exception(f"{self.subject} failed method={method}")
        if self._in_a_row[method] < FAILURES_MAX or self._was_replaced or self._built_in is None:
            return None
        return self._built_in()

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


STEP_SLOTS: Final = 1024
"""In one call."""
_SLICE: Final = 128
"""Looked at under one lock acquisition."""
_EVERYTHING: Final = 1 << 62


class PolicyChange:
    """`wait` and `failed` are for any thread; everything else belongs to the eviction controller's."""

    def __init__(self, cache: L1Cache, policy: EvictionPolicy) -> None:
        self.policy: Final = policy
        self._cache = cache
        self._started = False
        self._left: list[int] = []
        """Slots that the new policy does not know: what is to stay longest comes first, as it is taken from the
        end."""
        self._recorded: list[LogEntry] = []
        self._known = bytearray()
        """By slot: 1 for what the new policy knows from here."""
        self._over = threading.Event()
        self.failed = False

    def wait(self, seconds: float) -> bool:
        """False when it is not over after this time."""
        return self._over.wait(seconds)

    def record(self, entries: list[LogEntry]) -> None:
        """Record what has happened; the new policy is notified of it after the slots."""
        if self._started:
            self._recorded += entries

    def step(self, old: EvictionPolicy) -> bool:
        """Go on for a while.  True when it is over: either the new policy knows what there is, as of the entries that were
        recorded, or it has failed, and the old one has to stay."""
        try:
            if not self._started:
                self._begin(old)
            elif self._left:
                self._insert_some()
            else:
                self._catch_up()
                return True
        except (Exception, SystemExit):  # a plugin boundary
            logger.exception("eviction policy failed to learn what is there, and the one before it goes on")
            self.failed = True
            return True
        return False

    def finish(self) -> None:
        """The controller goes on with whichever policy it is to be."""
        self._over.set()

    def _begin(self, old: EvictionPolicy) -> None:
        """The old policy was notified of everything in the log."""
        self._started = True
        unnamed = bytearray([1]) * self._cache.contents.slot_numbers
        leaving_first = []
        for slot in _order_of(old):
            if 0 <= slot < len(unnamed) and unnamed[slot]:
                unnamed[slot] = 0
                leaving_first.append(slot)
        # What the old policy never evicts comes last, by slot, because its age is unknown.
        self._left = [*leaving_first, *(slot for slot, flag in enumerate(unnamed) if flag)]
        self._left.reverse()

    def _insert_some(self) -> None:
        now = RequestFacts(seconds=time.monotonic())
        for _ in range(0, STEP_SLOTS, _SLICE):
            slots = self._left[-_SLICE:]
            slots.reverse()
            del self._left[-_SLICE:]
            for slot, facts in self._cache.contents.insert_facts(slots, now):
                self._insert([slot], facts)
            time.sleep(PAUSE_SECONDS)

    def _catch_up(self) -> None:
        for entry in self._recorded:
            match entry:
                case Inserted(slots, facts):
                    # Read from the cache already, before it was known from an entry.
                    if twice := [slot for slot in slots if slot < len(self._known) and self._known[slot]]:
                        self._remove(twice)
                    self._insert(slots, facts)
                case Accessed(slots, facts):
                    self.policy.on_access(slots, facts)
                case Removed(slots):
                    self._remove(slots)
        self._recorded = []

    def _insert(self, slots: list[int], facts: InsertFacts) -> None:
        self.policy.on_insert(slots, facts)
        if (missing := max(slots) + 1 - len(self._known)) > 0:
            self._known += bytes(missing)
        for slot in slots:
            self._known[slot] = 1

    def _remove(self, slots: list[int]) -> None:
        self.policy.on_remove(slots)
        for slot in slots:
            if slot < len(self._known):
                self._known[slot] = 0


def _order_of(policy: EvictionPolicy) -> Sequence[int]:
    """Everything that it knows and would evict, first things first; nothing where it fails, which may be why it goes."""
    try:
        return [int(slot) for slot in policy.victims(EvictionDemand(_EVERYTHING, {}), lambda slot: True)]
    except (Exception, SystemExit):  # a plugin boundary
        logger.exception("eviction policy that is replaced failed to say in which order it would evict")
        return ()
