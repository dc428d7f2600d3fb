"""What L1 has for a lookup, found and held at once: the whole of most lookups, without a loop over their chunks."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.contracts.storage import READERS_MAX, LookupRequest, Shard, SparseLookupRequest
from lmcache_core.controllers.reach import ABSENT, Reach, prefix_reach, reach_of
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease
from lmcache_core.storage.lookup_rows import PrefixRow, SparseRow
from lmcache_core.storage.lookup_table import Lookup


def check_lookup(request: LookupRequest | SparseLookupRequest) -> None:
    """Raises ValueError for what no lookup can be."""
    if request.readers > READERS_MAX:
        raise ValueError(f"a lookup for {request.readers} readers; at most {READERS_MAX} may read a chunk")
    for number, shard in enumerate(request.shards):
        if shard.window is None:
            continue
        if isinstance(request, SparseLookupRequest):
            raise ValueError(
                f"shard {number} has a window of {shard.window} chunks; a sparse lookup takes shards without"
            )
        if shard.window < 1:
            raise ValueError(
                f"shard {number} has a window of {shard.window} chunks; a window is at least one chunk long"
            )


def look_in_l1(
    cache: L1Cache, lookup: Lookup, request: LookupRequest | SparseLookupRequest
) -> list[tuple[SpaceRecord, ...]]:
    """Hold what is there, row by row, under every layout that a chunk may have.  Returns the layouts of each row."""
    layouts = []
    hashes = request.chunk_hashes
    kind = SparseRow if lookup.sparse else PrefixRow
    for shard in request.shards:
        slots, records = hold_shard(cache, lookup.lease, shard, hashes)
        row = kind(slots, tuple([record.space for record in records]))
        row.in_l1 = slots.copy() if ABSENT in slots else slots
        lookup.rows.append(row)
        lookup.windows.append(shard.window)
        layouts.append(records)
    return layouts


def hold_shard(
    cache: L1Cache, lease: Lease, shard: Shard, chunk_hashes: Sequence[bytes]
) -> tuple[list[int], tuple[SpaceRecord, ...]]:
    """Hold what is there of one shard, under whichever of its layouts: a slot or ABSENT for each chunk, and the layouts."""
    records = tuple([cache.intern(space, size) for space, size in shard.spaces])
    slots = cache.acquire(lease, records[0], chunk_hashes) if records else [ABSENT] * len(chunk_hashes)
    for record in records[1:]:
        missing = [chunk for chunk, slot in enumerate(slots) if slot == ABSENT]
        others = cache.acquire(lease, record, [chunk_hashes[chunk] for chunk in missing])
        for chunk, slot in zip(missing, others, strict=True):
            slots[chunk] = slot
    return slots, records


def reach_in_l1(lookup: Lookup) -> Reach:
    """How far the lookup gets with what L1 has."""
    rows, chunks = lookup.rows, lookup.prompt_chunks
    if rows and not lookup.sparse and all(row.in_l1 is row.slots for row in rows):
        return prefix_reach(chunks, lookup.windows)
    flags = [bytearray([slot != ABSENT for slot in row.slots]) for row in rows]
    return reach_of(flags, lookup.windows, chunks, sparse=lookup.sparse)


def is_all(reach: Reach, lookup: Lookup) -> bool:
    """Is there nothing left to look for?"""
    found = reach.answer if isinstance(reach.answer, int) else len(reach.answer)
    return found == lookup.prompt_chunks or not lookup.rows
