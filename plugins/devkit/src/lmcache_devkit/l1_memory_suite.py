"""Conformance checks of an L1 memory, as tests.  A distribution runs them with a few lines:

class TestAcme(L1MemorySuite):
    offer = "acme"
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import pytest

from lmcache_client.errors import ResourceError
from lmcache_core.contracts.l1_memory import L1Memory, L1MemoryContext, MemoryRegion
from lmcache_core.l1.arena import Arena
from lmcache_devkit.check_limit import CheckLimit
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer

ALIGN_BYTES: Final = 4096
CLOSE_SECONDS: Final = 20.0
OBJECT_BYTES: Final = 64 << 10
SHM_ROOT: Final = Path("/dev/shm")


class L1MemorySuite(OfferSuite):
    """Set `offer`, and override `settings` where the memory needs some: in a folder of the test's own, for example."""

    kind: ClassVar[str] = "l1_memory"
    size_bytes: ClassVar[int] = 8 << 20
    """How large a memory the checks open."""

    @pytest.fixture
    def context(self) -> L1MemoryContext:
        return L1MemoryContext(self.size_bytes, ALIGN_BYTES, "instance-of-tests", "boot-of-tests")

    @pytest.fixture
    def memory(self, under_test: OpenableOffer, context: L1MemoryContext) -> Iterator[L1Memory]:
        memory = under_test.open(context)
        yield memory
        _close(memory)

    def test_it_opens_as_a_memory_of_the_size_that_was_asked_for(self, memory: L1Memory) -> None:
        """Writable bytes at the address that the region names, which begins at a page."""
        assert isinstance(memory, L1Memory)
        region = memory.region
        assert isinstance(region, MemoryRegion)
        assert region is memory.region, "region is another object each time"
        message = (
            f"the region has {region.length} bytes and a view of {len(region.view)}, not {self.size_bytes} in both"
        )
        assert region.length == len(region.view) == self.size_bytes, message
        assert not region.view.readonly, "the view cannot be written to"
        assert region.view.itemsize == 1, "the view is not one of bytes"
        assert region.address % mmap.PAGESIZE == 0, "the region does not begin at a page"
        self._allocate(memory, 0, ALIGN_BYTES)
        region.view[:5] = b"hello"
        assert ctypes.string_at(region.address, 5) == b"hello", "address and view are not the same memory"

    def test_its_kind_is_a_word(self, memory: L1Memory) -> None:
        """`/status`, metrics and the log show it."""
        assert isinstance(memory.kind, str)
        assert memory.kind.isidentifier(), f"{memory.kind!r} is not a word such as file"
        assert memory.kind not in ("shared_memory", "anonymous_memory"), "core's own memories have this kind"

    def test_a_name_is_that_of_a_segment_that_engines_can_map(self, memory: L1Memory) -> None:
        """Engines open it in /dev/shm by this name and see the same bytes; it is this user's alone."""
        name = memory.region.name
        if name is None:
            return
        self._allocate(memory, 0, ALIGN_BYTES)
        memory.region.view[:5] = b"hello"
        path = SHM_ROOT / name
        assert path.stat().st_mode & 0o077 == 0, "other users can open the segment"
        with path.open("rb") as segment:
            assert segment.read(5) == b"hello"

    def test_every_byte_keeps_its_value(self, memory: L1Memory) -> None:
        """To the last page, after `fetch`, while several threads write to slots of their own."""
        view, failed = memory.region.view, list[BaseException]()

        def fill(first: int, step: int) -> None:
            try:
                for offset in range(first * OBJECT_BYTES, self.size_bytes, step * OBJECT_BYTES):
                    length = min(OBJECT_BYTES, self.size_bytes - offset)
                    self._allocate(memory, offset, length)
                    memory.fetch(offset, length)
                    view[offset : offset + length] = bytes([offset // OBJECT_BYTES % 251 + 1]) * length
            except BaseException as error:  # noqa: BLE001 - shown by the thread of the test
                failed.append(error)

        threads = [threading.Thread(target=fill, args=(number, 4)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, f"on another thread: {failed[0]}"
        for offset in range(0, self.size_bytes, OBJECT_BYTES):
            length = min(OBJECT_BYTES, self.size_bytes - offset)
            memory.fetch(offset, length)
            value = bytes([offset // OBJECT_BYTES % 251 + 1])
            assert view[offset : offset + length] == value * length, f"bytes at {offset} have changed"

    def test_a_server_can_use_all_of_it(self, under_test: OpenableOffer, context: L1MemoryContext) -> None:
        """Pages are allocated before use, from the store's thread and ahead of need, and counted."""
        arena = Arena(under_test.open(context))
        try:
            assert arena.back(0, OBJECT_BYTES)
            while arena.grow(self.size_bytes, 1 << 20):
                pass
            assert arena.backed_bytes == self.size_bytes
        finally:
            with CheckLimit().limit(CLOSE_SECONDS, "close"):
                arena.close()

    def test_two_servers_never_share_one(self, under_test: OpenableOffer, context: L1MemoryContext) -> None:
        """A second one with the same settings gets memory of its own, or is refused with ResourceError."""
        first = under_test.open(context)
        try:
            self._allocate(first, 0, ALIGN_BYTES)
            first.region.view[:5] = b"first"
            with suppress(ResourceError):
                second = under_test.open(L1MemoryContext(self.size_bytes, ALIGN_BYTES, "another", "another-boot"))
                self._allocate(second, 0, ALIGN_BYTES)
                second.region.view[:5] = b"other"
                _close(second)
            assert bytes(first.region.view[:5]) == b"first", "a second server writes to the same memory"
        finally:
            _close(first)

    def test_nothing_of_a_former_server_is_left(self, under_test: OpenableOffer, context: L1MemoryContext) -> None:
        """It can be opened again at once, and holds none of the bytes: they could be another tenant's."""
        for _ in range(2):
            memory = under_test.open(context)
            try:
                self._allocate(memory, 0, self.size_bytes)
                assert b"secret" not in bytes(memory.region.view), "it holds bytes of a former server"
                memory.region.view[-6:] = b"secret"
            finally:
                _close(memory)

    def test_close_gives_everything_back(self, under_test: OpenableOffer, context: L1MemoryContext) -> None:
        """Open files, mappings, threads and its file; a second `close` does nothing."""
        _close(under_test.open(context))  # what a library keeps for the process is opened now
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        memory = under_test.open(context)
        path, name = memory.path, memory.region.name
        _close(memory)
        with CheckLimit().limit(CLOSE_SECONDS, "close"):
            memory.close()
        assert len(os.listdir("/proc/self/fd")) == files, "open files are left behind"
        assert threading.active_count() == threads, "threads are left behind"
        assert path is None or not path.exists(), f"{path} is left behind"
        assert name is None or not (SHM_ROOT / name).exists(), f"{SHM_ROOT / name} is left behind"

    @staticmethod
    def _allocate(memory: L1Memory, offset: int, length: int) -> None:
        if memory.is_lazy:
            memory.allocate(offset, length, True)


def _close(memory: L1Memory) -> None:
    """As a server does."""
    with CheckLimit().limit(CLOSE_SECONDS, "unlink and close"):
        memory.unlink()
        memory.close()
