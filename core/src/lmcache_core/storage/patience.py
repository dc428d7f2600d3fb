"""A store that finds L1 full waits a little for eviction, and takes what there is then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event

from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease

LOOK_AROUND_SECONDS = 0.005
"""How often a wait asks whether it may go on; the longest that it keeps others from its thread."""


def reserve_patiently(
    cache: L1Cache,
    lease: Lease,
    record: SpaceRecord,
    chunk_hashes: Sequence[bytes],
    indexes: Sequence[int],
    seconds: float,
    may_wait: Callable[[], bool],
) -> list[int]:
    """Go on with a reservation that has got `indexes` of these chunks so far, until nothing is missing, `seconds` are
    over, `may_wait` says no or the server stops.  What has been reserved meanwhile is not filled by anybody yet, and
    others may need it: so no wait is without an end.  Returns all indexes, in order."""
    got = list(indexes)
    deadline = time.monotonic() + seconds
    come = True
    while come:
        rest = chunk_hashes[got[-1] + 1 :] if got else chunk_hashes
        wait = cache.wait_for_room(lease, record, rest)
        if wait is None:
            break
        try:
            come = _has_come(wait.event, deadline, may_wait) and not wait.over
        finally:
            cache.end_wait(wait)
        first = len(chunk_hashes) - len(rest)
        got += [first + index for index in cache.extend(lease, record, rest, ask_eviction=come)]
    return got


def _has_come(event: Event, deadline: float, may_wait: Callable[[], bool]) -> bool:
    while (left := deadline - time.monotonic()) > 0:
        if event.wait(min(left, LOOK_AROUND_SECONDS)):
            return True
        if not may_wait():
            return False
    return False
