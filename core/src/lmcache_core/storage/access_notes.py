"""What policies are told of hits: the eviction policy always, the store policy where it asked for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmcache_core.contracts.policies import AccessFacts, RequestFacts
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_batch import Batch
from lmcache_core.l1.cache import L1Cache
from lmcache_core.storage.lookup_table import Lookup


class AccessNotes:
    """Safe from any thread, as its cache and store controller are."""

    def __init__(self, cache: L1Cache, store: StoreController) -> None:
        self._cache = cache
        self._store = store
        self._offers = True

    def offer_no_more(self) -> None:
        """From now on nothing is offered to the store policy."""
        self._offers = False

    def hits(self, lookup: Lookup, seconds: float) -> None:
        """A lookup has its answer.  Policies hear of each hit in L1 once per request: engines repeat lookups while they
        queue."""
        first, lookup.noted_chunks = lookup.noted_chunks, max(lookup.noted_chunks, lookup.hit_chunks)
        facts = AccessFacts(first, lookup.facts(seconds))
        for row in lookup.rows:
            hit = row.take_hits(first)
            self._cache.note_access(hit, facts)
            if hit and self._offers and self._store.plans_hits:
                self._offer(lookup, hit, row.positions(), facts.request)

    def read_unasked(self, slots: Sequence[int], first_chunk: int, request: RequestFacts) -> None:
        """A worker reads what no lookup of its request has told of."""
        self._cache.note_access(list(slots), AccessFacts(first_chunk, request))

    def _offer(self, lookup: Lookup, slots: Sequence[int], positions: Mapping[int, int], request: RequestFacts) -> None:
        """The store policy may want what was used again in L2 after all."""
        sizes = self._cache.object_sizes(lookup.lease, dict.fromkeys(slots))
        for object_bytes, alike in sizes.items():
            lease = self._store.admit(len(alike), object_bytes, hit=True)
            if lease is None:
                continue
            shared = self._cache.share(lease, lookup.lease, alike)
            if missing := len(alike) - len(shared):
                self._store.forgo(missing, object_bytes)
            if shared:
                size = len(shared) * object_bytes
                chunks = [positions[slot] for slot in shared]
                self._store.offer(
                    Batch(lease, tuple(shared), chunks, size, hit=True, request_id=lookup.request_id, request=request)
                )
            else:
                self._cache.end(lease)
