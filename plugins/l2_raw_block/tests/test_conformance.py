"""The `raw_block` adapter keeps every requirement, each way it can be set up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lmcache_devkit import L2AdapterSuite
from lmcache_devkit.l2.rig import OBJECT_BYTES
from lmcache_devkit.l2.round_trips import RoundTrips
from lmcache_native.io import IoEngine
from lmcache_object_slots import SlotGeometry, slot_adapter
from plugins.l2_raw_block.tests.slot_media import Slots, stall_medium

META_BYTES = 2**20
SLOT_BYTES = 256 * 2**10
SLOTS = 1536
SMALL_SLOTS = 20

needs_io_uring = pytest.mark.skipif(not IoEngine.has_io_uring(), reason="this kernel or build has no io_uring")


def device(path: Path, slots: int, slot_bytes: int, **settings: Any) -> Mapping[str, Any]:
    """Settings for a new file of that number of slots."""
    with path.open("wb") as file:
        file.truncate(META_BYTES + slots * slot_bytes)
    return {"device_path": str(path), "slot_bytes": slot_bytes, "meta_total_bytes": META_BYTES, **settings}


@pytest.fixture(autouse=True)
def patient_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requirements ask what there is at once; on a machine with other work to do, half a second may not be enough to
    know."""
    monkeypatch.setattr(slot_adapter, "START_PATIENCE_SECONDS", 15.0)


class RawBlockSuite(L2AdapterSuite):
    offer = "raw_block"
    small_bytes = SMALL_SLOTS * OBJECT_BYTES  # as many as fill the slots: capacity is counted in slots
    way: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return device(tmp_path / "device", SLOTS, SLOT_BYTES, **self.way)

    @pytest.fixture
    def small_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return device(tmp_path / "small", SMALL_SLOTS, 16 * 2**10, **self.way)

    @pytest.fixture
    def media(self, tmp_path: Path, settings: Mapping[str, Any]) -> Slots:
        header_bytes, align = (settings.get(name, 4096) for name in ("header_bytes", "block_align"))
        return Slots(tmp_path / "device", SlotGeometry(SLOT_BYTES, SLOTS, header_bytes, align, META_BYTES))

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return stall_medium(monkeypatch)


class Reduced(RawBlockSuite):
    """What does not depend on how bytes are moved is shown once."""

    open_close_rounds = 20


class TestDirect(RawBlockSuite):
    open_close_rounds = 50


@pytest.mark.slow
class TestBuffered(Reduced):
    way: ClassVar[Mapping[str, Any]] = {"use_odirect": False, "io_engine": "threads", "fsync": True}


@needs_io_uring
@pytest.mark.slow
class TestIoUring(Reduced):
    way: ClassVar[Mapping[str, Any]] = {"io_engine": "io_uring", "iouring_queue_depth": 32}


@pytest.mark.slow
class TestOtherLayout(Reduced):
    way: ClassVar[Mapping[str, Any]] = {
        "header_bytes": 16_384, "block_align": 8192, "enable_zero_copy": False, "meta_verify_on_load": True,
    }  # fmt: skip

    @pytest.fixture
    def small_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return device(tmp_path / "small", SMALL_SLOTS, 32 * 2**10, **self.way)


class LargeObjects(RoundTrips):
    offer = "raw_block"
    way: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return device(tmp_path / "device", 8, 68 * 2**20, **self.way)


class TestLargeDirect(LargeObjects):
    pass


@needs_io_uring
class TestLargeIoUring(LargeObjects):
    way: ClassVar[Mapping[str, Any]] = {"io_engine": "io_uring"}
