"""Where a storage that a worker described lies: checked before the driver sees any of it.

Both descriptors come down to a handle of the driver, and are imported with that.  torch is not asked to: its own import
would write to a shared-memory file that the worker names, and to read the descriptors of other kinds of memory it would
follow handles of files.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lmcache_transfer_torch.cuda.driver import HANDLE_BYTES
from lmcache_transfer_torch.descriptors import CudaRawStorage, CudaStorage, Storage
from lmcache_transfer_torch.device import DeviceError

_UUID: Final = re.compile(r"(?:GPU-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII | re.IGNORECASE)
_PLAIN: Final = ord("c")
"""The mark of memory from cudaMalloc in torch's handle, behind a version byte that does not change what follows."""
_EXPANDABLE: Final = ord("e")


class Place(NamedTuple):
    """Bytes `[offset, offset + nbytes)` of the allocation that `handle` names, on the GPU `uuid`."""

    uuid: str
    handle: bytes
    offset: int
    nbytes: int


def place_of(storage: Storage) -> Place:
    """Raises DeviceError."""
    uuid = _UUID.fullmatch(storage.metadata.device_uuid)
    if uuid is None:
        raise DeviceError(f"'{storage.metadata.device_uuid[:60]}' is not the uuid of a GPU")
    written = uuid.group(1).lower()
    if isinstance(storage, CudaRawStorage):
        return Place(written, storage.ipc_handle, storage.alloc_offset, storage.nbytes)
    if not isinstance(storage, CudaStorage):
        raise DeviceError("a storage that does not lie on a GPU")
    handle = storage.handle
    if handle.mem_handle is None or not handle.size_bytes:
        raise DeviceError("a storage without memory")
    return Place(written, _driver_handle(handle.mem_handle), handle.offset_bytes, handle.size_bytes)


def _driver_handle(raw: bytes) -> bytes:
    """Older torch sends the driver's handle as it is, newer with a version and a kind in front."""
    if len(raw) == HANDLE_BYTES:
        return raw
    if len(raw) > 2 and raw[1] == _EXPANDABLE:
        raise DeviceError(
            "the engine's memory comes from torch's expandable segments, which only torch itself can import; start the "
            "engine without expandable_segments, or with lmcache.mp.mp_transfer_mode=engine_driven"
        )
    if len(raw) == HANDLE_BYTES + 2 and raw[1] == _PLAIN:
        return raw[2:]
    raise DeviceError(f"a memory handle of {len(raw)} bytes is of no kind that is known")
