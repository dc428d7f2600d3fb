"""What the server reports, compared with its events and with what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lmcache_core.contracts import events as event_types
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.l1.cache import L1Cache
from lmcache_core.model.keys import HASH_BYTES
from lmcache_core.storage.counters import total
from lmcache_core.storage.manager import StorageManager
from lmcache_devkit.event_recorder import EventRecorder

_Object = tuple[str, str, int, bytes]
"""Model, salt, shard and chunk hash; tests use one layout."""


class FactCheck:
    """To be asked between steps, while no other thread works on the storage."""

    def __init__(
        self,
        cache: L1Cache,
        storage: StorageManager,
        store: StoreController,
        prefetch: PrefetchController,
        clients: Sequence[AdapterClient],
        events: EventRecorder,
    ) -> None:
        self._cache, self._storage, self._store = cache, storage, store
        self._prefetch, self._clients, self._events = prefetch, clients, events
        self._read = 0
        self._published: Counter[type[event_types.Event]] = Counter()
        self._sums: Counter[str] = Counter()
        self._there: set[_Object] = set()

    def check(self) -> None:
        """Assert that counts, events and contents agree."""
        for event in self._events.events[self._read :]:
            self._published[type(event)] += 1
            self._take(event)
        self._read = len(self._events.events)
        self._check_lookups()
        self._check_objects()
        self._check_l2()

    def _take(self, event: event_types.Event) -> None:
        sums = self._sums
        match event:
            case event_types.LookupFinished():
                sums["requested"] += event.requested_chunks
                sums["hit"] += event.hit_chunks
                sums["l2"] += event.l2_chunks
                sums["tokens"] += event.prompt_tokens
            case event_types.ChunksStored():
                sums["stored"] += event.chunks
                sums["stored bytes"] += event.payload_bytes
            case event_types.ObjectsRead():
                sums["read"] += len(event.chunk_hashes) // HASH_BYTES
            case event_types.StoreRefused():
                sums["refused"] += event.chunks
            case event_types.StoreCompleted():
                sums["to l2"] += event.stored
                sums["bytes to l2"] += event.stored_bytes
            case event_types.LoadCompleted():
                sums["loaded"] += event.loaded
            case event_types.ObjectsAdded():
                self._there.update(_objects(event))
            case event_types.ObjectsRemoved():
                self._there.difference_update(_objects(event))

    def _check_lookups(self) -> None:
        rows = self._storage.counters.snapshot()
        for row in rows.values():
            assert min(row.missed_chunks, row.missed_tokens) >= 0, row
            assert (row.hit_l1_tokens, row.hit_l2_tokens) == (16 * row.hit_l1_chunks, 16 * row.hit_l2_chunks)
        counted, said, sums = total(rows), self._published, self._sums
        assert (counted.lookups, counted.abandoned) == (
            said[event_types.LookupFinished],
            said[event_types.LookupAbandoned],
        )
        unanswered = sum(lookup.answer is None for lookup in self._storage._lookups._table.everything())
        assert said[event_types.LookupStarted] == counted.lookups + counted.abandoned + unanswered
        assert (counted.requested_chunks, counted.requested_tokens) == (sums["requested"], sums["tokens"])
        assert (counted.hit_chunks, counted.hit_l2_chunks) == (sums["hit"], sums["l2"])
        assert (counted.stored_chunks, counted.stored_bytes) == (sums["stored"], sums["stored bytes"])
        assert counted.retrieved_chunks == sums["read"]
        assert sum(counted.refused_chunks.values()) == sums["refused"]

    def _check_objects(self) -> None:
        """What came and did not leave is what can be found."""
        table, spaces, found = self._cache._table, self._cache._index.spaces, set()
        for slot in range(len(table)):
            if (state := table.state(slot)) is not None and state[3]:
                space = spaces.numbered(state[0]).space
                found.add((space.model_name, space.cache_salt, space.kv_rank, state[1]))
        assert self._there == found
        evicted = sum(left.objects for left in self._cache.evictions().values())
        assert evicted == self._cache.evicted

    def _check_l2(self) -> None:
        said, sums = self._published, self._sums
        for client in self._clients:
            verbs = client.counters.snapshot().verbs
            assert all(row.adds_up for row in verbs.values()), verbs
        accounts = [view.counts for view in self._store.views().values()]
        assert all(account.adds_up for account in accounts), accounts
        assert sums["to l2"] <= sum(account.stored for account in accounts)
        assert sums["bytes to l2"] <= sum(account.stored_bytes for account in accounts)
        assert said[event_types.LoadSubmitted] == said[event_types.LoadCompleted] + self._prefetch._loads.jobs
        assert sums["loaded"] <= self._prefetch.counts().loaded
        view = self._prefetch.counts()
        ended = view.completed + view.timed_out + view.cancelled + view.abandoned
        assert said[event_types.PrefetchCompleted] <= ended


def _objects(event: event_types.ObjectsAdded | event_types.ObjectsRemoved) -> list[_Object]:
    whose = (event.model_name, event.cache_salt, event.kv_rank)
    hashes = event.chunk_hashes
    return [(*whose, hashes[at : at + HASH_BYTES]) for at in range(0, len(hashes), HASH_BYTES)]
