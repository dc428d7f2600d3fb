"""The `dax` adapter keeps every requirement, each way it can be set up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lmcache_core import HEADER_BYTES
from lmcache_devkit import L2AdapterSuite
from lmcache_devkit.l2.rig import OBJECT_BYTES
from lmcache_devkit.l2.round_trips import RoundTrips
from lmcache_devkit.stalling import stall_methods
from lmcache_l2_dax.striped_medium import StripedMedium
from plugins.l2_dax.tests.slots_on_files import SlotsOnFiles

SLOT_BYTES = 256 * 2**10
SLOTS = 1100
META_BYTES = 2**20
"""More than the metadata of that number of slots."""


class DaxSuite(L2AdapterSuite):
    offer = "dax"
    way: ClassVar[Mapping[str, Any]] = {}
    devices: ClassVar[int] = 1
    small_bytes = 20 * OBJECT_BYTES  # capacity is a number of slots

    @pytest.fixture
    def files(self, memory_folder: Path) -> list[Path]:
        files = [memory_folder / f"device{number}" for number in range(self.devices)]
        for file in files:
            file.touch()
        return files

    @pytest.fixture
    def settings(self, files: list[Path]) -> Mapping[str, Any]:
        size = META_BYTES + -(-SLOTS // self.devices) * SLOT_BYTES
        return {
            "device_path": list(map(str, files)),
            "max_dax_size_gb": size / 2**30,
            "slot_bytes": SLOT_BYTES,
            **self.way,
        }

    @pytest.fixture
    def small_settings(self, memory_folder: Path) -> Mapping[str, Any]:
        """20 slots, and metadata that takes less than one more."""
        file = memory_folder / "small"
        file.touch()
        size = 21 * SLOT_BYTES
        return {"device_path": str(file), "max_dax_size_gb": size / 2**30, "slot_bytes": SLOT_BYTES, **self.way}

    @pytest.fixture
    def media(self, files: list[Path]) -> SlotsOnFiles:
        return SlotsOnFiles(files)

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        """Within it, no copy begins."""
        return stall_methods(monkeypatch, StripedMedium, ("write", "read"))


@pytest.mark.slow  # the requirements of TestPersistent but those about a restart
class TestVolatile(DaxSuite):
    open_close_rounds = 200


class TestPersistent(DaxSuite):
    way: ClassVar[Mapping[str, Any]] = {"persist_enabled": True}
    open_close_rounds = 50


@pytest.mark.slow  # the requirements of TestPersistent once more, on several devices
class TestStriped(DaxSuite):
    devices: ClassVar[int] = 3
    way: ClassVar[Mapping[str, Any]] = {"persist_enabled": True, "num_store_workers": 2, "num_load_workers": 3}
    open_close_rounds = 50


class TestLargeSlots(RoundTrips):
    offer = "dax"

    @pytest.fixture
    def settings(self, memory_folder: Path) -> Mapping[str, Any]:
        """A sparse file: only what is stored has pages."""
        file = memory_folder / "device"
        file.touch()
        slot_bytes = 64 * 2**20 + HEADER_BYTES
        return {"device_path": str(file), "max_dax_size_gb": 7 * slot_bytes / 2**30, "slot_bytes": slot_bytes}
