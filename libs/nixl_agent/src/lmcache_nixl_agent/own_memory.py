"""Memory of one's own that an agent moves, for what is not borrowed."""

from __future__ import annotations

import ctypes
import mmap

from lmcache_nixl_agent.agent import Extent, NixlAgent, Registration, Segment


class OwnMemory:
    """Anonymous pages, zero at first.  Registered with one agent from `register` to `close`."""

    def __init__(self, length: int) -> None:
        self._memory = mmap.mmap(-1, length)
        handle = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(handle)
        del handle  # it would keep the memory from being closed
        self.length = length
        self._registration: Registration | None = None

    def extent(self, at: int, length: int) -> Extent:
        return Extent(self.address + at, length)

    def __getitem__(self, part: slice) -> bytes:
        return self._memory[part]

    def __setitem__(self, part: slice, data: bytes) -> None:
        self._memory[part] = data

    def register(self, agent: NixlAgent) -> None:
        """On the agent's thread."""
        self._registration = agent.register(Segment.MEMORY, [self.extent(0, self.length)])

    def deregister(self, agent: NixlAgent) -> None:
        """On the agent's thread."""
        registration, self._registration = self._registration, None
        if registration is not None:
            agent.deregister(registration)

    def close(self) -> None:
        """Nothing is under way any more, and no agent has it."""
        self._memory.close()
