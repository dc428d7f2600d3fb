"""Slots that NIXL moves, wherever they lie."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

import xxhash

from lmcache_core import HEADER_BYTES, BorrowedBuffer
from lmcache_l2_nixl.nixl import borrowed
from lmcache_nixl_agent.agent import Extent
from lmcache_nixl_agent.flights import Transfer
from lmcache_nixl_agent.own_memory import OwnMemory
from lmcache_nixl_agent.transfers import TransferThread
from lmcache_object_slots import SlotGeometry

HEADERS_AT_ONCE: Final = 64
_BLANK_AT: Final = HEADERS_AT_ONCE * HEADER_BYTES


class PoolMedium(ABC):
    """A `SlotMedium` over NIXL.  Subclass it with where slots lie."""

    def __init__(self, geometry: SlotGeometry, thread: TransferThread, headers_at_once: int = HEADERS_AT_ONCE) -> None:
        """Up to `headers_at_once`, not as more than `HEADERS_AT_ONCE`, are looked at at a time: what else is asked of the
        thread meanwhile waits behind them."""
        self._geometry: Final = geometry
        self._thread: Final = thread
        self._own: Final = OwnMemory(_BLANK_AT + HEADER_BYTES)
        """Pages for headers, and one that stays zero."""
        self._free_pages = asyncio.Queue[int]()
        for page in range(headers_at_once):
            self._free_pages.put_nowait(page)

    @property
    def geometry(self) -> SlotGeometry:
        return self._geometry

    @property
    def neighbours(self) -> int:
        return 1

    # --- what a subclass says

    @abstractmethod
    async def take_places(self) -> None:
        """Register what the slots lie in."""

    @abstractmethod
    async def give_places_back(self) -> None:
        """The opposite."""

    @abstractmethod
    def transfers(self, slot: int, at: int, memory: Extent, *, writes: bool) -> Sequence[Transfer]:
        """So much memory, to or from `at` bytes behind the beginning of the slot's run."""

    @abstractmethod
    async def write(self, slot: int, buffer: BorrowedBuffer) -> None: ...

    async def has_header(self, slot: int) -> bool:
        """False: nothing was ever written there, so that there is nothing to read."""
        return True

    # --- a SlotMedium

    async def start(self) -> None:
        await self._thread.do(self._own.register)
        await self.take_places()

    async def read(self, slot: int, buffer: BorrowedBuffer) -> bytes:
        await self._thread.move(self.transfers(slot, 0, borrowed(buffer), writes=False))
        # NIXL's word is not taken for what came: object stores answer DONE for an object that is too short.
        return xxhash.xxh3_128_digest(buffer.view[HEADER_BYTES:])

    async def clear_header(self, slot: int) -> None:
        await self._thread.move(self.transfers(slot, 0, self._own.extent(_BLANK_AT, HEADER_BYTES), writes=True))

    async def read_headers(self, slots: Sequence[int]) -> Sequence[bytes]:
        # one that fails must not leave the others with memory that is gone
        found = await asyncio.gather(*map(self._read_header, slots), return_exceptions=True)
        pages = []
        for page in found:
            if isinstance(page, BaseException):
                raise page
            pages.append(page)
        return pages

    async def close(self) -> None:
        await self.give_places_back()
        await self._thread.do(self._own.deregister)
        self._own.close()

    def counters(self) -> Mapping[str, int]:
        return self._thread.counters()

    async def _read_header(self, slot: int) -> bytes:
        page = await self._free_pages.get()
        try:
            if not await self.has_header(slot):
                return bytes(HEADER_BYTES)
            at = page * HEADER_BYTES
            self._own[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)  # what does not come must not be the last one's
            await self._thread.move(self.transfers(slot, 0, self._own.extent(at, HEADER_BYTES), writes=False))
            return self._own[at : at + HEADER_BYTES]
        finally:
            self._free_pages.put_nowait(page)
