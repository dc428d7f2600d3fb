"""Makes the index true by the headers of all slots, while the adapter serves."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from lmcache_core import HEADER_BYTES, Check, ObjectHeader, Outcome, inspect
from lmcache_object_slots.header_reads import pages_or_errors
from lmcache_object_slots.slot_index import SlotIndex
from lmcache_object_slots.slot_keeper import BLANK, SlotKeeper, examine
from lmcache_object_slots.slot_state import SlotState
from lmcache_object_slots.sweep import ATTEMPTS, WINDOW, Sweep

READS_AHEAD: Final = 3
"""Windows that are read while one is looked at."""
PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 30.0

_DAMAGED = Outcome.DAMAGED
_UNSEEN = (SlotState.UNKNOWN, SlotState.DOUBTED)


class _Look:
    """Headers that are being read, and the slots that change meanwhile."""

    def __init__(self, index: SlotIndex, slots: Sequence[int], pages: asyncio.Task[dict[int, bytes]]) -> None:
        self.slots = slots
        self.pages = pages
        self._index = index
        self.changed = index.watch()

    async def give_up(self) -> None:
        self._index.unwatch(self.changed)
        self.pages.cancel()
        await asyncio.wait((self.pages,))


class Recovery:
    """Reads the header of every slot that was not read since the start, and clears those that are to be forgotten.  On the
    loop of the medium.  A medium that fails is tried again, at longer and longer intervals, for ever."""

    def __init__(
        self, keeper: SlotKeeper, swept: int, wipes: bool, swept_to: Callable[[int], Awaitable[None]],
        log: logging.Logger, name: str,
    ) -> None:  # fmt: skip
        """From `swept` on slots are cleared, whatever is in them with `wipes`, and `swept_to` is called with the progress."""
        self._keeper = keeper
        self._index = keeper.index
        self._medium = keeper.medium
        self._sweep = Sweep(keeper, swept, wipes, swept_to, log, name)
        self._log = log
        self._name = name
        self._has_read = False

    async def run(self) -> None:
        """Returns when no header is unseen."""
        pause = PAUSE_SECONDS
        attempt = 0
        while True:
            try:
                await self._sweep.run()
                unreadable = await self._look_at_all()
            except OSError as error:
                self._log.warning(
                    "l2 recovery was interrupted, it goes on in %.0f s adapter=%s error=%s", pause, self._name, error
                )
            else:
                if not unreadable and not any(self._index.slots_in(state) for state in _UNSEEN):
                    return
                attempt += bool(unreadable)
                if unreadable and attempt >= ATTEMPTS and self._has_read:
                    self._leave_alone(unreadable)
                    continue
                if not unreadable:
                    continue  # what was found in one place sent us to another
                self._log.warning(
                    "l2 recovery cannot read slots=%d adapter=%s; again in %.0f s", len(unreadable), self._name, pause
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _look_at_all(self) -> list[int]:
        """Returns those that could not be read."""
        near = min(self._medium.neighbours, WINDOW)
        if near > 1:
            spans = self._index.windows(_UNSEEN, near)
            return await self._look_at(range(slots[0], slots[-1] + 1) for slots in spans)
        # objects that the checkpoint does not know come first, and room for new ones with them
        unknown, doubted = (self._index.windows((state,), WINDOW) for state in _UNSEEN)
        return await self._look_at(unknown) + await self._look_at(doubted)

    async def _look_at(self, windows: Iterable[Sequence[int]]) -> list[int]:
        """In their order, with the next being read meanwhile."""
        unreadable: list[int] = []
        looks: deque[_Look] = deque()
        try:
            for slots in windows:
                looks.append(_Look(self._index, slots, asyncio.create_task(self._read(slots))))
                if len(looks) > READS_AHEAD:
                    unreadable += await self._apply(looks.popleft())
            while looks:
                unreadable += await self._apply(looks.popleft())
        finally:
            for look in looks:
                await look.give_up()
        return unreadable

    async def _apply(self, look: _Look) -> list[int]:
        """What was read is true of slots that have not changed since reading began."""
        try:
            pages = await look.pages
            for slot, page in pages.items():
                if slot not in look.changed and self._index.state(slot) in _UNSEEN:
                    await self._settle(slot, page, look.changed)
        finally:
            await look.give_up()
        return [slot for slot in look.slots if slot not in pages and self._index.state(slot) in _UNSEEN]

    async def _read(self, slots: Sequence[int]) -> dict[int, bytes]:
        """The headers of those that can be read."""
        pages = {}
        for slot, found in (await pages_or_errors(self._medium, slots)).items():
            if isinstance(found, OSError):
                self._log.debug("a header cannot be read adapter=%s slot=%d error=%s", self._name, slot, found)
            else:
                pages[slot] = found
        self._has_read = self._has_read or bool(pages)
        return pages

    async def _settle(self, slot: int, page: bytes, changed: set[int]) -> None:
        index, keeper = self._index, self._keeper
        claimant = index.claimant(slot)
        if page == BLANK:
            keeper.drop_claim(claimant, page) if claimant else index.free(slot)
            return
        found = examine(page)
        if isinstance(found, ObjectHeader) and not self._fits(found):
            found = Check(_DAMAGED, "longer than a slot")
        if isinstance(found, Check):
            keeper.drop_claim(claimant, page) if claimant else keeper.settle_unfit(slot, found)
            return
        object_id = found.key.object_id
        if claimant is not None and claimant != object_id:
            keeper.drop_claim(claimant, page)
            claimant = None
        if keeper.gone is not None and object_id in keeper.gone:
            await self._clear(slot, object_id, claimant)
        elif claimant is not None:
            index.confirm(slot, HEADER_BYTES + found.stored_bytes)
        else:
            await self._adopt(slot, object_id, found, changed)

    async def _adopt(self, slot: int, object_id: bytes, found: ObjectHeader, changed: set[int]) -> None:
        """An object that the index does not know here."""
        other = self._index.find(object_id)
        if other is not None:
            (page,) = await self._medium.read_headers([other.slot])
            if self._index.find(object_id) != other or other.slot in changed:
                return  # another thread was faster; this slot is looked at again
            rival = inspect(page)
            if not isinstance(rival, ObjectHeader) or rival.key != found.key:
                self._keeper.drop_claim(object_id, page)  # that slot holds something else, which must not be cleared
            elif rival.created_ns >= found.created_ns:
                await self._clear(slot, object_id, None)
                return
        self._index.take(slot)
        displaced = self._index.commit(object_id, slot, HEADER_BYTES + found.stored_bytes)
        self._keeper.changes += 1
        if displaced is not None:
            await self._keeper.empty(displaced, object_id)

    async def _clear(self, slot: int, object_id: bytes, claimant: bytes | None) -> None:
        if claimant is not None:
            self._index.withdraw(claimant)
        else:
            self._index.take(slot)
        await self._keeper.empty(slot, object_id)

    def _fits(self, found: ObjectHeader) -> bool:
        return HEADER_BYTES + found.stored_bytes <= self._medium.geometry.max_object_bytes

    def _leave_alone(self, slots: Sequence[int]) -> None:
        self._log.error(
            "l2 slots cannot be read, they are not used until the next start slots=%d first=%d adapter=%s",
            len(slots), slots[0], self._name,
        )  # fmt: skip
        for slot in slots:
            if self._index.state(slot) not in _UNSEEN:
                continue  # it changed hands since
            if (claimant := self._index.claimant(slot)) is not None:
                self._index.withdraw(claimant)
            self._index.withhold(slot)
