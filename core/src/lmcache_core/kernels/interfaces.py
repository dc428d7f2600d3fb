"""What each kernel does.  Every one has a pure and a native implementation, which behave alike.

None of them is synchronised.  A compiled one never releases the GIL in the middle of a change, so that a look without the
caller's lock sees the state before a call or after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

SlotState = tuple[int, bytes, int, bool, bool]
"""(space, chunk hash, references, is it ready, is it temporary) of a slot in use."""


class SlotTable(Protocol):
    """Which object is in which slot, and how often each slot is held.

    A slot is a small integer.  It is free, being written (held once, by its writer), ready (found by its key, held any
    number of times), or leaving (no longer in the index, removed with its last reference).  A key is the number of a
    key space and a chunk hash of 32 bytes.  A slot that is ready may be temporary: it is removed with its last
    reference.  Methods that end references return the slots that have to be removed now; the caller removes them."""

    @property
    def held(self) -> int:
        """Slots with at least one reference."""

    @property
    def cached(self) -> int:
        """Slots that are in use without a reference."""

    @property
    def findable(self) -> int:
        """Slots that are ready."""

    def __len__(self) -> int:
        """Slot numbers that the table knows; they start at 0."""

    def grow(self, count: int) -> None:
        """Add `count` free slots."""

    # finding and holding

    def acquire(self, space: int, chunk_hashes: Sequence[bytes]) -> list[int]:
        """Hold what is ready, once for each mention; -1 where nothing is."""

    def acquire_all(self, space: int, chunk_hashes: Sequence[bytes]) -> list[int] | None:
        """The same, but nothing is held when one is missing."""

    def contains(self, space: int, chunk_hash: bytes) -> bool:
        """Is it ready?"""

    def hold(self, slots: Sequence[int]) -> None:
        """Add a reference to each of these, which are in use."""

    def release(self, slots: Sequence[int]) -> list[int]:
        """End a reference for each mention.  Returns those that have to be removed."""

    def release_from(self, held: Sequence[int], slots: Sequence[int]) -> tuple[list[int], list[int]]:
        """Release every mention in `held` of one of `slots`.  Returns (what is left of `held`, those that have to
        leave)."""

    # writing

    def absent(self, space: int, chunk_hashes: Sequence[bytes]) -> list[int]:
        """Indexes of those that are neither ready nor being written, the first one of equals."""

    def begin(self, space: int, chunk_hashes: Sequence[bytes], slots: Sequence[int]) -> None:
        """Free slots are written from now on, held by their writer.  The keys must be absent and different."""

    def publish(self, slots: Sequence[int], holds: int, temporary: bool) -> None:
        """Written slots become ready with `holds` references.  The caller removes temporary ones without a reference."""

    # leaving

    def may_evict(self, slot: int) -> bool:
        """Is it ready, unreferenced and not temporary?  False for a number without a slot."""

    def evictable(self, slots: Iterable[int]) -> list[int]:
        """Those that `may_evict`, each once, in order."""

    def mark_temporary(self, slots: Sequence[int]) -> list[int]:
        """Those that are ready become temporary.  Returns those without a reference, which have to be removed now."""

    def hide(self, slots: Sequence[int]) -> None:
        """Remove ready or written slots from the index; they are removed with their last reference."""

    def remove(self, slots: Sequence[int]) -> dict[int, int]:
        """These slots in use are free now, whatever held them.  Returns how many there were of each space."""

    # looking

    def state(self, slot: int) -> SlotState | None:
        """None for a free slot.  Raises IndexError for an invalid slot number."""

    def holds(self, slot: int) -> int:
        """How often it is held.  Raises IndexError for an invalid slot number."""

    def key(self, slot: int) -> tuple[int, bytes]:
        """Space and chunk hash of a slot in use.  Raises KeyError for a free one."""

    def ready(self, begin: int, end: int) -> tuple[list[int], list[int]]:
        """Ready slots among the numbers from `begin` to below `end`: (without references, with references)."""


class Recency(Protocol):
    """The order in which slots were last touched, and to which class each belongs.

    A batch is in prompt order, and becomes newest in reverse: its first slot ends up as the newest of all.  Work is a
    few steps for each slot of a call, however many slots there are, and so is what is cleaned up on the way."""

    def insert(self, slots: Sequence[int], group: int) -> None:
        """These are of class `group` (1 to 65535) now, and the newest."""

    def touch(self, slots: Sequence[int]) -> None:
        """Those of these that are known are the newest."""

    def remove(self, slots: Sequence[int]) -> None:
        """Forget these; unknown ones are ignored."""

    def group(self, slot: int) -> int:
        """Its class; 0 for a slot that is not known."""

    def scan(self, group: int, position: int, steps: int) -> tuple[list[int], int]:
        """Go on from `position` for `steps` steps, of which not every one finds a slot.  Returns the slots of this class,
        or of every class for 0, from the oldest on, and the position for the next call: -1 when there is nothing more.
        Start with 0; what changes in between may be missed."""
