"""Both adapters keep every requirement with NIXL's POSIX backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lmcache_devkit import FileMedia, L2AdapterSuite
from lmcache_devkit.l2.rig import OBJECT_BYTES
from lmcache_l2_nixl.config import SLOT_BYTES
from lmcache_object_slots import SlotGeometry, meta_bytes_for, slot_adapter
from plugins.l2_nixl.tests.stalling import stall_nixl
from plugins.l2_raw_block.tests.slot_media import Slots

pytest.importorskip("nixl", reason="no build of NIXL is installed")

POOL_SIZE = 1200
SMALL_SLOTS = 20


@pytest.fixture(autouse=True)
def patient_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requirements ask what there is at once; on a machine with other work to do, half a second may not be enough to
    know."""
    monkeypatch.setattr(slot_adapter, "START_PATIENCE_SECONDS", 15.0)


class NixlSuite(L2AdapterSuite):
    open_close_rounds = 20
    payload_bytes_max = 8 * 2**20 + 1
    params: ClassVar[Mapping[str, Any]] = {"use_direct_io": "false"}

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path / "l2"

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return stall_nixl(monkeypatch)


class PoolSuite(NixlSuite):
    """Slots of the usual size, which cost nothing but a hole in a file."""

    offer = "nixl_store"
    small_bytes = SMALL_SLOTS * OBJECT_BYTES  # as many as fill the slots: capacity is counted in slots

    @pytest.fixture
    def settings(self, root: Path) -> Mapping[str, Any]:
        return {"backend": "POSIX", "pool_size": POOL_SIZE, "backend_params": {"file_path": str(root), **self.params}}

    @pytest.fixture
    def small_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        params = {"file_path": str(tmp_path / "small"), **self.params}
        return {"backend": "POSIX", "pool_size": SMALL_SLOTS, "slot_bytes": 16 * 2**10, "backend_params": params}

    @pytest.fixture
    def media(self, root: Path) -> Slots:
        return PoolMedia(root / "nixl-pool.slots")


class PoolMedia(Slots):
    """Of slots that are large, what is behind the objects of the requirements is not looked at."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SlotGeometry(SLOT_BYTES, POOL_SIZE, meta_bytes=meta_bytes_for(POOL_SIZE)))
        self._seen = path

    def _run(self, key: Any) -> bytes:
        with self._seen.open("rb") as file:
            file.seek(self._place(key))
            return file.read(4 * OBJECT_BYTES)


class FileSuite(NixlSuite):
    offer = "nixl_store_dynamic"

    @pytest.fixture
    def settings(self, root: Path) -> Mapping[str, Any]:
        return {"backend": "POSIX", "backend_params": {"file_path": str(root), **self.params}}

    @pytest.fixture
    def small_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        capacity = str(self.small_bytes / 2**30)
        params = {"file_path": str(tmp_path / "small"), "max_capacity_gb": capacity, **self.params}
        return {"backend": "POSIX", "backend_params": params}

    @pytest.fixture
    def media(self, root: Path) -> FileMedia:
        return FileMedia(root)


class TestPool(PoolSuite):
    pass


@pytest.mark.slow
class TestFiles(FileSuite):
    pass


@pytest.mark.slow
class TestPoolDirect(PoolSuite):
    params: ClassVar[Mapping[str, Any]] = {"use_direct_io": "true"}


@pytest.mark.slow
class TestFilesDirect(FileSuite):
    params: ClassVar[Mapping[str, Any]] = {"use_direct_io": True}
    open_close_rounds = 200


@pytest.mark.slow
class TestPoolPosixAio(PoolSuite):
    params: ClassVar[Mapping[str, Any]] = {"use_posix_aio": "true"}


@pytest.mark.slow
class TestFilesUring(FileSuite):
    params: ClassVar[Mapping[str, Any]] = {"use_uring": "true", "use_direct_io": "true", "kernel_queue_size": "64"}
