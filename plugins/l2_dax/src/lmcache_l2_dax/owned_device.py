"""A mapped device that this server owns, and what it does to it before the slots are used."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from lmcache_core import HEADER_BYTES, AdapterContext, ResourceError
from lmcache_l2_dax.copied_region import CopiedRegion
from lmcache_l2_dax.mapped_device import MappedDevice, extent_of, open_device
from lmcache_object_slots import FileRegion, Ownership
from lmcache_object_slots.checkpoint import BLOCKS_IN_FRONT

OWNER_AT: Final = 2 * HEADER_BYTES
"""Behind the two superblocks."""
PROBED_FRONT_BYTES: Final = 4 * 2**20
PROBED_PLACES: Final = 1024
assert OWNER_AT < BLOCKS_IN_FRONT * HEADER_BYTES


class OwnedDevice:
    """Locked for as long as it is open.  Any thread, one at a time."""

    def __init__(self, mapped: MappedDevice, region: CopiedRegion, ownership: Ownership) -> None:
        self.mapped = mapped
        self.region = region
        self._ownership = ownership

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"device_path '{self.mapped.path}'"

    def sign(self, context: AdapterContext) -> None:
        """Say on it who owns it: once it is known to be ours.  Raises OSError."""
        self._ownership.sign(context)

    def is_blank(self) -> bool:
        """Is there nothing but zeros, as far as is looked: the beginning, and a page in many places of the rest?  Raises
        OSError."""
        size = self.mapped.size_bytes
        front = min(PROBED_FRONT_BYTES, size)
        if any(self.region.read(0, front)):
            return False
        step = max((size - front) // PROBED_PLACES // HEADER_BYTES, 1) * HEADER_BYTES
        return not any(any(self.region.read(at, HEADER_BYTES)) for at in range(front, size - HEADER_BYTES + 1, step))

    def close(self) -> None:
        """Unmap it, and release it."""
        self.region.close()
        self.mapped.close()


def open_owned(path: Path, wanted_bytes: int, context: AdapterContext) -> OwnedDevice:
    """Lock and map so much of a device.  Nothing is written, but an empty file is given its length.  Raises ResourceError where
    it is another server's, too small, or cannot be mapped."""
    descriptor = open_device(path)
    name = f"device_path '{path}'"
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # before it is given a length
            Ownership.take(descriptor, FileRegion(descriptor), OWNER_AT, name)
        mapped = _mapped(path, descriptor, wanted_bytes)
        undo.pop_all()  # the descriptor is the mapping's now
        undo.callback(mapped.close)
        region = CopiedRegion(mapped)
        undo.callback(region.close)
        ownership = Ownership.take(descriptor, region, OWNER_AT, name)
        undo.pop_all()
    return OwnedDevice(mapped, region, ownership)


def _mapped(path: Path, descriptor: int, wanted_bytes: int) -> MappedDevice:
    extent = extent_of(path, descriptor, wanted_bytes)
    size = wanted_bytes // extent.align_bytes * extent.align_bytes
    if not size:
        raise ResourceError(
            f"device_path '{path}' is mapped in pieces of {extent.align_bytes} bytes, and max_dax_size_gb is less; raise it"
        )
    if size > extent.size_bytes:
        raise ResourceError(
            f"device_path '{path}' has {extent.size_bytes / 2**30:g} GiB, and max_dax_size_gb asks for "
            f"{wanted_bytes / 2**30:g}; lower it, or name a larger device"
        )
    try:
        return MappedDevice(path, descriptor, size)
    except OSError as error:
        hint = (
            "the machine has too little memory" if error.errno == errno.ENOMEM else "it may not be a device of memory"
        )
        raise ResourceError(f"device_path '{path}' cannot be mapped ({error.strerror}); {hint}") from None
