"""Which object lies in which slot, and what is known of every slot."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lmcache_object_slots.slot_state import Place, Reservation, SlotState

ID_BYTES: Final = 16
BUCKET_BITS: Final = 12
BUCKETS_MAX: Final = 1 << BUCKET_BITS
"""Largest number of small dictionaries that ids are spread over by their first bits: a listing goes through them in the order
of ids, a checkpoint one by one, and none is ever so large that growing it stops the adapter."""
OBJECTS_PER_BUCKET_BITS: Final = 6


class Bucket(NamedTuple):
    """Ids one behind the other, and slot and length of each."""

    ids: bytes
    slots: Sequence[int]
    lengths: Sequence[int]


class SlotIndex:
    """Changed on one thread, read on any.  Its lock covers no I/O.  About 130 bytes for each object and 13 for each slot.

    Every slot is in one state; an id has one slot at most, and a slot in HELD or DOUBTED has one id."""

    def __init__(self, count: int, state: SlotState = SlotState.FREE) -> None:
        """Slots 0 to `count` - 1, all in this state."""
        self.count: Final = count
        self._lock = threading.Lock()  # guards the buckets, and the two sums that go with them
        bits = min(max(count.bit_length() - OBJECTS_PER_BUCKET_BITS, 0), BUCKET_BITS)
        self._shift = BUCKET_BITS - bits
        self._buckets: list[dict[bytes, int]] = [{} for _ in range(1 << bits)]
        self._used_bytes = 0
        self._objects = 0
        self._states = bytearray([state]) * count
        self._counts = [0] * len(SlotState)
        self._counts[state] = count
        self._claimants: list[bytes | None] | None = [None] * count if state is not SlotState.FREE else None
        """Who is in which slot, as long as that is not certain."""
        self._lengths = array("I", bytes(4 * count))
        self._hint = 0
        self._readers: dict[int, int] = {}
        self._when_unread: dict[int, SlotState] = {}
        self._watches: list[set[int]] = []

    # --- reading: any thread

    def __len__(self) -> int:
        return self._objects

    def find(self, object_id: bytes) -> Place | None:
        slot = self._bucket(object_id).get(object_id)
        if slot is None:
            return None
        return Place(slot, self._lengths[slot], self._states[slot] == SlotState.HELD)

    def state(self, slot: int) -> SlotState:
        return SlotState(self._states[slot])

    def slots_in(self, state: SlotState) -> int:
        """How many there are."""
        return self._counts[state]

    def totals(self) -> tuple[int, int]:
        """Bytes and objects that are stored."""
        with self._lock:
            return self._used_bytes, self._objects

    def page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` ids beyond `after`, in their order, with their slots; fewer only at the end."""
        found: list[tuple[bytes, int]] = []
        for number in range(self._number(after) if after else 0, len(self._buckets)):
            with self._lock:
                items = [item for item in self._buckets[number].items() if item[0] > after]
            found += sorted(items)
            if len(found) >= limit:
                break
        return found[:limit]

    def buckets(self) -> Iterator[Bucket]:
        """All objects, in pieces; each is as it is when it is asked for."""
        for bucket in self._buckets:
            with self._lock:
                ids, slots = b"".join(bucket), array("I", bucket.values())
            yield Bucket(ids, slots, array("I", map(self._lengths.__getitem__, slots)))

    def claimant(self, slot: int) -> bytes | None:
        """The id of the object in this slot; known until `settle`."""
        return self._claimants[slot] if self._claimants is not None else None

    def settle(self) -> None:
        """Every header was read: claimants are no longer needed."""
        self._claimants = None

    def watch(self) -> set[int]:
        """Collects the slots that change, until `unwatch`."""
        changed: set[int] = set()
        self._watches.append(changed)
        return changed

    def unwatch(self, changed: set[int]) -> None:
        self._watches = [watch for watch in self._watches if watch is not changed]

    def windows(self, states: Sequence[SlotState], size: int) -> Iterator[list[int]]:
        """The slots in one of these states, in order; those of `size` neighbours at a time."""
        for start in range(0, self.count, size):
            window = self._states[start : start + size]
            if any(state in window for state in states):
                yield [start + at for at, state in enumerate(window) if state in states]

    # --- an object comes

    def reserve(self) -> Reservation | None:
        """A slot of one's own until `commit`, `free`, `soil` or `withhold`.  None: there is none."""
        for state in (SlotState.FREE, SlotState.SOILED):
            if not self._counts[state]:
                continue
            slot = self._states.find(state, self._hint)
            if slot < 0:
                slot = self._states.find(state)
            self._hint = slot + 1
            self._set(slot, SlotState.BUSY)
            return Reservation(slot, state is SlotState.FREE)
        return None

    def take(self, slot: int) -> None:
        """The same, of this one, which has no other claim; it may still have readers."""
        self._when_unread.pop(slot, None)
        self._set(slot, SlotState.BUSY)

    def commit(self, object_id: bytes, slot: int, length: int) -> int | None:
        """The object is in this slot now.  Returns the slot that it had before, BUSY, for the caller to clear."""
        displaced = self.withdraw(object_id)
        self._enter(object_id, slot, length, SlotState.HELD)
        return displaced

    def restore(self, object_id: bytes, slot: int, length: int) -> None:
        """It was withdrawn, and may or may not be there still."""
        self._enter(object_id, slot, length, SlotState.DOUBTED)

    def confirm(self, slot: int, length: int) -> None:
        """The header of a doubted object was read, and is its own."""
        with self._lock:
            self._used_bytes += length - self._lengths[slot]
            self._lengths[slot] = length
            self._set(slot, SlotState.HELD)

    def load(self, bucket: Bucket, state: SlotState, below: int) -> int:
        """Enter what a checkpoint says, as HELD or DOUBTED, of the slots `below` this one.  A slot that is claimed twice keeps
        its first claim.  Returns how many were not entered."""
        states, lengths, claimants = self._states, self._lengths, self._claimants
        ids = [bucket.ids[at : at + ID_BYTES] for at in range(0, len(bucket.ids), ID_BYTES)]
        entered: dict[bytes, int] = {}
        used_bytes = 0
        vacant = SlotState.FREE if claimants is None else SlotState.UNKNOWN
        for object_id, slot, length in zip(ids, bucket.slots, bucket.lengths, strict=True):
            if slot < below and states[slot] == vacant:
                entered[object_id] = slot
                states[slot] = state
                lengths[slot] = length
                used_bytes += length
                if claimants is not None:
                    claimants[slot] = object_id
        self._counts[vacant] -= len(entered)
        self._counts[state] += len(entered)
        self._objects += len(entered)
        self._used_bytes += used_bytes
        if entered:
            self._bucket(ids[0]).update(entered)
        return len(ids) - len(entered)

    # --- an object goes

    def withdraw(self, object_id: bytes) -> int | None:
        """It is not offered any more; its slot is BUSY until the caller says what became of it."""
        with self._lock:
            slot = self._bucket(object_id).pop(object_id, None)
            if slot is None:
                return None
            self._used_bytes -= self._lengths[slot]
            self._objects -= 1
            if self._claimants is not None:
                self._claimants[slot] = None
            self._set(slot, SlotState.BUSY)
            return slot

    def free(self, slot: int) -> None:
        """Its header page is zero: it is reused when its last reader ends."""
        self._end(slot, SlotState.FREE)

    def soil(self, slot: int) -> None:
        """Nothing is to be in it, but whether its header page is zero is not known."""
        self._end(slot, SlotState.SOILED)

    def withhold(self, slot: int) -> None:
        self._end(slot, SlotState.WITHHELD)

    def unknow(self, slot: int) -> None:
        """Its header is to be read."""
        self._end(slot, SlotState.UNKNOWN)

    # --- readers of a slot: it is not given to a writer meanwhile

    def begin_reading(self, slot: int) -> None:
        self._readers[slot] = self._readers.get(slot, 0) + 1

    def end_reading(self, slot: int) -> None:
        left = self._readers[slot] - 1
        if left:
            self._readers[slot] = left
            return
        del self._readers[slot]
        if (state := self._when_unread.pop(slot, None)) is not None:
            self._set(slot, state)

    # --- how

    def _bucket(self, object_id: bytes) -> dict[bytes, int]:
        return self._buckets[self._number(object_id)]

    def _number(self, object_id: bytes) -> int:
        return (object_id[0] << 4 | object_id[1] >> 4) >> self._shift

    def _enter(self, object_id: bytes, slot: int, length: int, state: SlotState) -> None:
        with self._lock:
            self._bucket(object_id)[object_id] = slot
            if self._claimants is not None:
                self._claimants[slot] = object_id
            self._lengths[slot] = length
            self._used_bytes += length
            self._objects += 1
            self._set(slot, state)

    def _end(self, slot: int, state: SlotState) -> None:
        if slot in self._readers:
            self._when_unread[slot] = state
        else:
            self._set(slot, state)

    def _set(self, slot: int, state: SlotState) -> None:
        self._counts[self._states[slot]] -= 1
        self._states[slot] = state
        self._counts[state] += 1
        for watch in self._watches:
            watch.add(slot)
