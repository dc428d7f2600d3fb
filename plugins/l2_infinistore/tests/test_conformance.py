"""The `infinistore` adapter keeps every requirement, with a simulation of the package."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lmcache_core import LMCacheError, ObjectKey, media_path
from lmcache_devkit import L2AdapterSuite, Media, fail_methods
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.stalling import stall_methods
from lmcache_l2_infinistore import doctor
from lmcache_l2_infinistore.adapter import open_infinistore
from lmcache_l2_infinistore.config import InfinistoreSettings
from plugins.l2_infinistore.tests import simulated

CALLS = (
    "check_exist", "delete_keys", "tcp_write_cache", "tcp_read_cache", "rdma_write_cache_async", "rdma_read_cache_async"
)  # fmt: skip


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[simulated.Server]:
    """A server at the default address, and an RDMA device."""
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(doctor, "DEVICES", tmp_path)
    monkeypatch.setitem(sys.modules, "infinistore", simulated)
    server = simulated.Server()
    monkeypatch.setitem(simulated.SERVERS, ("127.0.0.1", 12345), server)
    yield server
    end = time.monotonic() + 5
    while server.open:  # one that was closed without time to end goes on for a moment
        assert time.monotonic() < end, "an adapter left connections open"
        time.sleep(0.01)


class SimulatedMedia(Media):
    def __init__(self, server: simulated.Server) -> None:
        self._values = server.values

    def read(self, key: ObjectKey) -> bytes | None:
        return self._values.get(f"lmcache/{media_path(key)}")

    def write(self, key: ObjectKey, data: bytes) -> None:
        self._values[f"lmcache/{media_path(key)}"] = data

    def remove(self, key: ObjectKey) -> None:
        self._values.pop(f"lmcache/{media_path(key)}", None)


class Setup(L2Fixtures):
    offer = "infinistore"
    payload_bytes_max = 4 * 2**20
    open_close_rounds = 50
    way: ClassVar[Mapping[str, Any]]

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return self.way

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return stall_methods(monkeypatch, simulated.InfinityConnection, CALLS)

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return fail_methods(monkeypatch, {simulated.InfinityConnection: CALLS}, lambda: Exception("failed"))


# The simulation outlives the adapter, which promises nothing.
@pytest.mark.filterwarnings("ignore:.*does not declare DURABLE:lmcache_devkit.UndeclaredCapability")
class TestTcp(Setup, L2AdapterSuite):
    way: ClassVar[Mapping[str, Any]] = {"connection_type": "tcp"}
    reached_by_processes = False

    @pytest.fixture
    def media(self, server: simulated.Server) -> Media | None:
        return SimulatedMedia(server)


@pytest.mark.filterwarnings("ignore:.*does not declare DURABLE:lmcache_devkit.UndeclaredCapability")
class TestRdma(Setup, L2AdapterSuite):
    way: ClassVar[Mapping[str, Any]] = {}
    reached_by_processes = False


def opened(**settings: Any) -> None:
    adapter = open_infinistore(InfinistoreSettings(**settings), adapter_context(BorrowedMemory(), name="store"))
    adapter.close(1)


def test_a_machine_without_rdma_is_said_before_and_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    opened()
    assert "RDMA is there (mlx5_0)" in caplog.text
    monkeypatch.setattr(doctor, "DEVICES", tmp_path / "none")
    with pytest.raises(LMCacheError, match=r"this machine has no RDMA device.*connection_type"):
        opened()
    assert [result.level for result in doctor.check(InfinistoreSettings())] == ["fail"]
    caplog.clear()
    opened(connection_type="tcp")
    assert "no RDMA device" in caplog.text
    assert [result.level for result in doctor.check(InfinistoreSettings(connection_type="tcp"))] == ["ok"]


def test_another_device_no_server_and_no_package_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LMCacheError, match=r"called mlx5_7: RDMA is there \(mlx5_0\)"):
        opened(dev_name="mlx5_7")
    with pytest.raises(LMCacheError, match="no InfiniStore answers at localhost:1 over tcp"):
        opened(port=1, connection_type="tcp")
    monkeypatch.setitem(sys.modules, "infinistore", None)
    with pytest.raises(LMCacheError, match="pip install infinistore"):
        opened()
