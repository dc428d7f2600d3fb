"""What L1 keeps for L2: held, and its header page as it is, until every adapter is done with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from lmcache_core.controllers.store_backlog import StoreBacklog
from lmcache_core.controllers.store_unit import StoreUnit
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease
from lmcache_core.model.object_header import seal


class StoreHolds:
    """Belongs to the store controller's thread."""

    def __init__(self, cache: L1Cache, backlog: StoreBacklog) -> None:
        self._cache = cache
        self._backlog = backlog
        self.busy: Counter[int] = Counter()
        """Units that are not finished, by slot: adapters read it."""
        self._sealed: set[int] = set()
        """Busy slots whose header page is written, and must stay as it is."""

    def begin(self, slots: Iterable[int]) -> None:
        """Of new units, one for each of these slots."""
        self.busy.update(slots)

    def seal(self, units: Sequence[StoreUnit], wall_ns: int) -> None:
        """Write the header pages: the digest is computed here, once, and on nobody's request.  Raises OSError where L1 is a
        file whose disk fails."""
        for unit in units:
            if unit.slot not in self._sealed:
                self._cache.fetch(unit.slot)
                # What was noted when it was published: bytes that change from here on are found out when they come back.
                known = self._cache.checks.noted(unit.slot) if self._cache.checks else None
                seal(unit.item.buffer.view, unit.item.key, wall_ns, known)
                self._sealed.add(unit.slot)

    def finish(self, units: Sequence[StoreUnit]) -> None:
        """One adapter is done with these; the last one ends their holds."""
        done: dict[Lease, list[int]] = {}
        size = 0
        leaving = []
        for unit in units:
            if unit.remaining <= 0:
                continue  # given up before
            unit.remaining -= 1
            if unit.remaining > unit.kept:
                continue
            if unit.counted:
                unit.counted = False
                size += unit.item.buffer.length
            if unit.remaining == 0:
                done.setdefault(unit.lease, []).append(unit.slot)
                self._let_go(unit.slot)
                if unit.leave_l1:
                    leaving.append(unit.slot)
        if leaving:
            self._cache.drop_when_released(leaving)
        for lease, slots in done.items():
            self._cache.leases.release(lease, slots)
            if not lease.slots:
                self._cache.leases.end(lease)
        self._backlog.shrink(size)

    def keep(self, units: Sequence[StoreUnit]) -> None:
        """One adapter has answered for these and still reads them: they stay apart until it lets go, which nobody waits
        for when the server stops."""
        size = 0
        for unit in units:
            self._cache.leases.quarantine(unit.lease)
            unit.kept += 1
            if unit.remaining == unit.kept:
                size += self._uncounted(unit)
        self._backlog.shrink(size)

    def give_up(self, units: Sequence[StoreUnit]) -> int:
        """Adapters were being chosen for these, and will not be.  Their lease is the caller's to end.  Returns the bytes
        that are still in the backlog."""
        size = 0
        for unit in units:
            if unit.remaining > 0:
                unit.remaining = 0
                self._let_go(unit.slot)
                size += self._uncounted(unit)
        return size

    @staticmethod
    def _uncounted(unit: StoreUnit) -> int:
        """The bytes by which the backlog is less without this."""
        if not unit.counted:
            return 0
        unit.counted = False
        return unit.size_bytes

    def _let_go(self, slot: int) -> None:
        self.busy[slot] -= 1
        if not self.busy[slot]:
            del self.busy[slot]
            self._sealed.discard(slot)
