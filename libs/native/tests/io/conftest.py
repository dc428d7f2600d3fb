from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("lmcache_native", reason="lmcache-native is not installed")

from libs.native.tests.io.io_rig import Rig
from lmcache_native.io import IoEngine


@pytest.fixture(params=["threads", "io_uring"], scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    """Each engine that there is."""
    name: str = request.param
    if name == "io_uring" and not IoEngine.has_io_uring():
        pytest.skip("io_uring is not built in, or this kernel does not allow it")
    return name


@pytest.fixture(scope="module")
def rig(kind: str) -> Iterator[Rig]:
    """One engine for all tests of a file: whatever one test does to it, the next finds it working."""
    engine = IoEngine(kind, workers=2, queue_depth=8, bytes_in_flight=64 << 20)
    yield Rig(engine)
    assert engine.counters()["in_flight"] == engine.counters()["waiting"] == 0
    assert engine.close(30)
