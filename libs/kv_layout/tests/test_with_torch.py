"""Objects are those that a stock engine makes with torch."""

from __future__ import annotations

import pytest

from libs.kv_layout.tests.implementations import IMPLEMENTATIONS
from lmcache_kv_layout import LayoutHints, PageCopier, TensorView, detect_groups, object_layout

torch = pytest.importorskip("torch")

LAYERS, BLOCKS, SLOTS, HEADS, WIDTH = 3, 9, 16, 4, 8


def shown(tensor: object, storage: int) -> TensorView:
    t = tensor
    return TensorView(str(t.dtype), tuple(t.shape), tuple(t.stride()), t.storage_offset(), storage)  # type: ignore[attr-defined]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float8_e4m3fn"])
def test_fused_head_major_pages(implementation: str, name: str) -> None:
    dtype = getattr(torch, name)
    caches = [torch.randn(BLOCKS, HEADS, SLOTS, WIDTH).to(dtype) for _ in range(LAYERS)]
    (group,) = detect_groups([shown(cache, place) for place, cache in enumerate(caches)], LayoutHints())
    layout = object_layout((group,), 2 * SLOTS)
    assert layout.shape == (LAYERS, 2 * SLOTS, HEADS * WIDTH)
    chunks = [[5, 1], [2, 7]]
    objects = [torch.empty(layout.shape, dtype=dtype) for _ in chunks]
    copier = PageCopier(native=implementation)  # type: ignore[arg-type]
    bases = [cache.data_ptr() for cache in caches]
    copier.gather(group, bases, [5, 1, 2, 7], [each.data_ptr() for each in objects])
    for blocks, made in zip(chunks, objects, strict=True):
        stock = torch.stack([cache[blocks].permute(0, 2, 1, 3).reshape(2 * SLOTS, HEADS * WIDTH) for cache in caches])
        assert torch.equal(made.view(torch.uint8), stock.view(torch.uint8))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_separate_pages_shown_with_heads_and_slots_exchanged(implementation: str) -> None:
    physical = [torch.randn(2, BLOCKS, HEADS, SLOTS, WIDTH) for _ in range(LAYERS)]
    logical = [cache.permute(0, 1, 3, 2, 4) for cache in physical]
    (group,) = detect_groups([shown(cache, place) for place, cache in enumerate(logical)], LayoutHints(kv_layout="HND"))
    made = torch.empty((2, LAYERS, SLOTS, HEADS * WIDTH))
    copier = PageCopier(native=implementation)  # type: ignore[arg-type]
    bases = [physical[storage].data_ptr() + offset for storage, offset in group.bases]
    copier.gather(group, bases, [4], [made.data_ptr()])
    stock = torch.stack([cache[:, 4].reshape(2, SLOTS, HEADS * WIDTH) for cache in logical], dim=1)
    assert torch.equal(made, stock)
