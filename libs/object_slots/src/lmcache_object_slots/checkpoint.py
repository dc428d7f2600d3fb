"""The index on the medium: two checkpoints, of which the newer whole one counts.

A checkpoint is a page that is written last (sequence, epoch, sizes, digest of the body) and a body: for each bucket of the
index the number of its objects, then their ids, slots and lengths, in columns.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from lmcache_core import ConfigError
from lmcache_object_slots.geometry import SlotGeometry
from lmcache_object_slots.medium import MetaRegion
from lmcache_object_slots.sealed_page import DIGEST_BYTES, PAGE_BYTES, pack_page, unpack_page
from lmcache_object_slots.slot_index import BUCKETS_MAX, ID_BYTES, Bucket, SlotIndex

MAGIC: Final = b"LMKVCKP1"
NUMBER_BYTES: Final = 4
ENTRY_BYTES: Final = ID_BYTES + 2 * NUMBER_BYTES
BLOCKS_IN_FRONT: Final = 4
"""Two superblocks, the owner, and one to spare."""
PIECE_BYTES: Final = 256 * 2**10


@dataclass(frozen=True, slots=True)
class Loaded:
    """A whole checkpoint.  `exact`: nothing was changed after it was written."""

    objects: int
    exact: bool
    body: memoryview

    def buckets(self) -> Iterator[Bucket]:
        at = 0
        while at < len(self.body):
            count = _numbers(self.body[at : at + NUMBER_BYTES])[0]
            slots_at = at + NUMBER_BYTES + count * ID_BYTES
            lengths_at = slots_at + count * NUMBER_BYTES
            end = lengths_at + count * NUMBER_BYTES
            yield Bucket(
                bytes(self.body[at + NUMBER_BYTES : slots_at]),
                _numbers(self.body[slots_at:lengths_at]),
                _numbers(self.body[lengths_at:end]),
            )
            at = end


class Checkpoints:
    """Blocking; one thread at a time; raises OSError."""

    def __init__(self, region: MetaRegion, geometry: SlotGeometry) -> None:
        """Raises ConfigError where the metadata has no space for two checkpoints of this number of slots."""
        start = BLOCKS_IN_FRONT * geometry.head_bytes
        half = (geometry.meta_bytes - start) // 2 // geometry.head_bytes * geometry.head_bytes
        needed = _bytes_for(geometry.count)
        if half < needed:
            raise ConfigError(
                f"meta_total_bytes {geometry.meta_bytes} is too small for two checkpoints of {geometry.count} slots; "
                f"give it {meta_bytes_for(geometry.count, geometry.head_bytes)} or more, or choose a larger slot_bytes"
            )
        self._region = region
        self._at = (start, start + half)
        self._half = half
        self._newest: int | None = None
        self._sequence = 0

    def load(self, epoch: int) -> Loaded | None:
        """The newer whole one; exact if it is the last word of this epoch.  One that cannot be read is none: the headers of
        the slots say the same."""
        found = []
        for place in range(2):
            page = self._read(self._at[place], PAGE_BYTES)
            fields = unpack_page(MAGIC, page) if page else None
            if fields is not None:
                found.append((int(fields["sequence"]), place, fields))
        for sequence, place, fields in sorted(found, key=lambda one: one[0], reverse=True):
            self._sequence = max(self._sequence, sequence)
            size = int(fields["body_bytes"])
            if not 0 <= size <= self._half - PAGE_BYTES:
                continue
            body = self._read(self._at[place] + PAGE_BYTES, size)
            if body is not None and blake2b(body, digest_size=DIGEST_BYTES).hexdigest() == fields["digest"]:
                self._newest = place
                exact = bool(fields["exact"]) and int(fields["epoch"]) == epoch
                return Loaded(int(fields["objects"]), exact, memoryview(body))
        return None

    def write(self, index: SlotIndex, epoch: int, *, exact: bool) -> int:
        """In the place of the older one, piece by piece, while the index goes on changing; `exact` says that it does not, and
        that all slots without an object are blank.  On the medium when this returns.  Returns the number of objects; some are
        left out where more went and came meanwhile than there is room for."""
        place = 0 if self._newest is None else 1 - self._newest
        start = self._at[place]
        sealed, at, objects = blake2b(digest_size=DIGEST_BYTES), start + PAGE_BYTES, 0
        for piece, count in _pieces(index, self._half - PAGE_BYTES):
            sealed.update(piece)
            self._region.write(at, piece)
            at += len(piece)
            objects += count
        self._region.sync()
        fields = {
            "sequence": self._sequence + 1, "epoch": epoch, "exact": exact, "objects": objects,
            "body_bytes": at - start - PAGE_BYTES, "digest": sealed.hexdigest(),
        }  # fmt: skip
        self._region.write(start, pack_page(MAGIC, fields))
        self._region.sync()
        self._sequence += 1
        self._newest = place
        return objects

    def _read(self, offset: int, length: int) -> bytes | None:
        try:
            return self._region.read(offset, length)
        except OSError:
            return None

    def forget(self) -> None:
        """Remove the checkpoint."""
        for start in self._at:
            self._region.write(start, bytes(PAGE_BYTES))
        self._region.sync()
        self._newest = None


def meta_bytes_for(slots: int, block_bytes: int = PAGE_BYTES) -> int:
    """The least metadata, in bytes, for this number of slots."""
    half = -(-_bytes_for(slots) // block_bytes) * block_bytes
    return BLOCKS_IN_FRONT * block_bytes + 2 * half


def _bytes_for(slots: int) -> int:
    return PAGE_BYTES + BUCKETS_MAX * NUMBER_BYTES + slots * ENTRY_BYTES


def _pieces(index: SlotIndex, room_bytes: int) -> Iterator[tuple[bytes, int]]:
    """The body, a bounded piece at a time, and how many objects are in each."""
    piece, objects = bytearray(), 0
    for bucket in index.buckets():
        room_bytes -= NUMBER_BYTES + len(bucket.slots) * ENTRY_BYTES
        if room_bytes < 0:
            break
        piece += _packed([len(bucket.slots)]) + bucket.ids + _packed(bucket.slots) + _packed(bucket.lengths)
        objects += len(bucket.slots)
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece), objects
            piece, objects = bytearray(), 0
    yield bytes(piece), objects


def _packed(numbers: Sequence[int]) -> bytes:
    return _little(array("I", numbers)).tobytes()


def _numbers(data: memoryview) -> Sequence[int]:
    return _little(array("I", bytes(data)))


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
