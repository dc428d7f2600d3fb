"""Pages of SGLang's pools, and objects of the server that hold them.  torch is the only one that is imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from lmcache_client import LayoutPart

STAGED_BYTES: Final = 16 << 20
"""Of rows between a device and objects, however long a prompt is."""


class PoolPages:
    """What a pool has of all its layers, by page.  An object of the server is one page: `[plane][layer][slot][heads x
    dimension]`, C-contiguous.

    Any thread; who calls sees to it that pages and objects stay where they are until the call ends.
    """

    def __init__(self, planes: Sequence[Sequence[torch.Tensor]], page_size: int) -> None:
        """K and V, or what a pool has in place of both: one tensor `[slots, heads, dimension]` for each layer.  Raises
        ValueError where they are not alike."""
        first = planes[0][0]
        for tensor in (tensor for plane in planes for tensor in plane):
            if (tensor.shape, tensor.dtype, tensor.device) != (first.shape, first.dtype, first.device):
                raise ValueError(
                    f"K and V that differ: {_described(first)} and {_described(tensor)}; they must be alike"
                )
            if tensor.dim() != 3 or not tensor.is_contiguous():
                raise ValueError(f"{_described(tensor)}: contiguous [slots, heads, dimension] is understood")
        self.layers, self.page_size, self.dtype, self.device = len(planes[0]), page_size, first.dtype, first.device
        self.pages = first.shape[0] // page_size
        self._row = page_size * first.shape[1] * first.shape[2]
        whole = self.pages * page_size
        self._planes = [[each[:whole].view(self.pages, self._row) for each in plane] for plane in planes]
        self.layout = LayoutPart(
            len(planes), self.layers, page_size, first.shape[1] * first.shape[2], str(self.dtype).removeprefix("torch.")
        )

    def pages_of(self, indices: torch.Tensor) -> torch.Tensor:
        """As `page_numbers`, on the pool's device."""
        return page_numbers(indices, self.page_size, self.pages).to(self.device)

    def gather(self, pages: torch.Tensor, objects: Sequence[torch.Tensor]) -> None:
        """Copy pages into objects, which are the bytes of one each.  Returns when all is there."""
        for some, views in self._parts(pages, objects):
            for number, plane in enumerate(self._planes):
                for layer, rows in enumerate(plane):
                    for view, row in zip(views, self._rows(rows, some), strict=True):
                        view[number, layer] = row

    def scatter(self, layer: int, pages: torch.Tensor, objects: Sequence[torch.Tensor]) -> None:
        """Copy one layer of objects into pages.  Returns when all is there."""
        for some, views in self._parts(pages, objects):
            for number, plane in enumerate(self._planes):
                if self.device.type == "cpu":
                    for view, row in zip(views, self._rows(plane[layer], some), strict=True):
                        row.copy_(view[number, layer])
                else:
                    rows = torch.stack([view[number, layer] for view in views])
                    plane[layer].index_copy_(0, some, rows.to(self.device))
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _parts(
        self, pages: torch.Tensor, objects: Sequence[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
        step = max(1, STAGED_BYTES // (self._row * self.dtype.itemsize))
        for first in range(0, len(objects), step):
            views = [
                each.view(self.dtype).view(len(self._planes), self.layers, self._row)
                for each in objects[first : first + step]
            ]
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
