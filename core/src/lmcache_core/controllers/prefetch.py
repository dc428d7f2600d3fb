"""Loads from L2 what a lookup did not find in L1.

A prefetch asks every adapter for the missing chunks at once, lets the policy choose where each is loaded from, and loads
what the longest prefix takes that can still be loaded: in slices, chunk by chunk across all shards.  Every object is checked
and published held by the lookup that asked.  What cannot be loaded from any adapter shortens the prefix; what lies behind
and is not under way is not asked for any more, and the answer is given as soon as the rest is there.

A prefetch ends early when its request does, and at its deadline: the lookup is answered with what is there by then.  How
much of L1 prefetches may occupy is bounded; loads beyond that wait for others to finish.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.counts import PrefetchCounts
from lmcache_core.contracts.events import PrefetchCompleted, PrefetchSubmitted, Publisher
from lmcache_core.contracts.policies import LoadFacts, PrefetchPolicy
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_jobs import Answer, JobAnswer, JobReleased
from lmcache_core.controllers.policy_guard import GuardedPolicy
from lmcache_core.controllers.prefetch_loads import LoadJob, Loads
from lmcache_core.controllers.prefetch_plan import SPACE_RETRY_SECONDS, LookupJob, Lookups, Slices, plan_sources
from lmcache_core.controllers.prefetch_request import Prefetch, PrefetchBudget
from lmcache_core.jobs.queues import MessageLoop, PendingCall
from lmcache_core.l1.cache import L1Cache
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Outcome

logger = logging.getLogger(__name__)

PLAN_SHARE = 0.5
"""Share of a lookup's time after which it goes on without the adapters that have not said what they have."""
LOOKUP_TIMEOUT_SECONDS = 15.0


