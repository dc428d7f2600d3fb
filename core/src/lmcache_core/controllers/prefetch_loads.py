"""Objects on their way from L2 into L1: reserved slots, jobs at adapters, and who waits for which.

An object is loaded once, however many prefetches want it.  It becomes visible only after core's own check, held by those
that still wait for it; when nobody does, it comes and goes (or stays, where the policy says so), and nothing is leaked.
Belongs to the prefetch controller's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.events import ObjectRejected, Publisher
from lmcache_core.contracts.l2_adapter import LoadItem
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.prefetch_request import Cell, Prefetch, Source
from lmcache_core.controllers.prefetch_room import PrefetchRoom
from lmcache_core.controllers.reach import ABSENT
from lmcache_core.jobs.inbox import Inbox
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import check
from lmcache_core.model.results import Outcome

_OWNER = Owner(OwnerKind.CONTROLLER, "prefetch")


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


@dataclass(frozen=True, slots=True, eq=False)
class LoadJob:
    """What one adapter was asked for at once."""

    port: AdapterPort
    loads: tuple[Loading, ...]
    leases: tuple[Lease, ...]
    retain: bool


class Loads:
    """`submit` and `answered` keep the books; which cells are to be loaded when is the controller's to say."""

    def __init__(
        self,
        cache: L1Cache,
        ports: Sequence[AdapterPort],
        room: PrefetchRoom,
        inbox: Inbox[Any],
        events: Publisher,
    ) -> None:
        self._cache = cache
        self._ports = ports
        self._room = room
        self._inbox = inbox
        self._events = events
        self._by_key: dict[bytes, Loading] = {}
        self._unanswered: dict[LoadJob, None] = {}
        self.loaded = 0
        self.rejected = 0

    @property
    def jobs(self) -> int:
        """Submitted and not answered."""
        return len(self._unanswered)

    def find(self, prefetch: Prefetch, cells: Sequence[Cell]) -> list[Cell]:
        """Hold for the prefetch what has come into L1 meanwhile, and wait for what is on its way.  Returns the rest."""
        rest = []
        for number in sorted({cell.row for cell in cells}):
            row = prefetch.rows[number]
            absent = [cell for cell in cells if cell.row == number]
            for record in row.records:
                hashes = [prefetch.chunk_hashes[cell.chunk] for cell in absent]
                for cell, slot in zip(absent, self._cache.acquire(prefetch.lease, record, hashes), strict=True):
                    row.slots[cell.chunk] = slot
                absent = [cell for cell in absent if row.slots[cell.chunk] == ABSENT]
            rest += [cell for cell in absent if not self._join(prefetch, cell)]
        return sorted(rest)

    def submit(self, prefetch: Prefetch, cells: Sequence[Cell]) -> int:
        """Start loading those of the cells that L1 has room for, each from its first source.  Returns how many."""
        leases: list[tuple[int, Lease]] = []
        try:
            places = self._place(prefetch, cells, leases)
            jobs: dict[int, list[Loading]] = {}
            for cell, (slot, lease) in sorted(places.items()):
                source = prefetch.sources[cell][0]
                key = ObjectKey(source.record.space, prefetch.chunk_hashes[cell.chunk])
                loading = Loading(key, source, cell.chunk, slot, lease, [(prefetch, cell)])
                jobs.setdefault(source.adapter, []).append(loading)
        except BaseException:
            for _, lease in leases:
                self._cache.end(lease)
            raise
        for adapter, loads in jobs.items():
            self._start(prefetch, self._ports[adapter], loads, [lease for at, lease in leases if at == adapter])
        return len(places)

    def answered(self, job: LoadJob, outcomes: Sequence[Outcome], released: bool) -> list[Prefetch]:
        """Publish what is good.  Returns the prefetches that waited for any of it."""
        if not released:
            self._keep_apart(job)
        touched: dict[Prefetch, None] = {}
        for loading, outcome in zip(job.loads, outcomes, strict=True):
            good = released and self._is_good(job.port, loading, outcome)
            waiters = self._part(loading)
            if good:
                self._publish(loading, waiters, job.retain)
            elif released:
                self._cache.discard(loading.lease, [loading.slot])
            for prefetch, cell in waiters:
                touched[prefetch] = None
                if good and not prefetch.answered:
                    prefetch.rows[cell.row].slots[cell.chunk] = loading.slot
                elif not good:
                    prefetch.failed += 1
                    prefetch.drop(cell, loading.source)
        self._unanswered.pop(job, None)
        if released:
            self.released(job)
        return list(touched)

    def released(self, job: LoadJob) -> None:
        """The adapter touches none of the job's slots any more."""
        for lease in job.leases:
            self._cache.end(lease)
        self._room.give_back(job)

    def give_up(self, job: LoadJob, released: bool) -> list[Prefetch]:
        """The job's answer could not be handled, or not to the end: no more of it is published.  Returns who waited for
        it."""
        self._unanswered.pop(job, None)
        waited = [prefetch for loading in job.loads for prefetch, _ in self._part(loading)]
        if released:
            self.released(job)
        else:
            self._keep_apart(job)
        return waited

    # --- inside

    def _join(self, prefetch: Prefetch, cell: Cell) -> bool:
        source = prefetch.sources[cell][0]
        loading = self._by_key.get(source.record.prefix + prefetch.chunk_hashes[cell.chunk])
        if loading is None:
            return False
        loading.waiters.append((prefetch, cell))
        prefetch.loading[cell] = loading.source
        return True

    def _place(
        self, prefetch: Prefetch, cells: Sequence[Cell], leases: list[tuple[int, Lease]]
    ) -> dict[Cell, tuple[int, Lease]]:
        """Slots for as many of the cells as there is room for, counted from the first one across all shards, so that no
        shard has all the room and another one none."""
        places = self._reserve(prefetch, cells, leases)
        if len(places) == len(cells):
            return places
        fair = cells[: len(places)]
        beyond = [cell for cell in places if cell not in set(fair)]
        for cell in beyond:
            slot, lease = places.pop(cell)
            self._cache.discard(lease, [slot])
        if beyond:
            places |= self._reserve(prefetch, [cell for cell in fair if cell not in places], leases)
        return places

    def _reserve(
        self, prefetch: Prefetch, cells: Sequence[Cell], leases: list[tuple[int, Lease]]
    ) -> dict[Cell, tuple[int, Lease]]:
        groups: dict[tuple[int, bytes], list[Cell]] = {}
        for cell in cells:
            source = prefetch.sources[cell][0]
            groups.setdefault((source.adapter, source.record.prefix), []).append(cell)
        places: dict[Cell, tuple[int, Lease]] = {}
        for (adapter, _), group in groups.items():
            record = prefetch.sources[group[0]][0].record
            hashes = [prefetch.chunk_hashes[cell.chunk] for cell in group]
            lease, indexes = self._cache.reserve(_OWNER, record, hashes, None)
            slots = list(lease.slots)
            if slots:
                leases.append((adapter, lease))
            else:
                self._cache.end(lease)
            places |= {group[index]: (slot, lease) for index, slot in zip(indexes, slots, strict=True)}
        return places

    def _start(self, prefetch: Prefetch, port: AdapterPort, loads: Sequence[Loading], leases: Sequence[Lease]) -> None:
        size = 0
        items = []
        for loading in loads:
            ((_, cell),) = loading.waiters
            prefetch.loading[cell] = loading.source
            self._by_key[loading.index_key] = loading
            size += self._cache.slot_bytes_for(loading.source.record.payload_bytes)
            items.append(LoadItem(loading.key, self._cache.buffer(loading.slot)))
        job = LoadJob(port, tuple(loads), tuple(leases), prefetch.retain)
        self._unanswered[job] = None
        self._room.lend(job, size)
        port.submit_load(items, self._inbox, job)

    def _part(self, loading: Loading) -> list[tuple[Prefetch, Cell]]:
        """The object is on its way no more."""
        if self._by_key.get(loading.index_key) is loading:
            del self._by_key[loading.index_key]
        for prefetch, cell in loading.waiters:
            prefetch.loading.pop(cell, None)
        return loading.waiters

    def _keep_apart(self, job: LoadJob) -> None:
        for lease in job.leases:
            self._cache.quarantine(lease)

    def _is_good(self, port: AdapterPort, loading: Loading, outcome: Outcome) -> bool:
        """Only an object that is whole, unaltered and the one asked for may become visible."""
        reason = f"the adapter says {outcome.value}"
        if outcome is Outcome.DONE and Capability.VERIFIES not in port.capabilities:
            verdict = check(self._cache.buffer(loading.slot).view, loading.key)
            outcome, reason = verdict.outcome, verdict.reason
        if outcome in (Outcome.DAMAGED, Outcome.FOREIGN):
            self.rejected += 1
            port.reject(loading.key, outcome)
            self._events.publish(ObjectRejected(port.name, loading.key.object_id.hex(), outcome.value, reason))
        return outcome is Outcome.DONE

    def _publish(self, loading: Loading, waiters: Sequence[tuple[Prefetch, Cell]], retain: bool) -> None:
        """Held by whoever still waits; the first of them is told that it was loaded for it."""
        size = self._cache.buffer(loading.slot).length
        waiting = [prefetch for prefetch, _ in waiters if not prefetch.answered]
        first = waiting[0] if waiting else waiters[0][0]
        readers = [prefetch.lease for prefetch in waiting]
        self._cache.publish(loading.lease, [loading.slot], readers, loading.chunk, not retain, first.request)
        if waiting:
            self._room.hold(waiting, self._cache.slot_bytes_for(loading.source.record.payload_bytes))
        self.loaded += 1
        first.loaded += 1
        first.loaded_bytes += size
