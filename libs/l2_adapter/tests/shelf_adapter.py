"""An adapter of coroutines that works."""

from __future__ import annotations

import asyncio

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, ObjectKey, Outcome
from lmcache_l2_adapter import AsyncL2Adapter

DONE, MISSING = Outcome.DONE, Outcome.MISSING


class Shelf(AsyncL2Adapter):
    """Keeps copies, and gives way to others at every step."""

    capabilities = Capability.DELETE

    async def started(self) -> None:
        self._objects: dict[bytes, bytes] = {}

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        await asyncio.sleep(0)
        self._objects[key.object_id] = bytes(buffer.view)
        return DONE

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        await asyncio.sleep(0)
        data = self._objects.get(key.object_id)
        if data is None:
            return MISSING
        if len(data) != buffer.length:
            return Outcome.DAMAGED
        buffer.view[:] = data
        return DONE

    async def contains(self, key: ObjectKey) -> bool:
        await asyncio.sleep(0)
        return key.object_id in self._objects

    async def delete(self, key: ObjectKey) -> Outcome:
        await asyncio.sleep(0)
        return DONE if self._objects.pop(key.object_id, None) else MISSING


def open_shelf(settings: None, context: AdapterContext) -> Shelf:
    return Shelf(context)
