"""Slots of mapped memory, copied by the native engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from lmcache_core import HEADER_BYTES, BorrowedBuffer
from lmcache_l2_dax.prefault import Prefault
from lmcache_l2_dax.stripes import Stripes
from lmcache_native.async_io import AsyncIo
from lmcache_native.io import IoEngine
from lmcache_object_slots import SlotGeometry
from lmcache_object_slots.pages import Pages

CLOSE_SECONDS: Final = 5.0
HEADERS_AT_ONCE: Final = 256


class StripedMedium:
    """A `SlotMedium` of mapped devices, which stay their owner's, as the prefault does.  Only engines touch them: a page that
    vanishes under a copy is an OSError (EFAULT) then, and not the end of the process."""

    def __init__(self, stripes: Stripes, storing: IoEngine, loading: IoEngine, prefault: Prefault) -> None:
        """Takes over the engines, whose threads are those of stores and of loads."""
        self._stripes = stripes
        self._engines = (storing, loading)
        self._prefault = prefault
        self._blank = Pages(HEADER_BYTES)
        self._io: tuple[AsyncIo, AsyncIo] | None = None

    @property
    def geometry(self) -> SlotGeometry:
        return self._stripes.geometry

    @property
    def neighbours(self) -> int:
        return 1  # memory is as fast page by page

    async def start(self) -> None:
        storing, loading = self._engines
        self._io = (AsyncIo(storing), AsyncIo(loading))

    async def write(self, slot: int, buffer: BorrowedBuffer) -> None:
        self._prefault.reach(self._stripes.rows_behind(slot))
        to = self._stripes.address(slot)
        await self._storing.copy(buffer.address, to, buffer.length, head_bytes=min(HEADER_BYTES, buffer.length))

    async def read(self, slot: int, buffer: BorrowedBuffer) -> bytes:
        at = self._stripes.address(slot)
        _, digest = await self._loading.copy(at, buffer.address, buffer.length, digest_from=HEADER_BYTES)
        assert digest is not None
        return digest

    async def clear_header(self, slot: int) -> None:
        await self._storing.copy(self._blank.address, self._stripes.address(slot), HEADER_BYTES)

    async def read_headers(self, slots: Sequence[int]) -> Sequence[bytes]:
        headers: list[bytes] = []
        for at in range(0, len(slots), HEADERS_AT_ONCE):
            headers += await self._headers(slots[at : at + HEADERS_AT_ONCE])
        return headers

    async def close(self) -> None:
        for io in self._io or ():
            await io.close(CLOSE_SECONDS)
        self._blank.close()

    def counters(self) -> Mapping[str, int]:
        """Those of both engines together, and `prefaulted_bytes`."""
        storing, loading = (engine.counters() for engine in self._engines)
        both = {name: count + loading[name] for name, count in storing.items()}
        return {**both, "prefaulted_bytes": self._prefault.done_bytes}

    async def _headers(self, slots: Sequence[int]) -> list[bytes]:
        with Pages(len(slots) * HEADER_BYTES) as pages:
            offsets = range(0, pages.length, HEADER_BYTES)
            copies = (
                self._loading.copy(self._stripes.address(slot), pages.address + offset, HEADER_BYTES)
                for slot, offset in zip(slots, offsets, strict=True)
            )
            # All of them end before one that failed is raised: the pages are theirs until then.
            for answer in await asyncio.gather(*copies, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
            return [pages[offset : offset + HEADER_BYTES] for offset in offsets]

    @property
    def _storing(self) -> AsyncIo:
        return self._running[0]

    @property
    def _loading(self) -> AsyncIo:
        return self._running[1]

    @property
    def _running(self) -> tuple[AsyncIo, AsyncIo]:
        assert self._io is not None, "the medium was not started"
        return self._io
