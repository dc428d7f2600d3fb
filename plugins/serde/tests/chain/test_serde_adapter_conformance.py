"""An adapter behind serdes keeps every requirement of an adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import pytest

from lmcache_core.builtin.memory_l2 import MemoryAdapter
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_core.contracts.offer import Offer
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, ObjectHeader, inspect
from lmcache_core.model.results import Outcome
from lmcache_devkit import stall_methods
from lmcache_devkit.l2.media_damage import FAULTS
from lmcache_devkit.l2_suite import PAYLOAD_BYTES, L2AdapterSuite, Media, Rig
from lmcache_serde.chain.adapter import ChainedAdapter

DONE: Final = Outcome.DONE
LISTS: Final = Capability.DELETE | Capability.LIST | Capability.VERIFIES
SETTINGS: Final = "lmcache_core.builtin.memory_l2:MemorySettings"


def offer(opener: str, capabilities: Capability = LISTS) -> Offer:
    return Offer(
        f"memory-{opener}",
        "The memory adapter behind serdes.",
        open=f"plugins.serde.tests.chain.serdes:open_{opener}",
        settings=SETTINGS,
        capabilities=capabilities,
    )


class InnerHeap(Media):
    """The objects as they are stored."""

    def __init__(self, adapter: ChainedAdapter) -> None:
        assert isinstance(adapter.inner, MemoryAdapter)
        self._objects = adapter.inner._objects

    def read(self, key: ObjectKey) -> bytes | None:
        return self._objects.get(key.object_id, (key, None))[1]

    def write(self, key: ObjectKey, data: bytes) -> None:
        self._objects[key.object_id] = (key, data)

    def remove(self, key: ObjectKey) -> None:
        self._objects.pop(key.object_id, None)


class BehindSerdes(L2AdapterSuite):
    open_close_rounds = 100
    payload_bytes_max = 8 * 2**20 + 1

    def test_what_is_stored_is_the_object_and_nothing_else(self, rig: Rig, media: Media | None) -> None:
        """What is stored is not the object, and says what it went through."""
        key = rig.key(0)
        _, buffer = item = rig.whole(key)
        assert rig.driver.store(item) == (DONE,)
        stored = media.read(key) if media else None
        assert stored is not None
        header, given = inspect(stored[:HEADER_BYTES]), inspect(buffer.view[:HEADER_BYTES])
        assert isinstance(header, ObjectHeader)
        assert isinstance(given, ObjectHeader)
        adapter = rig.driver.adapter
        assert isinstance(adapter, ChainedAdapter)
        names = [mark.name for mark in header.serdes]
        assert names == [*adapter.chain.names, *["pad"] * (Capability.ANY_LENGTH not in adapter.inner.capabilities)]
        assert (header.payload_bytes, header.payload_digest) == (PAYLOAD_BYTES, given.payload_digest)
        assert header.created_ns == given.created_ns
        assert stored != bytes(buffer.view)

    @pytest.fixture
    def media(self, adapter: ChainedAdapter) -> InnerHeap:
        return InnerHeap(adapter)

    @pytest.fixture
    def stalled(
        self, monkeypatch: pytest.MonkeyPatch, adapter: L2Adapter
    ) -> Callable[[], AbstractContextManager[None]]:
        return stall_methods(monkeypatch, MemoryAdapter)


class OfAnyLength(BehindSerdes):
    @pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "one byte long"])
    def test_a_fault_of_the_medium_is_a_miss_and_makes_room(self, rig: Rig, media: Media | None, fault: str) -> None:
        """A byte behind the object is not seen by an adapter that loads any length, and is not part of what is decoded."""
        super().test_a_fault_of_the_medium_is_a_miss_and_makes_room(rig, media, fault)


class TestVariableLength(OfAnyLength):
    offer = offer("variable")


@pytest.mark.slow
class TestChain(OfAnyLength):
    offer = offer("chain")


class TestPadded(BehindSerdes):
    offer = offer("padded")

    def test_what_is_foreign_is_neither_served_nor_replaced_nor_deleted(self, rig: Rig, media: Media | None) -> None:
        """Of the length that the adapter inside expects; of another one, it is damaged there."""
        (key,) = rig.put(1)
        assert media is not None
        stored = media.read(key)
        assert stored is not None
        letter = (b"Dear diary, " * 2_000)[: len(stored)]
        media.write(key, letter)
        assert rig.driver.verified_load(rig.empty(key)) == (Outcome.FOREIGN,)
        assert rig.driver.has(key) == (Outcome.MISSING,)
        assert rig.driver.store(rig.whole(key)) == (Outcome.REJECTED,)
        assert media.read(key) == letter
        media.remove(key)


class TestFixedLength(BehindSerdes):
    offer = offer("fixed", LISTS | Capability.USAGE)

    @pytest.fixture
    def small_settings(self) -> Mapping[str, Any]:
        return {"max_size_gb": self.small_bytes / 2**30}
