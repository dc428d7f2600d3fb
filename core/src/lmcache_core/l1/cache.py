"""The memory cache: objects in slots, two-phase writes, counted reads, leases.

free + cached + held + quarantined == total          cached: ready and held by nobody
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from lmcache_client.extents import Extent
from lmcache_core.contracts.buffers import LentBuffer
from lmcache_core.contracts.policies import InsertFacts, RequestFacts
from lmcache_core.kernels.choice import PURE, Kernels
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.census import Census
from lmcache_core.l1.departures import CLEARED, EVICTED, Evicted
from lmcache_core.l1.holds import PAUSE_SECONDS
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.notes import Note
from lmcache_core.l1.read_checks import ReadChecks
from lmcache_core.l1.slab_windows import Window
from lmcache_core.l1.slabs import Slab, SlabMove
from lmcache_core.l1.slot_views import Dropped, SlotUse, SlotView
from lmcache_core.l1.writes import WriteVerbs
from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES

_CLEAR_SLICE = 1024
_EVICT_SLICE = 256


class L1Cache(WriteVerbs):
    """Objects by key, in the slots of one arena.  Every method is safe from any thread and none blocks on I/O, but
    `reserve` and `extend` may allocate pages."""

    def __init__(self, arena: Arena, align_bytes: int, kernels: Kernels = PURE) -> None:
        super().__init__(arena, align_bytes, kernels)
        self.evicted = 0
        self.fixed_slots: Callable[[], Collection[int]] = tuple
        """Which slots are held for so long that no slab with one of them is to move.  Set before anything runs."""
        self.checks: ReadChecks | None = None
        """A publisher records the digests of its slots first, and slots are compared before a reader gets them.  None:
        what is in L1 is taken as it is.  Set before anything runs."""

    # --- making room

    def take_notes(self) -> tuple[list[Note], Counter[int]]:
        """For the eviction controller: what its policy has to be told, and who waits for room, in bytes by slot size:
        stores that have found none since the last time, and those that still wait for some while objects could leave."""
        with self._lock:
            demand, self._demand = self._demand, Counter()
            if self._slots.waits.by_size and self._table.cached:
                demand |= self._slots.unmet_bytes()
            return self._notes.take(), demand

    def take_news(self) -> list[Note]:
        """The same without who waits for room, which stays for the next round."""
        with self._lock:
            return self._notes.take()

    @property
    def may_evict(self) -> Callable[[int], bool]:
        """Is a slot cached and held by nobody, as far as can be seen without the lock?"""
        return self._table.may_evict

    def evict(self, slots: Sequence[int], reason: str = EVICTED) -> tuple[int, int]:
        """Free those that are cached, held by nobody and still what the policy thinks they are.  Returns how many that
        were, and their bytes.  `reason` is what is counted and told of them."""
        with self._lock:
            victims = self._notes.old(self._table.evictable(slots))
            freed = sum(map(self._slots.slot_bytes, victims))
            self._let_leave(victims, reason)
        self._tell_departures()
        return len(victims), freed

    # --- moving slabs between sizes

    def shares_arena(self, slot_bytes: int) -> bool:
        """Do other slot sizes than this one have slabs?"""
        return self._slots.has_other_sizes(slot_bytes)

    @property
    def slab_bytes(self) -> int:
        """About how large a slab is; one of large slots can be larger."""
        return self._slots.slab_bytes

    def slab_of(self, slot: int) -> Slab | None:
        """Where a slot is; None when its slab has just been given back."""
        return self._slots.find_slab(slot)

    def available_bytes(self, slot_bytes: int) -> int:
        """In slots of this size that are free."""
        return self._slots.available(slot_bytes) * slot_bytes

    def moving_bytes(self, slot_bytes: int) -> int:
        """In slabs that become slabs of this size as soon as what is held in them is let go and has left."""
        return sum(move.extent.length for move in self._slots.moves_to(slot_bytes))

    def pieces(self) -> tuple[list[Slab | None], list[Extent]]:
        """The slabs, and the room between them: what `slab_windows` chooses from."""
        with self._lock:
            return self._slots.pieces()

    def hand_over(self, window: Window, slot_bytes: int) -> int:
        """Make slabs of another size out of a window: everything in it that nobody holds leaves now, and when the last
        slot is free they are theirs.  Returns how many objects left; none when the window has changed."""
        with self._lock:
            move = self._slots.begin_move(window.extent, window.slabs, slot_bytes)
        return self._empty(move) if move else 0

    def go_on_moving(self, slot_bytes: int) -> int:
        """What was held in stretches on their way to this size, and is no more, leaves now.  Returns how many objects
        that were."""
        with self._lock:
            moves = self._slots.moves_to(slot_bytes)
        return sum(map(self._empty, moves))

    def _empty(self, move: SlabMove) -> int:
        evicted = 0
        inside = [slot for slab in move.slabs for slot in slab.slots]
        for begin in range(0, len(inside), _EVICT_SLICE):
            with self._lock:
                if not move.busy:  # over: these numbers may be other slots by now
                    break
                victims = self._table.evictable(inside[begin : begin + _EVICT_SLICE])
                self._let_leave(victims, EVICTED)
            self._tell_departures()
            evicted += len(victims)
        return evicted

    def _let_leave(self, victims: list[int], reason: str) -> None:
        """Under the lock."""
        self._depart(victims, reason)
        for number, count in self._remove(victims).items():
            record = self._spaces.numbered(number)
            slot_bytes = self.slot_bytes_for(record.payload_bytes)
            self._departures.count_evicted(record.space.cache_salt, reason, count, count * slot_bytes)
        self.evicted += len(victims)

    def evictions(self) -> dict[tuple[str, str], Evicted]:
        """What left to make room, by cache salt and reason."""
        with self._lock:
            return self._departures.evicted()

    def clear(self, force: bool) -> int:
        """Drop every object that nobody holds; with `force` the held ones too, which then leave with their last hold.
        Objects that are being written are not touched.  Returns how many are found no more."""
        dropped = 0
        for begin in range(0, len(self._table), _CLEAR_SLICE):
            with self._lock:
                idle, busy = self._table.ready(begin, begin + _CLEAR_SLICE)
                self._depart(idle + busy * force, CLEARED)
                self._remove(idle)
                if force:
                    self._table.hide(busy)
                    self._notes.removed(busy)
                dropped += len(idle) + len(busy) * force
            self._tell_departures()
            time.sleep(PAUSE_SECONDS)
        return dropped

    def drop(self, space: KeySpace, chunk_hashes: Sequence[bytes], force: bool) -> Dropped:
        """Drop these objects where nobody holds them; with `force` the held ones too, which then leave with their last
        hold.  One step under the lock: to be called for a slice of keys at a time."""
        table = self._table
        with self._lock:
            record = self._spaces.find(space)
            if record is None:
                return Dropped(0, 0, ())
            # Held for a moment, because that is how the table finds: whoever has one hold now had none.
            found = [slot for slot in table.acquire(record.number, list(dict.fromkeys(chunk_hashes))) if slot >= 0]
            idle = [slot for slot in found if table.holds(slot) == 1]
            busy = [slot for slot in found if table.holds(slot) > 1]
            table.release(busy)
            self._depart(idle + busy * force, CLEARED)
            self._remove(idle)
            if force:
                table.hide(busy)
                self._notes.removed(busy)
        self._tell_departures()
        return Dropped(len(idle) + len(busy), 0, busy) if force else Dropped(len(idle), len(busy), ())

    def drop_held(self, slots: Sequence[int]) -> list[int]:
        """Remove the objects in these slots from the index; each slot is freed when its last reference is released.  Returns
        the slots whose objects were in the index until now."""
        with self._lock:
            found = [slot for slot in slots if (state := self._table.state(slot)) is not None and state[3]]
            self._depart(found, CLEARED)
            self._table.hide(found)
            self._notes.removed(found)
        self._tell_departures()
        return found

    def drop_when_released(self, slots: Sequence[int]) -> None:
        """These objects leave L1 with their last hold (buffer-only operation)."""
        with self._lock:
            self._pass(self._table.mark_temporary(slots))
        self._tell_departures()

    # --- looking

    def settled(self, slots: Sequence[int], request: RequestFacts) -> list[tuple[int, InsertFacts]]:
        """For an eviction policy that comes later: those of these slots that hold an object which stays until it is
        evicted, each as if it had just come for this request, alone.  Their places in prompts are not known any more."""
        found = []
        with self._lock:
            for slot in slots:
                state = self._table.state(slot)
                if state is not None and state[3] and not state[4]:
                    found.append((slot, self._insert_facts([slot], 0, request)))
        return found

    @property
    def slot_numbers(self) -> int:
        """Every slot has a number below this one; it never shrinks."""
        return len(self._table)

    def views(self, begin: int, end: int) -> list[SlotView]:
        """What is in the slots of these numbers, free ones left out.  One step under the lock: to be called for a slice at
        a time."""
        views = []
        with self._lock:
            for slot in range(begin, min(end, len(self._table))):
                if (state := self._table.state(slot)) is None:
                    continue
                number, chunk_hash, holds, ready, _ = state
                record = self._spaces.numbered(number)
                use = SlotUse.HELD if holds else SlotUse.CACHED
                if not ready:
                    is_written = not self._table.contains(number, chunk_hash) and not self._table.absent(
                        number, (chunk_hash,)
                    )
                    use = SlotUse.WRITING if is_written else SlotUse.LEAVING
                key = ObjectKey(record.space, chunk_hash)
                views.append(SlotView(slot, key, use, record.payload_bytes, self._slots.slot_bytes(slot)))
        return views

    def buffer(self, slot: int) -> LentBuffer:
        """Header page and payload of a held slot, exactly as long as the object."""
        length = HEADER_BYTES + self._record_of(slot).payload_bytes
        return LentBuffer(self._arena.region, self._slots.offset(slot), length)

    def fetch(self, slot: int) -> None:
        """Before this thread touches a held slot: have its bytes in memory.  Waits for the disk where L1 is a file, without
        the interpreter's lock.  Raises OSError when that fails."""
        self._arena.fetch(self._slots.offset(slot), self._slots.slot_bytes(slot))

    def payload_offset(self, slot: int) -> int:
        """Where the payload of a held slot starts in the arena."""
        return self._slots.offset(slot) + HEADER_BYTES

    def lost(self, slots: Sequence[int]) -> list[int]:
        """Those of these held slots whose object is found no more, or not yet."""
        with self._lock:
            return [slot for slot in slots if (state := self._table.state(slot)) is None or not state[3]]

    def slot_bytes(self, slot: int) -> int:
        """How much of the arena a held slot takes."""
        return self._slots.slot_bytes(slot)

    def key_of(self, slot: int) -> ObjectKey:
        """The identity of what a held slot holds."""
        space, chunk_hash = self._table.key(slot)
        return ObjectKey(self._spaces.numbered(space).space, chunk_hash)

    def available(self, payload_bytes: int) -> int:
        """Slots that are free for objects of this size, without carving more."""
        return self._slots.available(self.slot_bytes_for(payload_bytes))

    def available_to(self, salt: str, payload_bytes: int) -> int:
        """The same, as far as the salt may have them."""
        slot_bytes = self.slot_bytes_for(payload_bytes)
        with self._lock:
            return self._salts.room(salt, slot_bytes, self._slots.available(slot_bytes))

    def has(self, record: SpaceRecord, chunk_hash: bytes) -> bool:
        """Can it be found?  Without the lock, so that it may not be so any more."""
        return self._table.contains(record.number, chunk_hash)

    def slabs_by_size(self) -> dict[int, int]:
        """How many slabs there are, by the bytes of their slots."""
        slabs, _ = self.pieces()
        return dict(Counter(slab.slot_bytes for slab in slabs if slab is not None))

    @property
    def objects(self) -> int:
        return self._table.findable

    def census(self) -> Census:
        with self._lock:
            return self._census()

    def audit(self) -> None:
        """Assert that everything agrees, slot by slot.  For tests; it holds the lock throughout."""
        with self._lock:
            self._audit()
