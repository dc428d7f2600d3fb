"""Both implementations of the kernels, for tests that hold for either."""

from __future__ import annotations

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.kernels.choice import PURE, Kernels, choose_kernels


@pytest.fixture(params=["pure", "native"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "pure":
        return PURE
    try:
        return choose_kernels("on")
    except ConfigError as error:
        pytest.skip(str(error))
