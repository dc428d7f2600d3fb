"""Which objects of a prefetch are asked for when: in slices, in order, as far as there is room for them."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.contracts.clock import Clock
from lmcache_core.controllers.prefetch_loads import Loads
from lmcache_core.controllers.prefetch_request import Cell, Prefetch
from lmcache_core.controllers.prefetch_room import PrefetchRoom
from lmcache_core.l1.cache import L1Cache

SLICE_CELLS = 32
"""Objects that are asked for at once; completions come, and mistakes end, in steps of this."""
IN_FLIGHT_CELLS = 128
"""Objects that are under way for one prefetch; the rest waits here, where it can still be left out."""
ROOM_WAIT_SECONDS = 0.25
"""How long a prefetch waits for eviction, or for another writer of its chunk, before it is content with less."""
ROOM_RETRY_SECONDS = 0.005


class Slices:
    """Belongs to the prefetch controller's thread."""

    def __init__(self, cache: L1Cache, loads: Loads, room: PrefetchRoom, clock: Clock) -> None:
        self._cache = cache
        self._loads = loads
        self._room = room
        self._clock = clock
        self.room_waits = 0
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
            prefetch.short_since = None  # nothing lacks room; what has to be loaded later waits anew
        return False

    def _next(self, prefetch: Prefetch) -> list[Cell]:
        """The first cells that have to be loaded.  What is there by now, or on its way, is taken off the list."""
        cells = [prefetch.todo.popleft() for _ in range(min(SLICE_CELLS, len(prefetch.todo)))]
        lost = False
        for cell in cells:
            for source in list(prefetch.sources[cell]):
                if not source.port.loads:
                    prefetch.drop(cell, source)
                    lost = lost or not prefetch.sources[cell]
        if lost:
            prefetch.aim()
            return []
        rest = self._loads.find(prefetch, cells)
        prefetch.todo.extendleft(reversed(rest))
        return rest

    def _within_bound(self, prefetch: Prefetch, cells: Sequence[Cell]) -> list[Cell]:
        left = self._room.left_bytes
        fitting = []
        for cell in cells:
            left -= self._cache.slot_bytes_for(prefetch.sources[cell][0].record.payload_bytes)
            if left < 0:
                break
            fitting.append(cell)
        return fitting

    def _start(self, prefetch: Prefetch, cells: Sequence[Cell]) -> bool:
        """False when there is no room, and the prefetch is to try again a little later."""
        now, payload_bytes = self._clock.monotonic(), prefetch.sources[cells[0]][0].record.payload_bytes
        waited = 0.0 if prefetch.short_since is None else now - prefetch.short_since
        waits = prefetch.short_since is not None and waited < ROOM_WAIT_SECONDS
        if waits and self._cache.available(payload_bytes) < len(cells):
            return False  # asking again would only ask eviction for more
        placed = self._loads.submit(prefetch, cells)
        for _ in cells:  # they are the first of what is to do
            prefetch.todo.popleft()
        prefetch.todo.extendleft([cell for cell in reversed(cells) if cell not in prefetch.loading])
        if placed == len(cells):
            prefetch.short_since = None
        elif placed or prefetch.short_since is None:
            self.room_waits += prefetch.short_since is None
            prefetch.short_since = now
            return placed > 0
        elif waited >= ROOM_WAIT_SECONDS:
            prefetch.short_since = None
            prefetch.give_in()
        else:
            return False
        return True
