"""One policy, one capacity, one trace: what a server's memory cache would hold and hit.

A request is looked up and then stored, as an engine does:

1. Its hits are the blocks that are cached, up to the first that is not.  The policy is notified of them.  Blocks that are
   cached behind that gap are not hits, are not touched, and are not stored again; so it is on the server.
2. The missing ones are stored, in prompt order.  Of a request that is longer than the cache only the first `capacity`
   blocks are: a store that finds no room for all of them gets it for the first ones.
3. When more than `capacity` blocks are cached now, the policy is asked for victims.  Whatever it names leaves.  If that
   is not enough, blocks of this request leave again, the last one first: on a server they would not have come in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lmcache_core import (
    AccessFacts,
    EvictionDemand,
    EvictionPolicy,
    HashChain,
    InsertFacts,
    KeySpace,
    RequestFacts,
)
from lmcache_policies.simulate.progress import SLICE, ignore_progress
from lmcache_policies.simulate.trace import Trace

KEY_BYTES: Final = 8
_NONE: Final = -1


class BadVictimError(Exception):
    """The policy named a slot that it must not name.  The text says which, and when."""


@dataclass(frozen=True, slots=True)
class BlockSize:
    """What a block is, for policies that weigh sizes or costs."""

    bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """Counts in blocks."""

    hits: int
    behind_gap: int
    """Cached when they were asked for, but behind one that was not."""
    evictions: int
    refused: int
    """Not stored: beyond the capacity in their request, or because the policy named too few victims."""
    cpu_seconds: float
    """Of the whole replay, the simulator's own work included."""


class Replay:
    """Use once.  `evict_ratio` is the share of the capacity to ask for at once, as the watermark of a server does."""

    def __init__(
        self, trace: Trace, policy: EvictionPolicy, capacity: int, size: BlockSize, evict_ratio: float = 0.0
    ) -> None:
        self._trace = trace
        self._policy = policy
        self._capacity = capacity
        self._size = size
        self._at_once = int(capacity * evict_ratio)
        self._spaces = [_space(salt, size.tokens) for salt in trace.salts]
        self._slot_of = [_NONE] * trace.distinct
        self._block_of: dict[int, int] = {}  # by slot: what is cached
        self._free: list[int] = []
        self._hits = self._behind_gap = self._evictions = self._refused = 0

    def run(self, on_progress: Callable[[int], None] = ignore_progress) -> Replayed:
        """Serve every request.  Raises BadVictimError, and whatever the policy raises."""
        serve = self._serve_single_blocks if isinstance(self._trace.starts, range) else self._serve
        started = time.process_time()
        for first in range(0, self._trace.requests, SLICE):
            on_progress(first)
            serve(range(first, min(first + SLICE, self._trace.requests)))
        seconds = time.process_time() - started
        return Replayed(self._hits, self._behind_gap, self._evictions, self._refused, seconds)

    def _serve(self, requests: range) -> None:
        # The hot loop: local names, and nothing per block that a batch can do.
        trace, capacity, cached = self._trace, self._capacity, self._block_of
        blocks, starts, seconds = trace.blocks, trace.starts, trace.seconds
        slot_of, on_access = self._slot_of, self._policy.on_access
        for r in requests:
            prompt = blocks[starts[r] : starts[r + 1]]
            slots = [slot_of[block] for block in prompt]
            hits = slots.index(_NONE) if _NONE in slots else len(slots)
            facts = RequestFacts(seconds[r], r + 1, len(slots), hits)
            if hits:
                self._hits += hits
                on_access(slots[:hits], AccessFacts(0, facts))
            if hits < len(slots):
                stored = self._store(prompt, slots, facts, self._spaces[trace.salt_of[r]])
                if len(cached) > capacity:
                    self._evict(r)
                if len(cached) > capacity:
                    self._take_back(stored)

    def _serve_single_blocks(self, requests: range) -> None:
        """The same for requests of one block each, faster: no prompt has to be split."""
        trace, capacity, cached, slot_of, free = self._trace, self._capacity, self._block_of, self._slot_of, self._free
        policy, slot_bytes, space = self._policy, self._size.bytes, self._spaces[0]
        seconds, hits = trace.seconds, 0
        for r, block in enumerate(trace.blocks[requests.start : requests.stop], requests.start):
            slot = slot_of[block]
            if slot != _NONE:
                hits += 1
                policy.on_access((slot,), AccessFacts(0, RequestFacts(seconds[r], r + 1, 1, 1)))
                continue
            slot = free.pop() if free else len(cached)
            slot_of[block] = slot
            cached[slot] = block
            key = block.to_bytes(KEY_BYTES, "little")
            policy.on_insert((slot,), InsertFacts(slot_bytes, space, 0, (key,), RequestFacts(seconds[r], r + 1, 1)))
            if len(cached) > capacity:
                self._evict(r)
                if len(cached) > capacity:
                    self._take_back((slot,))
        self._hits += hits

    def _store(
        self, prompt: Sequence[int], slots: Sequence[int], facts: RequestFacts, space: KeySpace
    ) -> Sequence[int]:
        """Returns the slots that hold what was missing."""
        hits = facts.hit_chunks
        missing = [block for block, slot in zip(prompt[hits:], slots[hits:], strict=True) if slot == _NONE]
        self._behind_gap += len(slots) - hits - len(missing)
        if (beyond := hits + len(missing) - self._capacity) > 0:
            self._refused += beyond
            del missing[len(missing) - beyond :]
        if not missing:
            return ()
        taken = self._take(len(missing))
        for slot, block in zip(taken, missing, strict=True):
            self._slot_of[block] = slot
            self._block_of[slot] = block
        keys = [block.to_bytes(KEY_BYTES, "little") for block in missing]
        self._policy.on_insert(taken, InsertFacts(self._size.bytes, space, hits, keys, facts))
        return taken

    def _take(self, count: int) -> list[int]:
        """Slots that are free; numbers are used again before new ones are."""
        used = len(self._block_of)
        if not self._free:
            return list(range(used, used + count))  # every slot so far is in use
        reused = self._free[-count:]
        del self._free[-count:]
        first = used + len(reused)
        return reused if len(reused) == count else [*reused, *range(first, used + count)]

    def _evict(self, request: int) -> None:
        cached, slot_of = self._block_of, self._slot_of
        wanted = max(len(cached) - self._capacity, self._at_once)
        victims = self._policy.victims(EvictionDemand(wanted * self._size.bytes, {}), cached.__contains__)
        gone = victims if len(victims) == 1 else list(dict.fromkeys(victims))
        for slot in gone:
            block = cached.pop(slot, None)
            if block is None:
                raise BadVictimError(
                    f"named slot {slot!r} as a victim, which holds nothing, after request {request + 1}"
                )
            slot_of[block] = _NONE
        self._evictions += len(gone)
        self._forget(gone)

    def _take_back(self, stored: Sequence[int]) -> None:
        """Too few victims were named: what came in last does not stay."""
        still = [slot for slot in stored if slot in self._block_of]
        over = len(self._block_of) - self._capacity
        gone = still[-over:][::-1]
        for slot in gone:
            self._slot_of[self._block_of.pop(slot)] = _NONE
        self._refused += len(gone)
        self._forget(gone)

    def _forget(self, slots: Sequence[int]) -> None:
        if slots:
            self._policy.on_remove(slots)
            self._free.extend(slots)


def _space(salt: str, block_tokens: int) -> KeySpace:
    return KeySpace("trace", 0, 0, salt, block_tokens, HashChain.BLAKE3, bytes(16))
