"""These tests need a GPU, its driver and triton, all in the environment that runs pytest; elsewhere they are skipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from lmcache_transfer_torch.cuda.libcuda import CudaDrivers
from lmcache_transfer_torch.device import DeviceError

HERE = Path(__file__).parent


def _skip_reason() -> str | None:
    try:
        gpus = CudaDrivers().gpus
    except DeviceError as error:
        return str(error)
    if not gpus:
        return "the driver sees no GPU"
    return None if importlib.util.find_spec("triton") else "triton is not installed"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(HERE)]
    reason = _skip_reason() if here else None
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def drivers() -> CudaDrivers:
    return CudaDrivers()
