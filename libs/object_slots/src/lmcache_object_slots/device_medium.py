"""Slots of a block device or a file, moved by the native engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from lmcache_core import HEADER_BYTES, BorrowedBuffer
from lmcache_native.async_io import AsyncIo
from lmcache_native.io import IoEngine
from lmcache_object_slots.geometry import SlotGeometry
from lmcache_object_slots.pages import Pages

CLOSE_SECONDS: Final = 5.0
SPAN_SLOT_BYTES: Final = 32 * 2**10
"""Headers of slots up to this size are read with what lies between them: that is faster than to leave it out."""
SPAN_BYTES: Final = 2 * 2**20


class DeviceMedium:
    """A `SlotMedium` over an open descriptor, which stays its owner's."""

    def __init__(
        self, geometry: SlotGeometry, fd: int, engine: IoEngine, *, direct: bool, sync: bool, zero_copy: bool = True
    ) -> None:
        """`direct`: the descriptor was opened with O_DIRECT.  `sync`: a write or clear returns when it is on the medium.
        Without `zero_copy`, bytes take their way through memory of the medium's own.  Takes over the engine."""
        self._geometry = geometry
        self._fd = fd
        self._engine = engine
        self._align = geometry.align_bytes if direct else 0
        self._sync = sync
        self._zero_copy = zero_copy
        self._blank = Pages(geometry.head_bytes)
        self._io: AsyncIo | None = None

    @property
    def geometry(self) -> SlotGeometry:
        return self._geometry

    @property
    def neighbours(self) -> int:
        slot_bytes = self._geometry.slot_bytes
        return SPAN_BYTES // slot_bytes if slot_bytes <= SPAN_SLOT_BYTES else 1

    async def start(self) -> None:
        self._io = AsyncIo(self._engine)

    async def write(self, slot: int, buffer: BorrowedBuffer) -> None:
        if self._zero_copy:
            await self._write(slot, buffer.address, buffer.length)
            return
        with Pages(buffer.length) as pages:
            await self._running.copy(buffer.address, pages.address, buffer.length)
            await self._write(slot, pages.address, buffer.length)

    async def read(self, slot: int, buffer: BorrowedBuffer) -> bytes:
        if self._zero_copy:
            return await self._read(slot, buffer.address, buffer.length)
        with Pages(buffer.length) as pages:
            digest = await self._read(slot, pages.address, buffer.length)
            await self._running.copy(pages.address, buffer.address, buffer.length)
            return digest

    async def clear_header(self, slot: int) -> None:
        blank, at = self._blank, self._geometry.run_at(slot)
        await self._running.write(self._fd, at, blank.address, blank.length, self._align, sync=int(self._sync))

    async def read_headers(self, slots: Sequence[int]) -> Sequence[bytes]:
        if isinstance(slots, range) and slots.step == 1 and (most := self.neighbours) > 1:
            pieces = [slots[at : at + most] for at in range(0, len(slots), most)]
            return [page for piece in pieces for page in await self._read_span(piece)]
        with Pages(max(len(slots), 1) * HEADER_BYTES) as pages:
            at = range(0, len(slots) * HEADER_BYTES, HEADER_BYTES)
            # one that fails must not leave the others with memory that is gone
            done = await asyncio.gather(
                *(self._read_page(slot, pages.address + offset) for slot, offset in zip(slots, at, strict=True)),
                return_exceptions=True,
            )
            for error in done:
                if error is not None:
                    raise error
            return [pages[offset : offset + HEADER_BYTES] for offset in at]

    async def close(self) -> None:
        if self._io is not None:
            await self._io.close(CLOSE_SECONDS)
        self._blank.close()

    def counters(self) -> Mapping[str, int]:
        return self._engine.counters()

    @property
    def _running(self) -> AsyncIo:
        assert self._io is not None, "the medium was not started"
        return self._io

    async def _write(self, slot: int, address: int, length: int) -> None:
        await self._running.write(
            self._fd, self._geometry.run_at(slot), address, length, self._align,
            head_bytes=min(self._geometry.head_bytes, length), sync=2 if self._sync else 0,
        )  # fmt: skip

    async def _read(self, slot: int, address: int, length: int) -> bytes:
        at = self._geometry.run_at(slot)
        _, digest = await self._running.read(self._fd, at, address, length, self._align, digest_from=HEADER_BYTES)
        assert digest is not None
        return digest

    async def _read_page(self, slot: int, address: int) -> None:
        await self._running.read(self._fd, self._geometry.run_at(slot), address, HEADER_BYTES, self._align)

    async def _read_span(self, slots: range) -> list[bytes]:
        geometry = self._geometry
        first, last = geometry.run_at(slots[0]), geometry.run_at(slots[-1])
        with Pages(last - first + HEADER_BYTES) as pages:
            await self._running.read(self._fd, first, pages.address, pages.length, self._align)
            starts = range(0, len(slots) * geometry.slot_bytes, geometry.slot_bytes)
            return [pages[at : at + HEADER_BYTES] for at in starts]
