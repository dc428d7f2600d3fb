"""A tensor of an engine, described without it."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_client import ITEM_BYTES
from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.limits import RANK_MAX, SPAN_MAX


@dataclass(frozen=True, slots=True)
class TensorView:
    """One registered tensor, or one plane of a layer's.

    `dtype` is torch's name for it, with or without `torch.`; sizes, strides and `storage_offset` are elements. `storage` is the
    caller's number for the memory that it lies in.  A view that spans no memory or too much of it is a `LayoutError`.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int = 0
    storage: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.dtype.removeprefix("torch."))
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "stride", tuple(self.stride))
        if self.dtype not in ITEM_BYTES:
            raise LayoutError(f"dtype '{self.dtype}' is not one that is copied; known: {', '.join(ITEM_BYTES)}")
        if len(self.shape) != len(self.stride):
            raise LayoutError(f"{self} has {len(self.shape)} sizes and {len(self.stride)} strides")
        if not 1 <= len(self.shape) <= RANK_MAX:
            raise LayoutError(f"a tensor of {len(self.shape)} dimensions; 1 to {RANK_MAX} are understood")
        if min(self.shape) < 1:
            raise LayoutError(f"{self} has a size below 1: there is nothing to copy")
        if min(self.stride) < 0 or self.storage_offset < 0 or self.storage < 0:
            raise LayoutError(f"{self} has a negative stride, offset or storage")
        if self.span_bytes() > SPAN_MAX:
            raise LayoutError(f"{self} spans {self.span_bytes()} bytes; the limit is {SPAN_MAX}")

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    def span_bytes(self) -> int:
        """Bytes from the start of the storage to behind the last element."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (self.storage_offset + last + 1) * self.item_bytes

    def check_inside(self, storage_bytes: int) -> None:
        """Raise `LayoutError` if the view reaches beyond a storage of this size."""
        if self.span_bytes() > storage_bytes:
            raise LayoutError(f"{self} reaches to byte {self.span_bytes()} of a storage of {storage_bytes} bytes")

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} strides {list(self.stride)}"
