"""Values in memory."""

from __future__ import annotations

import mmap
from typing import Final

from lmcache_l2_lm.frames import Form
from lmcache_l2_lm.line import Line
from lmcache_l2_lm.store_server.values import MediumError

MAPPED_BYTES: Final = 1 << 20
"""A longer value has pages of its own, which are huge ones where the system has them."""


class MemoryMedium:
    """As of `Medium`."""

    def begin(self, key: bytes, form: Form, length: int) -> MemoryDraft:
        try:
            return MemoryDraft(form, _memory(length))
        except (MemoryError, OSError) as error:
            raise MediumError(f"no memory for a value of {length} bytes ({error})") from None


class MemoryDraft:
    """As of `Draft`."""

    def __init__(self, form: Form, memory: memoryview) -> None:
        self._form: Final = form
        self._memory: Final = memory
        self._at = 0

    def place(self) -> memoryview:
        return self._memory[self._at :]

    def filled(self, count: int) -> None:
        self._at += count

    def finish(self) -> StoredInMemory:
        return StoredInMemory(self._form, self._memory)

    def abandon(self) -> None:
        pass  # its memory goes with it


class StoredInMemory:
    """As of `Stored`.  Its memory goes with the last reference."""

    def __init__(self, form: Form, memory: memoryview) -> None:
        self.form: Final = form
        self.length: Final = len(memory)
        self._memory: Final = memory.toreadonly()

    def check(self) -> None:
        pass

    def send(self, line: Line, head: bytes, end: float) -> None:
        line.send(head, self._memory, end=end)

    def free(self) -> None:
        pass


def _memory(length: int) -> memoryview:
    if length < MAPPED_BYTES:
        return memoryview(bytearray(length))
    pages = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # this kernel has none
    return memoryview(pages)
