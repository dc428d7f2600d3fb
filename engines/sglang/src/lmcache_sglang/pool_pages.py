"""Pages of SGLang's pools, and objects of the server that hold them.  torch is the only one that is imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from lmcache_client import LayoutPart

STAGED_BYTES: Final = 16 << 20
"""Of rows between a device and objects, however long a prompt is."""


class PoolPages:
    """K and V of all layers, by page.  An object of the server is one page: `[2][layer][slot][head x dimension]`, C-contiguous.

    Any thread; who calls sees to it that pages and objects stay where they are until the call ends.
    """

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], page_size: int) -> None:
        """One tensor `[slots, heads, dimension]` for each layer.  Raises ValueError where they are not alike."""
        first = keys[0]
        for tensor in (*keys, *values):
            if (tensor.shape, tensor.dtype, tensor.device) != (first.shape, first.dtype, first.device):
                raise ValueError(
                    f"K and V that differ: {_described(first)} and {_described(tensor)}; they must be alike"
                )
            if tensor.dim() != 3 or not tensor.is_contiguous():
                raise ValueError(f"{_described(tensor)}: contiguous [slots, heads, dimension] is understood")
        self.layers, self.page_size, self.dtype, self.device = len(keys), page_size, first.dtype, first.device
        self.pages = first.shape[0] // page_size
        self._row = page_size * first.shape[1] * first.shape[2]
        whole = self.pages * page_size
        self._pools = [[each[:whole].view(self.pages, self._row) for each in side] for side in (keys, values)]
        self.layout = LayoutPart(
            2, self.layers, page_size, first.shape[1] * first.shape[2], str(self.dtype).removeprefix("torch.")
        )

    def pages_of(self, indices: torch.Tensor) -> torch.Tensor:
        """As `page_numbers`, on the pool's device."""
        return page_numbers(indices, self.page_size, self.pages).to(self.device)

    def gather(self, pages: torch.Tensor, objects: Sequence[torch.Tensor]) -> None:
        """Copy pages into objects, which are the bytes of one each.  Returns when all is there."""
        for some, views in self._parts(pages, objects):
            for kv, side in enumerate(self._pools):
                for layer, pool in enumerate(side):
                    for view, row in zip(views, self._rows(pool, some), strict=True):
                        view[kv, layer] = row

    def scatter(self, layer: int, pages: torch.Tensor, objects: Sequence[torch.Tensor]) -> None:
        """Copy one layer of objects into pages.  Returns when all is there."""
        for some, views in self._parts(pages, objects):
            for kv, side in enumerate(self._pools):
                if self.device.type == "cpu":
                    for view, row in zip(views, self._rows(side[layer], some), strict=True):
                        row.copy_(view[kv, layer])
                else:
                    rows = torch.stack([view[kv, layer] for view in views])
                    side[layer].index_copy_(0, some, rows.to(self.device))
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _parts(
        self, pages: torch.Tensor, objects: Sequence[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
        step = max(1, STAGED_BYTES // (self._row * self.dtype.itemsize))
        for first in range(0, len(objects), step):
            views = [each.view(self.dtype).view(2, self.layers, self._row) for each in objects[first : first + step]]
            yield pages[first : first + step], views

    def _rows(self, pool: torch.Tensor, pages: torch.Tensor) -> Sequence[torch.Tensor]:
        """One for each page, on the CPU: those of a pool that is there are the pool's own."""
        if self.device.type == "cpu":
            return [pool[page] for page in pages.tolist()]
        return list(pool.index_select(0, pages).to("cpu"))


def page_numbers(indices: torch.Tensor, page_size: int, pages: int) -> torch.Tensor:
    """Of slots, in the host's memory.  Raises ValueError unless they are whole pages of a pool of `pages`."""
    slots = indices.detach().to("cpu", torch.int64).flatten()
    if slots.numel() % page_size:
        raise ValueError(f"{slots.numel()} slots do not fill whole pages of {page_size}")
    rows = slots.view(-1, page_size)
    first = rows[:, :1]
    if bool((first % page_size).any()) or not torch.equal(rows, first + torch.arange(page_size)):
        raise ValueError(f"the slots of a page of {page_size} follow each other, from its first on")
    found = first.flatten() // page_size
    if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < pages:
        raise ValueError(f"page {int(found.max())} of a pool of {pages}")
    return found


def _described(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)} on {tensor.device}"
