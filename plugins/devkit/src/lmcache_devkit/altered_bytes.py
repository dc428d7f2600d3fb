"""How bytes go wrong on their way."""

from __future__ import annotations

from typing import Final

from lmcache_client.errors import ResourceError
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import ObjectKey
from lmcache_devkit.borrowed_memory import UNWRITTEN
from lmcache_devkit.fault_plan import Fault

SECTOR_BYTES: Final = 512

ALTERING: Final = (Fault.TORN, Fault.SHORT, Fault.CORRUPT)


def spoil(fault: Fault | None, key: ObjectKey, view: memoryview) -> None:
    """Do to these bytes what one of the `ALTERING` faults does."""
    if fault is Fault.CORRUPT:
        place = int.from_bytes(key.object_id[:8], "little") % (len(view) * 8)
        view[place // 8] ^= 1 << place % 8
        return
    unwritten = -(-len(view) // 2) if fault is Fault.TORN else min(SECTOR_BYTES, len(view))
    view[len(view) - unwritten :] = UNWRITTEN * unwritten


def altered(
    fault: Fault | None, key: ObjectKey, buffer: BorrowedBuffer, scratch: BorrowedBuffer | None
) -> BorrowedBuffer:
    """What such a store keeps in the place of `buffer`, which is not touched: a copy in `scratch`, or less of it.
    Raises ResourceError where the scratch memory is too small."""
    if fault is Fault.SHORT:
        return buffer._replace(length=max(buffer.length - SECTOR_BYTES, 1))
    room = scratch.length if scratch is not None else 0
    if scratch is None or buffer.length > room:
        raise ResourceError(
            f"a store of {buffer.length} bytes cannot be changed in {room} bytes of memory; raise altered_max_mb"
        )
    copy = scratch._replace(length=buffer.length)
    copy.view[:] = buffer.view
    spoil(fault, key, copy.view)
    return copy
