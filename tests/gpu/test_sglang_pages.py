"""Copies of SGLang's pages between a GPU and L1."""

from __future__ import annotations

import pytest
import torch

from lmcache_sglang import pool_pages
from lmcache_sglang.pool_pages import PoolPages

LAYERS, PAGES, PAGE, HEADS, DIMENSION = 3, 40, 64, 8, 128


@pytest.mark.parametrize("staged", [pool_pages.STAGED_BYTES, 1 << 18])
@pytest.mark.parametrize("planes", [1, 2])
def test_pages_are_as_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch, staged: int, planes: int) -> None:
    monkeypatch.setattr(pool_pages, "STAGED_BYTES", staged)
    chance = torch.Generator().manual_seed(planes)
    shape = (PAGES * PAGE, HEADS, DIMENSION)
    hosts = [[torch.randn(shape, generator=chance).to(torch.bfloat16) for _ in range(LAYERS)] for _ in range(planes)]
    devices = [[each.cuda() for each in plane] for plane in hosts]
    host, device = PoolPages(hosts, PAGE), PoolPages(devices, PAGE)
    numbers = torch.randperm(PAGES, generator=chance)[:17]
    slots = (numbers[:, None] * PAGE + torch.arange(PAGE)).flatten()
    nbytes = planes * LAYERS * PAGE * HEADS * DIMENSION * 2
    of_host, of_device = ([torch.zeros(nbytes, dtype=torch.uint8) for _ in numbers] for _ in range(2))

    host.gather(host.pages_of(slots), of_host)
    device.gather(device.pages_of(slots.cuda()), of_device)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(of_host, of_device, strict=True))

    for plane in (*hosts, *devices):
        for each in plane:
            each.zero_()
    for layer in range(LAYERS):
        host.scatter(layer, host.pages_of(slots), of_host)
        device.scatter(layer, device.pages_of(slots.cuda()), of_device)
    for mine, theirs in zip(hosts, devices, strict=True):
        assert all(torch.equal(one, other.cpu()) for one, other in zip(mine, theirs, strict=True))
