"""The slot table in pure Python.

Per slot: 32 bytes of chunk hash, the number of its space, its holds and a byte of flags, in flat arrays that the garbage
collector does not walk; and one entry of a dictionary, which makes up most of the about 190 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

from lmcache_core.kernels.interfaces import SlotState

_HASH_BYTES: Final = 32
_FREE: Final = 2**32 - 1
_WRITING: Final = 1
_LEAVING: Final = 2
_TEMPORARY: Final = 4
_HIDDEN: Final = _WRITING | _LEAVING


_SPLIT_AT: Final = 16_384
_PARTS: Final = 256


class ChunkIndex:
    """Chunk hash to slot, within one key space, in dictionaries that never take long to grow.

    A dictionary of a million keys takes 40 ms to grow, and no other thread runs meanwhile.  So a space that becomes large is
    split over 256 of them, by the last byte of the hash."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[dict[bytes, int]] = [{}]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, chunk_hashes: Sequence[bytes]) -> list[int]:
        """The slot of each, or -1."""
        parts = self._parts
        if len(parts) == 1:
            return list(map(parts[0].get, chunk_hashes, repeat(-1)))
        return [parts[chunk_hash[-1]].get(chunk_hash, -1) for chunk_hash in chunk_hashes]

    def add(self, chunk_hash: bytes, slot: int) -> None:
        """One that is not there yet."""
        parts = self._parts
        parts[chunk_hash[-1] if len(parts) > 1 else 0][chunk_hash] = slot
        self._count += 1
        if self._count > _SPLIT_AT and len(parts) == 1:
            self._split()

    def discard(self, chunk_hash: bytes) -> None:
        """One that is there."""
        parts = self._parts
        del parts[chunk_hash[-1] if len(parts) > 1 else 0][chunk_hash]
        self._count -= 1

    def _split(self) -> None:
        parts: list[dict[bytes, int]] = [{} for _ in range(_PARTS)]
        for chunk_hash, slot in self._parts[0].items():
            parts[chunk_hash[-1]][chunk_hash] = slot
        self._parts = parts


_EMPTY: Final = ChunkIndex()


