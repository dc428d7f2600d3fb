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
        matched = _NAME.fullmatch(name)
        if matched is None:
            raise DeviceError(f"'{name[:80]}' is not a name of a worker's segment; those begin with lmcache_kv_")
        self.name: Final = matched.group(1)
        self.size: Final = size
        try:
            descriptor = os.open(ROOT / self.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise DeviceError(f"segment {self.name} cannot be opened: {os.strerror(error.errno or 0)}") from None
        try:
            self._check_file(os.fstat(descriptor))
            self._map = mmap.mmap(descriptor, size)  # with a descriptor of its own
        except (OSError, ValueError, OverflowError) as error:
            raise DeviceError(f"segment {self.name} cannot be mapped: {error}") from None
        finally:
            os.close(descriptor)
        self.address: Final = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def _check_file(self, facts: os.stat_result) -> None:
        if not stat.S_ISREG(facts.st_mode):
            raise DeviceError(f"segment {self.name} is not shared memory")
        if facts.st_uid != os.geteuid():
            raise DeviceError(f"segment {self.name} belongs to user {facts.st_uid}; only our own are mapped")
        if facts.st_nlink > 1:
            raise DeviceError(f"segment {self.name} has another name as well; only memory of a worker's own is mapped")
        if facts.st_size < self.size:
            raise DeviceError(f"segment {self.name} has {facts.st_size} bytes, the worker says {self.size}")

    def check(self) -> None:
        """Raises DeviceError when the worker has made it smaller: a thread that touched the missing part would be killed."""
        size = self._map.size()
        if size < self.size:
            raise DeviceError(f"segment {self.name} was cut from {self.size} to {size} bytes")

    def close(self) -> None:
        """Nothing may be copying."""
        self._map.close()
