from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_staging() -> Iterator[None]:
    """So small that ordinary transfers of the tests go in several pieces, by both streams."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmcache_transfer_torch.cuda.gpu.STAGING_BYTES", 256)
        yield
