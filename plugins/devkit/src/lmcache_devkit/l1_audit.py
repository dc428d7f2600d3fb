"""Whether L1's counters, keys, slots and leases agree, slot by slot."""

from __future__ import annotations

from collections import Counter

from lmcache_core.l1.cache import L1Cache


def audit(cache: L1Cache) -> None:
    """Assert that they do.  Holds the cache's lock throughout."""
    with cache._index.lock:
        _audit(cache)


def _audit(cache: L1Cache) -> None:
    table, allocator, spaces = cache._index.table, cache._index.allocator, cache._index.spaces
    states = [(slot, *state) for slot in range(len(table)) if (state := table.state(slot)) is not None]
    leased = Counter(
        slot for _, leases in cache.leases.table.by_owner() for lease in leases.values() for slot in lease.slots
    )
    keys = [(space, chunk_hash) for _, space, chunk_hash, _, ready, _ in states if ready]
    assert len(set(keys)) == len(keys), "two slots have one key"
    assert all(table.contains(*key) for key in keys), "an object that is not found"
    assert all(leased[slot] == count for slot, _, _, count, _, _ in states), "a reference without a lease"
    assert table.held == sum(count > 0 for _, _, _, count, _, _ in states)
    assert table.cached == sum(count == 0 for _, _, _, count, _, _ in states)
    assert table.findable == len(keys)
    assert leased.keys() <= {slot for slot, *_ in states}, "a lease on a free slot"
    assert allocator.free_slots + len(states) == allocator.total
    assert sum(record.objects for record in spaces.everything()) == len(states)