class PrefetchController(MessageLoop[Prefetch | Answer]):
    """`submit` and `look_again` are for any thread; everything else happens on the controller's own, whose body is
    `run`."""

    def __init__(
        self,
        cache: L1Cache,
        clients: Sequence[AdapterClient],
        policy: PrefetchPolicy,
        max_in_flight: int,
        clock: Clock,
        events: Publisher,
        *,
        lookup_timeout_seconds: float = LOOKUP_TIMEOUT_SECONDS,
        l1_max_bytes: int | None = None,
        built_in: Callable[[], PrefetchPolicy] | None = None,
    ) -> None:
        """`max_in_flight` is the number of prefetches at work at once.  `l1_max_bytes` bounds what all of them may occupy
        of L1; None: no bound.  `built_in` makes the policy that takes over where `policy` fails again and again."""
        super().__init__()
        self._clients = tuple(clients)
        """In the order of the cascade.  Replaced as a whole, on this thread; others may look."""
        self.guarded = GuardedPolicy("prefetch policy", policy, clock, built_in)
        """The policy and its failures."""
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._events = events
        self.lookup_timeout_seconds = lookup_timeout_seconds
        self._budget = PrefetchBudget(
            cache.contents.state_counts().capacity_bytes if l1_max_bytes is None else l1_max_bytes
        )
        self._lookups = Lookups(self._inbox, clock, events)
        self._loads = Loads(cache, self._budget, self._inbox, clock, events)
        self._slices = Slices(cache, self._loads, self._budget, clock)
        self._queue: deque[Prefetch] = deque()
        self._active: dict[Prefetch, None] = {}
        """Begun and not answered, oldest first."""
        self._short = False
        """Some prefetch waits until others occupy less of L1."""
        self.completed = 0
        self.timed_out = 0
        self.cancelled = 0
        self.abandoned = 0
        self._allocation_waits = 0

    @property
    def active(self) -> bool:
        """True where an adapter answers."""
        return any(client.answers for client in self._clients)

    def submit(self, prefetch: Prefetch) -> None:
        self._inbox.post(prefetch)

    def look_again(self, prefetch: Prefetch) -> None:
        """The lookup's request has ended, or workers took over what it held."""
        if self._short or not prefetch.answered:
            self._inbox.wake()

    def counts(self) -> PrefetchCounts:
        """Any thread."""
        return PrefetchCounts(
            len(self._active),
            len(self._queue) + len(self._inbox),
            self.completed,
            self.timed_out,
            self.cancelled,
            self.abandoned,
            self._budget.used_bytes,
            self._budget.limit_bytes,
            self._loads.loaded,
            self._loads.rejected,
            self._allocation_waits + self._slices.allocation_waits,
        )

    def status(self) -> dict[str, object]:
        status = {"max_in_flight": self._max_in_flight, **self.counts()._asdict()}
        del status["allocation_waits"]
        return status

    # --- changes while the server runs: each is made on the controller's thread, soon

    def add_adapter(self, client: AdapterClient) -> PendingCall:
        """Lookups that begin from then on ask this adapter, too, last of all."""

        def apply() -> None:
            self._clients = (*self._clients, client)

        return self.call_soon(apply)

    def remove_adapter(self, client: AdapterClient) -> PendingCall:
        """It is asked for nothing any more, and lookups that wait for it go on without it.  Its loads that are under way
        are still waited for."""

        def apply() -> None:
            self._clients = tuple([other for other in self._clients if other is not client])
            client.retire()
            for prefetch in list(self._active):
                if not prefetch.planned and self._lookups.go_without(prefetch, client):
                    self._load(prefetch)

        return self.call_soon(apply)

    def bound(
        self,
        *,
        max_in_flight: int | None = None,
        l1_max_bytes: int | None = None,
        lookup_timeout_seconds: float | None = None,
    ) -> PendingCall:
        """Set the limits that are given; they apply to prefetches under way, too."""

        def apply() -> None:
            self._max_in_flight = max_in_flight or self._max_in_flight
            self._budget.limit_bytes = self._budget.limit_bytes if l1_max_bytes is None else l1_max_bytes
            self.lookup_timeout_seconds = lookup_timeout_seconds or self.lookup_timeout_seconds

        return self.call_soon(apply)

    def plan_by(self, policy: PrefetchPolicy) -> PendingCall:
        """Another policy says what is loaded from where."""
        return self.call_soon(lambda: self.guarded.take(policy))

    # --- on the controller's thread

    def _go_on(self) -> None:
        self._end_early()
        more = True
        while more:
            self._begin_waiting()
            more = self._advance() or bool(self._queue and len(self._active) < self._max_in_flight)

    def _handle(self, message: Prefetch | Answer) -> None:
        match message:
            case Prefetch():
                self._queue.append(message)
            case JobAnswer(LookupJob() as job, outcomes, _):
                self._looked_up(job, outcomes)
            case JobAnswer(LoadJob() as job, outcomes, released):
                self._load_answered(job, outcomes, released)
            case JobReleased(LoadJob() as job):
                self._loads.released(job)

    def _abort(self, message: Prefetch | Answer) -> None:
        """A prefetch itself is answered when the thread starts again."""
        match message:
            case Prefetch():
                self._active[message] = None
            case JobAnswer(LookupJob() as job, outcomes, _):
                self._lookups.abort(job, outcomes)
            case JobAnswer(LoadJob() as job, _, released):
                for prefetch in self._loads.abort(job, released):
                    self._lookups.unpin_if_done(prefetch)
            case JobReleased(LoadJob() as job):
                self._loads.released(job)

    def _resume(self) -> None:
        """After this thread has failed and was started again: what was under way is answered with what L1 has."""
        for prefetch in list(self._active):
            self.abandoned += 1
            self._finish(prefetch)

    def _timeout_seconds(self) -> float | None:
        now = self._clock.monotonic()
        waits = [self._deadline(prefetch) - now for prefetch in (*self._active, *islice(self._queue, 1))]
        waits += [
            self._deadline(prefetch, PLAN_SHARE) - now
            for prefetch in self._active
            if not prefetch.planned and prefetch.found
        ]
        if any(prefetch.short_since is not None for prefetch in self._active):
            waits.append(SPACE_RETRY_SECONDS)
        return max(0.0, min(waits)) if waits else None

    # --- the end, when it comes early

    def _end_early(self) -> None:
        """Answer what is overdue or over, started or not; go on without adapters that are slow to say what they have."""
        now = self._clock.monotonic()
        while self._queue and (self._queue[0].over or self._deadline(self._queue[0]) <= now):
            self._end(self._queue.popleft())
        for prefetch in list(self._active):
            if prefetch.over or self._deadline(prefetch) <= now:
                self._end(prefetch)
            elif not prefetch.planned and prefetch.found and self._deadline(prefetch, PLAN_SHARE) <= now:
                self._load(prefetch)

    def _end(self, prefetch: Prefetch) -> None:
        if prefetch.over:
            self.cancelled += 1
        else:
            self.timed_out += 1
        self._finish(prefetch)

    def _deadline(self, prefetch: Prefetch, share: float = 1.0) -> float:
        return prefetch.started + self.lookup_timeout_seconds * share

    # --- looking up

    def _begin_waiting(self) -> None:
        while self._queue and len(self._active) < self._max_in_flight:
            prefetch = self._queue.popleft()
            self._active[prefetch] = None
            if prefetch.over:
                self._end(prefetch)
            else:
                self._begin(prefetch)

    def _begin(self, prefetch: Prefetch) -> None:
        clients = [client for client in self._clients if client.answers]
        prefetch.wanted = prefetch.missing()
        cells = sum(len(row.slots) for row in prefetch.rows)
        hits = sum(len(chunks) for chunks in prefetch.matched().needed)
        self._events.publish(PrefetchSubmitted(prefetch.request_id, cells, hits, len(prefetch.wanted)))
        self._lookups.submit(prefetch, clients)
        if not clients:
            self.abandoned += 1
            self._finish(prefetch)

    def _looked_up(self, job: LookupJob, outcomes: Sequence[Outcome]) -> None:
        if self._lookups.answered(job, outcomes):
            self._load(job.prefetch)

    # --- loading

    def _load(self, prefetch: Prefetch) -> None:
        """Plan a prefetch: all adapters have answered, or no more is waited for.  `_advance` loads from now on."""
        if prefetch.over:
            self._end(prefetch)
        else:
            plan_sources(prefetch, self.guarded, self._clients, self._loads.under_way_bytes, self._events)

    def _advance(self) -> bool:
        """Submit what may be submitted, for the oldest prefetch first.  True when another round may do more."""
        was_short = self._short
        self._short = True  # until it is known: a release from here on wakes this thread
        self._budget.sweep()
        waiting: list[Prefetch] = []
        for prefetch in list(self._active):
            if not prefetch.planned:
                continue
            if self._slices.submit(prefetch, others_wait=bool(waiting)):
                waiting.append(prefetch)
            else:
                self._finish_if_complete(prefetch)
        self._short = bool(waiting)
        self._allocation_waits += self._short and not was_short
        if not waiting or self._loads.jobs or self._budget.waits_for_readers:
            return False
        # Nothing that is under way will make room: the youngest that could is content with what it has.
        yields = next((prefetch for prefetch in reversed(waiting) if self._budget.holds(prefetch)), waiting[-1])
        yields.stop_waiting()
        self._finish_if_complete(yields)
        return True

    def _load_answered(self, job: LoadJob, outcomes: Sequence[Outcome], released: bool) -> None:
        if self.guarded.policy.weighs_loads:
            self._notify_policy(job, outcomes)
        for prefetch in self._loads.answered(job, outcomes, released):
            if prefetch.stale and not prefetch.answered:
                prefetch.aim()
            self._finish_if_complete(prefetch)
            self._lookups.unpin_if_done(prefetch)

    def _notify_policy(self, job: LoadJob, outcomes: Sequence[Outcome]) -> None:
        pairs = zip(job.loads, outcomes, strict=False)
        loaded = sum([HEADER_BYTES + each.source.record.payload_bytes for each, how in pairs if how is Outcome.DONE])
        seconds = self._clock.monotonic() - job.started
        facts = LoadFacts(job.client.name, job.object_bytes, job.ahead_bytes, loaded, seconds)
        self.guarded.call("on_load", lambda policy: policy.on_load(facts), None)

    # --- the end

    def _finish_if_complete(self, prefetch: Prefetch) -> None:
        if not prefetch.answered and prefetch.complete:
            self.completed += 1
            self._finish(prefetch)

    def _finish(self, prefetch: Prefetch) -> None:
        if prefetch.answered:
            return
        prefetch.answered = True
        self._active.pop(prefetch, None)
        self._lookups.unpin_if_done(prefetch)
        match = prefetch.matched()
        seconds = self._clock.monotonic() - prefetch.started
        found = len(set().union(*prefetch.found.values())) if prefetch.found else 0
        self._events.publish(
            PrefetchCompleted(
                prefetch.request_id, found, prefetch.loaded, prefetch.failed, prefetch.loaded_bytes, seconds
            )
        )
        on_done = prefetch.on_done
        prefetch.forget()
        on_done(match, prefetch.loaded)
