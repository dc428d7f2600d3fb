"""Moves room between slot sizes, so that models with different chunk sizes share L1 as if it had only one.

A store that finds no room asks for bytes of its size.  Where the arena is shared, the policy is asked for the coldest
objects of any size instead.  Those of the right size are room at once.  For what they fall short of, the size is owed:
as soon as that is a slab, or the size has nothing at all, slabs of other sizes move to it, as many as it is owed: those
in which the fewest objects would be missed.  So room goes where the stores are, at their rate, from where the coldest
objects are, and two sizes that are both hot settle where their oldest objects are equally old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from lmcache_core.l1.allocator import Slab
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.slab_moves import choose, windows

_OPINION = 2
"""How much of the policy's list is looked at for each byte to move: the objects to leave next are in several slabs."""


class SlabMover:
    """Belongs to the eviction controller's thread."""

    def __init__(self, cache: L1Cache) -> None:
        self._cache = cache
        self._owed: Counter[int] = Counter()

    def shared(self, demand: Mapping[int, int]) -> dict[int, int]:
        """The part of a demand, in bytes by slot size, whose sizes share the arena with others."""
        return {size: wanted for size, wanted in demand.items() if self._cache.slabs.is_shared(size)}

    def bytes_by_size(self, slots: Sequence[int]) -> Counter[int]:
        """What evicting these would free, by slot size.  Slots that may not go count for nothing."""
        freed: Counter[int] = Counter()
        for slab in self._slabs_of(dict.fromkeys(slots)):
            freed[slab.slot_bytes] += slab.slot_bytes
        return freed

    def make_room(
        self, demand: Mapping[int, int], freed: Mapping[int, int], coldest: Callable[[int], Sequence[int]]
    ) -> int:
        """Move slabs to the sizes of `demand`, of which eviction has just `freed` so much.  `coldest(n)` names the slots
        that the policy would evict to free n bytes.  Returns how many objects had to leave."""
        evicted = 0
        for size, wanted in demand.items():
            slab_bytes = max(size, self._cache.slabs.slab_bytes)
            got = freed.get(size, 0)
            evicted += self._cache.slabs.continue_moves(size)
            # What could not be paid by now was owed to stores that are over: only this round's counts in full.
            owed = min(max(0, self._owed[size] + wanted - got), wanted + slab_bytes)
            due = owed - self._cache.slabs.moving_bytes(size)
            dry = not got and not self._cache.slabs.available_bytes(size)
            if due >= slab_bytes or (due > 0 and dry):
                moved, gone = self._move(size, due, coldest(_OPINION * max(due, slab_bytes)))
                evicted += gone
                owed = max(0, owed - moved)
            self._owed[size] = owed
        return evicted

    def still_dry(self, demand: Mapping[int, int], freed: Mapping[int, int]) -> dict[int, int]:
        """The sizes that have got nothing, because all that could have moved is held: they have to live on their own."""
        return {
            size: n for size, n in demand.items() if not freed.get(size) and not self._cache.slabs.available_bytes(size)
        }

    def _move(self, heir: int, wanted_bytes: int, cold: Sequence[int]) -> tuple[int, int]:
        """(bytes that are free for the heir now, objects that had to leave)."""
        before, evicted = self._cache.slabs.available_bytes(heir), 0
        slabs, room = self._cache.slabs.pieces()
        fixed = {slab.number for slab in map(self._cache.slabs.find, self._cache.slabs.fixed_slots()) if slab}
        candidates = windows(slabs, room, heir, self._slabs_of(cold), fixed)
        for window in choose(candidates, wanted_bytes, self._cache.may_evict):
            evicted += self._cache.slabs.move(window, heir)
        return max(0, self._cache.slabs.available_bytes(heir) - before), evicted

    def _slabs_of(self, slots: Iterable[int]) -> list[Slab]:
        """The slab of each of these that may go."""
        slabs = map(self._cache.slabs.find, filter(self._cache.may_evict, slots))
        return [slab for slab in slabs if slab is not None]
