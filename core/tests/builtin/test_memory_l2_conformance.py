"""The `memory` adapter keeps every requirement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from lmcache_core import L2Adapter, ObjectKey
from lmcache_core.builtin.memory_l2 import MemoryAdapter
from lmcache_devkit import stall_methods
from lmcache_devkit.l2_suite import L2AdapterSuite, Media


class HeapMedia(Media):
    """The objects of an adapter, past its own accounting: a fault of the medium changes no length that it knows."""

    def __init__(self, adapter: MemoryAdapter) -> None:
        self._objects = adapter._objects

    def read(self, key: ObjectKey) -> bytes | None:
        _, data = self._objects.get(key.object_id, (key, None))
        return data

    def write(self, key: ObjectKey, data: bytes) -> None:
        self._objects[key.object_id] = (key, data)

    def remove(self, key: ObjectKey) -> None:
        self._objects.pop(key.object_id, None)


class TestMemory(L2AdapterSuite):
    offer = "memory"

    @pytest.fixture
    def small_settings(self) -> Mapping[str, Any]:
        return {"max_size_gb": self.small_bytes / 2**30}

    @pytest.fixture
    def media(self, adapter: MemoryAdapter) -> HeapMedia:
        return HeapMedia(adapter)

    @pytest.fixture
    def stalled(
        self, monkeypatch: pytest.MonkeyPatch, adapter: L2Adapter
    ) -> Callable[[], AbstractContextManager[None]]:
        return stall_methods(monkeypatch, MemoryAdapter)
