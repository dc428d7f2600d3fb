"""The baseline: what a policy would hit that knew the whole trace beforehand.

Whatever is needed farthest in the future goes first: Belady's MIN (L. A. Belady, "A study of replacement algorithms for
a virtual-storage computer", IBM Systems Journal 5(2), 1966, https://doi.org/10.1147/sj.52.0078).  Two things differ here.

*Requests are batches.*  What has to fit is what is kept from one request to the next.  Keeping a block from one use to its
next is an interval of requests, and a hit; at most `capacity` intervals may overlap.  To drop the interval that ends last
whenever too many overlap keeps as many as can be kept (U. Faigle and W. M. Nawijn, "Note on scheduling intervals
on-line", Discrete Applied Mathematics 58, 1995).  So its *block hits* are the most there can be.

*Only a prefix counts.*  A block is a hit if all before it are.  A schedule's prefix hits are never more than its block
hits, so the optimum is at most MIN's block hits.  Where every block always follows the same block (`Trace.is_chained`),
MIN reaches that: what needs a block needs all before it, so these are needed no later, and with ties broken from the tail
a block never goes before those that follow it; what is kept are whole prefixes, and each block hit is a prefix hit.  Then
this is the optimum, exactly.  Elsewhere the prefix hits are those of one schedule, and the block hits a bound above.

The next use of a block is its next position in `Trace.blocks`.  Positions are unique, and a block's is before those of
the blocks that follow it in the same prompt, so that ties are broken from the tail by themselves.  A block costs
O(log capacity), and memory is 9 bytes per block of the trace (5 below 2^32 blocks).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from lmcache_policies.simulate.progress import SLICE, ignore_progress
from lmcache_policies.simulate.trace import Trace

_SLACK: Final = 1024


@dataclass(frozen=True, slots=True)
class Foresight:
    """Hits in blocks of the trace."""

    hits: int
    """Prefix hits of the schedule."""
    at_most: int
    """No policy of this capacity hits more."""
    cpu_seconds: float


def foresee(trace: Trace, capacity: int, on_progress: Callable[[int], None] = ignore_progress) -> Foresight:
    """Replay the trace with at most `capacity` blocks kept after each request."""
    started = time.process_time()
    starts, after = trace.starts, _next_uses(trace)
    kept = bytearray(len(trace.blocks))  # 1: the block stays until this position, where it is a hit
    farthest: list[int] = []  # heap of negative positions; those that have passed sink to its end
    hits = at_most = alive = 0
    for r in range(trace.requests):
        begin, end = starts[r], starts[r + 1]
        found = kept.count(1, begin, end)
        if found:
            at_most += found
            alive -= found
            missing = kept.find(0, begin, end)
            hits += (end if missing < 0 else missing) - begin
        for use in after[begin:end]:
            if use:
                heappush(farthest, -use)
                kept[use] = 1
                alive += 1
        while alive > capacity:
            kept[-heappop(farthest)] = 0
            alive -= 1
        if len(farthest) > 2 * capacity + _SLACK:
            farthest = [use for use in farthest if -use >= end]
            heapify(farthest)
        if r % SLICE == 0:
            on_progress(r)
    return Foresight(hits, at_most, time.process_time() - started)


def _next_uses(trace: Trace) -> array[int]:
    """For each position of `trace.blocks` the next one with the same block, 0 where there is none."""
    blocks = trace.blocks
    after = array("I" if len(blocks) < 1 << 32 else "Q", [0]) * len(blocks)
    following = array(after.typecode, [0]) * trace.distinct
    for position in range(len(blocks) - 1, -1, -1):
        block = blocks[position]
        after[position] = following[block]
        following[block] = position
    return after
