"""Copies between pools and objects."""

from __future__ import annotations

import pytest
import torch

from lmcache_sglang import pool_pages
from lmcache_sglang.pool_pages import PoolPages

LAYERS, PAGES, PAGE, HEADS, DIMENSION = 3, 7, 16, 2, 8


def pools(seed: int, planes: int = 2) -> PoolPages:
    chance = torch.Generator().manual_seed(seed)
    shape = (PAGES * PAGE, HEADS, DIMENSION)
    return PoolPages(
        [[torch.randn(shape, generator=chance).to(torch.bfloat16) for _ in range(LAYERS)] for _ in range(planes)], PAGE
    )


def slots(*pages: int) -> torch.Tensor:
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


@pytest.mark.parametrize("staged", [pool_pages.STAGED_BYTES, 1])
@pytest.mark.parametrize("planes", [1, 2])
def test_what_is_gathered_comes_back_layer_by_layer_and_nothing_else_changes(
    monkeypatch: pytest.MonkeyPatch, staged: int, planes: int
) -> None:
    monkeypatch.setattr(pool_pages, "STAGED_BYTES", staged)
    source, target, untouched = pools(1, planes), pools(2, planes), pools(2, planes)
    objects = [
        torch.zeros(source.layout.layers * planes * PAGE * HEADS * DIMENSION * 2, dtype=torch.uint8) for _ in range(3)
    ]
    source.gather(source.pages_of(slots(5, 1, 2)), objects)
    for layer in range(LAYERS):
        target.scatter(layer, target.pages_of(slots(0, 6, 3)), objects)
        for kv in range(planes):
            mine, theirs, before = (each._planes[kv][layer] for each in (target, source, untouched))
            assert torch.equal(mine[[0, 6, 3]], theirs[[5, 1, 2]])
            assert torch.equal(mine[[1, 2, 4, 5]], before[[1, 2, 4, 5]])
        for later in range(layer + 1, LAYERS):
            assert torch.equal(target._planes[0][later], untouched._planes[0][later])


def test_an_object_is_k_and_v_by_layer_and_slot() -> None:
    source = pools(1)
    (data,) = [torch.zeros(2 * LAYERS * PAGE * HEADS * DIMENSION * 2, dtype=torch.uint8)]
    source.gather(source.pages_of(slots(4)), [data])
    seen = data.view(torch.bfloat16).view(2, LAYERS, PAGE * HEADS * DIMENSION)
    assert torch.equal(seen[1, 2], source._planes[1][2][4])
    assert (source.layout.kv_axis, source.layout.layers, source.layout.slots) == (2, LAYERS, PAGE)
    assert (source.layout.hidden, source.layout.dtype) == (HEADS * DIMENSION, "bfloat16")


@pytest.mark.parametrize(
    ("indices", "said"),
    [
        (slots(1)[:-1], "15 slots do not fill whole pages of 16"),
        (slots(1) + 1, "follow each other"),
        (slots(1).flip(0), "follow each other"),
        (torch.cat([slots(1)[:8], slots(2)[8:]]), "follow each other"),
        (slots(PAGES), "page 7 of a pool of 7"),
        (slots(0) - PAGE, "of a pool of 7"),
    ],
)
def test_all_but_whole_pages_of_the_pool_are_refused(indices: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pools(1).pages_of(indices)


def test_pools_that_differ_are_refused() -> None:
    alike, other = torch.zeros(32, 2, 8), torch.zeros(32, 2, 4)
    with pytest.raises(ValueError, match="K and V that differ"):
        PoolPages([[alike], [other]], PAGE)
    with pytest.raises(ValueError, match="contiguous"):
        PoolPages([[alike.transpose(1, 2)]], PAGE)
