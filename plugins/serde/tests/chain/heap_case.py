"""Adapters behind serdes that share one heap of objects, for tests that look at what is stored and alter it."""

from __future__ import annotations

from typing import Any

from lmcache_core.app.serdes import KnownLayouts
from lmcache_core.builtin.memory_l2 import MemoryAdapter, MemorySettings
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import AdapterContext
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_serde.chain.adapter import ChainedAdapter
from lmcache_serde.chain.links import SerdeChain
from plugins.serde.tests.chain.serdes import MIB, chain_of, wrapped

PAYLOAD = payload_of(1, 10_000)
KEY = object_key(1)


class HeapCase:
    """One heap of objects, behind whatever chains a test wants."""

    def __init__(self, missing: Capability = Capability.NONE) -> None:
        self.memory = BorrowedMemory(64 * MIB)
        self.context = adapter_context(self.memory)
        self.layouts = KnownLayouts()
        self.objects: dict[bytes, tuple[ObjectKey, bytes]] = {}
        self.more, self.missing = Capability.NONE, missing
        self.max_object_bytes: int | None = None
        self._drivers: list[L2Driver] = []

    def through(self, *links: Any, **how: Any) -> L2Driver:
        chain = links[0] if links and isinstance(links[0], SerdeChain) else chain_of(*links)
        driver = L2Driver(wrapped(self.context, self._open, chain, layouts=self.layouts, **how))
        self._drivers.append(driver)
        return driver

    def _open(self, context: AdapterContext) -> MemoryAdapter:
        adapter = MemoryAdapter(MemorySettings(), context)
        adapter._objects = self.objects
        adapter.capabilities = (adapter.capabilities | self.more) & ~self.missing
        adapter.max_object_bytes = self.max_object_bytes
        return adapter

    @property
    def stored(self) -> bytes:
        return self.objects[KEY.object_id][1]

    @stored.setter
    def stored(self, data: bytes) -> None:
        self.objects[KEY.object_id] = (KEY, data)

    def whole(self, key: ObjectKey = KEY, payload: bytes = PAYLOAD) -> tuple[ObjectKey, BorrowedBuffer]:
        return key, self.memory.sealed(key, payload)

    def empty(self, key: ObjectKey = KEY, payload_bytes: int = len(PAYLOAD)) -> tuple[ObjectKey, BorrowedBuffer]:
        return key, self.memory.lend(HEADER_BYTES + payload_bytes)

    def close(self) -> None:
        for driver in self._drivers:
            if not driver.closed:
                driver.close(5.0)


def counters(driver: L2Driver) -> Any:
    assert isinstance(driver.adapter, ChainedAdapter)
    return driver.adapter.chain.counters
