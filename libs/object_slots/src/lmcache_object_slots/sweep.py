"""Clears the headers of slots that are to be forgotten, while the adapter serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lmcache_core import ObjectHeader
from lmcache_object_slots.header_reads import pages_or_errors
from lmcache_object_slots.slot_keeper import BLANK, SlotKeeper, examine, makes_room

WINDOW: Final = 256
"""Slots whose headers are read together; as many are looked at before others have their turn."""
SWEEP: Final = 4096
"""Slots that are cleared before that is noted."""
ATTEMPTS: Final = 3
"""Slots that cannot be read, or cleared, so often are left alone, where others can."""


class _Window:
    """What is in the way among some slots."""

    def __init__(self) -> None:
        self.foreign: list[int] = []
        self.failed: list[int] = []
        self.error: OSError | None = None

    def add(self, other: _Window) -> None:
        self.foreign += other.foreign
        self.failed += other.failed
        self.error = self.error or other.error

    def fail(self, slot: int, error: OSError) -> None:
        self.failed.append(slot)
        self.error = error


class Sweep:
    """From one slot on, every header is blank in the end, but those of what is not ours and those that failed.  On the loop
    of the medium."""

    def __init__(
        self, keeper: SlotKeeper, swept: int, wipes: bool, swept_to: Callable[[int], Awaitable[None]],
        log: logging.Logger, name: str,
    ) -> None:  # fmt: skip
        """From slot `swept` on, whatever is there with `wipes`; `swept_to` is called with the progress."""
        self._keeper = keeper
        self._index = keeper.index
        self._medium = keeper.medium
        self._swept = swept
        self._wipes = wipes
        self._swept_to = swept_to
        self._log = log
        self._name = name
        self._failures = 0
        self._has_read = False

    async def run(self) -> None:
        """To the end.  Raises OSError where slots fail, or all of the medium: when it is called again it goes on there, and
        leaves alone what fails again and again."""
        while self._swept < self._index.count:
            slots = range(self._swept, min(self._swept + SWEEP, self._index.count))
            found = await self._clear_all(slots)
            if found.error is not None:
                self._failures += 1
                if self._failures < ATTEMPTS or not self._has_read:
                    raise found.error
            await self._swept_to(slots.stop)
            self._swept, self._failures = slots.stop, 0
            self._settle(slots, found)

    async def _clear_all(self, slots: range) -> _Window:
        found = _Window()
        windows = [slots[at : at + WINDOW] for at in range(0, len(slots), WINDOW)]
        # one that raises must not leave the others behind
        for window in await asyncio.gather(*map(self._clear, windows), return_exceptions=True):
            if isinstance(window, BaseException):
                raise window
            found.add(window)
        return found

    async def _clear(self, slots: range) -> _Window:
        found = _Window()
        for slot, page in (await pages_or_errors(self._medium, slots)).items():
            if isinstance(page, OSError):
                found.fail(slot, page)
                continue
            self._has_read = True
            if page == BLANK:
                continue
            header = examine(page)
            if not (self._wipes or isinstance(header, ObjectHeader) or makes_room(header)):
                found.foreign.append(slot)
                continue
            try:
                await self._medium.clear_header(slot)
            except OSError as error:
                found.fail(slot, error)
        return found

    def _settle(self, slots: range, found: _Window) -> None:
        for slot in slots:
            self._index.free(slot)
        for slot in (*found.foreign, *found.failed):
            self._index.withhold(slot)
        self._keeper.counts["foreign"] += len(found.foreign)
        if found.failed:
            self._log.error(
                "l2 slots cannot be read or cleared, they are not used until the next start slots=%d first=%d adapter=%s "
                "error=%s",
                len(found.failed), found.failed[0], self._name, found.error,
            )  # fmt: skip
