"""Objects on their way from L2 into L1: reserved slots, jobs at adapters, and the prefetches that wait for each.

An object is loaded once, however many prefetches want it.  It becomes visible only after core's own check, referenced by
those that still wait for it.  Without one, it is evicted at once, or stays, where the policy says so.
Belongs to the prefetch controller's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import LoadCompleted, LoadSubmitted, ObjectRejected, ObjectsAdded, Publisher
from lmcache_core.contracts.l2_adapter import LoadItem
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.prefetch_request import ABSENT, Cell, Prefetch, PrefetchBudget, Source
from lmcache_core.jobs.queues import Inbox
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, check
from lmcache_core.model.results import Outcome

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Loading:
    """One object on its way, and every prefetch that waits for it."""

    key: ObjectKey
    source: Source
    chunk: int
    slot: int
    lease: Lease
    waiters: list[tuple[Prefetch, Cell]]

    @property
    def index_key(self) -> bytes:
        return self.source.record.prefix + self.key.chunk_hash


class LoadJob(msgspec.Struct, frozen=True, eq=False):
    client: AdapterClient
    loads: tuple[Loading, ...]
    leases: tuple[Lease, ...]
    retain: bool
    number: int
    request_id: str
    started: float
    object_bytes: int = 0
    """Of all loads, header pages included."""
    ahead_bytes: int = 0
    """Bytes of loads under way at the adapter when this was submitted."""


_OWNER: Final = Owner(OwnerKind.CONTROLLER, "prefetch")
Leases = list[tuple[AdapterClient, Lease]]
"""What was reserved, and the adapter that writes it.  Added to in place, so that it is known when something fails."""


class Loads:
    """`submit` and `answered` keep count of loads; the controller decides which cells are loaded, and when."""

    def __init__(
        self, cache: L1Cache, budget: PrefetchBudget, inbox: Inbox[Any], clock: Clock, events: Publisher
    ) -> None:
        self._cache = cache
        self._budget = budget
        self._inbox = inbox
        self._clock = clock
        self._events = events
        self._numbers = 0
        self._by_key: dict[bytes, Loading] = {}
        self._unanswered: dict[LoadJob, None] = {}
        self.loaded = 0
        self.rejected = 0

    @property
    def jobs(self) -> int:
        """Submitted and not answered."""
        return len(self._unanswered)

    def under_way_bytes(self, client: AdapterClient) -> int:
        """Of its loads without an answer."""
        return sum([job.object_bytes for job in self._unanswered if job.client is client])

    def find(self, prefetch: Prefetch, cells: Sequence[Cell]) -> list[Cell]:
        """Hold for the prefetch what has come into L1 meanwhile, and wait for what is on its way.  Returns the rest."""
        rest = []
        for number in sorted({cell.row for cell in cells}):
            row = prefetch.rows[number]
            absent = [cell for cell in cells if cell.row == number]
            for record in row.records:
                hashes = [prefetch.chunk_hashes[cell.chunk] for cell in absent]
                for cell, slot in zip(absent, self._cache.leases.acquire(prefetch.lease, record, hashes), strict=True):
                    row.slots[cell.chunk] = slot
                absent = [cell for cell in absent if row.slots[cell.chunk] == ABSENT]
            rest += [cell for cell in absent if not self._join(prefetch, cell)]
        return sorted(rest)

    def submit(self, prefetch: Prefetch, cells: Sequence[Cell]) -> int:
        """Start loading those of the cells that L1 has free space for, each from its first source.  Returns how many."""
        leases: Leases = []
        try:
            places = self._reserve(prefetch, cells, leases)
            jobs: dict[AdapterClient, list[Loading]] = {}
            for cell, (slot, lease) in sorted(places.items()):
                source = prefetch.sources[cell][0]
                key = ObjectKey(source.record.space, prefetch.chunk_hashes[cell.chunk])
                loading = Loading(key, source, prefetch.first_chunk + cell.chunk, slot, lease, [(prefetch, cell)])
                jobs.setdefault(source.client, []).append(loading)
        except BaseException:  # whatever it was, it goes on up: but what was reserved for it goes back
            for _, lease in leases:
                self._cache.leases.end(lease)
            raise
        for client, loads in jobs.items():
            self._start(prefetch, client, loads, [lease for at, lease in leases if at is client])
        return len(places)

    def answered(self, job: LoadJob, outcomes: Sequence[Outcome], released: bool) -> list[Prefetch]:
        """Publish what is good.  Returns the prefetches that waited for any of it."""
        if not released:
            self._keep_apart(job)
        touched: dict[Prefetch, None] = {}
        good: list[Loading] = []
        published: list[Loading] = []
        try:
            for loading, outcome in zip(job.loads, outcomes, strict=True):
                is_good = released and self._is_good(job.client, loading, outcome)
                waiters = self._part(loading)
                if is_good:
                    good.append(loading)
                    self._publish(loading, waiters, job.retain)
                    published.append(loading)
                elif released:
                    self._cache.discard(loading.lease, [loading.slot])
                for prefetch, cell in waiters:
                    touched[prefetch] = None
                    if is_good and not prefetch.answered:
                        prefetch.rows[cell.row].slots[cell.chunk] = loading.slot
                    elif not is_good:
                        prefetch.failed += 1
                        prefetch.drop(cell, loading.source)
        finally:
            self._ended(job, published)
            if good and self._events.wants(ObjectsAdded):
                self._publish_added(job, good)
        if released:
            self.released(job)
        return list(touched)

    def released(self, job: LoadJob) -> None:
        """The adapter touches none of the job's slots any more."""
        for lease in job.leases:
            self._cache.leases.end(lease)
        self._budget.give_back(job)

    def abort(self, job: LoadJob, released: bool) -> list[Prefetch]:
        """The job's answer could not be handled, or not to the end: no more of it is published.  Returns who waited for
        it."""
        self._ended(job, ())
        waited = [prefetch for loading in job.loads for prefetch, _ in self._part(loading)]
        if released:
            self.released(job)
        else:
            self._keep_apart(job)
        return waited

    # --- inside

    def _reserve(self, prefetch: Prefetch, cells: Sequence[Cell], leases: Leases) -> dict[Cell, tuple[int, Lease]]:
        """Slots for as many of the cells as there is free space for, counted from the first one across all shards, so that no
        shard has all the space and another one none."""
        places = self._reserve_by_shard(prefetch, cells, leases)
        if len(places) == len(cells):
            return places
        fair = cells[: len(places)]
        beyond = [cell for cell in places if cell not in set(fair)]
        for cell in beyond:
            slot, lease = places.pop(cell)
            self._cache.discard(lease, [slot])
        if beyond:
            places |= self._reserve_by_shard(prefetch, [cell for cell in fair if cell not in places], leases)
        return places

    def _reserve_by_shard(
        self, prefetch: Prefetch, cells: Sequence[Cell], leases: Leases
    ) -> dict[Cell, tuple[int, Lease]]:
        groups: dict[tuple[AdapterClient, bytes], list[Cell]] = {}
        for cell in cells:
            source = prefetch.sources[cell][0]
            groups.setdefault((source.client, source.record.prefix), []).append(cell)
        places: dict[Cell, tuple[int, Lease]] = {}
        for (client, _), group in groups.items():
            record = prefetch.sources[group[0]][0].record
            hashes = [prefetch.chunk_hashes[cell.chunk] for cell in group]
            lease, indexes = self._cache.reserve(_OWNER, record, hashes, None)
            slots = list(lease.slots)
            if slots:
                leases.append((client, lease))
            else:
                self._cache.leases.end(lease)
            places |= {group[index]: (slot, lease) for index, slot in zip(indexes, slots, strict=True)}
        return places

    def _join(self, prefetch: Prefetch, cell: Cell) -> bool:
        source = prefetch.sources[cell][0]
        loading = self._by_key.get(source.record.prefix + prefetch.chunk_hashes[cell.chunk])
        if loading is None:
            return False
        loading.waiters.append((prefetch, cell))
        prefetch.loading[cell] = loading.source
        return True

    def _start(
        self, prefetch: Prefetch, client: AdapterClient, loads: Sequence[Loading], leases: Sequence[Lease]
    ) -> None:
        size = 0
        items = []
        for loading in loads:
            ((_, cell),) = loading.waiters
            prefetch.loading[cell] = loading.source
            self._by_key[loading.index_key] = loading
            size += self._cache.slot_bytes_for(loading.source.record.payload_bytes)
            items.append(LoadItem(loading.key, self._cache.buffer(loading.slot)))
        self._numbers += 1
        job = LoadJob(
            client,
            tuple(loads),
            tuple(leases),
            prefetch.retain,
            self._numbers,
            prefetch.request_id,
            self._clock.monotonic(),
            sum([item.buffer.length for item in items]),
            self.under_way_bytes(client),
        )
        self._unanswered[job] = None
        if self._events.wants(LoadSubmitted):
            self._events.publish(LoadSubmitted(client.name, job.number, job.request_id, len(items), job.object_bytes))
        self._budget.lend(job, prefetch, size)
        client.submit_load(items, self._inbox, job)

    def _part(self, loading: Loading) -> list[tuple[Prefetch, Cell]]:
        """The object is on its way no more."""
        if self._by_key.get(loading.index_key) is loading:
            del self._by_key[loading.index_key]
        for prefetch, cell in loading.waiters:
            prefetch.loading.pop(cell, None)
        return loading.waiters

    def _keep_apart(self, job: LoadJob) -> None:
        for lease in job.leases:
            self._cache.leases.quarantine(lease)

    def _is_good(self, client: AdapterClient, loading: Loading, outcome: Outcome) -> bool:
        """Only an object that is whole, unaltered and the one asked for may become visible."""
        reason = f"the adapter says {outcome.value}"
        checks, is_checked = self._cache.checks, Capability.VERIFIES in client.capabilities
        moved: bytes | None = None
        if outcome is Outcome.DONE and (checks is not None or not is_checked):
            try:
                self._cache.fetch(loading.slot)
                if checks is not None:
                    checks.note([loading.slot])
                    moved = checks.noted(loading.slot)
            except OSError as error:  # L1 is a file, and its disk fails
                logger.error("l1 lost what was loaded into it adapter=%s reason=%s", client.name, error)
                return False
        if outcome is Outcome.DONE and not is_checked:
            checked = check(self._cache.buffer(loading.slot).view, loading.key, moved)
            outcome, reason = checked.outcome, checked.reason
        if outcome in (Outcome.DAMAGED, Outcome.FOREIGN):
            self.rejected += 1
            client.reject(loading.key, outcome)
            self._events.publish(ObjectRejected(client.name, loading.key.object_id.hex(), outcome.value, reason))
        return outcome is Outcome.DONE

    def _ended(self, job: LoadJob, loaded: Sequence[Loading]) -> None:
        """The job is answered or aborted: publish its event, once."""
        if self._unanswered.pop(job, job) is job or not self._events.wants(LoadCompleted):
            return
        size = sum(HEADER_BYTES + loading.source.record.payload_bytes for loading in loaded)
        seconds = self._clock.monotonic() - job.started
        failed = len(job.loads) - len(loaded)
        self._events.publish(
            LoadCompleted(job.client.name, job.number, job.request_id, len(loaded), failed, size, seconds)
        )

    def _publish_added(self, job: LoadJob, good: Sequence[Loading]) -> None:
        """Publish what was added.  Objects without a waiting prefetch may have been evicted at once; they are left out."""
        by_record: dict[bytes, list[Loading]] = {}
        for loading in good:
            if self._cache.contents.contains(loading.source.record, loading.key.chunk_hash):
                by_record.setdefault(loading.source.record.prefix, []).append(loading)
        for loads in by_record.values():
            record = loads[0].source.record
            self._events.publish(
                ObjectsAdded(
                    record.space.model_name,
                    record.space.cache_salt,
                    record.space.kv_rank,
                    HEADER_BYTES + record.payload_bytes,
                    "l2",
                    job.request_id,
                    loads[0].chunk,
                    b"".join([loading.key.chunk_hash for loading in loads]),
                )
            )

    def _publish(self, loading: Loading, waiters: Sequence[tuple[Prefetch, Cell]], retain: bool) -> None:
        """Referenced by each prefetch that still waits; it counts as loaded for the first of them."""
        payload_bytes = loading.source.record.payload_bytes
        waiting = [prefetch for prefetch, _ in waiters if not prefetch.answered]
        first = waiting[0] if waiting else waiters[0][0]
        readers = [prefetch.lease for prefetch in waiting]
        retain = retain or True in [prefetch.keeps for prefetch, _ in waiters]
        self._cache.publish(loading.lease, [loading.slot], readers, loading.chunk, not retain, first.request)
        if waiting:
            self._budget.hold(waiting, self._cache.slot_bytes_for(payload_bytes))
        self.loaded += 1
        first.loaded += 1
        first.loaded_bytes += HEADER_BYTES + payload_bytes
