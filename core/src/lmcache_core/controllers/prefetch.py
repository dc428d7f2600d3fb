"""Brings back from L2 what a lookup did not find in L1.

A prefetch asks every adapter for the missing chunks at once, lets the policy choose where each is loaded from, loads the
prefix that is there in full, verifies every object, and publishes it held by the lookup that asked.  A failure shortens
the prefix.  Two lookups that miss the same chunk share one load.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import ObjectRejected, PrefetchCompleted, PrefetchSubmitted, Publisher
from lmcache_core.contracts.l2_adapter import LoadItem
from lmcache_core.contracts.policies import PrefetchPolicy, RequestFacts
from lmcache_core.controllers.adapter_port import AdapterPort, Answer, JobAnswer, JobReleased
from lmcache_core.controllers.message_loop import MessageLoop
from lmcache_core.l1.cache import NO_REQUEST, L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease, LeaseState, Owner, OwnerKind
from lmcache_core.model.bitmap import Bitmap
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import check
from lmcache_core.model.results import Outcome

logger = logging.getLogger(__name__)

ABSENT = -1


class Wanted(NamedTuple):
    """A chunk that a shard misses, under one of the layouts it may have."""

    row: int
    chunk: int
    record: SpaceRecord
    key: ObjectKey

    @property
    def index_key(self) -> bytes:
        return self.record.prefix + self.key.chunk_hash


@dataclass(slots=True, eq=False)
class Prefetch:
    """A lookup that goes on in L2.  `rows[r][c]` is the slot of chunk c of shard r, or ABSENT; the controller fills it.
    `on_done` is called on the controller's thread, once, with the prefix that every row has; what lies behind it is still
    held, and the caller's to release."""

    request_id: str
    lease: Lease
    rows: list[list[int]]
    wanted: list[Wanted]
    on_done: Callable[[int, int], None]
    begun: float
    request: RequestFacts = NO_REQUEST
    found: dict[int, Bitmap] = field(default_factory=dict)
    lookups_open: int = 0
    loads_open: int = 0
    loaded: int = 0
    loaded_bytes: int = 0
    failed: int = 0

    @property
    def prefix(self) -> int:
        return min((row.index(ABSENT) if ABSENT in row else len(row)) for row in self.rows)


@dataclass(slots=True, eq=False)
class _Loading:
    """One object being loaded, and every lookup that waits for it."""

    wanted: Wanted
    slot: int
    lease: Lease
    waiters: list[tuple[Prefetch, Wanted]]


@dataclass(frozen=True, slots=True)
class _LookupToken:
    prefetch: Prefetch
    port: AdapterPort


@dataclass(frozen=True, slots=True)
class _LoadToken:
    port: AdapterPort
    loads: tuple[_Loading, ...]
    lease: Lease
    retain: bool


