"""The index and the medium kept in step: one verb for each way that a slot changes."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from lmcache_core import HEADER_BYTES, BorrowedBuffer, Check, ObjectHeader, ObjectKey, Outcome, inspect
from lmcache_object_slots.medium import SlotMedium
from lmcache_object_slots.slot_index import SlotIndex
from lmcache_object_slots.slot_state import Place, SlotState
from lmcache_object_slots.suspects import Suspects

BLANK: Final = bytes(HEADER_BYTES)
SECTOR_BYTES: Final = 512
"""Less of a page is never written, even where the power goes."""
SOILED_TOGETHER: Final = 4096
"""Slots among which the soiled ones are looked for at once."""


def examine(page: bytes) -> ObjectHeader | Check:
    """The header page of a slot that is not blank.  One whose first sector is zero was being cleared, or written, when the
    power went: it is damaged, and it is ours."""
    if not any(page[:SECTOR_BYTES]):
        return Check(Outcome.DAMAGED, "the header page is blank in part")
    return inspect(page)


def makes_room(found: Check) -> bool:
    """May a header page that does not describe an object be cleared?  A torn one, and one of ours in another format version,
    since a volume has one owner; what is foreign may not."""
    return found.outcome is Outcome.DAMAGED or found.other_version


class SlotKeeper:
    """On the loop of the medium alone.  For one object, one caller at a time changes it (the adapter's base class and the
    recovery see to that); any number read.  Raises what the medium raises.

    Two rules make the slots on the medium as good as the index, whenever the process dies.  A slot's header page is blank
    before anything is written to the slot; and it is written after the payload, or blank before a deletion is reported."""

    def __init__(self, medium: SlotMedium, index: SlotIndex, begin_changes: Callable[[], Awaitable[None]]) -> None:
        """`begin_changes` is awaited before each change of the medium."""
        self.medium = medium
        self.index = index
        self.counts: Counter[str] = Counter()
        self._begin_changes = begin_changes
        self.suspects = Suspects()
        self.changes = 0
        """Of the index, since the start."""
        self.gone: set[bytes] | None = set()
        """Deleted, so that copies of them which the recovery still finds are cleared.  None: it has looked everywhere."""

    async def put(self, object_id: bytes, buffer: BorrowedBuffer) -> bool:
        """Write it to a slot of its own.  False: there is none."""
        await self._begin_changes()
        await self._clear_suspects(object_id)
        place = self.index.reserve()
        if place is None:
            return False
        if not place.blank:
            await self._clear_soiled(place.slot)
        try:
            await self.medium.write(place.slot, buffer)
        except BaseException:  # whatever it is: how far the header came is not known
            self.index.soil(place.slot)
            self.suspects.add(place.slot, object_id)
            raise
        displaced = self.index.commit(object_id, place.slot, buffer.length)
        self.changes += 1
        if displaced is not None:
            await self.empty(displaced, object_id)
        return True

    async def remove(self, object_id: bytes) -> bool:
        """Clear its slot.  False: there is none.  Where that fails, it is doubted from then on."""
        if self.gone is not None:
            self.gone.add(object_id)
        await self._clear_suspects(object_id)
        place = self.index.find(object_id)
        if place is None:
            return False
        await self._begin_changes()
        slot = self.index.withdraw(object_id)
        if slot is None:
            return False
        try:
            await self.medium.clear_header(slot)
        except BaseException:
            self.index.restore(object_id, slot, place.length)
            raise
        self.index.free(slot)
        self.changes += 1
        return True

    async def empty(self, slot: int, object_id: bytes | None = None) -> None:
        """Clear a BUSY slot that this object, if any, has no more.  Where that fails it is cleared before its next use."""
        try:
            await self._begin_changes()
            await self.medium.clear_header(slot)
        except BaseException as error:
            self.index.soil(slot)
            if object_id is not None:
                self.suspects.add(slot, object_id)
            if isinstance(error, OSError):
                return
            raise
        self.suspects.cleared(slot)
        self.index.free(slot)

    async def sure_place(self, key: ObjectKey) -> Place | None:
        """Where it is, by its header where that was not read yet.  An OSError of that read leaves it doubted."""
        object_id = key.object_id
        place = self.index.find(object_id)
        if place is None or place.sure:
            return place
        self.index.begin_reading(place.slot)
        try:
            (page,) = await self.medium.read_headers([place.slot])
        finally:
            self.index.end_reading(place.slot)
        if self.index.find(object_id) != place:
            return self.index.find(object_id)  # another thread was faster
        found = inspect(page)
        if isinstance(found, ObjectHeader) and found.key == key:
            self.index.confirm(place.slot, HEADER_BYTES + found.stored_bytes)
            return self.index.find(object_id)
        self.drop_claim(object_id, page)
        return None

    def drop_claim(self, object_id: bytes, page: bytes) -> None:
        """The header page of its slot says that it is not there."""
        slot = self.index.withdraw(object_id)
        if slot is None:
            return
        self.changes += 1
        found = examine(page)
        if page == BLANK:
            self.index.free(slot)
        elif isinstance(found, Check):
            self.settle_unfit(slot, found)
        else:
            self.index.unknow(slot)  # another object is in it, which is for the recovery to find

    def settle_unfit(self, slot: int, found: Check) -> None:
        """A header page that does not belong to an object, of a slot that no object claims: foreign ones stay, others are
        freed."""
        if makes_room(found):
            self.counts["other_version" if found.other_version else "damaged"] += 1
            self.index.soil(slot)
        else:
            self.counts["foreign"] += 1
            self.index.withhold(slot)

    def withhold(self, object_id: bytes) -> None:
        """Something foreign is in its slot: neither is offered, nor is the slot used."""
        if (slot := self.index.withdraw(object_id)) is not None:
            self.counts["foreign"] += 1
            self.index.withhold(slot)
            self.changes += 1

    async def _clear_suspects(self, object_id: bytes) -> None:
        """Before it is stored again or deleted, or else it would be found there by the next start, whatever came of it.
        BlockingIOError where another thread is about to: ask again."""
        for slot in self.suspects.of(object_id):
            if self.index.state(slot) is not SlotState.SOILED:
                raise BlockingIOError(errno.EAGAIN, "a slot that may hold this object is being cleared")
            self.index.take(slot)
            await self._clear_soiled(slot)
            self.index.free(slot)

    async def _clear_soiled(self, slot: int) -> None:
        """One that is BUSY now, and SOILED again where that fails."""
        try:
            await self.medium.clear_header(slot)
        except BaseException:
            self.index.soil(slot)
            raise
        self.suspects.cleared(slot)

    async def empty_soiled(self) -> None:
        """Clear what failed to be cleared, as far as that can be done now."""
        for slots in self.index.windows((SlotState.SOILED,), SOILED_TOGETHER):
            for slot in slots:
                if self.index.state(slot) is SlotState.SOILED:
                    self.index.take(slot)
                    await self.empty(slot)
