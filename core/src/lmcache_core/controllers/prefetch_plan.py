"""Lookups at adapters for a prefetch, the plan of where each missing chunk is loaded from, and the slices in which it is
loaded, in order, as far as there is free space."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import L2LookupCompleted, LoadsDeclined, Publisher
from lmcache_core.contracts.policies import PrefetchFacts, PrefetchPlan, PrefetchPolicy, WantedObject
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.policy_guard import GuardedPolicy
from lmcache_core.controllers.prefetch_loads import Loads
from lmcache_core.controllers.prefetch_request import Cell, Prefetch, PrefetchBudget, Source
from lmcache_core.jobs.queues import Inbox
from lmcache_core.l1.cache import L1Cache
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Bitmap, Outcome


@dataclass(slots=True, eq=False)
class LookupJob:
    """A lookup at one adapter."""

    prefetch: Prefetch
    client: AdapterClient
    keys: Sequence[ObjectKey]
    number: int
    started: float
    taken: bool = False
    """Keys that the adapter has pinned are recorded with the prefetch, or unpinned."""

    def found(self, outcomes: Sequence[Outcome]) -> list[ObjectKey]:
        """Keys that the adapter has, and keeps pinned until `unpin`."""
        pairs = zip(self.keys, outcomes, strict=False)
        return [key for key, outcome in pairs if outcome is Outcome.DONE]


class Lookups:
    """Belongs to the prefetch controller's thread."""

    def __init__(self, inbox: Inbox[Any], clock: Clock, events: Publisher) -> None:
        self._inbox = inbox
        self._clock = clock
        self._events = events
        self._number = 0

    def submit(self, prefetch: Prefetch, clients: Iterable[AdapterClient]) -> None:
        """Ask each of these for what the prefetch wants."""
        prefetch.asked = set(clients)
        keys = [wanted.key for wanted in prefetch.wanted]
        now = self._clock.monotonic()
        for client in clients:
            self._number += 1
            client.submit_lookup(keys, self._inbox, LookupJob(prefetch, client, keys, self._number, now))

    def answered(self, job: LookupJob, outcomes: Sequence[Outcome]) -> bool:
        """True when all adapters have answered, and the prefetch is to be planned."""
        prefetch, client = job.prefetch, job.client
        found = job.found(outcomes)
        job.taken = True
        if self._events.wants(L2LookupCompleted):
            seconds = self._clock.monotonic() - job.started
            self._events.publish(
                L2LookupCompleted(client.name, job.number, prefetch.request_id, len(job.keys), len(found), seconds)
            )
        if prefetch.answered or prefetch.planned or client not in prefetch.asked:
            client.unpin(found)
            return False
        prefetch.pinned[client] = found
        prefetch.found[client] = Bitmap(
            len(outcomes), [i for i, outcome in enumerate(outcomes) if outcome is Outcome.DONE]
        )
        prefetch.asked.discard(client)
        return not prefetch.asked

    def go_without(self, prefetch: Prefetch, client: AdapterClient) -> bool:
        """It has not been said yet what is loaded from where, and will be without this adapter.  True when that was the
        last one that was waited for."""
        prefetch.found.pop(client, None)
        client.unpin(prefetch.pinned.pop(client, []))
        was_asked = client in prefetch.asked
        prefetch.asked.discard(client)
        return was_asked and not prefetch.asked

    def abort(self, job: LookupJob, outcomes: Sequence[Outcome]) -> None:
        """The answer could not be handled: unpin what was found."""
        if not job.taken:
            job.client.unpin(job.found(outcomes))

    def unpin_if_done(self, prefetch: Prefetch) -> None:
        """Unpin at all adapters, once nothing is being loaded for it."""
        if prefetch.answered and not prefetch.loading:
            while prefetch.pinned:
                client, keys = prefetch.pinned.popitem()
                client.unpin(keys)