class PrefetchController(MessageLoop[Prefetch | Answer]):
    """`submit` is for any thread; everything else happens on the controller's own, whose body is `run`."""

    def __init__(
        self,
        cache: L1Cache,
        ports: Sequence[AdapterPort],
        policy: PrefetchPolicy,
        max_in_flight: int,
        clock: Clock,
        events: Publisher,
    ) -> None:
        super().__init__()
        self._cache = cache
        self._ports = ports
        self._policy = policy
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._events = events
        self._queue: deque[Prefetch] = deque()
        self._active: set[Prefetch] = set()
        self._loading: dict[bytes, _Loading] = {}
        self._owner = Owner(OwnerKind.CONTROLLER, "prefetch")
        self.loaded = 0
        self.rejected = 0

    @property
    def active(self) -> bool:
        """Is there anything to load from?"""
        return any(port.healthy for port in self._ports)

    def submit(self, prefetch: Prefetch) -> None:
        self._inbox.post(prefetch)

    def status(self) -> dict[str, object]:
        return {
            "in_flight": len(self._active),
            "queued": len(self._queue) + len(self._inbox),
            "max_in_flight": self._max_in_flight,
            "loaded": self.loaded,
            "rejected": self.rejected,
        }

    # --- on the controller's thread

    def _go_on(self) -> None:
        while self._queue and len(self._active) < self._max_in_flight:
            prefetch = self._queue.popleft()
            self._active.add(prefetch)
            if prefetch.lease.state is LeaseState.ACTIVE:
                self._begin(prefetch)
            else:  # its request is over already
                self._finish(prefetch)

    def _handle(self, message: Prefetch | Answer) -> None:
        match message:
            case Prefetch():
                self._queue.append(message)
            case JobAnswer(_LookupToken() as token, outcomes, _):
                self._looked_up(token, outcomes)
            case JobAnswer(_LoadToken() as token, outcomes, released):
                self._load_answered(token, outcomes, released)
            case JobReleased(_LoadToken() as token):
                self._cache.end(token.lease)

    def _give_up(self, message: Prefetch | Answer) -> None:
        """A prefetch itself is answered when the thread starts again."""
        match message:
            case Prefetch():
                self._active.add(message)
            case JobAnswer(_LookupToken() as token, outcomes, _) if token.port.index not in token.prefetch.found:
                found = zip(token.prefetch.wanted, outcomes, strict=False)
                token.port.unpin([wanted.key for wanted, outcome in found if outcome is Outcome.DONE])
            case JobAnswer(_LoadToken() as token, _, released):
                token.port.unpin([loading.wanted.key for loading in token.loads])
                if released:
                    self._cache.end(token.lease)
                else:
                    self._cache.quarantine(token.lease)

    def _resume(self) -> None:
        """After this thread has failed and was started again: what was under way is answered with what L1 has."""
        self._loading.clear()
        for prefetch in list(self._active):
            if prefetch.loads_open == 0:
                self._unpin_rest(prefetch, ())
            self._finish(prefetch)

    # --- looking up

    def _begin(self, prefetch: Prefetch) -> None:
        ports = [port for port in self._ports if port.healthy]
        total = sum(len(row) for row in prefetch.rows)
        self._events.publish(
            PrefetchSubmitted(prefetch.request_id, total, prefetch.prefix * len(prefetch.rows), len(prefetch.wanted))
        )
        prefetch.lookups_open = len(ports)
        keys = [wanted.key for wanted in prefetch.wanted]
        for port in ports:
            port.submit_lookup(keys, self._inbox, _LookupToken(prefetch, port))
        if not ports:
            self._finish(prefetch)

    def _looked_up(self, token: _LookupToken, outcomes: Sequence[Outcome]) -> None:
        prefetch = token.prefetch
        if prefetch not in self._active:
            found = zip(prefetch.wanted, outcomes, strict=True)
            token.port.unpin([wanted.key for wanted, outcome in found if outcome is Outcome.DONE])
            return
        prefetch.found[token.port.index] = Bitmap(
            len(outcomes), (i for i, outcome in enumerate(outcomes) if outcome is Outcome.DONE)
        )
        prefetch.lookups_open -= 1
        if prefetch.lookups_open:
            return
        if prefetch.lease.state is LeaseState.ACTIVE:
            self._load(prefetch)
        else:  # its request is over already
            self._unpin_rest(prefetch, ())
            self._finish(prefetch)

    # --- loading

    def _load(self, prefetch: Prefetch) -> None:
        sources, retain = self._plan(prefetch)
        chosen = self._choose(prefetch, sources)
        self._unpin_rest(prefetch, chosen)
        by_target: dict[tuple[int, bytes], list[Wanted]] = {}
        prefetch.loads_open = 1  # keeps the prefetch open until everything is submitted
        for wanted, source in chosen:
            if not self._have_already(prefetch, wanted, source):
                by_target.setdefault((source, wanted.record.prefix), []).append(wanted)
        for (source, _), group in by_target.items():
            self._submit_loads(prefetch, self._ports[source], group, retain)
        self._closed_one(prefetch)

    def _plan(self, prefetch: Prefetch) -> tuple[Sequence[int | None], bool]:
        size = len(prefetch.wanted)
        found = [prefetch.found.get(port.index, Bitmap(size)) for port in self._ports]
        try:
            plan = self._policy.plan(found, [port.facts for port in self._ports])
            if len(plan.sources) != size:
                raise ValueError(f"the prefetch policy planned {len(plan.sources)} of {size} keys")
        except (Exception, SystemExit):  # a plugin boundary: without a plan nothing is loaded
            logger.exception("prefetch policy failed keys=%d", size)
            return [None] * size, False
        sources = [
            s if s is not None and 0 <= s < len(found) and i in found[s] else None for i, s in enumerate(plan.sources)
        ]
        return sources, plan.retain

    def _choose(self, prefetch: Prefetch, sources: Sequence[int | None]) -> list[tuple[Wanted, int]]:
        """For each missing cell the first layout that has a source, as far as no row has a gap; in prefix order."""
        best: dict[tuple[int, int], tuple[Wanted, int]] = {}
        for wanted, source in zip(prefetch.wanted, sources, strict=True):
            if source is not None:
                best.setdefault((wanted.row, wanted.chunk), (wanted, source))
        gaps = [
            chunk
            for row, slots in enumerate(prefetch.rows)
            for chunk, slot in enumerate(slots)
            if slot == ABSENT and (row, chunk) not in best
        ]
        end = min(gaps, default=len(prefetch.rows[0]))
        return sorted((pair for pair in best.values() if pair[0].chunk < end), key=lambda pair: pair[0].chunk)

    def _unpin_rest(self, prefetch: Prefetch, chosen: Sequence[tuple[Wanted, int]]) -> None:
        kept = {(wanted.index_key, source) for wanted, source in chosen}
        for port in self._ports:
            found = prefetch.found.get(port.index, ())
            port.unpin(
                [prefetch.wanted[i].key for i in found if (prefetch.wanted[i].index_key, port.index) not in kept]
            )

    def _have_already(self, prefetch: Prefetch, wanted: Wanted, source: int) -> bool:
        """Somebody stored or loaded it since the lookup looked, or is loading it now."""
        slot = self._cache.acquire(prefetch.lease, [wanted.index_key])[0]
        if slot >= 0:
            prefetch.rows[wanted.row][wanted.chunk] = slot
        elif loading := self._loading.get(wanted.index_key):
            loading.waiters.append((prefetch, wanted))
            prefetch.loads_open += 1
        else:
            return False
        self._ports[source].unpin([wanted.key])
        return True

    def _submit_loads(self, prefetch: Prefetch, port: AdapterPort, group: Sequence[Wanted], retain: bool) -> None:
        hashes = [wanted.key.chunk_hash for wanted in group]
        lease, indexes = self._cache.reserve(self._owner, group[0].record, hashes, None)
        loads = []
        for index, slot in zip(indexes, lease.slots, strict=True):
            loading = _Loading(group[index], slot, lease, [(prefetch, group[index])])
            self._loading[group[index].index_key] = loading
            loads.append(loading)
        reserved = set(indexes)
        port.unpin([wanted.key for i, wanted in enumerate(group) if i not in reserved])
        prefetch.failed += len(group) - len(loads)
        prefetch.loads_open += len(loads)
        if not loads:
            self._cache.end(lease)
            return
        items = [LoadItem(loading.wanted.key, self._cache.buffer(loading.slot)) for loading in loads]
        port.submit_load(items, self._inbox, _LoadToken(port, tuple(loads), lease, retain))

    def _load_answered(self, token: _LoadToken, outcomes: Sequence[Outcome], released: bool) -> None:
        if not released:
            self._cache.quarantine(token.lease)
        for loading, outcome in zip(token.loads, outcomes, strict=True):
            self._loading.pop(loading.wanted.index_key, None)
            good = released and self._is_good(token.port, loading, outcome)
            if good:
                self._publish(loading, token.retain)
            elif released:
                self._cache.discard(loading.lease, [loading.slot])
            for prefetch, wanted in loading.waiters:
                if good and prefetch in self._active:
                    prefetch.rows[wanted.row][wanted.chunk] = loading.slot
                elif not good:
                    prefetch.failed += 1
                self._closed_one(prefetch)
        token.port.unpin([loading.wanted.key for loading in token.loads])

    def _is_good(self, port: AdapterPort, loading: _Loading, outcome: Outcome) -> bool:
        """Only an object that is whole, unaltered and the one asked for may become visible."""
        key = loading.wanted.key
        reason = f"the adapter says {outcome.value}"
        if outcome is Outcome.DONE and Capability.VERIFIES not in port.capabilities:
            outcome, reason = (verdict := check(self._cache.buffer(loading.slot).view, key)).outcome, verdict.reason
        if outcome in (Outcome.DAMAGED, Outcome.FOREIGN):
            self.rejected += 1
            port.reject(key, outcome)
            self._events.publish(ObjectRejected(port.name, key.object_id.hex(), outcome.value, reason))
        return outcome is Outcome.DONE

    def _publish(self, loading: _Loading, retain: bool) -> None:
        readers = [prefetch.lease for prefetch, _ in loading.waiters]
        size = self._cache.buffer(loading.slot).length
        first = loading.waiters[0][0]
        self._cache.publish(loading.lease, [loading.slot], readers, loading.wanted.chunk, not retain, first.request)
        self.loaded += 1
        first.loaded += 1
        first.loaded_bytes += size

    # --- the end

    def _closed_one(self, prefetch: Prefetch) -> None:
        prefetch.loads_open -= 1
        if prefetch.loads_open == 0:
            self._finish(prefetch)

    def _finish(self, prefetch: Prefetch) -> None:
        if prefetch not in self._active:
            return  # it was abandoned, and answered then
        self._active.discard(prefetch)
        prefix = prefetch.prefix
        seconds = self._clock.monotonic() - prefetch.begun
        found = len(set().union(*prefetch.found.values())) if prefetch.found else 0
        self._events.publish(
            PrefetchCompleted(
                prefetch.request_id, found, prefetch.loaded, prefetch.failed, prefetch.loaded_bytes, seconds
            )
        )
        prefetch.on_done(prefix, prefetch.loaded)
