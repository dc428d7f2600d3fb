"""The native I/O engine: bytes between memory and files, devices or other memory, many operations at a time, without the
interpreter.  `lmcache_native.async_io.AsyncIo` is the same for coroutines."""

from __future__ import annotations

from lmcache_native._io import (
    COPY,
    IO_ABI,
    READ,
    READ_FILE,
    SYNC,
    WRITE,
    WRITE_FILE,
    IoEngine,
)

__all__ = [
    "COPY",
    "IO_ABI",
    "READ",
    "READ_FILE",
    "SYNC",
    "WRITE",
    "WRITE_FILE",
    "IoEngine",
]
