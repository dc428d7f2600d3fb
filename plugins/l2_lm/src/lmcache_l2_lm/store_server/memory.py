"""Values in memory."""

from __future__ import annotations

import mmap
import threading
from typing import Final

from lmcache_l2_lm.frames import Form
from lmcache_l2_lm.line import Line
from lmcache_l2_lm.store_server.values import MediumError

MAPPED_BYTES: Final = 1 << 20
"""A longer value has pages of its own, which go back to the system with it."""
SPARE_BYTES: Final = 64 << 20
"""Most that is kept of values that went, for the next ones of their length: new pages have to be cleared, which costs as much
as receiving them."""


class MemoryMedium:
    """As of `Medium`."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()  # guards the one below
        self._spare: Final[list[memoryview]] = []

    def begin(self, key: bytes, form: Form, length: int) -> MemoryDraft:
        try:
            return MemoryDraft(self, form, self._taken(length) or _memory(length))
        except (MemoryError, OSError) as error:
            raise MediumError(f"no memory for a value of {length} bytes ({error})") from None

    def give_back(self, memory: memoryview) -> None:
        """Of a value that went."""
        if MAPPED_BYTES <= len(memory) <= SPARE_BYTES:
            with self._lock:
                while sum(map(len, self._spare)) + len(memory) > SPARE_BYTES:
                    del self._spare[0]
                self._spare.append(memory)

    def _taken(self, length: int) -> memoryview | None:
        with self._lock:
            for at, memory in enumerate(self._spare):
                if len(memory) == length:
                    return self._spare.pop(at)
        return None


class MemoryDraft:
    """As of `Draft`."""

    def __init__(self, medium: MemoryMedium, form: Form, memory: memoryview) -> None:
        self._medium: Final = medium
        self._form: Final = form
        self._memory: Final = memory
        self._at = 0

    def place(self) -> memoryview:
        return self._memory[self._at :]

    def filled(self, count: int) -> None:
        self._at += count

    def finish(self) -> StoredInMemory:
        return StoredInMemory(self._medium, self._form, self._memory)

    def abandon(self) -> None:
        self._medium.give_back(self._memory)


class StoredInMemory:
    """As of `Stored`."""

    def __init__(self, medium: MemoryMedium, form: Form, memory: memoryview) -> None:
        self.form: Final = form
        self.length: Final = len(memory)
        self._medium: Final = medium
        self._memory: Final = memory

    def check(self) -> None:
        pass

    def send(self, line: Line, head: bytes, end: float) -> None:
        line.send(head, self._memory, end=end)

    def free(self) -> None:
        self._medium.give_back(self._memory)


def _memory(length: int) -> memoryview:
    if length < MAPPED_BYTES:
        return memoryview(bytearray(length))
    # Not huge ones: to find those may take seconds for each GB.
    return memoryview(mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