SLICE_CELLS = 32
"""Objects that are asked for at once; completions come, and mistakes end, in steps of this."""
IN_FLIGHT_CELLS = 128
"""Objects that are under way for one prefetch; the rest waits here, where it can still be left out."""
SPACE_WAIT_SECONDS = 0.25
"""How long a prefetch waits for eviction, or for another writer of its chunk, before it is content with less."""
SPACE_RETRY_SECONDS = 0.005


class Slices:
    """Belongs to the prefetch controller's thread."""

    def __init__(self, cache: L1Cache, loads: Loads, budget: PrefetchBudget, clock: Clock) -> None:
        self._cache = cache
        self._loads = loads
        self._budget = budget
        self._clock = clock
        self.allocation_waits = 0
        """Times that a prefetch began to wait for eviction."""

    def submit(self, prefetch: Prefetch, others_wait: bool) -> bool:
        """Submit slices of a prefetch.  True when it has to wait until prefetches occupy less of L1."""
        while prefetch.todo and len(prefetch.loading) < IN_FLIGHT_CELLS:
            cells = self._next(prefetch)
            if not cells:
                continue
            fitting = [] if others_wait else self._within_bound(prefetch, cells)
            if not fitting:
                return True
            if not self._start(prefetch, fitting):
                break
        if not prefetch.todo:
            prefetch.short_since = None  # nothing lacks space; what has to be loaded later waits anew
        return False

    def _next(self, prefetch: Prefetch) -> list[Cell]:
        """The first cells that have to be loaded.  What is there by now, or on its way, is taken off the list."""
        cells = [prefetch.todo.popleft() for _ in range(min(SLICE_CELLS, len(prefetch.todo)))]
        lost = False
        for cell in cells:
            for source in list(prefetch.sources[cell]):
                if not source.client.loads:
                    prefetch.drop(cell, source)
                    lost = lost or not prefetch.sources[cell]
        if lost:
            prefetch.aim()
            return []
        rest = self._loads.find(prefetch, cells)
        prefetch.todo.extendleft(reversed(rest))
        return rest

    def _within_bound(self, prefetch: Prefetch, cells: Sequence[Cell]) -> list[Cell]:
        left = self._budget.left_bytes(prefetch)
        fitting = []
        for cell in cells:
            left -= self._cache.slot_bytes_for(prefetch.sources[cell][0].record.payload_bytes)
            if left < 0:
                break
            fitting.append(cell)
        return fitting

    def _start(self, prefetch: Prefetch, cells: Sequence[Cell]) -> bool:
        """False when there is no free space, and the prefetch is to try again a little later."""
        now, payload_bytes = self._clock.monotonic(), prefetch.sources[cells[0]][0].record.payload_bytes
        waited = 0.0 if prefetch.short_since is None else now - prefetch.short_since
        waits = prefetch.short_since is not None and waited < SPACE_WAIT_SECONDS
        if waits and self._cache.available(payload_bytes) < len(cells):
            return False  # asking again would only ask eviction for more
        placed = self._loads.submit(prefetch, cells)
        for _ in cells:  # they are the first of what is to do
            prefetch.todo.popleft()
        prefetch.todo.extendleft([cell for cell in reversed(cells) if cell not in prefetch.loading])
        if placed == len(cells):
            prefetch.short_since = None
        elif placed or prefetch.short_since is None:
            self.allocation_waits += prefetch.short_since is None
            prefetch.short_since = now
            return placed > 0
        elif waited >= SPACE_WAIT_SECONDS:
            prefetch.short_since = None
            prefetch.stop_waiting()
        else:
            return False
        return True


