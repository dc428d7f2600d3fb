"""Slots of mapped memory, copied by the native engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from lmcache_core import HEADER_BYTES, LentBuffer
from lmcache_native.async_io import AsyncIo
from lmcache_native.io import IoEngine
from lmcache_object_slots.geometry import SlotGeometry
from lmcache_object_slots.pages import Pages

CLOSE_SECONDS: Final = 5.0


class MappedMedium:
    """A `SlotMedium` over memory that is mapped at `address` for as long as its owner keeps it so.  A page that vanishes under
    a copy is an OSError (EFAULT)."""

    def __init__(self, geometry: SlotGeometry, address: int, engine: IoEngine) -> None:
        """Takes over the engine."""
        self._geometry = geometry
        self._address = address
        self._engine = engine
        self._blank = Pages(geometry.head_bytes)
        self._io: AsyncIo | None = None

    @property
    def geometry(self) -> SlotGeometry:
        return self._geometry

    @property
    def neighbours(self) -> int:
        return 1

    async def start(self) -> None:
        self._io = AsyncIo(self._engine)

    async def write(self, slot: int, buffer: LentBuffer) -> None:
        head = min(self._geometry.head_bytes, buffer.length)
        await self._running.copy(buffer.address, self._at(slot), buffer.length, head_bytes=head)

    async def read(self, slot: int, buffer: LentBuffer) -> bytes:
        _, digest = await self._running.copy(
            self._at(slot), buffer.address, buffer.length, digest_from=HEADER_BYTES
        )  # fmt: skip
        assert digest is not None
        return digest

    async def clear_header(self, slot: int) -> None:
        await self._running.copy(self._blank.address, self._at(slot), self._blank.length)

    async def read_headers(self, slots: Sequence[int]) -> Sequence[bytes]:
        with Pages(max(len(slots), 1) * HEADER_BYTES) as pages:
            at = range(0, len(slots) * HEADER_BYTES, HEADER_BYTES)
            done = await asyncio.gather(
                *(
                    self._running.copy(self._at(slot), pages.address + offset, HEADER_BYTES)
                    for slot, offset in zip(slots, at, strict=True)
                ),
                return_exceptions=True,
            )
            for answer in done:
                if isinstance(answer, BaseException):
                    raise answer
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

    def _at(self, slot: int) -> int:
        return self._address + self._geometry.run_at(slot)
