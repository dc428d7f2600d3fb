"""Memory of one's own for I/O: page-aligned, zero at first."""

from __future__ import annotations

import ctypes
import mmap
from types import TracebackType
from typing import Self


class Pages:
    """Anonymous memory with an address.  Given back by `close`, or when the `with` block ends."""

    def __init__(self, length: int) -> None:
        self._memory = mmap.mmap(-1, length)
        handle = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(handle)
        del handle  # it would keep the memory from being closed
        self.length = length

    def __getitem__(self, part: slice) -> bytes:
        return self._memory[part]

    def __setitem__(self, part: slice, data: bytes) -> None:
        self._memory[part] = data

    def close(self) -> None:
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