def plan_sources(
    prefetch: Prefetch,
    guarded: GuardedPolicy[PrefetchPolicy],
    clients: Sequence[AdapterClient],
    loading_bytes: Callable[[AdapterClient], int],
    events: Publisher,
) -> None:
    """Fill in `sources`, `retain` and what the prefetch aims for, and unpin what it will not ask for.

    A chunk that the policy leaves is left.  For the others, every adapter that has it follows the planned one, in
    the order of the cascade, in case that one fails."""
    size = len(prefetch.wanted)
    found = [prefetch.found.get(client, Bitmap(size)) for client in clients]
    plan = _ask(guarded, found, clients, prefetch, loading_bytes)
    prefetch.retain = plan.retain
    holders = [place for place, client in enumerate(clients) if prefetch.found.get(client)]
    planned: dict[Cell, list[Source]] = {}
    for number, (wanted, first) in enumerate(zip(prefetch.wanted, plan.sources, strict=True)):
        if first is None or not (0 <= first < len(found) and number in found[first]):
            continue
        others = [place for place in holders if place != first and number in found[place]]
        planned.setdefault(wanted.cell, []).extend(Source(wanted.record, clients[place]) for place in (first, *others))
    prefetch.sources = planned
    prefetch.planned = True
    prefetch.aim()
    _keep_pinned(prefetch, clients)
    _count_declined(prefetch, plan, found, clients, events)


def _count_declined(
    prefetch: Prefetch, plan: PrefetchPlan, found: Sequence[Bitmap], clients: Sequence[AdapterClient], events: Publisher
) -> None:
    left: dict[int, list[int]] = defaultdict(list)
    for number, (wanted, place) in enumerate(zip(prefetch.wanted, plan.declined, strict=False)):
        if place is not None and 0 <= place < len(clients) and number in found[place]:
            left[place].append(HEADER_BYTES + wanted.record.payload_bytes)
    for place, sizes in left.items():
        clients[place].counters.declined(len(sizes), sum(sizes))
        events.publish(LoadsDeclined(clients[place].name, prefetch.request_id, len(sizes), sum(sizes)))


def _facts(
    prefetch: Prefetch, clients: Sequence[AdapterClient], loading_bytes: Callable[[AdapterClient], int]
) -> PrefetchFacts:
    wanted = [
        WantedObject(prefetch.first_chunk + each.cell.chunk, each.cell.row, HEADER_BYTES + each.record.payload_bytes)
        for each in prefetch.wanted
    ]
    return PrefetchFacts(
        wanted,
        [row.window for row in prefetch.rows],
        prefetch.wanted[0].record.space.chunk_tokens,
        prefetch.sparse,
        prefetch.keeps,
        [loading_bytes(client) for client in clients],
        IN_FLIGHT_CELLS,
    )


def _ask(
    guarded: GuardedPolicy[PrefetchPolicy],
    found: Sequence[Bitmap],
    clients: Sequence[AdapterClient],
    prefetch: Prefetch,
    loading_bytes: Callable[[AdapterClient], int],
) -> PrefetchPlan:
    size = len(prefetch.wanted)
    adapters = [client.facts for client in clients]

    def plan(policy: PrefetchPolicy) -> PrefetchPlan:
        if policy.weighs_loads and prefetch.wanted:
            plan = policy.weigh(found, adapters, _facts(prefetch, clients, loading_bytes))
        else:
            plan = policy.plan(found, adapters)
        sources, retain, declined = tuple(plan.sources), bool(plan.retain), tuple(plan.declined)
        if len(sources) != size:
            raise ValueError(f"the prefetch policy planned {len(sources)} of {size} keys")
        if any(place is not None and type(place) is not int for place in (*sources, *declined)):
            raise ValueError("the prefetch policy named an adapter by something else than its index")
        return PrefetchPlan(sources, retain, declined)

    nothing = PrefetchPlan((None,) * size)
    return guarded.call("plan", plan, nothing) if clients else nothing  # the last one may have been removed meanwhile


def _keep_pinned(prefetch: Prefetch, clients: Sequence[AdapterClient]) -> None:
    """A shorter prefix than planned may need other chunks of a window, so all that lies in front stays pinned."""
    last = max((cell.chunk for cell in prefetch.todo), default=-1)
    for client in clients:
        kept, rest = list[ObjectKey](), list[ObjectKey]()
        for number in prefetch.found.get(client, ()):
            wanted = prefetch.wanted[number]
            sources = prefetch.sources.get(wanted.cell, ())
            used = wanted.cell.chunk <= last and any(
                source.client is client and source.record is wanted.record for source in sources
            )
            (kept if used else rest).append(wanted.key)
        prefetch.pinned[client] = kept
        client.unpin(rest)
