"""A transfer to or from a file as O_DIRECT wants it: in whole blocks, and the rest through the page cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lmcache_nixl_agent.agent import Extent, Segment
from lmcache_nixl_agent.flights import Transfer

BLOCK_BYTES: Final = 4096
"""Borrowed buffers are aligned to no more, and no common device asks for more."""


class Descriptors(NamedTuple):
    """A file that is open once or twice."""

    fd: int
    rest_fd: int | None = None
    """Of the same file, through the page cache, where `fd` takes whole blocks only.  None: `fd` takes everything."""


def file_transfers(
    file: Descriptors, offset: int, memory: Extent, *, writes: bool, registers: bool = False
) -> Sequence[Transfer]:
    """`memory` and `offset` begin with a block.  Both parts may be moved at the same time: they share no page."""
    whole = memory.length if file.rest_fd is None else memory.length // BLOCK_BYTES * BLOCK_BYTES
    parts = []
    if whole:
        parts.append((file.fd, 0, whole))
    if file.rest_fd is not None and memory.length > whole:
        parts.append((file.rest_fd, whole, memory.length - whole))
    return [
        Transfer(writes, Extent(memory.at + at, length), Segment.FILE, Extent(offset + at, length, fd), registers)
        for fd, at, length in parts
    ]
