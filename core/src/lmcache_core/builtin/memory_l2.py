"""The `memory` adapter: a second tier in this process's own memory.

It is there for trying things out and for tests, and as the example that a new adapter starts from.
"""

from __future__ import annotations

import threading
from heapq import nsmallest
from typing import Annotated

from pydantic import Field

from lmcache_core.contracts.buffers import LentBuffer
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.jobs.blocking_adapter import BlockingL2Adapter
from lmcache_core.jobs.byte_ledger import ByteLedger
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage

CAPABILITIES = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.ANY_LENGTH


class MemorySettings(PluginSettings):
    """How much the `memory` adapter may keep."""

    max_size_gb: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="Most that is kept, in GiB, header pages included.")
    ] = 1.0


class MemoryAdapter(BlockingL2Adapter):
    """Keeps whole objects as bytes.  Nothing survives the process."""

    capabilities = CAPABILITIES
    contains_is_local = True

    def __init__(self, settings: MemorySettings, context: AdapterContext) -> None:
        self._room = ByteLedger(int(settings.max_size_gb * 2**30))
        self._lock = threading.Lock()  # guards changes of the one below
        self._objects: dict[bytes, tuple[ObjectKey, bytes]] = {}
        super().__init__(context, workers=2)

    def store(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        object_id = key.object_id
        if object_id in self._objects:
            return Outcome.DONE
        if not self._room.reserve(buffer.length):
            return Outcome.REJECTED
        try:
            data = bytes(buffer.view)
        except MemoryError:
            self._room.release(buffer.length)
            return Outcome.REJECTED
        with self._lock:
            self._objects[object_id] = (key, data)
        self._room.commit(buffer.length)
        return Outcome.DONE

    def load(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        _, data = self._objects.get(key.object_id, (key, None))
        if data is None:
            return Outcome.MISSING
        if not buffer.takes(len(data)):
            return Outcome.DAMAGED
        buffer.view[: len(data)] = data
        return Outcome.DONE

    def contains(self, key: ObjectKey) -> bool:
        return key.object_id in self._objects

    def delete(self, key: ObjectKey) -> Outcome:
        with self._lock:
            _, data = self._objects.pop(key.object_id, (key, None))
        if data is None:
            return Outcome.MISSING
        self._room.drop(len(data))
        return Outcome.DONE

    def stored_bytes(self, key: ObjectKey) -> int | None:
        """Length of what is kept under this key, header page included."""
        _, data = self._objects.get(key.object_id, (key, None))
        return None if data is None else len(data)

    def usage(self) -> Usage:
        return Usage(self._room.used_bytes, self._room.capacity_bytes, len(self._objects))

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        """In the order of object ids; the cursor is the last one that was given, as hex digits."""
        after = bytes.fromhex(cursor or "")
        with self._lock:
            page = nsmallest(limit, ((i, key) for i, (key, _) in self._objects.items() if i > after))
        return KeyPage(tuple(key for _, key in page), page[-1][0].hex() if len(page) == limit else None)


def open_memory(settings: MemorySettings, context: AdapterContext) -> MemoryAdapter:
    return MemoryAdapter(settings, context)
