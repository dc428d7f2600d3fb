"""What a worker says of its tensors: where each lies and how it is laid out.  Read strictly, and as data only.

Each registered tensor is one extension value of type 1; its content is a msgpack map with the tag `type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from lmcache_core import ITEM_BYTES, ProtocolError
from lmcache_kv_layout import TensorView

EXT_TYPE: Final = 1
TENSORS_MAX: Final = 4096
"""Tensors that one registration may name."""
RANK_MAX: Final = 8

Natural = Annotated[int, Meta(ge=0, le=2**62)]
Extents = Annotated[tuple[Natural, ...], Meta(min_length=1, max_length=RANK_MAX)]


class TensorMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Element type and geometry of a tensor; strides and offset count elements of its storage."""

    dtype: str
    shape: Extents
    stride: Extents
    storage_offset: Natural
    device_uuid: Annotated[str, Meta(max_length=128)]

    def view(self, storage: int) -> TensorView:
        """As the layout library sees it.  Raises ProtocolError."""
        if self.dtype not in ITEM_BYTES:
            raise ProtocolError(f"tensors of type '{self.dtype[:40]}' are not known; known are {', '.join(ITEM_BYTES)}")
        if len(self.shape) != len(self.stride):
            raise ProtocolError(f"a tensor of {len(self.shape)} dimensions has {len(self.stride)} strides")
        if 0 in self.shape:
            raise ProtocolError(f"a tensor of shape {list(self.shape)} has no elements")
        return TensorView(self.dtype, self.shape, self.stride, self.storage_offset, storage)


class _Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """What all kinds have.  Only version 1 is known."""

    metadata: TensorMetadata
    version: Literal[1]


class CpuStorage(_Described, frozen=True, tag="cpu_shm"):
    """A shared-memory segment of this host."""

    shm_name: Annotated[str, Meta(max_length=255)]
    nbytes: Annotated[int, Meta(ge=1, le=2**62)]

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.shm_name, self.nbytes)


class CudaHandle(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A storage that torch shares between processes, in torch's own words."""

    device: int
    mem_handle: Annotated[bytes, Meta(max_length=256)] | None
    size_bytes: Natural
    offset_bytes: Natural
    refcounter_handle: Annotated[bytes, Meta(max_length=256)] | None
    refcounter_offset: Natural
    event_handle: Annotated[bytes, Meta(max_length=256)] | None
    event_sync_required: bool


class CudaStorage(_Described, frozen=True, tag="cuda"):
    handle: CudaHandle

    @property
    def nbytes(self) -> int:
        return self.handle.size_bytes

    @property
    def identity(self) -> tuple[Any, ...]:
        handle = self.handle
        return (self.metadata.device_uuid, handle.mem_handle, handle.offset_bytes, handle.size_bytes)


class CudaRawStorage(_Described, frozen=True, tag="cuda_raw"):
    """Bytes `[alloc_offset, alloc_offset + nbytes)` of a device allocation."""

    ipc_handle: Annotated[bytes, Meta(min_length=64, max_length=64)]
    alloc_offset: Natural
    nbytes: Annotated[int, Meta(ge=1, le=2**62)]

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.metadata.device_uuid, self.ipc_handle, self.alloc_offset, self.nbytes)


Storage = CpuStorage | CudaStorage | CudaRawStorage
"""The kinds that this server can import.  Two tensors with one `identity` lie in one storage."""
KINDS: Final = {"cpu_shm": "cpu", "cuda": "cuda", "cuda_raw": "cuda"}
"""The device that a kind of storage lies on."""


class _Tag(msgspec.Struct):
    type: str = ""


_decode = msgspec.msgpack.Decoder(Storage).decode
_decode_tag = msgspec.msgpack.Decoder(_Tag).decode


def read_storage(extension: msgspec.msgpack.Ext) -> Storage:
    """Raises ProtocolError that says what is wrong with it."""
    if extension.code != EXT_TYPE:
        raise ProtocolError(f"a registered tensor is an extension of type {EXT_TYPE}, not {extension.code}")
    try:
        tag = _decode_tag(extension.data).type
        if tag not in KINDS:
            raise ProtocolError(f"storages of type '{tag[:40]}' cannot be imported here; known are {', '.join(KINDS)}")
        storage: Storage = _decode(extension.data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a registered tensor cannot be read: {error}") from None
    return storage


def read_views(extensions: Sequence[msgspec.msgpack.Ext]) -> tuple[str, tuple[Storage, ...], tuple[TensorView, ...]]:
    """The device that all tensors lie on, their storages without repetition, and a view for each tensor, checked to lie in
    its storage.  Raises ProtocolError."""
    if not 1 <= len(extensions) <= TENSORS_MAX:
        raise ProtocolError(f"{len(extensions)} tensors are registered; 1 to {TENSORS_MAX} can be")
    places: dict[tuple[Any, ...], int] = {}
    storages: list[Storage] = []
    views = []
    for number, extension in enumerate(extensions):
        storage = read_storage(extension)
        place = places.setdefault((type(storage), *storage.identity), len(storages))
        if place == len(storages):
            storages.append(storage)
        view = storage.metadata.view(place)
        try:
            view.check_inside(storage.nbytes)
        except ValueError as error:
            raise ProtocolError(f"registered tensor {number}: {error}") from None
        views.append(view)
    devices = {KINDS[_tag(storage)] for storage in storages}
    if len(devices) > 1:
        raise ProtocolError("one worker's tensors lie on one kind of device, not on cpu and cuda")
    return devices.pop(), tuple(storages), tuple(views)


def _tag(storage: Storage) -> str:
    tag: str = type(storage).__struct_config__.tag  # type: ignore[assignment]
    return tag