class PureSlotTable:
    """Implements `interfaces.SlotTable`."""

    def __init__(self) -> None:
        self._ready: dict[int, ChunkIndex] = {}
        self._writing: dict[int, dict[bytes, int]] = {}
        self._hashes = bytearray()
        self._space = array("I")
        self._holds = array("I")
        self._flags = bytearray()
        self.held = 0
        self.cached = 0
        self.findable = 0

    def __len__(self) -> int:
        return len(self._flags)

    def grow(self, count: int) -> None:
        self._hashes.extend(bytes(_HASH_BYTES * count))
        self._space.extend(array("I", [_FREE]) * count)
        self._holds.frombytes(bytes(self._holds.itemsize * count))
        self._flags.extend(bytes(count))

    def acquire(self, space: int, chunk_hashes: Sequence[bytes]) -> list[int]:
        slots = self._ready.get(space, _EMPTY).find(chunk_hashes)
        self.hold([slot for slot in slots if slot >= 0] if -1 in slots else slots)
        return slots

    def acquire_all(self, space: int, chunk_hashes: Sequence[bytes]) -> list[int] | None:
        slots = self._ready.get(space, _EMPTY).find(chunk_hashes)
        if -1 in slots:
            return None
        self.hold(slots)
        return slots

    def contains(self, space: int, chunk_hash: bytes) -> bool:
        return self._ready.get(space, _EMPTY).find((chunk_hash,)) != [-1]

    def hold(self, slots: Sequence[int]) -> None:
        holds, first = self._holds, 0
        for slot in slots:
            if not (count := holds[slot]):
                first += 1
            holds[slot] = count + 1
        self.held += first
        self.cached -= first

    def release(self, slots: Sequence[int]) -> list[int]:
        holds, flags, last, leaving = self._holds, self._flags, 0, []
        for slot in slots:
            holds[slot] = count = holds[slot] - 1
            if not count:
                last += 1
                if flags[slot]:
                    leaving.append(slot)
        self.held -= last
        self.cached += last
        return leaving

    def release_from(self, held: Sequence[int], slots: Sequence[int]) -> tuple[list[int], list[int]]:
        if held == slots:
            return [], self.release(slots)
        gone = set(slots)
        return [slot for slot in held if slot not in gone], self.release([slot for slot in held if slot in gone])

    def absent(self, space: int, chunk_hashes: Sequence[bytes]) -> list[int]:
        slots = self._ready.get(space, _EMPTY).find(chunk_hashes)
        taken = set(self._writing.get(space, ()))
        found = []
        for index, (slot, chunk_hash) in enumerate(zip(slots, chunk_hashes, strict=True)):
            if slot < 0 and chunk_hash not in taken:
                taken.add(chunk_hash)
                found.append(index)
        return found

    def begin(self, space: int, chunk_hashes: Sequence[bytes], slots: Sequence[int]) -> None:
        if not slots:
            return
        writing = self._writing.setdefault(space, {})
        for chunk_hash, slot in zip(chunk_hashes, slots, strict=True):
            if len(chunk_hash) != _HASH_BYTES:
                raise ValueError(f"a chunk hash has {_HASH_BYTES} bytes, not {len(chunk_hash)}")
            writing[chunk_hash] = slot
            self._hashes[slot * _HASH_BYTES : (slot + 1) * _HASH_BYTES] = chunk_hash
            self._space[slot] = space
            self._flags[slot] = _WRITING
            self._holds[slot] = 1
        self.held += len(slots)

    def publish(self, slots: Sequence[int], holds: int, temporary: bool) -> None:
        flags = _TEMPORARY if temporary else 0
        for slot in slots:
            space, chunk_hash = self.key(slot)
            self._stop_writing(space, chunk_hash)
            if (index := self._ready.get(space)) is None:
                index = self._ready[space] = ChunkIndex()
            index.add(chunk_hash, slot)
            self._flags[slot] = flags
            self._holds[slot] = holds
        self.findable += len(slots)
        if not holds:
            self.held -= len(slots)
            self.cached += len(slots)

    def may_evict(self, slot: int) -> bool:
        known = 0 <= slot < len(self._flags)
        return known and not self._holds[slot] and not self._flags[slot] and self._space[slot] != _FREE

    def evictable(self, slots: Iterable[int]) -> list[int]:
        return list(filter(self.may_evict, dict.fromkeys(slots)))

    def mark_temporary(self, slots: Sequence[int]) -> list[int]:
        idle = []
        for slot in slots:
            if self._space[slot] != _FREE and not self._flags[slot]:
                self._flags[slot] = _TEMPORARY
                if not self._holds[slot]:
                    idle.append(slot)
        return idle

    def hide(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._unlist(slot)
            self._flags[slot] = _LEAVING

    def remove(self, slots: Sequence[int]) -> dict[int, int]:
        freed: dict[int, int] = {}
        held = 0
        for slot in slots:
            space = self._unlist(slot)
            freed[space] = freed.get(space, 0) + 1
            if self._holds[slot]:
                held += 1
                self._holds[slot] = 0
            self._flags[slot] = 0
            self._space[slot] = _FREE
        self.held -= held
        self.cached -= len(slots) - held
        return freed

    def state(self, slot: int) -> SlotState | None:
        if not 0 <= slot < len(self._flags):
            raise IndexError(f"there is no slot {slot}")
        if self._space[slot] == _FREE:
            return None
        flags = self._flags[slot]
        return (*self.key(slot), self._holds[slot], not flags & _HIDDEN, bool(flags & _TEMPORARY))

    def holds(self, slot: int) -> int:
        return self._holds[slot]

    def key(self, slot: int) -> tuple[int, bytes]:
        if (space := self._space[slot]) == _FREE:
            raise KeyError(f"slot {slot} is free")
        return space, bytes(self._hashes[slot * _HASH_BYTES : (slot + 1) * _HASH_BYTES])

    def ready(self, begin: int, end: int) -> tuple[list[int], list[int]]:
        idle: list[int] = []
        busy: list[int] = []
        for slot in range(max(0, begin), min(end, len(self._flags))):
            if self._space[slot] != _FREE and not self._flags[slot] & _HIDDEN:
                (busy if self._holds[slot] else idle).append(slot)
        return idle, busy

    def _unlist(self, slot: int) -> int:
        """`acquire` and `absent` do not see it any more.  Returns its space."""
        space, chunk_hash = self.key(slot)
        if self._flags[slot] & _WRITING:
            self._stop_writing(space, chunk_hash)
        elif not self._flags[slot] & _LEAVING:
            self.findable -= 1
            index = self._ready[space]
            index.discard(chunk_hash)
            if not index:
                del self._ready[space]
        return space

    def _stop_writing(self, space: int, chunk_hash: bytes) -> None:
        writing = self._writing[space]
        del writing[chunk_hash]
        if not writing:
            del self._writing[space]
