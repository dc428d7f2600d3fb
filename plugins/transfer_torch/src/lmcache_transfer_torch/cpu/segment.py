"""Shared memory that a worker keeps its KV cache in, mapped here."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import stat
from pathlib import Path
from typing import Final

from lmcache_transfer_torch.device import DeviceError

ROOT: Final = Path("/dev/shm")
_NAME: Final = re.compile(r"/?(lmcache_kv_[A-Za-z0-9_-]{1,200})")
"""What engines call them.  Anything else there is none of ours to touch, L1's own segment least of all."""


class CpuSegment:
    """Mapped from construction to `close`.  Owns its descriptor and the mapping.  `check` from any thread."""

    def __init__(self, name: str, size: int) -> None:
        """Raises DeviceError unless `name` is a worker's segment of at least `size` bytes, owned by our user."""
        self.name, descriptor = _opened(name, size)
        self.size: Final = size
        try:
            self._map = mmap.mmap(descriptor, size)  # with a descriptor of its own
        except (OSError, ValueError, OverflowError) as error:
            raise DeviceError(f"segment {self.name} cannot be mapped: {error}") from None
        finally:
            os.close(descriptor)
        self.address: Final = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def check(self) -> None:
        """Raises DeviceError when the worker has made it smaller: a thread that touched the missing part would be killed."""
        size = self._map.size()
        if size < self.size:
            raise DeviceError(f"segment {self.name} was cut from {self.size} to {size} bytes")

    def close(self) -> None:
        """Nothing may be copying."""
        self._map.close()


def copy_of_segment(name: str, size: int) -> bytes:
    """The first bytes of a worker's segment.  Raises DeviceError."""
    name, descriptor = _opened(name, size)
    with open(descriptor, "rb") as file:
        content = file.read(size)
    if len(content) < size:
        raise DeviceError(f"segment {name} was cut from {size} to {len(content)} bytes")
    return content


def _opened(name: str, size: int) -> tuple[str, int]:
    """The name without its slash, and a descriptor that the caller closes."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise DeviceError(f"'{name[:80]}' is not a name of a worker's segment; those begin with lmcache_kv_")
    name = matched.group(1)
    try:
        descriptor = os.open(ROOT / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise DeviceError(f"segment {name} cannot be opened: {os.strerror(error.errno or 0)}") from None
    try:
        _check_file(name, size, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return name, descriptor


def _check_file(name: str, size: int, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise DeviceError(f"segment {name} is not shared memory")
    if facts.st_uid != os.geteuid():
        raise DeviceError(f"segment {name} belongs to user {facts.st_uid}; only our own are mapped")
    if facts.st_nlink > 1:
        raise DeviceError(f"segment {name} has another name as well; only memory of a worker's own is mapped")
    if facts.st_size < size:
        raise DeviceError(f"segment {name} has {facts.st_size} bytes, the worker says {size}")
